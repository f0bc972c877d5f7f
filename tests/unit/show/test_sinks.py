"""Plain lines, JSON lines, one JSON answer."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.model import events as e
from ipexctl.model.answers import UnknownAnswer
from ipexctl.model.answers.doctor import DoctorHost, HostFailure
from ipexctl.model.answers.plan import DryRun
from ipexctl.model.errors import Exit, Failure, Kind, UsageError, advise
from ipexctl.model.events import Event, Stamped
from ipexctl.model.reports import Finding
from ipexctl.show.pipe import Pipe
from ipexctl.show.sinks import JsonAnswer, JsonLines, Plain, Sink, StepLines, print_refusal, write_json_refusal
from tests.stopwatch import Stopwatch
from tests.unit.show import streams
from tests.unit.show.streams import feed, fold

START = e.RunStarted("r", "a", ("a", "b"), "mpirun")


def plain(events: list[Event], **options: object) -> tuple[str, str]:
    out, err = io.BytesIO(), io.BytesIO()
    sink = Plain(Pipe(out), Pipe(err), **options)  # type: ignore[arg-type]
    feed(sink, streams.stamp(events))
    sink.close()
    return out.getvalue().decode(), err.getvalue().decode()


def play(sink: Sink, stream: list[Stamped]) -> None:
    feed(sink, stream)
    sink.close(fold(stream))


def outputs(*data: bytes, stream: e.Stream = "out") -> list[Event]:
    return [START, *(e.Output(1, "b", stream, piece, not piece.endswith(b"\n")) for piece in data)]


def test_ranks_lines_carry_the_rank_and_the_host_on_request() -> None:
    assert plain(outputs(b"one\ntwo\n"))[0] == "1│one\n1│two\n"
    assert plain(outputs(b"one\n\ntwo\n"), label="host")[0] == "[1 b] one\n[1 b] \n[1 b] two\n"
    twelve: list[Event] = [e.RunStarted("r", "a", ("a",) * 12, ""), e.Output(3, "a", "out", b"x\n")]
    assert plain(twelve)[0] == " 3│x\n", "aligned"


def test_standard_error_of_ranks_goes_to_standard_error() -> None:
    out, err = plain(outputs(b"oops\n", stream="err"))
    assert out == ""
    assert "1│oops\n" in err


@given(st.lists(st.binary(min_size=1, max_size=40) | st.just("€😀\n".encode()), max_size=5))
def test_pieces_are_shown_as_whole_lines_and_nothing_raw_is_let_through(pieces: list[bytes]) -> None:
    out = plain(outputs(*pieces))[0]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", out)
    assert all(line.startswith("1│") for line in out.split("\n")[:-1])
    if all(piece == "€😀\n".encode() for piece in pieces):
        assert "\ufffd" not in out


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        pytest.param(("😀".encode()[:2], "😀\n".encode()[2:]), "1│😀\n", marks=pytest.mark.fault("H4")),
        ((*(f"\r{n}%".encode() for n in range(50)), b"\r100%\n"), "1│100%\n"),  # a bar is one line, at its end
        ((b"name? ",), "1│name? \n"),
        ((b"name? ", b"me\nnext\n"), "1│name? \n1│…me\n1│next\n"),
        ((b"name? ", b"\nnext\n"), "1│name? \n1│next\n"),
    ],
)
def test_lines_are_whole_whatever_the_pieces_and_the_rest_of_one_is_marked(
    pieces: tuple[bytes, ...], shown: str
) -> None:
    assert plain(outputs(*pieces))[0] == shown


def test_a_bar_that_takes_long_is_shown_every_ten_seconds() -> None:
    out = io.BytesIO()
    sink = Plain(Pipe(out), Pipe(out))
    feed(sink, [Stamped(float(n), e.Output(0, "a", "err", b"\r%d%%" % n, True)) for n in range(25)])
    assert out.getvalue().decode() == "0│10%\n0│20%\n"


def test_what_comes_of_a_line_after_its_rank_has_ended_is_marked() -> None:
    late = e.Output(1, "b", "out", b"words\n")
    assert plain([*outputs(b"last "), e.RankEnded(1, "b", 0), late])[0].startswith("1│last \n1│…words\n")


def test_plain_colours_are_dropped_from_whole_lines_and_from_pieces_alike() -> None:
    data = b"\x1b[31mred\x1b[0m\n\x1b[\x1b[0m31m\n"
    assert plain(outputs(data))[0] == plain(outputs(data[:3], data[3:]))[0] == "1│red\n1│\\x1b[31m\n"


@pytest.mark.fault("H5")
def test_raw_lets_the_ranks_bytes_through() -> None:
    assert plain(outputs(b"\x1b[31m", b"red\xc2\x9b\n", b"tail"), raw=True)[0].startswith(
        "1│\x1b[31mred\u009b\n1│tail\n"
    )


def test_our_own_talk_goes_to_standard_error_and_results_to_standard_output() -> None:
    events: list[Event] = [
        e.Started("lab", "two hosts", ("a", "b")),
        e.Message("the lab is up", host="a"),
        e.Message("it is small", "warning"),
        e.StepEnded("a", "start", "changed", "port 2201"),
        e.Answer(UnknownAnswer({"hostfile": "/tmp/hosts", "hosts": [{"name": "a", "port": 2201}]})),
    ]
    out, err = plain(events)
    assert err == "two hosts\n[a] the lab is up\nwarning: it is small\n[a] start: changed: port 2201\n"
    assert out == "hostfile  /tmp/hosts\nname  port\na     2201\n"


@pytest.mark.parametrize("count", [3, 200])
def test_a_step_is_one_line_however_many_hosts_have_it(count: int) -> None:
    names = tuple(f"n{k}" for k in range(count))
    events: list[Event] = [e.Started("run", "train.py", names)]
    for step in ("probe", "compare", "sync", "prepare", "start guard"):
        events += [e.StepEnded(name, step) for name in names]
    events += [e.StepEnded("n0", "start keeper"), e.RunStarted("r", "n0", names, "")]
    feed(sink := Plain(Pipe(io.BytesIO()), Pipe(err := io.BytesIO())), [Stamped(1.0, event) for event in events])
    sink.close()
    steps = [f"[{count} hosts] {step}: ok" for step in ("probe", "compare", "sync", "prepare", "start guard")]
    lines = ["train.py", *steps, "[n0] start keeper: ok", f"run r: {count} ranks, started from n0"]
    assert err.getvalue().decode().splitlines() == lines


def test_what_some_hosts_did_otherwise_has_its_line_and_nothing_waits_for_the_slowest_host() -> None:
    names = ("a", "b", "c", "d")
    events = [
        Stamped(0.0, e.Started("sync", "", names)),
        *(Stamped(1.0, e.StepEnded(name, "sync", "changed", "3 files")) for name in "ab"),
        Stamped(2.0, e.StepEnded("c", "sync", "failed", "no space")),
        Stamped(12.0, e.StepStarted("d", "sync")),
        Stamped(13.0, e.StepEnded("d", "sync", "ok", "nothing to do")),
    ]
    err = io.BytesIO()
    sink = Plain(Pipe(io.BytesIO()), Pipe(err))
    feed(sink, events[:-1])
    first = "[a, b] sync: changed: 3 files\n[c] sync: failed: no space\n"
    assert err.getvalue().decode() == first
    feed(sink, events[-1:])
    sink.close()
    assert err.getvalue().decode() == first + "[d] sync: ok: nothing to do\n"


def test_what_differs_on_each_of_many_hosts_is_not_a_line_each() -> None:
    names = tuple(f"n{k}" for k in range(200))
    steps = [e.StepEnded(name, "verify", "ok", f"step {name}") for name in names]
    events = [Stamped(0.0, event) for event in (e.Started("install", "", names), *steps)]
    feed(sink := Plain(Pipe(io.BytesIO()), Pipe(err := io.BytesIO())), events)
    sink.close()
    assert len(err.getvalue().splitlines()) == 9
    assert err.getvalue().decode().endswith("[n[8-199]] verify: ok\n")


def test_hosts_that_fail_together_are_reported_together_and_once() -> None:
    dark: list[Event] = [
        e.HostFailed(Failure(f"n{k}", Kind.UNREACHABLE, f"no answer within 10 s (10.0.0.{k}:22)")) for k in (1, 2, 3)
    ]
    out, err = plain([*dark, e.Message("next")])
    assert err == "n[1-3]: unreachable: no answer within 10 s\nnext\n"
    assert "n1" not in out


def test_a_failure_that_doctor_explains_is_reported_as_the_finding_alone() -> None:
    what = "unknown host key SHA256:k"
    fix = "if it is right: echo 'b ssh-ed25519 AAAA' >> known_hosts"
    failure = e.HostFailed(Failure("b", Kind.UNREACHABLE, what, fix, "host-key-unknown"))
    finding = Finding("SSH002", "error", ("b",), f"has no trusted host key: {what}", fix=fix)
    host = DoctorHost("b", None, failure=HostFailure(Kind.UNREACHABLE, what, "x"))
    answer = e.Answer(streams.checked([host], [finding]))
    begun = e.Started("doctor", "1 host", ("b",))
    out, err = plain([begun, failure, answer, e.Ended("doctor", Exit.UNREACHABLE)])
    assert err == "1 host\n"
    assert out.splitlines() == [
        f"E  SSH002  b  has no trusted host key: {what}",
        f"           fix: {fix}",
        "",
        "not fit    1 host could not be probed",
    ]
    assert f"b: unreachable: {what}\n" in plain([begun, failure, e.Ended("doctor", Exit.UNREACHABLE)])[1]


def test_steps_without_an_end_of_a_record_take_time_that_grows_with_them_alone() -> None:
    """20,000 steps to which one of two hosts had come, 2 MB of a record, took `replay` 40 s."""
    lines, watch = StepLines(), Stopwatch()
    for number in range(20_000):
        lines.add(e.StepEnded("a", f"s{number}"), 1.0)
        assert not lines.pop(2, f"s{number}")
    assert watch.read() < 2
    lines.add(e.StepEnded("b", "s7"), 1.0)
    assert lines.pop(2, "s7") == ["[2 hosts] s7: ok"]
    assert len(lines.pop(2)) == 19_999


def test_long_steps_are_reported_every_ten_seconds() -> None:
    err = io.BytesIO()
    sink = Plain(Pipe(err), Pipe(err))
    stream = [Stamped(0.0, e.StepStarted("a", "upload"))]
    stream += [Stamped(float(n), e.Progress("a", "upload", n << 20, 40 << 20)) for n in range(25)]
    feed(sink, stream)
    assert err.getvalue() == (
        b"[a] upload: 25 % (10 MiB of 40 MiB) 1.0 MiB/s, 30.0 s left\n"
        b"[a] upload: 50 % (20 MiB of 40 MiB) 1.0 MiB/s, 20.0 s left\n"
    )


def test_a_dry_run_prints_the_plan_as_it_is() -> None:
    text = "host a\n  mpirun -n 2 [x]\n"
    assert plain([e.Started("run", "", ("a",)), e.Answer(DryRun(text))])[0] == text


@pytest.mark.fault("H6")
@pytest.mark.fault("H5")
@pytest.mark.parametrize("label", ["rank", "host"])
def test_nothing_hostile_reaches_a_pipe_raw(label: str) -> None:
    for text in plain([stamped.event for stamped in streams.hostile()], label=label):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    out, err = plain([stamped.event for stamped in streams.hostile()])
    assert "[bold red]x\n" in out
    assert "[link=https://evil]ok[/link]" in out
    assert ":smile:" in out
    assert "[bold red]title[/foo]" in err


def test_json_lines_are_one_object_a_line_in_ascii() -> None:
    out = io.BytesIO()
    stream = [*streams.run(2), *streams.hostile()]
    play(JsonLines(Pipe(out)), stream)
    lines = out.getvalue().decode("ascii").splitlines()
    assert len(lines) == len(stream) + 1
    assert json.loads(lines[0])["event"] == "started"
    assert json.loads(lines[-1])["event"] == "report"


def test_an_answer_is_the_only_thing_on_standard_output() -> None:
    out, err = io.BytesIO(), io.BytesIO()
    play(JsonAnswer(Pipe(out), Pipe(err)), list(streams.doctor(12)))
    answer = json.loads(out.getvalue())
    ends = {"next", "codes", "exit"}
    assert set(answer) == {"hosts", "findings", "common_isa", "advice", "network"} | ends
    assert answer["codes"][:1] == ["timeout"]
    assert all(words[0] == "ipexctl" for words in answer["next"])
    assert err.getvalue().decode() == "xeon12: unreachable: no answer within 10 s (10.0.0.9:22)\n"


def test_a_refusal_is_a_document_with_the_command_that_helps() -> None:
    out = io.BytesIO()
    refused = UsageError("run k7 is over", reasons=["it has ended"], hint=advise("logs", "k7 x"), code="over")
    write_json_refusal(refused, pipe := Pipe(out))
    pipe.flush()
    assert json.loads(out.getvalue()) == {
        "exit": 2,
        "ok": False,
        "refused": "run k7 is over",
        "reasons": ["it has ended"],
        "hint": "ipexctl logs 'k7 x'",
        "next": [["ipexctl", "logs", "k7 x"]],
        "codes": ["over"],
    }


@pytest.mark.fault("F1")
def test_a_run_answers_with_the_outcome_of_every_host_and_rank() -> None:
    out = io.BytesIO()
    play(JsonAnswer(Pipe(out), Pipe(io.BytesIO())), list(streams.run(2, 2, fails=1)))
    answer = json.loads(out.getvalue())
    assert (answer["exit"], answer["run"], answer["first"]) == (5, "1031-k7", 1)
    assert [rank["state"] for rank in answer["ranks"]] == ["stopped", "failed", "stopped", "stopped"]
    assert [host["host"] for host in answer["hosts"]] == ["xeon01", "xeon02"]
    assert answer["codes"] == ["rank"]


def test_a_refusal_is_reported_without_anything_raw() -> None:
    err = io.BytesIO()
    print_refusal(UsageError("hosts \x1b[2J is bad", hint="fix it"), Pipe(err))
    assert err.getvalue() == b"error: hosts \\x1b[2J is bad\n  hint: fix it\n"


def test_a_refusal_on_a_terminal_is_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "30")
    raw = Terminal()
    path = "/a/path/that/is/longer/than/the/line/hosts"
    print_refusal(UsageError("these hosts cannot hold it", reasons=[f"both require oneccl-bind-pt: {path}"]), Pipe(raw))
    assert raw.getvalue().decode().splitlines() == [
        "error: these hosts cannot hold",
        "  it",
        "  both require oneccl-bind-pt:",
        f"    {path}",
    ]


READER_THAT_LEAVES = """
import sys
from ipexctl.show.pipe import Pipe
from ipexctl.show.sinks import {sink}
from tests.unit.show import streams
sink = {sink}(Pipe(sys.stdout), *([Pipe(sys.stderr)] if "{sink}" == "Plain" else []))
for _ in range(50):
    streams.feed(sink, streams.run(4, steps=20))
sink.close()
sys.exit(7)
"""


@pytest.mark.parametrize("sink", ["Plain", "JsonLines"])
def test_a_reader_that_goes_away_ends_nothing_and_leaves_no_trace(sink: str, tmp_path: Path) -> None:
    output = tmp_path / "err"
    with output.open("wb") as err:
        writer = subprocess.Popen(
            [sys.executable, "-c", READER_THAT_LEAVES.format(sink=sink)],
            stdout=subprocess.PIPE,
            stderr=err,
            cwd=Path(__file__).parents[3],
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.stdout.close()
        assert writer.wait(60) == 7
    assert "Traceback" not in output.read_text()
    assert "Broken" not in output.read_text()


def test_a_full_disk_behind_standard_output_is_remembered() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no device that is always full")
    with open("/dev/full", "wb", buffering=0) as full:
        pipe = Pipe(full)
        pipe.send(b"x")
        pipe.send(b"y")
        assert isinstance(pipe.error, OSError)


def test_a_stream_that_cannot_hold_a_character_gets_one_of_ascii_or_a_question_mark() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    Pipe(stream).write("1│é日\n")
    assert raw.getvalue() == b"1|\xe9?\n"
    Pipe(raw := io.BytesIO()).write("✗ \udcff\n")
    assert raw.getvalue() == "✗ ?\n".encode()


def test_plain_output_of_a_run_does_not_import_rich_before_its_end() -> None:
    code = (
        "import io, sys\n"
        "from ipexctl.show.pipe import Pipe\nfrom ipexctl.show.sinks import Plain\n"
        "from ipexctl.model.events import Output, Stamped\nfrom ipexctl.decide.run.fold import RunFold\n"
        "sink, fold = Plain(Pipe(io.BytesIO()), Pipe(io.BytesIO())), RunFold()\n"
        "fold.handle_event(stamped := Stamped(0.0, Output(0, 'a', 'out', b'x')))\n"
        "sink.handle_event(stamped, fold.state)\nsink.close()\n"
        "sys.exit('rich' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0


@pytest.mark.parametrize("words", [["hosts", "--json", "-f", "hostfile"], ["stacks"], ["--help"], ["run", "--help"]])
def test_an_answer_that_a_full_disk_took_is_no_success(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "hostfile").write_text("a\nb\n")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ipexctl", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])},
        )
    assert done.returncode == Exit.RECORD
    assert b"error: the output cannot be written: no space left on device\n" in done.stderr
