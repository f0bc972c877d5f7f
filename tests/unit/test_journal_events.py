"""What each record of the keeper's journal becomes for those who watch, and what is held back until the end."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ipexctl.decide.run.journal_events import JournalReader
from ipexctl.model import events as e
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.launch import Running
from ipexctl.model.reports import LoadedLibrary, OutOfMemory, StallPlace
from ipexctl.protocol import frames, hooks, journal, paths, rank_records, samples
from tests.stopwatch import Stopwatch
from tests.tables import read_table

NONCE = "n0nce"
RUNNING = Running("r1", "node0", ("node0", "node1"), {"h1.ipexctl": "node1"}, "mpirun -n 2 train.py", "train.py")


def read(*records: journal.Record) -> list[e.Event]:
    log = JournalReader(NONCE, RUNNING)
    return [event for record in records for event in log.read(frames.JOURNAL, journal.encode_record(record))]


def describe(event: e.Event) -> tuple[str, ...]:
    """Level, host, code and text of a message; kind, host, code, text and hint of a failure."""
    match event:
        case e.Message(text=text, level=level, host=host, code=code):
            return str(level), host or "", code, text
        case e.HostFailed(failure=Failure() as failure):
            return failure.kind.name, failure.host, failure.code, failure.what, failure.hint or ""
    raise AssertionError(event)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (rank_records.RankNote(1, "node1", "goes on without tcmalloc"),
         ("warning", "node1", "rank", "rank 1: goes on without tcmalloc")),
        (rank_records.RankNote(0, "node0", "the script uses gloo, where impi was planned", info=True),
         ("info", "node0", "rank", "rank 0: the script uses gloo, where impi was planned")),
        (journal.HostLost("node1", "no answer for 15 s"), ("LOST", "node1", "lost", "lost (no answer for 15 s)", "")),
        (journal.HostLost("node1", "a line was changed", tampered=True),
         ("LOST", "node1", "tampered", "lost (a line was changed)", "")),
        (journal.Killed("node1", 1), ("warning", "node1", "killed", "1 process needed SIGKILL")),
        (journal.Unstored("/r\x1b1", 1 << 21, 4096),
         ("warning", "node0", "unstored", "no space left in /r\\x1b1 (need 2.0 MiB, 4.0 KiB free): output is lost and"
          " counted, the run goes on")),
        (journal.Unstored(),
         ("warning", "node0", "unstored", "no space left in the run's directory: output is lost and counted, the run"
          " goes on")),
        (journal.Strays("node1", ["tensorboard", "\x1b[2J"]),
         ("warning", "node1", "strays", "ended what the script left running: tensorboard, \\x1b[2J")),
        (journal.Leftovers("node1", [(7, "D"), (8, "D")]),
         ("RESIDUE", "node1", "residue", "still running, SIGKILL has no effect: process 7 (state D), 8 (state D)",
          "this looks again, and ends what can be ended:\nipexctl stop --orphans r1")),
        (journal.Waiting({"a": ("r7", "b\x1bob", 0.0), "b": ("r7", "b\x1bob", 0.0), "c": ("r9", "eve", 0.0)}, 1),
         ("info", "", "waiting", "waiting for run r7 of b\\x1bob on a, b, since 1970-01-01 00:00, run r9 of eve"
          " on c, since 1970-01-01 00:00 (1 run before this one)")),
        (journal.Waiting({}), ("info", "", "waiting", "the hosts are free")),
        (journal.CheckpointKept("step_\x1b9", "node1", "node0", 3 << 20, 2.4),
         ("info", "node1", "checkpoint", "has a copy of node0's part of step_\\x1b9 (3.0 MiB in 2 s)")),
        (journal.CheckpointMissed("step_9", "node1", "no space\x1b left"),
         ("warning", "node1", "checkpoint-missed", "could not get a copy of step_9: no space\\x1b left")),
        (journal.CheckpointMissed("step_9", "node1", "no host has it", needed=True),
         ("warning", "node1", "checkpoint-missed", "could not get the checkpoint step_9: no host has it")),
        (journal.NoticeFailed("node0", "exit code 7"),
         ("warning", "node0", "notify", "the command of --host-notify failed: exit code 7; the run goes on")),
        (journal.HostBack("node1"),
         ("info", "node1", "host-back", "is back, and can take part in the next restart")),
        (journal.ResumeChosen("", incomplete="step_9"),
         ("warning", "", "resume", "no whole checkpoint, the script starts from its beginning: step_9 was not written"
          " to its end, or lacks parts of hosts that are gone")),
        (journal.MessageIgnored("node1", "Hello", "its seal is wrong"),
         ("warning", "node1", "ignored", "a message of its guard was ignored: Hello, its seal is wrong")),
    ],
)  # fmt: skip
def test_a_record_is_reported_with_its_host_and_code(record: journal.Record, text: tuple[str, ...]) -> None:
    [event] = read(record)
    assert describe(event) == text


def test_a_script_that_chose_another_backend_is_a_note_and_an_event() -> None:
    note, chosen = read(rank_records.RankNote(0, "node0", "uses gloo", info=True, backend="gloo"))
    assert (describe(note)[0], chosen) == ("info", e.BackendChosen("gloo"))


def test_a_record_of_a_host_that_the_run_does_not_have_is_none() -> None:
    lost, silent, strays = journal.HostLost("node9", "x"), journal.HostSilent("node9", 9.0), journal.Strays("node9", [])
    [warning] = read(lost, silent, strays)
    assert describe(warning)[2:] == (
        "journal",
        "the run's journal has a record that cannot be read (of host node9); the run is not affected",
    )
    assert describe(*read(journal.MessageIgnored(paths.CONTROLLER, "watch", "not authentic")))[2] == "ignored"


def test_a_record_of_a_stage_that_there_is_not_is_none() -> None:
    """Stages are shown as they are: masking passes them by."""
    [warning] = read(rank_records.RankStage(0, "node0", "hunter2"))
    assert "(of an unknown stage)" in describe(warning)[3]


def test_a_stop_that_killed_nothing_is_not_reported() -> None:
    assert read(journal.Killed("node1", 0)) == []


def test_the_run_and_its_ranks_begin() -> None:
    log = JournalReader(NONCE, RUNNING)
    [started] = log.read(frames.JOURNAL, journal.encode_record(journal.Launched(5, 29500, 3.0)))
    assert log.launched
    assert started == e.RunStarted("r1", "node0", ("node0", "node1"), "mpirun -n 2 train.py", 3.0, "train.py")
    assert read(rank_records.RankStarted(1, "node1", 9, 10, [0], 4.0)) == [e.RankStage(1, "node1", "start", 4.0)]
    assert read(rank_records.RankStage(1, "node1", "torch", 5.0)) == [e.RankStage(1, "node1", "torch", 5.0)]


def test_a_record_that_comes_in_pieces_is_read_when_it_is_whole() -> None:
    log, line = JournalReader(NONCE, RUNNING), journal.encode_record(rank_records.RankStage(1, "node1", "torch", 5.0))
    assert [event for byte in line[:-1] for event in log.read(frames.JOURNAL, bytes([byte]))] == []
    assert len(list(log.read(frames.JOURNAL, line[-1:]))) == 1


def test_a_stall_its_stacks_and_what_they_say_together() -> None:
    stall = journal.Stall([0, 1], True, True, 300.0, {0: "S", 1: "S"}, True, 5.0)
    text = 'Thread 0x1 (most recent call first):\n  File "train.py", line %d in %s\n'
    steps = [text % (rank, "step" + "ab"[rank]) for rank in (0, 1)]
    stacks = [rank_records.RankStack(rank, f"node{rank}", 5, "S", "", step) for rank, step in enumerate(steps)]
    stalled, warning, *seen, compared, message = read(stall, *stacks, journal.InquiryEnded())
    assert stalled == e.Stalled((0, 1), 300.0, "all", {"0": "S", "1": "S"}, True, 5.0)
    assert describe(warning)[2] == "stalled"
    assert [(stack.rank, stack.host) for stack in seen if isinstance(stack, e.RankStack)] == [
        (0, "node0"),
        (1, "node1"),
    ]
    assert isinstance(compared, e.StallCompared)
    assert compared.places == (StallPlace((0,), "train.py:0"), StallPlace((1,), "train.py:1"))
    assert describe(message)[3].endswith("the stacks are saved; ending the run")
    stragglers, _ = read(journal.Straggling([1], 1, 60.0, True, 7.0))
    assert stragglers == e.Stalled((1,), 60.0, "stragglers", {}, True, 7.0)
    some = journal.Stall([1], False, True, 300.0, {1: "T"})
    ended = rank_records.RankEnded(1, "node1", 0)
    silent = "no progress for 300 s: rank 0 on node0 is silent (uses the processor; rank 1 on node1 ended with code 0)"
    assert describe(read(ended, stall._replace(ranks=[0], states={0: "R"}))[-1])[3] == silent
    *_, resumed, message = read(some, journal.Resumed(9.0))
    assert resumed == e.Resumed(9.0)
    assert describe(message) == ("info", "", "resumed", "the stalled ranks make progress again")


@pytest.mark.parametrize(
    ("end", "why"),
    [({"signal": 9}, "signal 9"), ({"status": 3}, "exit code 3"), ({"abort": 7}, "MPI_Abort(7)"),
     ({"status": 1, "error": "KeyError: 'x'\nmore"}, "KeyError: 'x'")],
)  # fmt: skip
def test_a_restart_has_how_the_rank_ended_for_which_it_is(end: dict[str, Any], why: str) -> None:
    ended = rank_records.RankEnded(1, "node1", **end)
    other = rank_records.RankEnded(0, "node0", signal=15, by_us=True)
    *_, over, warning = read(other, ended, journal.AttemptEnded("rank", "rank 1 on node1 failed", 1, 2))
    assert isinstance(over, e.RunEnded)
    assert over.detail == f"rank 1 on node1 failed ({why})"
    assert describe(warning)[3] == f"rank 1 on node1 failed ({why}): starting again (1 of 2)"


def test_a_restart_may_wait_for_the_hosts_that_it_needs() -> None:
    log = JournalReader(NONCE, RUNNING)
    ended = journal.AttemptEnded("lost", "node1 was lost", 1, 2, ["node1", "node2"])
    _, warning = log.read(frames.JOURNAL, journal.encode_record(ended))
    assert describe(warning)[2:] == ("restart", "node1 was lost: restart 1 of 2 waits for node1, node2")
    assert log.too_few


def test_of_last_words_that_a_host_makes_up_the_end_is_kept() -> None:
    """To look for the cause in 4 MiB of each rank took minutes."""
    end: dict[str, Any] = {"error": "e" * 100_000, "traceback": "t\n" * 1_000_000, "kernel": "k" * 100_000}
    *_, ended = read(rank_records.RankEnded(1, "node1", status=1, **end))
    assert isinstance(ended, e.RankEnded)
    assert {len(ended.error), len(ended.traceback), len(ended.kernel)} == {1 << 16}


def test_a_restart_has_how_each_rank_ended_where_several_failed() -> None:
    ended = [rank_records.RankEnded(rank, f"node{rank}", status=1, error=f"Error: {rank}") for rank in range(2)]
    *_, over, _ = read(*ended, journal.AttemptEnded("rank", "several ranks failed", 1, 2))
    assert isinstance(over, e.RunEnded)
    assert over.detail == "several ranks failed (rank 0: Error: 0, rank 1: Error: 1)"


def test_what_a_stall_stands_at_is_reported_again_only_once_it_has_changed() -> None:
    def look(seconds: float, line: int) -> list[Any]:
        text = f'Thread 0x1 (most recent call first):\n  File "train.py", line {line} in step\n'
        stack = rank_records.RankStack(1, "node1", 5, "S", "", text)
        return [journal.Stall([1], True, False, seconds, {1: "S"}), stack, journal.InquiryEnded()]

    events = read(*look(20.0, 3), *look(120.0, 3), *look(300.0, 4), journal.Resumed(9.0), *look(20.0, 4))
    texts = [event.text for event in events if isinstance(event, e.Message) and event.text.endswith("going on")]
    first, again, later, anew = texts
    assert again == "the ranks stand where they stood\nthe stacks are saved; going on"
    assert "train.py:3" in first
    assert "train.py:4" in later
    assert later == anew


def test_a_rank_that_is_idle_among_others_is_stalled_if_two_looks_find_it_in_the_same_collective() -> None:
    def look(number: int) -> list[Any]:
        last = f'[{{"group":"g","ranks":[0,1],"rank":1,"number":{number},"kind":"all_reduce","size":4,"done":false}}]'
        text = f'Thread 0x1 (most recent call first):\n  File "train.py", line 7 in step\nCollectives: {last}\n'
        stack = rank_records.RankStack(1, "node1", 5, "S", "", text)
        return [journal.Stall([1], False, False, 300.0, {1: "S"}, early=True), stack, journal.InquiryEnded()]

    assert read(*look(7), *look(8), *look(9)) == []
    [stalled, warning, *_, message] = read(*look(7), *look(8), *look(8), *look(8))
    assert isinstance(stalled, e.Stalled)
    assert describe(warning)[3] == "no progress for 300 s: rank 1 on node1 is silent and idle (1 in state S)"
    assert describe(message)[3].endswith("the stacks are saved; going on")
    *_, message = read(journal.StacksRequested("r"), *look(7))
    assert describe(message)[2] == "stacks"


def test_whoever_came_later_learns_when_all_of_before_was_read() -> None:
    assert list(JournalReader(NONCE, RUNNING).read(frames.CAUGHT_UP, b"")) == [e.CaughtUp()]
    assert list(JournalReader(NONCE, replace(RUNNING, title="")).read(frames.CAUGHT_UP, b"")) == []


def test_stacks_on_request_are_compared_without_a_stall() -> None:
    text = 'Thread 0x1 (most recent call first):\n  File "train.py", line 7 in step\n'
    stacks = [rank_records.RankStack(rank, f"node{rank}", 5, "S", "", text) for rank in (0, 1)]
    *seen, message = read(journal.StacksRequested("r"), *stacks, journal.InquiryEnded())
    assert [type(event) for event in seen] == [e.RankStack, e.RankStack]
    assert describe(message)[0] == "info"
    assert describe(message)[2] == "stacks"
    assert describe(message)[3].startswith("both ranks are at the same place")


def test_stacks_of_a_slow_run_are_places_and_nothing_that_is_shown() -> None:
    text = 'Thread 0x1 (most recent call first):\n  File "train.py", line 7 in step\n'
    stack = rank_records.RankStack(0, "node0", 5, "R", "", text)
    asked, ended = journal.StacksRequested(journal.PACE), journal.InquiryEnded()
    places = e.PlacesSampled((StallPlace((0,), "train.py:7"),))
    assert read(asked, stack, ended, asked, stack, ended) == [places, places]
    *seen, message = read(asked, journal.StacksRequested("r"), stack, ended)
    assert [type(event) for event in seen] == [e.RankStack], "somebody wants to see them"
    assert describe(message)[2] == "stacks"
    stall = journal.Stall([0], True, True, 300.0, {0: "S"})
    assert any(isinstance(event, e.StallCompared) for event in read(asked, stack, stall, ended))


def test_a_stall_during_a_request_is_compared_with_the_stacks_of_the_request() -> None:
    text = 'Thread 0x1 (most recent call first):\n  File "train.py", line 7 in step\n'
    stacks = [rank_records.RankStack(rank, f"node{rank}", 5, "S", "", text) for rank in (0, 1)]
    stall = journal.Stall([0, 1], True, True, 300.0, {0: "S", 1: "S"})
    events = read(journal.StacksRequested("r"), stacks[0], stall, stacks[1], journal.InquiryEnded())
    [compared] = [event for event in events if isinstance(event, e.StallCompared)]
    assert compared.text.startswith("both ranks are at the same place")


@pytest.mark.parametrize(
    ("record", "cause", "error"),
    [
        (rank_records.RankEnded(0, "node0", 0), "", ""),
        (rank_records.RankEnded(0, "node0", 1, error="ValueError: x"), "", "ValueError: x"),
        (rank_records.RankEnded(0, "node0", signal=15, stopped=True), "", ""),  # by somebody
        (rank_records.RankEnded(0, "node0", signal=15, stopped=True, by_us=True), "stopped", ""),
        (rank_records.RankEnded(0, "node0", 1, stopped=True), "", ""),  # it ended by itself, though asked to
        (rank_records.RankEnded(0, "node0", 1, by_us=True), "stopped", ""),
        (rank_records.RankEnded(0, "node0", 0, by_us=True), "", ""),
        (rank_records.RankEnded(0, "node0", lost=True), "lost", ""),
        (rank_records.RankEnded(0, "node0", lost=True, by_us=True), "stopped", ""),
    ],
)
def test_a_rank_ends_by_itself_by_us_or_unseen(record: rank_records.RankEnded, cause: str, error: str) -> None:
    [end] = read(record)
    assert isinstance(end, e.RankEnded)
    assert (end.cause, end.error, end.status, end.signal) == (cause, error, record.status, record.signal)


def test_a_rank_that_the_kernel_killed_says_so_with_its_memory_and_libraries() -> None:
    libraries = [("libmpi", "/opt/libmpi.so.12", "2021.18.1")]
    memory = rank_records.Memory(1, 1 << 30, 1 << 30)
    [end] = read(rank_records.RankEnded(1, "node1", signal=9, oom=memory, error="Killed", libraries=libraries))
    assert isinstance(end, e.RankEnded)
    assert end.oom == OutOfMemory(1 << 30, 1 << 30)
    assert end.error == "killed by the kernel: out of memory: 1.0 GiB of 1.0 GiB of its control group"
    assert end.libraries == (LoadedLibrary("libmpi", "/opt/libmpi.so.12", "2021.18.1"),)
    [end] = read(rank_records.RankEnded(1, "node1", signal=9, oom=rank_records.Memory(1, None, None)))
    assert isinstance(end, e.RankEnded)
    assert str(end.oom) == "out of memory"


def test_the_end_of_the_run_waits_for_those_who_ask_and_lost_output_is_a_failure() -> None:
    log = JournalReader(NONCE, RUNNING)
    record = journal.RunEnd("r1", journal.Reason.DONE, "well", unstored=12, at=9.0)
    [failed] = log.read(frames.JOURNAL, journal.encode_record(record))
    text = "not stored, no space left for the run's directory: 12 bytes of output"
    assert describe(failed) == (Kind.RECORD.name, "node0", "unstored", text, "")
    assert log.over == e.RunEnded("r1", "done", "well", 9.0)


def test_an_end_for_a_reason_that_is_not_known_is_none() -> None:
    """A run was called done by it, and its record could not be read."""
    log = JournalReader(NONCE, RUNNING)
    ends: list[journal.Record] = [journal.RunEnd("r1", "fine"), journal.AttemptEnded("\x1b[2J", "", 1, 2)]
    [warning] = [event for end in ends for event in log.read(frames.JOURNAL, journal.encode_record(end))]
    assert (describe(warning)[2], log.over, log.unreadable) == ("journal", None, 2)


def framed(rank: int, data: bytes) -> bytes:
    return b"".join(frames.split_into_frames(frames.build_head(NONCE, rank), "o", data))


def test_output_of_a_rank_and_of_the_launcher_with_the_hosts_own_names() -> None:
    log = JournalReader(NONCE, RUNNING)
    written = framed(1, b"loss\n")
    assert list(log.read(frames.OUT, written)) == [e.Output(1, "node1", "out", b"loss\n")]
    assert list(log.read(frames.ERR, b"h1.ipexctl: no route\n")) == [e.LauncherOutput("err", b"node1: no route\n")]


def test_a_line_without_an_end_is_reported_when_it_rests_and_what_is_left_at_the_end() -> None:
    log = JournalReader(NONCE, RUNNING)
    written = framed(0, b"epoch 1:")
    assert list(log.read(frames.OUT, written)) == []
    calls = [list(log.release_lines()) for _ in range(3)]
    assert [event for events in calls for event in events] == [e.Output(0, "node0", "out", b"epoch 1:", True)]
    written = framed(0, b" 2 %")
    list(log.read(frames.OUT, written))
    assert [event.data for event in log.end() if isinstance(event, e.Output)] == [b" 2 %"]


def test_separate_worlds_are_a_warning_with_a_code_and_an_event_until_they_are_no_more() -> None:
    reported = read(journal.SeparateWorlds({1: 2}, 3, 0, [("unused", "", "")], 7.0), journal.SeparateWorlds({}, at=9.0))
    compared, warning, later, message = reported
    assert isinstance(compared, e.WorldsCompared)
    assert compared.separate is not None
    assert (compared.separate.code, compared.separate.worlds, compared.at) == ("never-met", {"1": 2}, 7.0)
    text = "\n".join([compared.separate.text, *compared.separate.causes])
    assert describe(warning) == ("warning", "", "never-met", text)
    compared, *_ = read(journal.SeparateWorlds({1: 2}, 3))
    assert isinstance(compared, e.WorldsCompared)
    assert compared.separate is not None
    assert compared.separate.causes[0].startswith("no process group was made")
    assert compared.separate.causes[1].startswith("usual causes: the Trainer without --use_cpu, a script that sets")
    compared, *_ = read(journal.SeparateWorlds({1: 2}))  # which trained nothing
    assert isinstance(compared, e.WorldsCompared)
    assert compared.separate is not None
    assert compared.separate.causes[1].startswith("usual causes: a script that ends where it finds no GPU")
    assert later == e.WorldsCompared(None, 9.0)
    assert describe(message) == ("info", "", "met", "the ranks have met after all")


def test_a_script_that_meets_elsewhere_is_named_at_once_where_that_cannot_go_well_and_at_the_stall() -> None:
    def meets(rank: int) -> rank_records.RankRendezvous:
        where = ("10.0.0.1", "localhost", "12355", 2, "/home/me/ar.py:3")
        return rank_records.RankRendezvous(rank, f"node{rank}", *where, 5.0)

    def stack(rank: int) -> rank_records.RankStack:
        return rank_records.RankStack(rank, f"node{rank}", 9, "S", "", "")

    named = "ar.py:3 sets the rendezvous address to localhost"
    first, warning, second = read(meets(0), meets(1))
    assert first == e.RendezvousChanged(0, "node0", "10.0.0.1", "localhost", "12355", 2, "/home/me/ar.py:3", 5.0)
    assert isinstance(second, e.RendezvousChanged)
    assert describe(warning)[:3] == ("warning", "", "master-addr")
    assert describe(warning)[3].startswith(f"{named} (rank 0): that is each host itself")
    stall = (stack(0), stack(1), journal.InquiryEnded())
    compared = next(event for event in read(meets(0), meets(1), *stall) if isinstance(event, e.StallCompared))
    assert f"{named} (ranks 0-1): that is each host itself, where" in compared.text
    connected = rank_records.RankStage(1, "node1", hooks.CONNECTED)
    compared = next(
        event for event in read(meets(0), meets(1), connected, *stall) if isinstance(event, e.StallCompared)
    )
    assert f"{named} (rank 0): " in compared.text, "rank 1 is past that"
    early = journal.Stall([0, 1], True, True, 20.0, {0: "S", 1: "S"}, early=True)
    reported = read(meets(0), early, *stall)
    assert any(isinstance(event, e.Stalled) for event in reported)
    assert "no progress for 20 s: both ranks on node0, node1 wait in the rendezvous" in str(reported)
    assert not any(isinstance(event, e.Stalled) for event in read(early, *stall))


def test_ranks_that_meet_at_many_places_take_no_time_that_grows_with_the_cube_of_their_number() -> None:
    """It took 27 s for 1,600 ranks whose hosts look for the others at themselves."""
    watch = Stopwatch()
    hosts = tuple(f"h{rank // 8}" for rank in range(2_000))
    log = JournalReader(NONCE, replace(RUNNING, hosts=hosts))
    meets = [rank_records.RankRendezvous(rank, host, "10.0.0.1", host, "29500") for rank, host in enumerate(hosts)]
    events = [event for each in meets for event in log.read(frames.JOURNAL, journal.encode_record(each))]
    assert {type(event) for event in events} == {e.RendezvousChanged}
    assert watch.read() < 8.0


@pytest.mark.parametrize(("calls", "shown"), read_table("journal_events/awaited_messages", frozen=True))
def test_messages_that_no_rank_sends_or_takes_are_an_early_stall(calls: tuple[str, str], shown: str) -> None:
    early = journal.Stall([0, 1], True, True, 20.0, {0: "R", 1: "R"}, early=True)
    place = "/x/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    text = 'Thread 0x1 (most recent call first):\n  File "%s", line 5 in %s\n'
    stacks = [
        rank_records.RankStack(rank, f"node{rank}", 5 + rank, "R", "", text % (place, call))
        for rank, call in enumerate(calls)
    ]
    events = read(early, *stacks, journal.InquiryEnded())
    assert any(isinstance(event, e.Stalled) for event in events) == bool(shown)
    if shown:
        assert describe(events[-1])[3].splitlines()[0].endswith(shown)
    if calls == ("barrier", "recv"):
        assert "rank 1 on node1  torch/distributed/distributed_c10d.py:5 recv" in describe(events[-1])[3]


@pytest.mark.parametrize(("state", "shown"), [("S", True), ("D", True), ("R", False)])
def test_an_early_stall_is_one_where_ranks_wait_for_one_that_does_nothing(state: str, shown: bool) -> None:
    early = journal.Stall([0, 1], True, True, 20.0, {0: "R", 1: "S"}, early=True)
    place = "/x/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    text = 'Thread 0x1 (most recent call first):\n  File "%s", line 5 in %s\n'
    waits = rank_records.RankStack(0, "node0", 5, "R", "", text % (place, "all_reduce"))
    reads = rank_records.RankStack(1, "node1", 6, state, "", text % ("data.py", "read_batch"))
    events = read(early, waits, reads, journal.InquiryEnded(), journal.Resumed(9.0))
    kinds = [type(event) for event in events if not isinstance(event, e.Message)]
    assert kinds == ([e.Stalled, e.RankStack, e.RankStack, e.StallCompared, e.Resumed] if shown else [])
    if shown:
        assert "1 of 2 ranks waits in all_reduce, rank 1 on node1 does not" in describe(events[-3])[3]
    else:
        assert read(early, waits, waits._replace(rank=1), journal.InquiryEnded()) == []


def test_an_early_stall_is_one_where_a_rank_has_ended_that_others_wait_for_in_their_rendezvous() -> None:
    early = journal.Stall([0], True, True, 3.0, {0: "S"}, early=True)
    text = 'Thread 0x1 (most recent call first):\n  File "/x/early.py", line 6 in <module>\n'
    stack = rank_records.RankStack(0, "node0", 5, "S", "", text)
    ended = rank_records.RankEnded(1, "node1", 0)
    waits = rank_records.RankStage(0, "node0", hooks.RENDEZVOUS)
    events = read(ended, waits, early, stack, journal.InquiryEnded())
    ends = read(ended, waits, early._replace(limit=120.0), stack, journal.InquiryEnded())
    assert describe(ends[-1])[3].endswith("the stacks are saved; the run is ended after 120 s without progress")
    words = "rank 1 on node1 ended with code 0 without joining: rank 0 on node0 waits for it in the rendezvous"
    assert words in [event.text for event in events if isinstance(event, e.Message)]
    compared = next(event for event in events if isinstance(event, e.StallCompared))
    assert compared.ranks == (1,)
    assert compared.places[0].line == "early.py:6"
    again = (early._replace(early=False, seconds=30.0), stack, journal.InquiryEnded())
    events = read(ended, waits, early, stack, journal.InquiryEnded(), *again)
    *_, warning, last = (event for event in events if isinstance(event, e.Message))
    assert describe(warning)[3] == words
    assert describe(last)[3].startswith("the ranks stand where they stood\n"), "it does not name rank 1 once more"
    for others in (
        [waits._replace(rank=1), ended],
        [ended._replace(status=3)],
        [ended, waits._replace(stage=hooks.CONNECTED)],
    ):
        events = read(waits, *others, early, stack, journal.InquiryEnded())
        assert not any(isinstance(event, e.Stalled) for event in events)


def test_an_early_stall_is_one_where_a_rank_has_ended_that_others_wait_for_in_a_collective() -> None:
    """One that a script ends by os._exit(0), of which impi's groups know nothing."""
    early = journal.Stall([0], True, True, 20.0, {0: "S"}, early=True)
    joined = [rank_records.RankStage(rank, f"node{rank}", hooks.CONNECTED) for rank in range(2)]
    ended = rank_records.RankEnded(1, "node1", 0)

    def wait(*, done: bool = False) -> rank_records.RankStack:
        last = {"group": "0", "ranks": [0, 1], "rank": 0, "number": 22, "kind": "all_reduce", "size": 8, "done": done}
        place = 'Thread 0x1 (most recent call first):\n  File "/x/a.py", line 6 in <module>'
        text = f"{place}\n{hooks.COLLECTIVES}{json.dumps([last])}\n"
        return rank_records.RankStack(0, "node0", 5, "S", "", text)

    events = read(*joined, ended, early, wait(), journal.InquiryEnded())
    texts = [event.text for event in events if isinstance(event, e.Message)]
    assert "rank 1 on node1 ended with code 0: rank 0 on node0 waits for it in a collective" in texts
    assert [event.ranks for event in events if isinstance(event, e.StallCompared)] == [(1,)]
    late = read(*joined, ended, early._replace(early=False), wait(), journal.InquiryEnded())
    assert describe(late[-1])[3].startswith("rank 1 on node1 ended with code 0: rank 0")
    for others in ([ended, wait(done=True)], [wait()]):
        events = read(*joined, early, *others, journal.InquiryEnded())
        assert not any(isinstance(event, e.Stalled) for event in events)


def test_an_early_stall_is_one_where_ranks_wait_in_different_collectives() -> None:
    early = journal.Stall([0, 1], True, True, 20.0, {0: "S", 1: "S"}, early=True)
    file = "/x/site-packages/torch/distributed/distributed_c10d.py"
    place = f'Thread 0x1 (most recent call first):\n  File "{file}", line 5 in %s'

    def wait(rank: int, kind: str) -> rank_records.RankStack:
        last = {"group": "0", "ranks": [0, 1], "rank": rank, "number": 7, "kind": kind, "size": 8, "done": False}
        return rank_records.RankStack(
            rank, "node0", 5, "S", "", f"{hooks.COLLECTIVES}{json.dumps([last])}\n{place % kind}\n"
        )

    assert read(early, wait(0, "barrier"), wait(1, "barrier"), journal.InquiryEnded()) == []
    events = read(early, wait(0, "barrier"), wait(1, "broadcast"), journal.InquiryEnded())
    assert isinstance(events[0], e.Stalled)
    assert (
        "the ranks are in different collectives: barrier #7 on rank 0, broadcast #7 of 8 B on rank 1"
        in describe(events[-1])[3]
    )


def write(rank: int, text: bytes) -> bytes:
    return b"".join(frames.split_into_frames(frames.build_head(NONCE, rank), frames.OUT, text))


@pytest.mark.parametrize("size", [7, 1 << 20])
@pytest.mark.parametrize("late", [False, True])
def test_what_ranks_write_is_of_their_own_attempt_whenever_it_is_read(size: int, late: bool) -> None:
    """Rank 1 was on node1, then there was one rank, then rank 1 is on node1 again. A watcher that came later reads the
    whole journal before any output."""
    outputs = [write(0, b"one\n") + write(1, b"one\nwithout end"), write(0, b"two\n"), write(1, b"three\n")]
    both = {"node0": [0], "node1": [1]}
    starts = [both, {"node0": [0]}, both]
    records: list[list[journal.Record]] = []
    for restart, placed in enumerate(starts):
        out = sum(map(len, outputs[:restart]))
        records.append([journal.Launched(5, 1, 1.0, placed, out, restart), journal.AttemptEnded("rank", "why", 1, 2)])
    log = JournalReader(NONCE, RUNNING)
    events: list[e.Event] = []
    if late:
        lines = b"".join(journal.encode_record(record) for attempt in records for record in attempt)
        events += log.read(frames.JOURNAL, lines)
        everything = b"".join(outputs)
        for at in range(0, len(everything), size):
            events += log.read(frames.OUT, everything[at : at + size])
    else:
        for attempt, output in zip(records, outputs, strict=True):
            for record in attempt:
                events += log.read(frames.JOURNAL, journal.encode_record(record))
            for at in range(0, len(output), size):
                events += log.read(frames.OUT, output[at : at + size])
    events += log.end()
    shown: list[object] = []
    for event in events:
        if isinstance(event, e.RunStarted):
            shown.append(event.ranks)
        elif isinstance(event, e.Output):
            shown.append((event.rank, event.host, event.data))
    first, alone = ("node0", "node1"), ("node0",)
    cut = [(1, "node1", b"without end")]
    assert [each for each in shown if each not in cut] == [
        first, (0, "node0", b"one\n"), (1, "node1", b"one\n"),
        alone, (0, "node0", b"two\n"),
        first, (1, "node1", b"three\n"),
    ]  # fmt: skip
    assert shown.index(cut[0]) < shown.index(alone), "a line without an end is over with its attempt"


def test_earlier_output_has_about_the_time_at_which_it_was_written() -> None:
    """As samples of hosts tell, by the controller's clock; later output is of now."""
    log = JournalReader(NONCE, RUNNING)
    log.shift = 100.0
    pieces = [framed(0, f"step {step}\n".encode()) for step in range(1, 7)]
    first, second = len(pieces[0]), len(b"".join(pieces[:5]))
    taken = [
        samples.HostSample("node0", at, 5.0, 0.5, 2, 1, 2, output=end) for at, end in ((10.0, first), (14.0, second))
    ]
    events = [*log.read(frames.JOURNAL, journal.encode_record(journal.Launched(5, 29500, 3.0)))]
    events += [event for sample in taken for event in log.read(frames.SAMPLES, samples.KINDS.write(sample) + b"\n")]
    events += log.read(frames.OUT, b"".join(pieces))
    events += log.read(frames.CAUGHT_UP, b"")
    events += log.read(frames.OUT, pieces[5])
    times = [event.written for event in events if isinstance(event, e.Output)]
    assert times == [110.0, 111.0, 112.0, 113.0, 114.0, 0.0, 0.0]


def test_of_very_many_times_of_earlier_output_every_other_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipexctl.decide.run.journal_events._TIMES_LIMIT", 4)
    log = JournalReader(NONCE, RUNNING)
    pieces = [framed(0, f"step {step}\n".encode()) for step in range(5)]
    for number in range(1, 6):
        taken = samples.HostSample("node0", 9.0 + number, 1.0, 0.5, 2, 1, 2, output=number * len(pieces[0]))
        list(log.read(frames.SAMPLES, samples.KINDS.write(taken) + b"\n"))
    events = [*log.read(frames.OUT, b"".join(pieces))]
    times = [event.written for event in events if isinstance(event, e.Output)]
    assert times == [10.0, 12.0, 14.0]


def test_what_was_doubted_in_one_attempt_is_not_reported_in_the_next() -> None:
    early = journal.Stall([0, 1], True, True, 20.0, {0: "S", 1: "S"}, early=True)
    again = journal.Launched(1, 2, placed={"node0": [0], "node1": [1]}, restart=1)
    place = 'Thread 0x1 (most recent call first):\n  File "/h/train.py", line 5 in <module>\n'
    stacks = [rank_records.RankStack(rank, f"node{rank}", 5, "S", "", place) for rank in (0, 1)]
    asked: list[Any] = [journal.StacksRequested("r"), *stacks, journal.InquiryEnded()]
    assert any(isinstance(event, e.Stalled) for event in read(early, *asked))
    assert not any(isinstance(event, e.Stalled) for event in read(early, again, *asked))


def test_a_script_that_has_ended_in_a_process_that_has_not_is_an_early_stall() -> None:
    """As of a rank that raises, and then waits for the others in a function of atexit."""
    early = journal.Stall([0, 1], True, True, 20.0, {0: "S", 1: "S"}, early=True)
    place = 'Thread 0x1 (most recent call first):\n  File "/h/train.py", line 5 in <module>\n'
    waiting = rank_records.RankStack(0, "node0", 5, "S", "", place)
    assert read(early, waiting, journal.InquiryEnded()) == []
    ended = f'{place}{hooks.RAISED}{{"error": "ValueError: no", "traceback": "", "at": 1.0}}\n'
    raised = rank_records.RankStack(1, "node1", 5, "S", "", ended)
    events = read(early, waiting, raised, journal.InquiryEnded())
    [compared] = [event for event in events if isinstance(event, e.StallCompared)]
    assert "rank 1 on node1: the script has ended with ValueError: no, and its process does not end" in compared.text


def test_what_a_head_says_is_held_within_bounds() -> None:
    """Records behind an attempt whose output never comes took 1 GiB a minute, stacks without an end 500 MiB, and
    numbers of ranks that the run does not have 500 MiB."""
    started = journal.encode_record(journal.Launched(1, 2, 1.0))

    held = JournalReader(NONCE, RUNNING)
    resumed = journal.encode_record(journal.HostBack("n" * (1 << 16))) * 64
    never = journal.encode_record(journal.Launched(1, 2, 1.0, out=1 << 62))
    assert not [*held.read(frames.JOURNAL, never)]
    assert [event for _ in range(17) for event in held.read(frames.JOURNAL, resumed)]

    stacks = JournalReader(NONCE, RUNNING)
    stack = journal.encode_record(rank_records.RankStack(0, "node0", 1, "S", "", "x" * (1 << 20)))
    list(stacks.read(frames.JOURNAL, started + journal.encode_record(journal.Stall([0], True, True, 1.0, {}))))
    assert sum(isinstance(event, e.RankStack) for _ in range(80) for event in stacks.read(frames.JOURNAL, stack)) == 80
    assert sum(len(each.text) for each in stacks._stacks) < 65 << 20

    output = JournalReader(NONCE, RUNNING)
    list(output.read(frames.JOURNAL, started))
    pieces = b"".join(b"\x01%s=%do1\x02x" % (NONCE.encode(), rank) for rank in range(2, 1000))
    list(output.read(frames.OUT, pieces))
    assert len(output._lines) == 1

    [unreadable] = list(
        output.read(frames.JOURNAL, journal.encode_record(journal.Stall([9] * 1000, True, True, 1.0, {})))
    )
    assert len(describe(unreadable)[3]) < 300


def test_what_a_host_says_costs_no_more_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of ranks, and small records about all of them, pieces of a byte or times of each byte held `attach` for
    hours; labels that are names of other hosts, or in them, took gigabytes."""
    labels = {"h0.ipexctl": "h1.ipexctl" * 20, "h1.ipexctl": "h0.ipexctl" * 20, "": "x" * 250}
    log = JournalReader(NONCE, replace(RUNNING, labels=labels))
    [named] = log.read(frames.ERR, b"h0.ipexctl: x\n")
    assert named == e.LauncherOutput("err", b"h1.ipexctl" * 20 + b": x\n")

    watch = Stopwatch()
    line = b'{"kind": "HostBack", "host": "%s"}\n' % (b"x" * (3 << 20))
    log = JournalReader(NONCE, RUNNING)
    list(log.read(frames.JOURNAL, line[:-40_000]))
    pieces = [log.read(frames.JOURNAL, line[at : at + 1]) for at in range(len(line) - 40_000, len(line))]
    assert [type(event) for piece in pieces for event in piece] == [e.Message]

    def sample(number: int) -> samples.HostSample:
        return samples.HostSample("node0", 13.0 * number + 1, 1.0, 0.0, 1, 0, 0, output=12 * number + 1)

    list(log.read(frames.SAMPLES, b"".join(samples.KINDS.write(sample(number)) + b"\n" for number in range(4000))))
    assert list(log.read(frames.OUT, framed(0, b"x\n" * 2000) * 12))
    assert watch.read() < 10.0

    many = replace(RUNNING, hosts=("node0", "node1") * 500)
    start, stall = journal.Launched(1, 2), journal.Stall([0], False, True, 1.0, {0: "S"})
    for record, limit in ((start, "_WORK_LIMIT"), (stall, "_WORK_LIMIT")):
        monkeypatch.setattr(f"ipexctl.decide.run.journal_events.{limit}", 16_000)
        log = JournalReader(NONCE, many)
        list(log.read(frames.JOURNAL, journal.encode_record(record) * 40))
        assert log.unreadable == (38 if record is start else 24)
    log = JournalReader(NONCE, many)
    list(log.read(frames.JOURNAL, journal.encode_record(start._replace(placed={"node0": [*range(65_537)]}))))
    assert (log.launched, log.unreadable) == (False, 1)
