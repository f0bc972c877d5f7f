"""The command ``runs``: what it lists of saved runs, and which of them it removes."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ipexctl.cli import app
from ipexctl.decide.parsing.amounts import parse_clock, parse_span
from ipexctl.decide.saved_runs import PrunePolicy, RunFilter, choose_runs_to_prune, classify_result
from ipexctl.model import events as e
from ipexctl.model.answers.saved import PruneAnswer, RunsAnswer, SavedRun, SparedRun
from ipexctl.model.errors import Exit, Failure, Kind, UsageError
from ipexctl.model.events import Stamped
from ipexctl.model.reports import LostLoss
from ipexctl.show.answers.saved import format_pruned_runs, format_saved_runs
from ipexctl.store.masking import Masker
from ipexctl.store.record import RunRecord, is_directory_in_use, make_name, prune_records
from ipexctl.verbs.run.replay import find_saved_run, read_preparation
from ipexctl.verbs.run.saved_runs import describe_cause, list_runs, prune_runs
from tests.unit.show import streams
from tests.unit.show.streams import fold

AT = streams.START
DAY = 86400.0


def save(runs: Path, stream: list[Stamped], verb: str = "run", at: float = AT, report: bool = True) -> Path:
    """A saved run; as old as ``at``, also by its files."""
    record = streams.save(RunRecord(runs, make_name(at)), stream, report=report)
    for path in record.directory.rglob("*"):
        os.utime(path, (at, at), follow_symlinks=False)
    return record.directory


def rename_run(stream: list[Stamped], name: str) -> list[Stamped]:
    """The same stream of another run on the hosts."""
    return [
        Stamped(each.at, e.RunStarted(name, *[getattr(each.event, key) for key in ("head", "ranks", "command")]))
        if isinstance(each.event, e.RunStarted)
        else each
        for each in stream
    ]


def answer_of(workflow: Any) -> Any:
    [value] = [event.value for event in workflow if isinstance(event, e.Answer)]
    return value


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ipexctl" / "runs"


def test_saved_runs_are_listed_with_how_they_ended_and_why(runs: Path) -> None:
    good, bad = list(streams.run(2, steps=4)), rename_run(list(streams.run(4, steps=4, fails=5)), "1032-q2")
    save(runs, good)
    save(runs, bad, at=AT + 60)
    lost = Failure("xeon03", Kind.LOST, "lost (its guard ended)", code="lost")
    install = [e.Started("install", "torch", ("xeon03",)), e.HostFailed(lost), e.Ended("install", Exit.OK)]
    save(runs, streams.stamp(install, AT + 120), "install", AT + 120)
    value = answer_of(list_runs(runs, (), RunFilter()))
    assert [(run.verb, run.result, run.ranks, run.hosts) for run in value.runs] == [
        ("install", "lost", 0, 1),
        ("run", "failed", 8, 4),
        ("run", "ok", 4, 2),
    ]
    assert value.runs[0].cause == "xeon03: lost (its guard ended)"
    assert value.runs[1].cause == "rank 5 on xeon03 exited with code 1: RuntimeError: loss is NaN at step 31"
    assert value.runs[2].cause == ""
    assert value.runs[1].seconds > 0
    assert value.runs[1].bytes == sum(
        path.stat().st_size for path in Path(value.runs[1].directory).rglob("*") if path.is_file()
    )


def test_why_a_run_failed_has_the_line_of_its_script() -> None:
    report = fold(list(streams.run(4, steps=4, fails=5)))
    assert report.run
    ranks = tuple(replace(rank, line="train.py:41" if rank.rank == 5 else "") for rank in report.run.ranks)
    cause = describe_cause(replace(report, run=replace(report.run, ranks=ranks)))
    assert cause == "rank 5 on xeon03 exited with code 1 at train.py:41: RuntimeError: loss is NaN at step 31"


def test_a_run_that_ended_well_and_lost_its_loss_says_so() -> None:
    report = fold(list(streams.run(2, 2, steps=3)))
    assert report.run
    assert describe_cause(report) == ""
    lost = LostLoss("loss is NaN on both ranks since step 2", (0, 1), 2, 2.3, 1)
    assert describe_cause(replace(report, run=replace(report.run, lost_loss=lost))) == lost.text


@pytest.mark.parametrize(
    ("reason", "exit", "result"),
    [
        ("stopped", Exit.INT, "stopped"),
        ("limit", Exit.LOST, "limit"),
        ("lost", Exit.LOST, "lost"),
        ("", Exit.OK, "detached"),
        ("done", Exit.OK, "ok"),
        ("rank", Exit.RANK, "failed"),
        ("", Exit.TERM, "interrupted"),
        ("", Exit.HUP, "detached"),
    ],
)
def test_how_a_run_ended_is_one_word(reason: Any, exit: Exit, result: str) -> None:
    report = fold(streams.run(2, steps=2))
    assert report.run is not None
    assert classify_result(replace(report, exit=exit, run=replace(report.run, reason=reason))) == result
    assert classify_result(replace(report, exit=Exit.HUP, run=None)) == "interrupted", "nothing of it goes on"


def test_a_doctor_that_found_errors_names_the_first(runs: Path) -> None:
    stream = [each for each in streams.doctor(4) if not isinstance(each.event, e.HostFailed)]
    save(runs, stream, "doctor")
    [run] = answer_of(list_runs(runs, (), RunFilter())).runs
    assert (run.result, run.hosts) == ("failed", 4)
    assert run.cause.startswith("CPU002 xeon04 lowers the cluster")


def test_a_run_has_one_name_however_many_watched_it(runs: Path) -> None:
    for at in range(3):
        record = streams.save(RunRecord(runs, "1120-103112-a3f2"), streams.run(1, steps=2))
        os.utime(record.directory / "events.jsonl", (at, at))
    assert sorted(path.name for path in runs.iterdir()) == [f"1120-103112-a3f2{end}" for end in ("", "~2", "~3")]
    [run] = answer_of(list_runs(runs, (), RunFilter())).runs
    assert (run.name, run.directory) == ("1120-103112-a3f2", str(record.directory)), "the last watcher knows most"
    assert find_saved_run(runs, "a3f2") == record.directory
    answer_of(prune_runs(runs, ["last"], RunFilter(), PrunePolicy(keep=0), dry=False))
    assert not [*runs.iterdir()]


@pytest.mark.parametrize(("reason", "verb"), [("done", "report"), ("", "attach")])
def test_what_is_known_of_one_run_ends_with_what_comes_next(runs: Path, reason: Any, verb: str) -> None:
    stream = list(streams.run(1, steps=2))
    report = fold(stream)
    assert report.run
    record = RunRecord(runs, "1120-103112-a3f2")
    record.handle_event(stream[0])
    record.close(replace(report, run=replace(report.run, reason=reason)))
    value = answer_of(list_runs(runs, ["last"], RunFilter()))
    assert value.next == f"ipexctl {verb} 1120-103112-a3f2"
    every = answer_of(list_runs(runs, [], RunFilter()))
    assert every.next == (None if reason else value.next), "of all runs the one whose end nobody has watched"


def test_who_attaches_learns_how_the_run_was_asked_for(runs: Path) -> None:
    record = RunRecord(runs, "1031-k7")
    started = e.Started("run", "train_ddp.py", ("a",), words=("run", "--keep", "ckpt", "train_ddp.py"))
    planned = e.Planned("run", "the plan")
    for event in (started, planned, e.RunStarted("1031-k7", "a", ("a",), "train_ddp.py"), e.Ended("run", Exit.OK)):
        record.handle_event(Stamped(AT, event))
    record.close()
    assert [*read_preparation(runs, "1031-k7", Masker({}))] == [started, planned]
    assert [*read_preparation(runs, "1031-k7.2", Masker({}))] == [*read_preparation(runs, "other", Masker({}))] == []


def test_the_record_of_each_watcher_is_found_by_its_own_name(runs: Path) -> None:
    first = save(runs, list(streams.run(2, steps=4)))
    shutil.copytree(first, first.with_name(f"{first.name}~2"))
    shutil.copytree(first, first.with_name(f"{first.name}~3"))
    assert find_saved_run(runs, f"{first.name}~2").name == f"{first.name}~2"


def test_a_host_cannot_choose_where_a_record_lies(runs: Path) -> None:
    for name in ("../../x", "", "a/b", ".hidden", "a~2", "x" * 200):
        assert RunRecord(runs, name).directory.parent == runs
    own = re.compile(r"\d{4}-\d{6}-[0-9a-f]{4}(~\d)?")  # of two that have the same by chance, the second has a number
    assert all(own.fullmatch(path.name) for path in runs.iterdir())


def test_records_of_other_names_are_found_by_the_id_of_their_run(runs: Path) -> None:
    old = save(runs, list(streams.run(1, steps=2)))
    old = old.rename(runs / "2026-11-20T1031-run")
    assert {find_saved_run(runs, word) for word in ("1031-k7", old.name, "2026-11-20", "last")} == {old}


def test_a_record_that_is_being_written_runs_and_one_without_an_end_is_unfinished(runs: Path) -> None:
    command = RunRecord(runs, make_name(AT))
    for stamped in list(streams.run(2, steps=2))[:-4]:
        command.handle_event(stamped)
    save(runs, list(streams.run(2, steps=2))[:-4], at=AT - 60, report=False)
    value = answer_of(list_runs(runs, (), RunFilter()))
    assert [(run.result, run.ranks, run.title) for run in value.runs] == [
        ("running", 4, "mpirun -n 8 …"),
        ("unfinished", 4, "mpirun -n 8 …"),
    ]
    command.close()


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        (RunFilter(), 2),
        (RunFilter(verb="run"), 1),
        (RunFilter(result="failed"), 1),
        (RunFilter(result="limit"), 0),
        (RunFilter(verb="run", result="ok"), 0),
    ],
)
def test_runs_are_filtered(runs: Path, chosen: RunFilter, count: int) -> None:
    save(runs, list(streams.run(2, steps=4, fails=1)))
    save(runs, streams.stamp([e.Started("sync", "src", ("a",)), e.Ended("sync", Exit.OK)], AT + 60), "sync", AT + 60)
    assert len(answer_of(list_runs(runs, (), chosen)).runs) == count


def test_a_run_that_was_attached_to_is_a_run(runs: Path) -> None:
    events = [replace(each, event=replace(each.event, verb="attach")) if isinstance(each.event, e.Started) else each
              for each in streams.run(1, steps=2)]  # fmt: skip
    save(runs, events)
    assert [run.verb for run in answer_of(list_runs(runs, (), RunFilter("run"))).runs] == ["run"]


def test_a_run_that_was_attached_to_late_has_its_own_times(runs: Path) -> None:
    """Its card has them too: who came a minute later, to what was over, did not see a run of a second."""
    _, *others = streams.run(2, steps=4)
    later = [Stamped(max(each.at, AT + 59.0), each.event) for each in others]
    started = next(each.event for each in others if isinstance(each.event, e.RunStarted))
    attached = e.Started("attach", "", ("xeon01",))
    stream = [Stamped(AT + 58.0, attached)]
    for each in later:
        known = isinstance(each.event, e.RunStarted)
        stream.append(Stamped(each.at, replace(started, title="train.py", at=AT)) if known else each)
    save(runs, stream, at=AT + 60)
    [run] = answer_of(list_runs(runs, (), RunFilter())).runs
    assert (run.started, run.seconds) == (pytest.approx(AT, abs=1), pytest.approx(59.0, abs=15))


def test_runs_are_named_as_everywhere(runs: Path) -> None:
    save(runs, list(streams.run(1, steps=2)))
    assert len(answer_of(list_runs(runs, ("1031-k7", "last"), RunFilter())).runs) == 1
    with pytest.raises(UsageError, match="no saved run is called nothing"):
        list(list_runs(runs, ("nothing",), RunFilter()))


# removal ----------------------------------------------------------------------------------------------------------


def made(name: str, changed: float = 0.0, size: int = 10, result: Any = "ok") -> SavedRun:
    return SavedRun(name, "run", "train.py", result, "", changed, changed, 1.0, 2, 1, size, f"/runs/{name}")


def choose(runs: list[SavedRun], policy: PrunePolicy, used: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    removed, spared = choose_runs_to_prune(runs, policy, 100 * DAY, lambda run: run.name in used)
    return [run.name for run in removed], [run.name for run, _ in spared]


NEWEST_FIRST = [made("d", 99 * DAY, 40), made("c", 90 * DAY, 30), made("b", 50 * DAY, 20), made("a", 10 * DAY, 10)]


@pytest.mark.parametrize(
    ("policy", "removed"),
    [
        (PrunePolicy(older_than=30 * DAY), ["a", "b"]),
        (PrunePolicy(keep=1), ["a", "b", "c"]),
        (PrunePolicy(keep=0), ["a", "b", "c", "d"]),
        (PrunePolicy(older_than=30 * DAY, keep=3), ["a"]),
    ],
)
def test_rules_choose_what_is_removed(policy: PrunePolicy, removed: list[str]) -> None:
    assert choose(NEWEST_FIRST, policy) == (removed, [])


def test_what_is_in_use_or_may_be_is_spared() -> None:
    every = [made("x", 99.5 * DAY, result="unfinished"), made("y", 10 * DAY, result="running"), *NEWEST_FIRST]
    removed, spared = choose([*every, made("old", DAY, result="unfinished")], PrunePolicy(keep=0), used=("b",))
    assert removed == ["old", "a", "c", "d"]
    assert sorted(spared) == ["b", "x", "y"]


def test_nothing_is_removed_without_yes_and_links_are_not_followed(runs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    old = save(runs, list(streams.run(1, steps=2)))
    (old / "link").symlink_to(outside)
    (runs / "2020-01-01T0000-run").symlink_to(outside)
    new = save(runs, list(streams.run(1, steps=2)), at=time.time())
    policy = PrunePolicy(older_than=DAY)
    dry = answer_of(prune_runs(runs, (), RunFilter(), policy, dry=True))
    assert dry.dry
    assert [run.name for run in dry.removed] == [old.name]
    assert old.exists()
    done = answer_of(prune_runs(runs, (), RunFilter(), policy, dry=False))
    assert done.bytes == dry.bytes > 0
    assert not old.exists()
    assert new.exists()
    assert (outside / "kept").exists()


def test_nothing_is_removed_below_a_link_in_place_of_the_directory_of_runs(runs: Path) -> None:
    old = save(runs, list(streams.run(1, steps=2)))
    kept = runs.rename(runs.parent / "kept")
    runs.symlink_to(kept)
    with pytest.raises(UsageError, match="is not a directory"):
        answer_of(prune_runs(runs, (), RunFilter(), PrunePolicy(keep=0), dry=False))
    assert (kept / old.name).exists()


def test_a_record_that_another_process_writes_is_never_removed(runs: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom ipexctl.store.record import RunRecord\n"
        "from ipexctl.model.events import Started, Stamped\n"
        "r = RunRecord(Path(sys.argv[1]), 'a')\n"
        "r.handle_event(Stamped(time.time(), Started('run', 't', ())))\n"
        "print(r.directory, flush=True)\nsys.stdin.read()\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(runs)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as other:
        assert other.stdout
        directory = Path(other.stdout.readline().strip())
        for path in directory.iterdir():
            os.utime(path, (AT, AT))  # however old it looks
        assert is_directory_in_use(directory)
        shutil.copytree(directory, runs / f"{directory.name}~2")  # of a watcher that has ended
        value = answer_of(prune_runs(runs, (), RunFilter(), PrunePolicy(keep=0), dry=False))
        assert value.removed == ()
        assert [spared.name for spared in value.spared] == [directory.name]
        assert directory.exists()
        (runs / f"{directory.name}~2/report.json").touch()
        prune_records(runs, 0)
        assert directory.exists()
        other.communicate("")
    assert not is_directory_in_use(directory)


def test_prune_without_a_rule_is_refused(runs: Path) -> None:
    words = ["--prune", "--verb", "run", "--yes"]
    with pytest.raises(UsageError, match="--prune needs a rule") as refused:
        list(prune_runs(runs, (), RunFilter(), PrunePolicy(), dry=False, words=words))
    assert refused.value.hint == "ipexctl runs --prune --verb run --older-than 30d"


# words ------------------------------------------------------------------------------------------------------------


def test_spans_and_times_are_read() -> None:
    assert [parse_span("--x", text) for text in ("90s", "30m", "2h", "1.5d", "4w")] == [90, 1800, 7200, 129600, 2419200]
    assert [parse_clock("--at", text) for text in ("00:12:30", "12:30", "750", "0:00:01.5")] == [750, 750, 750, 1.5]


@pytest.mark.parametrize("text", ["", "2", "-1d", "2y", "1e9d", "١d", "d", "1 d 2h"])
def test_other_words_are_no_spans(text: str) -> None:
    with pytest.raises(UsageError, match="--older-than takes a span of time"):
        parse_span("--older-than", text)


@pytest.mark.parametrize("text", ["", "x", "1:2:3:4", "1:60", "-5", "1.5:00", "1:", "nan"])
def test_other_words_are_no_times(text: str) -> None:
    with pytest.raises(UsageError, match="--at takes a time"):
        parse_clock("--at", text)


# screens ----------------------------------------------------------------------------------------------------------


def drawn(items: Any, width: int) -> list[str]:
    import io

    from ipexctl.show import typeset
    from ipexctl.show.pipe import Pipe

    buffer = io.BytesIO()
    pipe = Pipe(buffer)
    typeset.print_items(typeset.make_console(pipe, width), pipe, items)
    pipe.flush()
    return buffer.getvalue().decode().splitlines()


NAMES = ("1120-103112-a3f2", "1120-102040-19c0")
CAUSE = "rank 5 on xeon02 was killed (out of memory: 250 GiB of 251 GiB of its control group)"
TITLE = "train_ddp.py --epochs 3 --data /scratch/imagenet"
LISTED = (
    SavedRun(NAMES[0], "run", TITLE, "failed", CAUSE, AT, AT, 134.0, 8, 4, 5 << 20, f"/r/{NAMES[0]}"),
    SavedRun(NAMES[1], "install", "torch 2.8.0", "ok", "", AT, AT, 61.0, 0, 4, 90_000, f"/r/{NAMES[1]}"),
)


@pytest.mark.parametrize("width", [40, 80, 120, 160])
def test_the_list_fits_every_width(width: int) -> None:
    lines = drawn(format_saved_runs(RunsAnswer("/r", 2, LISTED)), width)
    assert all(len(line) <= width for line in lines), lines
    newest = next(line for line in lines if line.startswith(NAMES[0]))
    assert lines.index(newest) > 1, "last, above the prompt"
    assert "failed" in newest
    assert "rank 5 on xeon02 was killed" in " ".join(line.strip() for line in lines)
    if width >= 120:
        assert "8 on 4 hosts" in newest
        assert "train_ddp.py --epochs 3" in newest


def test_a_sweep_is_read_by_the_last_loss_of_its_runs() -> None:
    runs = (replace(LISTED[0], loss=0.00843), LISTED[1])
    lines = [line.split() for line in drawn(format_saved_runs(RunsAnswer("/r", 2, runs)), 120)]
    assert "loss" in lines[0]
    assert [("0.00843" in line) for line in lines if line[0] in NAMES] == [False, True]
    assert "loss" not in drawn(format_saved_runs(RunsAnswer("/r", 2, LISTED)), 120)[0]


def test_an_empty_list_says_where_it_looked() -> None:
    assert drawn(format_saved_runs(RunsAnswer("/r", 0, ())), 80) == ["no run is saved in /r"]
    assert drawn(format_saved_runs(RunsAnswer("/r", 3, ())), 80) == ["none of the 3 saved runs matches in /r"]


def test_a_title_of_others_cannot_change_the_terminal() -> None:
    evil = replace(made("x"), title="\x1b[2Jt\n\u202e", cause="\x1b]0;x\x07")
    assert "\x1b" not in "\n".join(drawn(format_saved_runs(RunsAnswer("/r", 1, (evil,))), 80))


def test_what_was_removed_is_summed_up() -> None:
    spared = (SparedRun("x", "in use by another process"),)
    dry = drawn(format_pruned_runs(PruneAnswer("/r", LISTED, spared, 5 << 20, True)), 100)
    assert dry[-2:] == [
        "! not removed: x: in use by another process",
        "would remove 2 saved runs, 5.0 MiB; nothing was removed",
    ]
    assert (
        drawn(format_pruned_runs(PruneAnswer("/r", LISTED[:1], (), 5 << 20)), 100)[-1] == "removed 1 saved run, 5.0 MiB"
    )


# the command ------------------------------------------------------------------------------------------------------


def test_the_command_lists_prunes_and_refuses(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(runs.parent.parent))
    directory = save(runs, list(streams.run(1, steps=2)))
    call = CliRunner().invoke
    assert [run["name"] for run in json.loads(call(app, ["runs", "--json"]).stdout)["runs"]] == [directory.name]
    assert directory.name in call(app, ["runs"]).stdout
    assert call(app, ["runs", "--keep", "3"]).exit_code == Exit.INPUT
    dry = call(app, ["runs", "last", "--prune", "--older-than", "1d", "--keep", "0", "--json"])
    assert json.loads(dry.stdout)["next"] == [
        ["ipexctl", "runs", "last", "--prune", "--older-than", "1d", "--keep", "0", "--yes"]
    ]
    assert directory.exists()
    assert "removed 1 saved run" in call(app, ["runs", "--prune", "--older-than", "1d", "--yes"]).stdout
    assert not directory.exists()
