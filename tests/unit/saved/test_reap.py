"""What `stop --orphans` takes away, and what it leaves for somebody who has not read it yet."""

from pathlib import Path
from typing import Any, cast

import pytest

from ipexctl.act import run_control
from ipexctl.act.context import Context
from ipexctl.model import events as e
from ipexctl.model.answers.manage import OrphanDirectory
from ipexctl.model.errors import Exit, Kind, UsageError
from ipexctl.model.hosts import Command, Completed, Host, Inventory
from ipexctl.protocol import messages
from ipexctl.protocol.messages import KINDS, ProcessesLeft, RunListing, RunRow
from ipexctl.protocol.paths import RUNS
from ipexctl.verbs.run import manage, run_discovery
from ipexctl.verbs.run.manage import choose_directories
from ipexctl.verbs.run.run_discovery import DiscoveredRun, RunSurvey, choose_run, no_run_error
from tests.fakes import FakeOpener
from tests.tables import read_table


def make_run(run: str, state: str) -> DiscoveredRun:
    return DiscoveredRun("node0", RunRow(run, "train.py", "me", 0.0, 2, state, ["node0", "node1"], f"/runs/{run}-h0"))


SURVEY = RunSurvey(
    (make_run("1-going", "running"), make_run("2-ended", "ended"), make_run("3-gone", "gone")),
    tuple(OrphanDirectory("node1", run, f"/runs/{run}-h1") for run in ("1-going", "2-ended", "4-lost")),
    (),
    ("node0", "node1"),
)


@pytest.mark.parametrize(("prefix", "chosen"), read_table("reap/the_directories_that_are_removed"))
def test_the_directories_that_are_removed(prefix: str | None, chosen: dict[str, dict[str, str]]) -> None:
    assert choose_directories(SURVEY, prefix) == chosen


def test_a_name_that_a_host_gives_a_directory_is_no_prefix_of_the_runs_of_others() -> None:
    """`doctor --fix`, which removes what a host calls left over by its name, ended the run that goes on elsewhere."""
    named = OrphanDirectory("node1", "1", "/runs/1-h0")
    survey = RunSurvey(SURVEY.runs, (named, *SURVEY.orphans), (), ("node0", "node1"))
    assert choose_directories(survey, "1") == {"1": {"node1": "/runs/1-h0"}}
    assert choose_directories(survey, "1-") == {"1-going": {"node0": "/runs/1-going-h0", "node1": "/runs/1-going-h1"}}


def test_a_directory_that_cannot_be_removed_is_not_called_removed(tmp_path: Path) -> None:
    """`stop --orphans` ended 0 with its name where something is mounted in it."""
    place = f"/home/u/{RUNS}/4-lost-h1"

    def answer(_: Host, command: Command) -> Completed:
        if command.argv[0] == "ipexctl-list_runs.sh":
            return Completed(0, KINDS.write(RunListing([], [messages.OrphanDirectory("4-lost", place)])))
        if command.argv[0] == "ipexctl-remove_run.sh":
            return Completed(1, b"")
        return Completed(0, KINDS.write(ProcessesLeft([])))

    context = Context(FakeOpener(answer), tmp_path, tmp_path)
    events = [*manage.reap(None, Inventory((Host("a", "a"),), ""), context)]
    assert [cast(Any, event.value).removed for event in events if isinstance(event, e.Answer)] == [()]
    [failure] = [event.failure for event in events if isinstance(event, e.HostFailed)]
    assert (failure.kind, failure.what) == (Kind.RESIDUE, f"the directory of run 4-lost could not be removed: {place}")


def test_a_run_of_hosts_that_do_not_answer_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`stop --orphans NAME` ended with "removed NAME" where nobody had looked."""

    def return_(value: Any) -> e.Workflow[Any]:
        yield from ()
        return value

    ended = {"a": run_control.HostCleanup(was_running=True, left=(), stays=False)}
    for silent, removed in ((["a"], ()), ([], ("4-lost",))):
        monkeypatch.setattr(manage, "_clean_up", lambda *_, silent=silent: return_(({} if silent else ended, silent)))
        monkeypatch.setattr(run_discovery, "find_runs", lambda *_: return_(RunSurvey((), (), ("a",))))
        events = [*manage.reap("4-lost", Inventory((Host("a", "a"),), ""), cast(Any, None))]
        assert [cast(Any, event.value).removed for event in events if isinstance(event, e.Answer)] == [removed]


def test_a_run_that_waits_for_hosts_gives_way_to_the_one_that_is_watched_and_is_listed_for_stop() -> None:
    survey = RunSurvey((make_run("1-going", "running"), make_run("2-later", "waiting")), (), ())
    for verb in ("attach", "logs", "watch"):
        assert choose_run(survey, None, verb=verb).row.run == "1-going"
    with pytest.raises(UsageError, match="2 runs are on these hosts") as raised:
        choose_run(survey, None, verb="stop", place=("-f", "lab"))
    assert raised.value.reasons == (
        "ipexctl stop 1-going -f lab  running: train.py of me",
        "ipexctl stop 2-later -f lab  waiting: train.py of me",
    )
    waiting = RunSurvey((make_run("2-later", "waiting"),), (), ())
    assert choose_run(waiting, None, verb="attach").row.run == "2-later"


def test_a_run_is_not_reported_to_be_none_where_nobody_answered() -> None:
    nobody, some = RunSurvey((), (), ("a", "b")), RunSurvey((), (), ("b",), ("a",))
    for prefix, survey, sentence, reasons in (
        (None, nobody, "a, b did not answer: whether a run is kept there is not known", []),
        ("k7", some, "b did not answer: whether run k7 is kept there is not known", ["none is kept on a"]),
    ):
        error = no_run_error(prefix, survey)
        assert (error.sentence, [*error.reasons], error.exit) == (sentence, reasons, Exit.UNREACHABLE)
    all_answered = RunSurvey((), (), (), ("a",))
    sentence = "nothing runs on these hosts, and no run that has ended is kept there"
    assert no_run_error(None, all_answered).sentence == sentence
    error = no_run_error("k7", all_answered)
    assert error.reasons == ("runs of other users are not listed",)
    assert (error.sentence, error.exit) == ("no run k7 is kept on these hosts", Exit.STEP)
    assert "ipexctl stop --orphans k7" in str(no_run_error("k7", all_answered, "stop").hint)
    assert "orphans" not in str(no_run_error("last", all_answered, "stop").hint)
