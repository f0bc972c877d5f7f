"""Records of saved runs that somebody else wrote: they may hold any value that JSON has."""

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ipexctl.cli import app
from ipexctl.decide.diagnosis.evidence import collect_evidence
from ipexctl.decide.diagnosis.stack_traces import find_script_line
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.saved_runs import RunFilter
from ipexctl.decide.tune.ranking import Ranking
from ipexctl.model import events as e
from ipexctl.model.errors import Exit
from ipexctl.model.reports import RankOutcome
from ipexctl.model.secrets import mask_forms
from ipexctl.model.text import strip_colours
from ipexctl.show.run_screen import get_last_output
from ipexctl.store.masking import EventMasker, Masker
from ipexctl.verbs.run.replay import find_saved_run, read_run_ids, read_saved_run
from ipexctl.verbs.run.saved_runs import list_runs

Line = Mapping[str, object]
STARTED: Line = {"at": 1.0, "event": "started", "verb": "run", "title": "x", "hosts": []}
STUDY: Line = {"at": 1.0, "event": "study-started", "knobs": {}, "task": [1], "metric": "pace", "minimize": False,
               "budget": 1.0, "seed": 0, "steps": 1}  # fmt: skip
TRIED: Line = {"at": 2.0, "event": "candidate-tried", "outcome": "measured", "host_time": 1.0, "seconds": 1.0}
CRASH = "Fatal Python error: Aborted\n\nCurrent thread 0x1\n"
OUTPUT: Line = {"at": 2.0, "event": "output", "rank": 0, "host": "h", "stream": "out", "partial": False}


def write(directory: Path, lines: Sequence[Line | str], output: bytes = b"") -> Path:
    """Makes a record of these lines, and of what rank 0 wrote."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (directory / "ranks").mkdir()
    (directory / "events.jsonl").write_text("\n".join(texts) + "\n")
    (directory / "ranks" / "0.out").write_bytes(output)
    return directory


def nest(depth: int, opening: str, closing: str) -> str:
    value = opening * depth + "1" + closing * depth
    return f'{{"at": 1.0, "event": "answer", "kind": "another", "value": {{"a": {value}}}}}'


RANK: Line = {"at": 1, "event": "run-started", "run": "r", "head": "h", "ranks": ["h"], "command": "c"}
ENDED: Line = {"at": 3, "event": "run-ended", "run": "r", "reason": "done"}
SAMPLE: Line = {
    "at": 2, "event": "host-sample", "host": "h", "host_time": 2, "seconds": 1.0, "cpu": 1.0, "cores": 4,
    "memory_total": 1 << 39,
}  # fmt: skip
FAILURE: Line = {"host": "h", "kind": "step", "what": "w", "hint": "ipexctl 'x"}
RATES = [({}, 1e-308), ({"ppn": 2}, 1e308), ({}, 1e308), ({"ppn": 1}, 1e-308)]
RECORDS: dict[str, list[Line | str]] = {
    "lists in each other": [STARTED, nest(700, "[", "]")],
    "objects in each other": [STARTED, nest(90, '{"a": ', "}")],
    "more lost bytes than digits": [
        STARTED, json.dumps(OUTPUT)[:-1] + f', "offset": 0, "length": 1, "lost": {"9" * 4300}}}',
        f'{{"event": "gap", "lines": {"9" * 4300}}}',
    ],
    "output at the end of the largest file": [STARTED, {**OUTPUT, "offset": (1 << 63) - 1, "length": 0}],
    "half an option": [{**STARTED, "place": ["-f"]}, RANK, {**ENDED, "reason": "rank"}],
    "CPUs without an end": [
        STARTED, {"at": 1, "event": "facts-read", "host": "h", "facts": {"cpus_online": "0-99999999999"}},
    ],
    "half a command": [STARTED, {"at": 1, "event": "host-failed", "failure": FAILURE}],
    "a run without ranks": [STARTED, {**RANK, "ranks": []}, ENDED],
    "a launch of no study": [STARTED, {**TRIED, "values": {}, "rates": {"pace": 1.0}}],
    "a memory of 400 digits": [STARTED, RANK, {**SAMPLE, "memory": 10**400}, ENDED],
    "a start before all time": [
        STARTED, {**RANK, "host_time": -1e308, "title": "t"}, ENDED,
        {"at": 2, "event": "launcher-output", "stream": "err", "data": "x\n"},
    ],
    "a socket that is no text": [
        STARTED,
        {"at": 1, "event": "facts-read", "host": "h", "facts": {"cpus_online": "0", "socket_cpus": {"\udc80": "0"}}},
        RANK, ENDED,
    ],
    "an option that is no text": [STARTED, {**STUDY, "task": {"script": "none.py", "\udc80": 1}}],
    "rates beyond measure": [STUDY, *({**TRIED, "values": values, "rates": {"pace": rate}} for values, rate in RATES)],
    "a checkpoint of many digits": [
        STARTED, *({**RANK, "restart": at, "resumed": {"name": f"step-{'9' * 5000}"}} for at in (1, 2)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_no_record_ends_a_command_with_an_internal_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (directory := tmp_path / "record").mkdir()
    write(directory, RECORDS[name])
    archive = str(tmp_path / "archive.tar.gz")
    support, resume = ["support", "--yes", "-o", archive], ["tune", "--hosts", "localhost", "--resume"]
    commands = (["replay"], ["replay", "--json"], ["report"], ["runs"], ["logs"], support, resume)
    for command in commands:
        done = CliRunner().invoke(app, [*command, str(directory)])
        assert done.exit_code != Exit.INTERNAL, (command, done.output[-300:])


@pytest.mark.parametrize(
    "taken",
    [
        *({"pass_env": ["API_KEY"]}, {"env_file": ".env"}, {"stdin": "/etc/passwd"}),
        *({"into": "../tuned.yaml"}, {"project": "/etc"}, {"accelerate_config": "~/a.yaml"}),
    ],
)
def test_a_study_of_somebody_else_takes_neither_variables_nor_files(
    taken: Mapping[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (own := tmp_path / "state/ipexctl/runs/tune-1").mkdir(parents=True)
    (other := tmp_path / "study").mkdir()
    for directory, refused in ((other, True), (own, False)):
        write(directory, [STARTED, {**STUDY, "task": {"script": "none.py", **taken}}])
        done = CliRunner().invoke(app, ["tune", "--hosts", "localhost", "--resume", str(directory)])
        assert done.exit_code == Exit.INPUT
        assert ("is not saved here" in done.output) == refused, done.output


def test_a_study_whose_secrets_its_record_does_not_have_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write(tmp_path, [STARTED, {**STUDY, "task": {"script": "none.py", "args": ["--api_token", "***"]}}])
    done = CliRunner().invoke(app, ["tune", "--hosts", "localhost", "--resume", str(tmp_path)])
    assert done.exit_code == Exit.INPUT
    assert "had secrets among its arguments" in done.output


def test_bytes_that_a_record_refers_to_again_and_again_are_shown_a_few_times(tmp_path: Path) -> None:
    """A hundred bytes of the record were all of the rank's file, as often as they stood there."""
    output = b"x" * 9999 + b"\n"
    whole = {**OUTPUT, "offset": 0, "length": len(output)}
    write(tmp_path, [STARTED, *[whole] * 1000], output)
    shown = [stamped.event for stamped in read_saved_run(tmp_path, Masker({}))]
    assert 1 <= sum(isinstance(event, e.Output) for event in shown) <= 5
    assert sum(isinstance(event, e.Message) and event.code == "record-gap" for event in shown) > 990


@pytest.mark.parametrize("read", [
    lambda text: strip_colours(f"\x1b[{'1;' * (len(text) // 2)}"),
    lambda text: get_last_output(RankOutcome(0, "h", "failed", traceback=CRASH + "Thread 0x2\n" + text)),
    lambda text: find_script_line(CRASH + "  File x\n" * (len(text) // 9), ""),
    lambda text: collect_evidence(RankOutcome(0, "h", "failed", traceback="a " * (len(text) // 2))),
    lambda text: mask_forms(b"-----BEGIN PRIVATE KEY-----" + b":\n" * (len(text) // 2)),
])  # fmt: skip
def test_no_pattern_takes_many_times_the_memory_of_a_text(read: Callable[[str], object]) -> None:
    """Each turn of a group without a bound took 134 bytes: GiBs for a line of 32 MiB."""
    text = "  \n" * 500_000
    read(text[:99])
    tracemalloc.start()
    read(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 15 * len(text)


def test_a_name_or_an_event_of_any_length_is_none(tmp_path: Path) -> None:
    run = {**RANK, "run": "r" * 5000}
    write(tmp_path, [STARTED, run, {**STARTED, "title": "t" * (5 << 20)}])
    assert [*read_run_ids(tmp_path)] == []
    texts = [
        event.text for stamped in read_saved_run(tmp_path, Masker({})) if isinstance(event := stamped.event, e.Message)
    ]
    assert "too long" in texts[0]


def test_marks_behind_each_other_are_passed_over_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was a reading of 64 KiB. What a rank wrote behind them is shown."""
    count, pread = 0, os.pread

    def read(*arguments: int) -> bytes:
        nonlocal count
        count += 1
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", read)
    marks = b"\n[ipexctl: 3 bytes missing here: not stored]\n" * 2000
    write(tmp_path, [STARTED, {**OUTPUT, "offset": 0, "length": 2}], b"a\n" + marks + b"b\n")
    written = [
        event.data for stamped in read_saved_run(tmp_path, Masker({})) if isinstance(event := stamped.event, e.Output)
    ]
    assert written == [b"a\n", b"b\n"]
    assert count < 20


def test_ends_of_many_ranks_again_and_again_take_time_that_grows_with_the_record_alone() -> None:
    """Each end of a run, and each start, looked at all streams of before. The limit of each test ends it."""
    masker, fold = EventMasker(Masker({})), RunFold()
    events = [e.Stamped(1.0, e.Output(rank, "h", "out", b"x\n")) for rank in range(30_000)]
    events += [e.Stamped(2.0, e.RunEnded("r", "done")) for _ in range(30_000)]
    for stamped in masker.mask_events(events):
        fold.handle_event(stamped)
    assert fold.state.open == {}


def test_a_study_of_many_launches_takes_time_that_grows_with_their_number_alone() -> None:
    """Each was compared with all measurements of the default. The limit of each test ends it."""
    tried = [
        e.CandidateTried(
            {"ppn": number} if number % 2 else {}, "measured", float(number), 1.0, {"pace": 1.0 + number % 7}
        )
        for number in range(50_000)
    ]
    assert len(Ranking(e.StudyStarted({}, {}, "pace", False, 9.0, 0, 1), tried).list_launches()) == 25_001


def test_a_directory_of_somebody_else_does_not_take_the_place_of_a_saved_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /tmp anybody can make a directory that is called as a run, or ``last``: it was shown as the user's own."""
    for name in ("runs/1120-083015-a3f2", "shared/1120-083015-a3f2", "shared/last", "shared/other"):
        (directory := tmp_path / name).mkdir(parents=True)
        write(directory, [STARTED])
    monkeypatch.chdir(tmp_path / "shared")
    own = tmp_path / "runs" / "1120-083015-a3f2"
    for word in ("last", "1120-083015-a3f2", "1120"):
        assert find_saved_run(tmp_path / "runs", word) == own
    for word in ("other", "./last"):
        assert find_saved_run(tmp_path / "runs", word) == Path(word)


_REMOVE = """import itertools, pathlib, shutil, sys
for number in itertools.count():
    directory = pathlib.Path(sys.argv[1], str(number % 20))
    directory.mkdir(exist_ok=True)
    (directory / "events.jsonl").touch()
    shutil.rmtree(pathlib.Path(sys.argv[1], str((number + 1) % 20)), ignore_errors=True)
"""


def test_runs_that_another_command_removes_meanwhile_are_left_out(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _REMOVE, str(tmp_path)]) as other:
        try:
            while not [*tmp_path.iterdir()]:
                assert other.poll() is None
            for _ in range(500):
                assert all(isinstance(event, e.Event) for event in list_runs(tmp_path, (), RunFilter(None, None)))
        finally:
            other.kill()
