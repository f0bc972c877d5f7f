"""What runs know of their cluster: properties of hosts, and what doctor reported of them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.decide.page.cluster import list_properties, make_doctor_record
from ipexctl.model.answers.doctor import DoctorAnswer, DoctorHost, HostFailure, NetworkCheck
from ipexctl.model.errors import Kind
from ipexctl.model.facts import Facts
from ipexctl.show.page.render import render_run
from ipexctl.store.masking import Masker
from ipexctl.verbs.common.pages import find_doctor_record, save_doctor_record
from tests.unit.page.runs import EVIL, fold_page, make_doctor, make_facts, make_run
from tests.unit.show.streams import START, names

MASKER = Masker({})


def make_answer(hosts: tuple[str, ...], *, bench: bool = True) -> DoctorAnswer:
    """One host of another kind, one that does not answer."""
    record, good = make_doctor(hosts), make_facts()
    odd = replace(good, isa_level="AVX512_VNNI", governor="powersave")
    every = [DoctorHost(host, odd if host == hosts[1] else good) for host in hosts[:-1]]
    every.append(DoctorHost(hosts[-1], None, None, HostFailure(Kind.UNREACHABLE, f"no answer {EVIL}", "timeout")))
    speed = record.speed if bench else None
    network = NetworkCheck(0, (), None, None, None, (), {})
    return DoctorAnswer(tuple(every), record.findings, "AVX512_VNNI", ("bf16 on 2 hosts",), network, speed=speed)


def test_limits_are_compared_in_words() -> None:
    properties = list_properties(Facts(limits={"nofile": 1024, "memlock": None}))
    assert properties == {"open files": "1024", "locked memory": "unlimited"}


def test_a_run_shows_what_doctor_last_reported_of_its_hosts(tmp_path: Path) -> None:
    save_doctor_record(tmp_path, make_answer(names(3)), START - 500, MASKER)
    save_doctor_record(tmp_path, make_answer(names(3), bench=False), START - 400, MASKER)
    save_doctor_record(tmp_path, make_answer(names(3)), START + 900, MASKER)  # which a page drawn again does not show
    record = find_doctor_record(tmp_path, names(2), START)
    assert record is not None
    assert (record.at, record.speed_at) == (START - 400, START - 500)  # speeds are of the look that measured them
    assert find_doctor_record(tmp_path, names(4), START) is None
    assert find_doctor_record(tmp_path, names(2), START - 600) is None
    text = render_run(fold_page(make_run("good"), record))
    assert "NET004" in text
    assert "19.2" in text


def test_a_record_of_doctor_that_is_damaged_or_cannot_be_written_is_none(tmp_path: Path) -> None:
    save_doctor_record(tmp_path, make_answer(names(2)), START, MASKER)
    (path,) = (tmp_path / "doctor").iterdir()
    path.write_text('{"at": 1}')
    assert find_doctor_record(tmp_path, names(2), START) is None
    path.unlink()
    os.mkfifo(path)  # held the end of a run, where others can write the state
    assert find_doctor_record(tmp_path, names(2), START) is None
    (tmp_path / "file").touch()
    save_doctor_record(tmp_path / "file", make_answer(names(2)), START, MASKER)


def test_a_record_of_doctor_holds_no_password_of_a_command_that_failed(tmp_path: Path) -> None:
    answer = make_answer(names(2))
    finding = replace(answer.findings[0], title="its ProxyCommand ended: nc --password hunter2hunter2 node0 22")
    answer = replace(answer, findings=(finding,))
    save_doctor_record(tmp_path, answer, START, MASKER)
    (path,) = (tmp_path / "doctor").iterdir()
    assert "--password ***" in path.read_text()


def test_old_records_of_doctor_make_room(tmp_path: Path) -> None:
    for number in range(80):
        hosts = (f"a{number}", f"b{number}")
        save_doctor_record(tmp_path, make_answer(hosts, bench=False), START + number, MASKER)
        for path in (tmp_path / "doctor").iterdir():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 1))
    assert len(list((tmp_path / "doctor").iterdir())) == 64
    assert find_doctor_record(tmp_path, ("a79",), START + 99) is not None
    assert find_doctor_record(tmp_path, ("a0",), START + 99) is None


@pytest.mark.parametrize("same", [True, False])
def test_speeds_are_remembered_for_the_same_hosts_only(same: bool) -> None:
    before = make_doctor_record(START, make_answer(names(3)))
    after = make_doctor_record(START + 1, make_answer(names(3 if same else 2), bench=False), before)
    assert (after.speed is not None) == same


def test_no_file_of_another_directory_makes_room_for_a_record_of_doctor(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    for number in range(70):
        (others / f"{number}.json").write_text("{}")
    (tmp_path / "doctor").symlink_to(others)  # of another user, who may write the directory above
    save_doctor_record(tmp_path, make_answer(names(2)), START, MASKER)
    assert len(list(others.iterdir())) == 70
