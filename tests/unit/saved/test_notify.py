"""``--notify``: what is reported, to whom, and that a target that fails ends nothing."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context
from ipexctl.act.notify import Notifier, parse_notify_command
from ipexctl.loop import OutputOptions, Workflow
from ipexctl.loop import run_command as perform
from ipexctl.model import events as e
from ipexctl.model.errors import Exit, Failure, Kind, UsageError
from ipexctl.model.events import Stamped
from ipexctl.verbs.common.notifications import NotificationSink
from tests.tables import read_table
from tests.unit.show import streams
from tests.unit.show.streams import fold

AT = streams.START


class Hook:
    """A command for ``--notify`` that keeps what it is given."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "hook.jsonl"
        program = "import sys\nopen(sys.argv[1], 'a').write(sys.stdin.read())\n"
        self.command = f"{script(directory / 'keep.py', program)} {shlex.quote(str(self.file))}"

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []


def collect(stream: list[Stamped], report: bool = True) -> list[dict[str, Any]]:
    """What is sent of a stream of events."""
    sent: list[dict[str, Any]] = []

    class Collector(Notifier):
        def send(self, event: str, document: bytes) -> None:
            sent.append(json.loads(document))
            assert sent[-1]["event"] == event

    sink = NotificationSink(Collector((), {}), pytest.fail)
    streams.feed(sink, stream)
    sink.close(fold(stream) if report else None)
    return sent


# what is reported -------------------------------------------------------------------------------------------------


def test_a_run_reports_its_start_and_its_end() -> None:
    start, end = collect(list(streams.run(2, steps=4)))
    assert start["event"] == "start"
    assert start["text"].endswith(": started, 4 ranks on 2 hosts")
    assert (start["run"], start["verb"], start["hosts"], start["ranks"]) == (
        "1031-k7", "run", ["xeon01", "xeon02"], [0, 1, 2, 3])  # fmt: skip
    assert "exit" not in start
    assert (end["event"], end["result"], end["exit"]) == ("end", "ok", 0)
    assert end["seconds"] > 0
    assert "ended well after" in end["text"]


def test_the_first_failure_of_a_run_is_reported_once_with_its_rank() -> None:
    lost = Failure("xeon03", Kind.LOST, "lost (its guard ended)", code="lost")
    stream = list(streams.run(4, steps=4, fails=5))
    stream.insert(-3, Stamped(stream[-3].at, e.HostFailed(lost)))
    _, failure, end = collect(stream)
    assert (failure["event"], failure["ranks"], failure["hosts"]) == ("failure", [5], ["xeon03"])
    assert failure["text"].endswith("rank 5 on xeon03 failed (exit code 1): RuntimeError: loss is NaN at step 31")
    assert (end["result"], end["exit"]) == ("failed", 5)


def test_a_call_of_mpi_abort_is_reported_with_its_code() -> None:
    stream = [
        each if not isinstance(each.event, e.RankEnded) or each.event.error == "" else
        Stamped(each.at, e.RankEnded(each.event.rank, each.event.host, None, abort=7))
        for each in streams.run(4, steps=4, fails=5)
    ]  # fmt: skip
    assert collect(stream)[1]["text"].endswith("rank 5 on xeon03 failed (MPI_Abort(7))")


def test_a_stall_is_reported_with_what_its_stacks_reported() -> None:
    stalled = e.Stalled((0, 1), 60.0, "all", {"0": "S", "1": "S"})
    compared = e.StallCompared((1,), "1 of 2 ranks waits in all_reduce, rank 1 on b does not\n  rank 0  x")
    begun = [e.Started("run", "train.py", ("a", "b")), e.RunStarted("k7", "a", ("a", "b"), "mpirun")]
    sent = collect(streams.stamp([*begun, stalled, compared]), report=False)
    assert [each["event"] for each in sent] == ["start", "stall"]
    assert sent[1]["text"] == (
        "train.py: no progress for 60 s: ranks 0-1; 1 of 2 ranks waits in all_reduce, rank 1 on b does not"
    )
    assert (sent[1]["ranks"], sent[1]["hosts"]) == ([0, 1], ["a", "b"])


def test_a_stall_without_stacks_is_reported_a_minute_later_or_at_the_end() -> None:
    stalled = e.Stalled((1,), 60.0, "some", {"1": "D"})
    started = e.RunStarted("k7", "a", ("a", "a"), "mpirun")
    begun = [Stamped(AT, event) for event in (e.Started("run", "t", ()), started, stalled)]
    for more in ([Stamped(AT + 61.0, e.Message("x"))], []):
        assert [each["event"] for each in collect([*begun, *more], report=False)] == ["start", "stall"]


def test_a_play_reports_its_own_start_and_end_and_the_failures_of_its_runs() -> None:
    stream = [Stamped(AT, e.Started("play", "train.yaml", ("a",))), *streams.run(1, steps=4, fails=0)]
    sent = collect([*stream[:-1], Stamped(stream[-1].at, e.Ended("play", Exit.RANK))])
    assert [each["event"] for each in sent] == ["start", "failure", "end"]
    assert {each["verb"] for each in sent} == {"play"}


def test_a_run_that_is_left_is_not_called_over() -> None:
    stream = [e.Started("run", "t", ("a",)), e.RunStarted("k7", "a", ("a",), "mpirun"), e.Ended("run", Exit.OK)]
    end = collect(streams.stamp([*stream]))[-1]
    assert (end["result"], end["text"].partition(" after ")[0]) == ("detached", "t: detached")


def test_a_watcher_that_came_later_reports_what_it_finds_but_no_stall_that_was_over() -> None:
    stalled = e.Stalled((0, 1), 60.0, "all", {})
    compared = e.StallCompared((1,), "1 of 2 ranks wait in all_reduce\n  rank 0  x")
    result = [
        e.Started("attach", "k7", ("a", "b")),
        e.RunStarted("k7", "a", ("a", "b"), "mpirun", AT - 900, "train.py"),
    ]
    over, goes_on = e.Resumed(), e.Message("a line")
    stream = streams.stamp([*result, stalled, compared, over, stalled, compared], AT, 0.01)
    sent = collect([*stream, Stamped(AT + 9.0, goes_on)], report=False)
    assert [each["event"] for each in sent] == ["start", "stall"]
    assert sent[0]["text"] == "train.py: watched, 2 ranks on 2 hosts"
    assert sent[1]["text"] == "train.py: no progress for 60 s: ranks 0-1; 1 of 2 ranks wait in all_reduce"


def test_text_of_ranks_is_harmless() -> None:
    for each in collect(list(streams.hostile())):
        assert each["text"].isprintable()
        assert each["title"].isprintable()


# to whom ----------------------------------------------------------------------------------------------------------


def deliver(words: list[str], *documents: tuple[str, bytes], limit: float = 60.0) -> list[str]:
    """The warnings after these deliveries."""
    notifier = Notifier([parse_notify_command(word) for word in words], os.environ, limit)
    for event, document in documents:
        notifier.send(event, document)
    notifier.close()
    return notifier.pop_warnings()


def script(path: Path, text: str) -> str:
    path.write_text(text)
    return shlex.join([sys.executable, str(path)])


def test_a_command_gets_json_on_its_input_and_the_event_in_its_environment(tmp_path: Path) -> None:
    out = tmp_path / "out put"
    program = "import os, sys\nopen(sys.argv[1], 'a').write(os.environ['IPEXCTL_EVENT'] + sys.stdin.read())\n"
    command = f"{script(tmp_path / 'hook.py', program)} {shlex.quote(str(out))} '; touch shell'"
    assert deliver([command], ("start", b'{"event": 1}\n'), ("end", b'{"event": 2}\n')) == []
    environ = dict(os.environ)
    notifier = Notifier([parse_notify_command(command)], environ)
    environ["BASH_ENV"] = "\0"  # a thread that reads what changes meanwhile gets half of it
    notifier.send("over", b"")
    notifier.close()
    assert notifier.pop_warnings() == []
    assert out.read_text() == 'start{"event": 1}\nend{"event": 2}\nover'
    assert not (tmp_path / "shell").exists()


def test_a_command_that_fails_or_hangs_is_one_warning(tmp_path: Path) -> None:
    [failed] = deliver([script(tmp_path / "a.py", "raise SystemExit(3)")], ("start", b"{}"), ("end", b"{}"))
    assert failed.endswith("exit status 3; the command goes on")
    child = "import subprocess, time\nsubprocess.Popen(['sleep', '300'])\ntime.sleep(300)\n"
    [hung] = deliver([script(tmp_path / "b.py", child)], ("end", b"{}"), limit=0.5)
    assert hung.endswith("not done after 0.5 s, killed; the command goes on")


def test_a_slow_command_holds_up_nobody(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    notifier = Notifier([parse_notify_command(shlex.join(["cat", str(fifo)]))], os.environ)
    for _ in range(1000):  # more than wait for a command: the rest is dropped
        notifier.send("stall", b'{"event": "stall"}')
    notifier.close(lambda: True)  # as after Ctrl-C: it waits for nothing
    assert notifier.pop_warnings() == []
    with fifo.open("w"):  # the command was started, and waits here
        fifo.unlink()  # for those that still wait


@pytest.mark.parametrize(("word", "sentence"), read_table("notify/what_is_no_command_is_refused"))
def test_what_is_no_command_is_refused(word: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_notify_command(word)
    assert sentence in str(refused.value)
    assert "s3cr3t" not in f"{refused.value} {refused.value.hint}"


# a command with both ----------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "ipexctl"


def work(_: Context) -> Workflow:
    yield e.Started("run", "train.py", ("a",))
    yield e.RunStarted("k7", "a", ("a",), "mpirun")
    yield e.RankEnded(0, "a", 0)
    yield e.RunEnded("k7", "done")
    yield e.Ended("run", Exit.OK)


def test_a_command_reports_also_where_another_target_fails(state: Path, tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    options = OutputOptions(output="plain", notify=[hook.command, "false"], report=False)
    assert perform(work, options, acting=True) is Exit.OK
    assert [document["event"] for document in hook.documents] == ["start", "end"]
    [record] = (state / "runs").iterdir()
    assert hook.documents[-1]["saved"] == str(record)


def test_a_dry_run_reports_and_does_nothing(state: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hook = Hook(tmp_path)
    assert perform(work, OutputOptions(output="plain", notify=[hook.command]), acting=False) is Exit.OK
    assert hook.documents == []
    begun: list[Context] = []

    def begin(context: Context) -> Workflow:
        begun.append(context)
        yield from work(context)

    assert perform(begin, OutputOptions(output="plain", notify=["http://h/s3cr3t"]), acting=True) is Exit.INPUT
    assert begun == []
    assert "--notify takes a command, not a URL" in capfd.readouterr().err
