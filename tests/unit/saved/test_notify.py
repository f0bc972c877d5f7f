"""``--notify`` and ``--bell``: what is reported, to whom, and that a target that fails ends nothing."""

from __future__ import annotations

import json
import os
import pty
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context
from ipexctl.act.notify import Notifier, Target, parse_target
from ipexctl.loop import OutputOptions, Workflow
from ipexctl.loop import run_command as perform
from ipexctl.model import events as e
from ipexctl.model.errors import Exit, Failure, Kind, UsageError
from ipexctl.model.events import Stamped
from ipexctl.show.bell import Bell
from ipexctl.show.pipe import Pipe
from ipexctl.verbs.common.notifications import NotificationSink
from tests.unit.show import streams
from tests.unit.show.streams import fold

AT = streams.START


class Receiver:
    """A web service: keeps what it gets, and answers as ``answer`` says: a status, or where to go."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.answer: int | str = 200
        self.delay = threading.Event()
        self.delay.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.paths.append(self.path)
                receiver.delay.wait(30.0)
                if isinstance(receiver.answer, str) and self.path != "/end":
                    self.send_response(307)
                    self.send_header("Location", receiver.answer)
                else:
                    receiver.documents.append(json.loads(body))
                    self.send_response(receiver.answer if isinstance(receiver.answer, int) else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def events(self) -> list[str]:
        return [document["event"] for document in self.documents]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("no_proxy", "*")
    made = Receiver()
    yield made
    made.delay.set()
    made.server.shutdown()
    made.server.server_close()


def collect(stream: list[Stamped], report: bool = True) -> list[dict[str, Any]]:
    """What is sent of a stream of events."""
    sent: list[dict[str, Any]] = []

    class Collector(Notifier):
        def send(self, event: str, document: bytes) -> None:
            sent.append(json.loads(document))
            assert sent[-1]["event"] == event

    sink = NotificationSink(Collector((), {}), pytest.fail)
    for stamped in stream:
        sink.handle_event(stamped)
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


def test_a_stall_is_reported_with_what_its_stacks_told() -> None:
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
    begun = [Stamped(AT, e.Started("run", "t", ())), Stamped(AT, stalled)]
    for more in ([Stamped(AT + 61.0, e.Message("x"))], []):
        assert [each["event"] for each in collect([*begun, *more], report=False)] == ["stall"]


def test_a_play_reports_its_own_start_and_end_and_the_failures_of_its_runs() -> None:
    stream = [Stamped(AT, e.Started("play", "train.yaml", ("a",))), *streams.run(1, steps=4, fails=0)]
    sent = collect([*stream[:-1], Stamped(stream[-1].at, e.Ended("play", Exit.RANK))])
    assert [each["event"] for each in sent] == ["start", "failure", "end"]
    assert {each["verb"] for each in sent} == {"play"}


def test_a_run_that_is_left_is_not_called_over() -> None:
    stream = [e.Started("run", "t", ("a",)), e.RunStarted("k7", "a", ("a",), "mpirun"), e.Ended("run", Exit.OK)]
    end = collect(streams.stamp([*stream]))[-1]
    assert (end["result"], end["text"].partition(" after ")[0]) == ("detached", "t: goes on without us")


def test_a_watcher_that_came_later_reports_what_it_finds_but_no_stall_that_was_over() -> None:
    stalled = e.Stalled((0, 1), 60.0, "all", {})
    compared = e.StallCompared((1,), "1 of 2 ranks wait in all_reduce\n  rank 0  x")
    found = [e.Started("attach", "k7", ("a", "b")), e.RunStarted("k7", "a", ("a", "b"), "mpirun", AT - 900, "train.py")]
    over, goes_on = e.Message("again", code="resumed"), e.Message("a line")
    stream = streams.stamp([*found, stalled, compared, over, stalled, compared], AT, 0.01)
    sent = collect([*stream, Stamped(AT + 9.0, goes_on)], report=False)
    assert [each["event"] for each in sent] == ["start", "stall"]
    assert sent[0]["text"] == "train.py: watched, 2 ranks on 2 hosts"
    assert sent[1]["text"] == "train.py: no progress for 60 s: ranks 0-1; 1 of 2 ranks wait in all_reduce"


def test_text_of_ranks_is_harmless() -> None:
    for each in collect(list(streams.hostile())):
        assert each["text"].isprintable()
        assert each["title"].isprintable()


# to whom ----------------------------------------------------------------------------------------------------------


def deliver(words: list[str], *documents: tuple[str, bytes], limit: float = 60.0, **environ: str) -> list[str]:
    """The warnings after these deliveries."""
    env = {**os.environ, **environ}
    notifier = Notifier([parse_target(word, env) for word in words], env, limit)
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
    assert out.read_text() == 'start{"event": 1}\nend{"event": 2}\n'
    assert not (tmp_path / "shell").exists()


def test_a_url_gets_a_post_and_may_come_from_a_variable(receiver: Receiver) -> None:
    hook = f"{receiver.url}/services/T0/secret?token=x"
    assert deliver([receiver.url, "env:HOOK"], ("end", b'{"event": "end"}'), HOOK=hook) == []
    assert receiver.events == ["end", "end"]
    assert sorted(receiver.paths) == ["/", "/services/T0/secret?token=x"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [(500, "HTTP status 500"), ("http://127.0.0.1:1/x", "it redirects to another host, which is not followed")],
)
def test_a_service_that_refuses_is_one_warning(receiver: Receiver, answer: int | str, why: str) -> None:
    receiver.answer = answer
    documents = [("start", b'{"event": "start"}'), ("end", b'{"event": "end"}')]
    assert deliver([receiver.url], *documents) == [f"--notify http://127.0.0.1: {why}; the command goes on"]


def test_a_redirect_on_the_same_host_is_followed_with_the_document(receiver: Receiver) -> None:
    receiver.answer = "/end"
    assert deliver([receiver.url], ("end", b'{"event": "end"}')) == []
    assert receiver.events == ["end"]


def test_nobody_listening_is_one_warning() -> None:
    [warning] = deliver(["http://127.0.0.1:1/hook/secret"], ("end", b"{}"), no_proxy="*")
    assert warning.startswith("--notify http://127.0.0.1: ")
    assert "secret" not in warning


def test_a_command_that_fails_or_hangs_is_one_warning(tmp_path: Path) -> None:
    [failed] = deliver([script(tmp_path / "a.py", "raise SystemExit(3)")], ("start", b"{}"), ("end", b"{}"))
    assert failed.endswith("exit status 3; the command goes on")
    child = "import subprocess, time\nsubprocess.Popen(['sleep', '300'])\ntime.sleep(300)\n"
    [hung] = deliver([script(tmp_path / "b.py", child)], ("end", b"{}"), limit=0.5)
    assert hung.endswith("not done after 0.5 s, killed; the command goes on")


def test_a_slow_target_holds_up_nobody(receiver: Receiver) -> None:
    receiver.delay.clear()
    notifier = Notifier([parse_target(receiver.url, {})], os.environ)
    for _ in range(1000):  # more than wait for a target: the rest is dropped
        notifier.send("stall", b'{"event": "stall"}')
    assert receiver.documents == []
    notifier.close(lambda: True)  # as after Ctrl-C: it waits for nothing
    assert receiver.documents == []


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("", "not an empty word"),
        ("'open", "no closing quotation"),
        ("no-such-program-here --x", "--notify no-such-program-here: there is no such command"),
        ("http://", "--notify URL: not a URL with a host"),
        ("http://host:port/", "--notify URL: not a URL with a host"),
        ("https://u:pass@host/", "--notify has a secret in its URL"),
        ("https://host/?api_key=abc", "--notify has a secret in its URL"),
        ("env:NOT_SET", "--notify env:NOT_SET: the variable is not set"),
    ],
)
def test_targets_that_cannot_be_used_are_refused(word: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_target(word, {"PATH": os.environ["PATH"]})
    assert sentence in str(refused.value)


def test_what_is_secret_of_a_target() -> None:
    assert parse_target("https://chat.example/T0/B1", {}).secret == "https://chat.example/T0/B1"
    assert parse_target("https://chat.example", {}).secret == ""
    assert parse_target("env:X", {"X": "https://u:p@chat.example/T0"}) == Target(
        "env:X", url="https://u:p@chat.example/T0"
    )


# a command with both ----------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "ipexctl"


def work(_: Context) -> Workflow:
    yield e.Started("run", "train.py", ("a",))
    yield e.RunStarted("k7", "a", ("a",), "mpirun")
    yield e.Message("posts to http://127.0.0.1:1/hook/s3cr3t")
    yield e.RankEnded(0, "a", 0)
    yield e.RunEnded("k7", "done")
    yield e.Ended("run", Exit.OK)


def test_a_command_reports_and_its_record_has_no_secret(state: Path, receiver: Receiver) -> None:
    url = f"{receiver.url}/hook/s3cr3t"
    options = OutputOptions(output="plain", notify=[url, "http://127.0.0.1:1/hook/s3cr3t"], report=False)
    assert perform(work, options, acting=True) is Exit.OK  # one of them cannot be reached: that ends nothing
    assert receiver.events == ["start", "end"]
    [record] = (state / "runs").iterdir()
    assert receiver.documents[-1]["saved"] == str(record)
    texts = [path.read_bytes() for path in record.rglob("*") if path.is_file()]
    assert texts
    assert not [text for text in texts if b"s3cr3t" in text]


def test_a_dry_run_reports_nothing_and_a_wrong_target_is_refused_before_anything(
    state: Path, receiver: Receiver, capfd: pytest.CaptureFixture[str]
) -> None:
    assert perform(work, OutputOptions(output="plain", notify=[receiver.url]), acting=False) is Exit.OK
    assert receiver.documents == []
    begun: list[Context] = []

    def begin(context: Context) -> Workflow:
        begun.append(context)
        yield from work(context)

    assert perform(begin, OutputOptions(output="plain", notify=["http://"]), acting=True) is Exit.INPUT
    assert begun == []
    assert "--notify URL: not a URL with a host" in capfd.readouterr().err


def ring(make: Callable[[Pipe], Bell], stream: list[Stamped]) -> bytes:
    control, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as out:
        bell = make(Pipe(out))
        for stamped in stream:
            bell.handle_event(stamped)
        bell.close()
        bell.close()
        os.write(terminal, b".")
        read = b""
        while not read.endswith(b"."):
            read += os.read(control, 100)
    os.close(control)
    return read[:-1]


def test_the_bell_rings_at_a_stall_and_at_the_end_on_a_terminal_only(tmp_path: Path) -> None:
    stalled = e.Stalled((1,), 60.0, "some", {"1": "D"})
    assert ring(Bell, streams.stamp([e.Started("run", "t", ()), stalled, e.Ended("run", Exit.OK)])) == b"\a\a"
    with (tmp_path / "file").open("w") as file:
        pipe = Pipe(file)
        assert ring(lambda terminal: Bell(pipe, terminal), []) == b"\a"
        bell = Bell(pipe)
        bell.close()
    assert (tmp_path / "file").read_bytes() == b""
