"""The page of a cluster, and what later runs know of it."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.act.context import Context
from ipexctl.act.ssh import Links
from ipexctl.decide.page.cluster import build_cluster_page, find_differences, list_properties, make_doctor_record
from ipexctl.model.answers.doctor import DoctorAnswer, DoctorHost, HostFailure, NetworkCheck, TriedConnection
from ipexctl.model.errors import Kind, UsageError
from ipexctl.model.events import Message
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.tasks import Doctor
from ipexctl.show.page.render import render_cluster, render_run
from ipexctl.verbs.common.pages import find_doctor_record, save_doctor_record
from ipexctl.verbs.doctor.doctor import check_recorded, doctor
from tests.unit.doctor.test_doctor import text_of
from tests.unit.page.runs import EVIL, fold_page, make_doctor, make_facts, make_run
from tests.unit.page.test_render import Reader
from tests.unit.show.streams import START, names


def make_answer(hosts: tuple[str, ...], *, bench: bool = True, words: str = EVIL) -> DoctorAnswer:
    """One host of another kind, one that does not answer."""
    record, good = make_doctor(hosts), make_facts()
    odd = replace(good, isa_level="AVX512_VNNI", governor="powersave")
    every = [DoctorHost(host, odd if host == hosts[1] else good) for host in hosts[:-1]]
    every.append(DoctorHost(hosts[-1], None, None, HostFailure(Kind.UNREACHABLE, f"no answer {words}", "timeout")))
    made = tuple(TriedConnection(a, b, 8e-5, 1e9) for a in hosts for b in hosts if a != b)
    network = NetworkCheck(len(made), (), 8e-5, 9e-5, 1e9, 1e9, 9000, (), {}, made)
    speed = record.speed if bench else None
    return DoctorAnswer(tuple(every), record.findings, "AVX512_VNNI", ("bf16 on 2 hosts",), network, speed=speed)


def test_differences_name_each_value_with_its_hosts_the_commonest_first() -> None:
    differences = find_differences([("a", {"x": "1", "y": "1"}), ("b", {"x": "2"}), ("c", {"x": "2", "y": "1"})])
    assert [(each.name, each.values) for each in differences] == [
        ("x", (("2", ("b", "c")), ("1", ("a",)))),
        ("y", (("1", ("a", "c")), ("not known", ("b",)))),
    ]
    assert find_differences([("a", {"x": "1"}), ("b", {"x": "1"})]) == ()


def test_limits_are_compared_in_words() -> None:
    properties = list_properties(Facts(limits={"nofile": 1024, "memlock": None}))
    assert properties == {"open files": "1024", "locked memory": "unlimited"}


def test_the_page_has_hosts_differences_findings_speeds_and_the_network() -> None:
    html = render_cluster(build_cluster_page(make_answer(names(3)), START))
    reader = Reader(html)
    shown = ["not fit: 1 warning, 1 host could not be probed", "powersave", "NET004", "ip link set eth1 mtu 1500"]
    shown += ["21,000 Gflop/s", "480 GB/s", "19.2", "80 µs", "bf16 on 2 hosts", "AVX512_VNNI", "xeon03"]
    for words in shown:
        assert words in reader.text, words
    assert [tag for tag, _ in reader.elements].count("script") == 1
    assert not [attributes for _, attributes in reader.elements if "onerror" in attributes]


def test_saved_probes_have_a_page_too(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    texts = {"new": text_of("avx2 fma avx512f"), "old": text_of("avx2 fma")}
    events = list(check_recorded(texts, page=str(page), at=START))
    assert [event.code for event in events if isinstance(event, Message)] == ["page"]
    assert "not measured" in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


def test_a_page_that_cannot_be_written_is_refused_before_any_host_is_asked(tmp_path: Path) -> None:
    context = Context(Links(), tmp_path, tmp_path)
    nobody = Inventory((Host("a", "192.0.2.1"),))
    with pytest.raises(UsageError, match="its directory does not exist"):
        next(doctor(Doctor(), nobody, context, page=str(tmp_path / "none" / "page.html")))
    with pytest.raises(UsageError, match="not a regular file"):
        next(doctor(Doctor(), nobody, context, page=str(tmp_path)))


def test_a_run_shows_what_doctor_last_reported_of_its_hosts(tmp_path: Path) -> None:
    save_doctor_record(tmp_path, make_answer(names(3)), START - 500)
    save_doctor_record(tmp_path, make_answer(names(3), bench=False), START - 400)
    record = find_doctor_record(tmp_path, names(2))
    assert record is not None
    assert (record.at, record.speed_at) == (START - 400, START - 500)  # speeds are of the look that measured them
    assert find_doctor_record(tmp_path, names(4)) is None
    text = render_run(fold_page(make_run("good"), record))
    assert "NET004" in text
    assert "19.2" in text


def test_a_record_of_doctor_that_is_damaged_or_cannot_be_written_is_none(tmp_path: Path) -> None:
    save_doctor_record(tmp_path, make_answer(names(2)), START)
    (path,) = (tmp_path / "doctor").iterdir()
    path.write_text('{"at": 1}')
    assert find_doctor_record(tmp_path, names(2)) is None
    (tmp_path / "file").touch()
    save_doctor_record(tmp_path / "file", make_answer(names(2)), START)


def test_old_records_of_doctor_make_room(tmp_path: Path) -> None:
    for number in range(40):
        hosts = (f"a{number}", f"b{number}")
        save_doctor_record(tmp_path, make_answer(hosts, bench=False), START + number)
        for path in (tmp_path / "doctor").iterdir():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 1))
    assert len(list((tmp_path / "doctor").iterdir())) == 32
    assert find_doctor_record(tmp_path, ("a39",)) is not None
    assert find_doctor_record(tmp_path, ("a0",)) is None


@pytest.mark.parametrize("same", [True, False])
def test_speeds_are_remembered_for_the_same_hosts_only(same: bool) -> None:
    before = make_doctor_record(START, make_answer(names(3)))
    after = make_doctor_record(START + 1, make_answer(names(3 if same else 2), bench=False), before)
    assert (after.speed is not None) == same
