"""What a host says of its runs is used on other hosts, and as names on this machine: it can say only what can be."""

from pathlib import Path
from typing import Any

import pytest

from ipexctl.act import run_control
from ipexctl.act.context import Context
from ipexctl.act.run_dir import is_run_dir
from ipexctl.decide.run.journal_events import JournalReader
from ipexctl.model import events as e
from ipexctl.model.errors import Failure, Kind, UsageError
from ipexctl.model.hosts import Command, Completed, Host, Inventory, LinkError
from ipexctl.protocol import frames, journal, rank_records
from ipexctl.protocol.messages import KINDS, OrphanDirectory, RunDescription, RunListing, RunRow
from ipexctl.protocol.paths import RUNS
from ipexctl.protocol.run_spec import NodeSpec
from ipexctl.protocol.timings import Timings
from ipexctl.verbs.run import run_discovery
from ipexctl.verbs.run.manage import find_watcher, ps
from ipexctl.verbs.run.run_discovery import DiscoveredRun, find_runs, make_watcher
from tests.fakes import FakeLink, FakeOpener
from tests.stopwatch import Stopwatch
from tests.unit.doctor.test_fix import ended
from tests.unit.show.streams import START, fold, stamp

RUN = "1126-1-ab12"
PLACE = f"/home/u/{RUNS}/{RUN}-h0"
NODES = {"a": NodeSpec("l0", [0], PLACE, "/env/bin/python"), "b": NodeSpec("l1", [1], PLACE, "/tmp/evil")}
ABOUT = RunDescription(RUN, "t", "a", NODES, "nonce", ["train.py"])
STRANGE = [
    ("/home/u/project", RUN),
    (f"/home/u/{RUNS}/other-h0", RUN),
    (f"/home/../{RUNS}/{RUN}-h0", RUN),
    (f"x/{RUNS}/{RUN}-h0", RUN),
    (f"{PLACE}/sub", RUN),
    (f"/a\0b/{RUNS}/{RUN}-h0", RUN),
    (f"/{RUNS}/-rf-h0", "-rf"),
    (f"/{RUNS}/a/../b-h0", "a/../b"),
    (f"/{RUNS}/x\ny-h0", "x\ny"),
    (f"/{RUNS}//tmp/x-h0", "/tmp/x"),
]


def answer(value: Any) -> FakeLink:
    return FakeLink(Host("a", "a"), lambda *_: Completed(0, KINDS.write(value) + b"\n"))


@pytest.mark.parametrize(("directory", "run"), STRANGE)
def test_a_run_that_cannot_be_is_none(directory: str, run: str) -> None:
    assert is_run_dir(PLACE, RUN)
    good = RunRow(RUN, "t", "me", 1.0, 1, "ended", ["a"], PLACE)
    bad = good._replace(run=run, directory=directory)
    orphans = [OrphanDirectory(run, directory), OrphanDirectory(RUN, PLACE)]
    assert run_control.list_runs_on_head(answer(RunListing([bad, good], orphans))) == RunListing([good], orphans[1:])
    about = ABOUT._replace(run=run, hosts={**NODES, "b": NODES["b"]._replace(directory=directory)})
    with pytest.raises(LinkError, match="the run cannot be read: unexpected response"):
        run_control.read_run_description(answer(about), PLACE)


@pytest.mark.parametrize(
    "change",
    [
        {"host": "z"},
        {"hosts": {}},
        {"hosts": {"a": NODES["a"]._replace(ranks=[5])}},
        {"run": "1126-2-ffff"},
        {"nonce": "\ud800"},  # ended it with an exception
        {"hosts": {"a": NODES["a"]._replace(ranks=[*range(65_537)])}},
        {"host": "../../../../victim", "hosts": {"../../../../victim": NODES["a"]}},  # its profile was written there
        {"host": "/tmp/victim", "hosts": {"/tmp/victim": NODES["a"]}},
    ],
)
def test_a_description_that_does_not_fit_itself_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(LinkError, match="the run cannot be read: unexpected response"):
        run_control.read_run_description(answer(ABOUT._replace(**change)), PLACE)


def test_times_are_those_that_a_program_can_wait() -> None:
    about = ABOUT._replace(timings=Timings(poll=-1.0, beat=9e15, lease=-3.0, quiet=0.0))
    timings = run_control.read_run_description(answer(about), PLACE).timings
    assert (timings.poll, timings.beat, timings.lease, timings.quiet) == (0.001, 1e6, 0.0, 0.001)


def test_of_a_host_that_tells_of_very_many_runs_the_newest_count(tmp_path: Path) -> None:
    """4 MiB of them held `ps` for a minute, and `stop --orphans`, which searches all hosts for each, for hours."""
    runs = [RunRow(f"1-{n}", "t", "me", float(n), 1, "ended", ["a"], f"/h/{RUNS}/1-{n}-h0") for n in range(5000)]
    orphans = [OrphanDirectory(f"2-{n}", f"/h/{RUNS}/2-{n}-h0") for n in range(5000)]
    listing = Completed(0, KINDS.write(RunListing(runs, orphans)) + b"\n")
    context = Context(FakeOpener(lambda *_: listing), tmp_path, tmp_path)
    warnings, survey = ended(find_runs(Inventory((Host("a", "a"),), ""), context))
    assert [run.row.run for run in survey.runs] == [f"1-{n}" for n in range(4000, 5000)]
    assert [orphan.run for orphan in survey.orphans] == [f"2-{n}" for n in range(100)]
    assert [event.text for event in warnings if isinstance(event, e.Message)] == [
        "there may be more runs than the 1000 that count",
        "there may be more directories of runs that are over than the 100 that count",
    ]


def test_no_interpreter_is_started_on_a_host_by_the_word_of_another(tmp_path: Path) -> None:
    links = FakeOpener(lambda *_: Completed(0, KINDS.write(ABOUT) + b"\n"))
    inventory = Inventory((Host("a", "a"), Host("b", "b")), "test")
    row = RunRow(RUN, "t", "me", 1.0, 2, "ended", ["a", "b"], PLACE)
    watcher = make_watcher(DiscoveredRun("a", row), inventory, Context(links, tmp_path, tmp_path))
    assert {name: place.python for name, place in watcher.run_dirs.items()} == {"a": "/env/bin/python", "b": "python3"}


def test_attach_counts_the_first_attempt_also_where_the_host_that_led_it_is_gone(tmp_path: Path) -> None:
    about = ABOUT._replace(host="b", leaders={"a": "10.0.0.1", "b": "10.0.0.2"})
    down = {"a": Failure("a", Kind.UNREACHABLE, "no route to host")}
    links = FakeOpener(lambda *_: Completed(0, KINDS.write(about) + b"\n"), down=down)
    row = RunRow(RUN, "t", "me", START - 40.0, 2, "running", ["b"], PLACE, restart=1)
    inventory = Inventory((Host("a", "a"), Host("b", "b")), "test")
    watcher = make_watcher(DiscoveredRun("b", row), inventory, Context(links, tmp_path, tmp_path))
    reader = JournalReader(watcher.nonce, watcher.running)
    records = (
        journal.HostLost("a", "out of reach of b, which leads now"),
        journal.AttemptEnded("lost", "a lost", 1, 3),
        journal.Launched(1, 2, START, placed={"b": [0]}, restart=1),
        rank_records.RankEnded(0, "b", 0, at=START + 20.0),
        journal.RunEnd(RUN, "done", at=START + 20.0),
    )
    events = [e.Started("attach", RUN, ("a", "b")), *watcher.read_earlier()]
    events += [each for record in records for each in reader.read(frames.JOURNAL, journal.encode_record(record))]
    run = fold(stamp([*events, *reader.end()])).run
    assert run
    assert run.restarts == ("a lost",)
    assert run.ended - run.started == 60.0


@pytest.mark.parametrize(("states", "led"), [(["leaderless", "running"], True), (["leaderless", "leaderless"], False)])
def test_attach_waits_for_the_host_that_takes_the_place_of_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list[str], led: bool
) -> None:
    monkeypatch.setattr(run_discovery, "_TURNS_TIME", 0.2)
    listed = iter([*states, *states[-1:] * 9])

    def reply(_: Host, command: Command) -> Completed:
        if command.argv[0] != "ipexctl-list_runs.sh":
            return Completed(0, KINDS.write(ABOUT) + b"\n")
        row = RunRow(RUN, "t", "me", 1.0, 2, next(listed), ["a", "b"], PLACE, lease=0.01)
        return Completed(0, KINDS.write(RunListing([row])) + b"\n")

    context = Context(FakeOpener(reply), tmp_path, tmp_path)
    finding = find_watcher("attach", None, Inventory((Host("a", "a"),), "test"), context)
    if led:
        *_, waiting = [event for event in finding if isinstance(event, e.Message)]
        assert waiting.text == f"no host leads run {RUN} at this moment: one may within 0 s"
    else:
        with pytest.raises(UsageError, match="no host that leads run"):
            list(finding)


def test_the_end_that_a_host_saw_which_lost_the_others_counts_where_none_of_them_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut off when it led; the next head is out of reach now, and the host of a part has no other yet."""
    monkeypatch.setattr(run_discovery, "_TURNS_TIME", 0.2)
    about = (RUN, "t", "me", 1.0, 2)
    rows = {
        "a": RunRow(*about, "ended", ["a", "b"], PLACE, reason="lost"),
        "b": RunRow(*about, "leaderless", ["b"], PLACE, lease=0.01),
    }

    def reply(host: Host, command: Command) -> Completed:
        listed = RunListing([rows[host.name]]) if command.argv[0] == "ipexctl-list_runs.sh" else ABOUT
        return Completed(0, KINDS.write(listed) + b"\n")

    context = Context(FakeOpener(reply), tmp_path, tmp_path)
    inventory = Inventory((Host("a", "a"), Host("b", "b")), "test")
    events = list(find_watcher("attach", None, inventory, context))
    assert [event.code for event in events if isinstance(event, e.Message)] == ["leaderless"], (
        "it waits, and has an end"
    )
    rows["b"] = RunRow(*about, "running", ["b"], PLACE, restart=1)
    events = list(find_watcher("attach", None, inventory, context))
    assert not [event for event in events if isinstance(event, e.Message)]


def test_thousands_of_runs_that_hosts_list_take_time_that_grows_with_their_number_alone(tmp_path: Path) -> None:
    """Each was compared with all, and looked for among all that is saved here."""

    def list_runs(host: Host, _: Command) -> Completed:
        names = [f"{host.name}-{number}" for number in range(3_000)]
        runs = [RunRow(name, "t", "me", 1.0, 1, "gone", [], f"/h/{RUNS}/{name}-h0") for name in names]
        return Completed(0, KINDS.write(RunListing(runs)) + b"\n")

    inventory = Inventory(tuple(Host(name, name) for name in "abcde"))
    context = Context(FakeOpener(list_runs), tmp_path, tmp_path)
    watch = Stopwatch()
    [listed] = [event.value for event in ps(inventory, context) if isinstance(event, e.Answer)]
    assert watch.read() < 8
    assert len(getattr(listed, "runs", ())) == 5 * run_control.RUNS_LIMIT
