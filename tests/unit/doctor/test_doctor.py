"""The verb, over saved probes and over this machine: its events, its answer, its exit code."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context
from ipexctl.act.ssh import Links
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Answer, Ended, Event, FactsRead, FindingReported, HostFailed, Started
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.json_values import to_json
from ipexctl.model.tasks import Doctor
from ipexctl.verbs.doctor.doctor import check_recorded, doctor
from tests.tables import read_table

HERE = Inventory((Host("here", "localhost"),))


def context(place: Path) -> Context:
    return Context(Links(), place / "state", place / "cache")


def answer(events: Iterable[Event]) -> dict[str, Any]:
    return dict(to_json(next(event.value for event in events if isinstance(event, Answer))))


def ended(events: Iterable[Event]) -> Exit:
    return next(event.exit for event in events if isinstance(event, Ended))


def text_of(flags: str) -> str:
    block = f"processor: 0\nvendor_id: GenuineIntel\ncpu family: 6\nmodel: 85\nstepping: 7\nflags: lm {flags}\n"
    return json.dumps({"files": {"/proc/cpuinfo": block}, "commands": {}})


def test_this_machine_can_be_looked_at_and_saved_and_judged_again(tmp_path: Path) -> None:
    saved = tmp_path / "bundles"
    live = list(doctor(Doctor(save_bundle=str(saved), venv=str(tmp_path / "env")), HERE, context(tmp_path)))
    assert isinstance(live[0], Started)
    assert [type(event) for event in live][-2:] == [Answer, Ended]
    assert [event.host for event in live if isinstance(event, FactsRead)] == ["here"]
    file = saved / "here.json"
    assert file.stat().st_mode & 0o777 == 0o600
    again = list(doctor(Doctor(recorded=(str(file),)), HERE, context(tmp_path)))
    before, after = (answer(events)["hosts"][0]["facts"] for events in (live, again))
    moving = {"clock_offset", "clock_error", "machine_id"}
    assert {key: value for key, value in after.items() if key not in moving} == {
        key: value for key, value in before.items() if key not in moving
    }
    json.dumps(answer(live))
    assert answer([*doctor(Doctor(recorded=(str(saved),)), HERE, context(tmp_path))])["hosts"][0]["host"] == "here"


@pytest.mark.parametrize(("asked", "alone", "kept"), read_table("doctor/last_answers"))
def test_a_link_is_closed_behind_a_last_answer(tmp_path: Path, asked: dict[str, Any], alone: bool, kept: bool) -> None:
    place = context(tmp_path)
    (here,) = HERE
    link = place.links.open(here)
    events = list(doctor(Doctor(venv=str(tmp_path / "env"), **asked), HERE, place, alone=alone))
    assert answer(events)["hosts"][0]["facts"]["logical_online"]
    assert (place.links.open(here) is link) == kept


def test_mixed_instruction_sets_in_saved_probes_are_found_and_end_with_4() -> None:
    avx512 = "avx2 fma avx512f avx512bw avx512cd avx512dq avx512vl"
    texts = {"new": text_of(f"{avx512} avx512_vnni avx512_bf16"), "old": text_of(f"{avx512} avx512_vnni")}
    events = list(check_recorded(texts))
    findings = {event.finding.code: event.finding for event in events if isinstance(event, FindingReported)}
    assert (findings["CPU002"].level, findings["CPU002"].hosts) == ("error", ("old",))
    assert answer(events)["common_isa"] == "AVX512_VNNI"
    assert "float32" in answer(events)["advice"][0]
    assert ended(events) is Exit.STEP


def test_fit_saved_probes_end_with_0() -> None:
    assert ended(list(check_recorded({"a": text_of("avx2 fma"), "b": text_of("avx2 fma")}))) is Exit.OK


@pytest.mark.parametrize("rubbish", ['{"files": {}, "commands": {}}', "", "# Title\n", "[]"])
def test_a_saved_probe_without_answers_is_a_failed_host_beside_the_others(rubbish: str) -> None:
    events = list(check_recorded({"a": text_of("avx2 fma"), "empty": rubbish, "b": text_of("avx2 fma")}))
    assert [event.host for event in events if isinstance(event, FactsRead)] == ["a", "b"]
    (failure,) = (event.failure for event in events if isinstance(event, HostFailed))
    assert (failure.host, failure.code) == ("empty", "no-probe")
    hosts = answer(events)["hosts"]
    assert [host["host"] for host in hosts] == ["a", "empty", "b"]
    assert hosts[1]["facts"] is None
    assert [result["hosts"] for result in answer(events)["findings"] if result["code"] == "DOC003"] == [["empty"]]
    assert ended(events) is Exit.STEP
    with pytest.raises(UsageError, match="empty is not a saved probe"):
        list(check_recorded({"empty": rubbish, "another": rubbish}))


def test_of_saved_probes_one_is_in_memory_at_a_time_and_not_all_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 files of a stranger, holes of 16 MiB that took no room, were 3.3 GB here."""
    paths = {name: tmp_path / f"{name}.json" for name in ("a", "b")}
    for path in paths.values():
        path.write_text(text := text_of("avx2 fma"))
    assert ended(list(check_recorded(paths))) is Exit.OK
    monkeypatch.setattr("ipexctl.verbs.doctor.doctor._PROBES_LIMIT", len(text))
    with pytest.raises(UsageError, match="the saved probes are larger than"):
        list(check_recorded(paths))


def test_saved_probes_of_the_same_name_are_distinguished_by_their_paths(tmp_path: Path) -> None:
    paths = []
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        paths.append(str(tmp_path / directory / "bundle.json"))
        Path(paths[-1]).write_text(text_of("avx2 fma"))
    events = list(doctor(Doctor(recorded=tuple(paths)), HERE, context(tmp_path)))
    assert [entry["host"] for entry in answer(events)["hosts"]] == paths
    with pytest.raises(UsageError, match="given twice"):
        list(doctor(Doctor(recorded=(paths[0], paths[0])), HERE, context(tmp_path)))


@pytest.mark.parametrize("name", ["nothing.json", "."])
def test_what_is_no_file_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"does not exist|is a directory"):
        list(doctor(Doctor(recorded=(str(tmp_path / name),)), HERE, context(tmp_path)))


def test_a_code_is_explained_without_any_host(tmp_path: Path) -> None:
    events = list(doctor(Doctor(explain="net001"), Inventory(()), context(tmp_path)))
    assert "127.0.1.1" in answer(events)["text"]
    assert ended(events) is Exit.OK


@pytest.mark.parametrize("kind", ["link", "pipe", "open"])
def test_a_bundle_is_a_new_file_of_this_user_alone(tmp_path: Path, kind: str) -> None:
    """Another user may have put something in its place: a pipe was waited for, and his file had the answers."""
    victim, saved = tmp_path / "victim", tmp_path / "bundles"
    victim.write_text("mine")
    victim.chmod(0o666)
    saved.mkdir()
    place = saved / "here.json"
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(victim) if kind == "link" else place.hardlink_to(victim)
    list(doctor(Doctor(save_bundle=str(saved)), HERE, context(tmp_path)))
    assert victim.read_text() == "mine"
    status = place.lstat()
    assert (status.st_nlink, oct(status.st_mode)) == (1, "0o100600")
