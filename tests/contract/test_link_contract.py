"""What every link promises, whatever is behind it."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from ipexctl.act.ssh import Links, LocalLink
from ipexctl.act.ssh.local_link import LocalChannel
from ipexctl.model.hosts import Command, CommandIO, Host, Link, LinkError
from tests.contract.sshd import listening, pour, sshd
from tests.waiting import wait

HOSTILE = (
    "two words", "'", '"', "$(touch pwned)", "`id`", "line\nbreak\n", "-rf", "", "é ü 漢字", "\\", "!history", "*", "~",
    "a=b", "%h", "\udcff\udcfe",
)  # fmt: skip


def sh(text: str, **more: object) -> Command:
    return Command(("sh", "-c", text), **more)  # type: ignore[arg-type]


def test_hostile_words_arrive_as_they_are(link: Link) -> None:
    done = link.run(Command(("printf", "%s\\0", *HOSTILE)))
    assert done.status == 0
    assert done.out == b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in HOSTILE)


def test_a_word_of_a_hundred_kilobytes_arrives_whole(link: Link) -> None:
    word = "'\n$x!" * 20_000
    done = link.run(Command(("printf", "%s", word), stdin=b"not read"))
    assert done.out == word.encode()


def test_a_word_with_a_nul_byte_is_refused(link: Link) -> None:
    with pytest.raises(ValueError, match="NUL"):
        link.run(Command(("echo", "a\0b")))


def test_variables_arrive_as_they_are(link: Link) -> None:
    value = "two 'words' $HOME\n=x"
    done = link.run(Command(("printenv", "IPEXCTL_TEST"), env={"IPEXCTL_TEST": value}))
    assert done.out == value.encode() + b"\n"


def test_the_directory_is_the_one_asked_for(link: Link, tmp_path: Path) -> None:
    place = tmp_path / "a 'b' $c"
    place.mkdir()
    assert link.run(Command(("pwd",), cwd=str(place))).out == str(place).encode() + b"\n"


def test_the_directory_is_the_home_directory_unless_asked_for(link: Link) -> None:
    assert link.run(sh('[ "$(pwd -P)" = "$(cd && pwd -P)" ] && echo home')).out == b"home\n"


def test_in_a_directory_that_does_not_exist_nothing_is_executed(link: Link, tmp_path: Path) -> None:
    done = link.run(Command(("touch", str(tmp_path / "sentinel")), cwd=str(tmp_path / "none")))
    assert done.status != 0
    assert not (tmp_path / "sentinel").exists()


def test_stdin_arrives_whole_and_ends(link: Link) -> None:
    data = bytes(range(256)) * 4096
    done = link.run(Command(("cat",), stdin=data, cap=2 << 20))
    assert done.out == data


def test_late_input_is_asked_for_while_the_command_runs(real_link: Link, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def get_input() -> bytes:
        wait(begun.exists, 20.0)
        return b"begun"

    done = real_link.run(sh(f"touch {begun}; cat; echo .", late_input=5, timeout=60.0), CommandIO(get_input=get_input))
    assert done.out == b"begun.\n"
    assert real_link.run(sh("cat; echo next")).out == b"next\n"


def test_late_input_of_another_size_stops_the_command(real_link: Link) -> None:
    with pytest.raises(ValueError, match="4 bytes of input in place of 5"):
        real_link.run(sh("sleep 300", late_input=5, timeout=60.0), CommandIO(get_input=lambda: b"four"))
    assert real_link.run(sh("cat; echo next")).out == b"next\n"


def test_output_is_heard_while_the_command_runs(real_link: Link, tmp_path: Path) -> None:
    heard, lines = tmp_path / "heard", bytearray()

    def hear(data: bytes) -> None:
        lines.extend(data)
        if lines.startswith(b"a line"):
            heard.touch()

    wait = f"echo a line; i=0; until [ -e {heard} ] || [ $i = 400 ]; do sleep 0.05; i=$((i + 1)); done; [ -e {heard} ]"
    done = real_link.run(sh(f"{wait} && echo heard", timeout=60.0), CommandIO(on_output=hear))
    assert (done.out, bytes(lines)) == (b"a line\nheard\n",) * 2


def test_input_nobody_reads_is_no_error(link: Link) -> None:
    assert link.run(Command(("true",), stdin=b"x" * (8 << 20))).status == 0


def test_output_is_bytes_and_stderr_stays_apart(link: Link) -> None:
    done = link.run(sh("printf '\\000\\377\\n'; printf 'e\\200' >&2"))
    assert (done.out, done.err) == (b"\x00\xff\n", b"e\x80")


def test_a_status_is_a_value(link: Link) -> None:
    assert [link.run(sh(f"exit {status}")).status for status in (0, 1, 42, 255)] == [0, 1, 42, 255]


def test_a_program_that_does_not_exist_is_status_127(link: Link) -> None:
    assert link.run(Command(("ipexctl-no-such-program",))).status == 127


@pytest.mark.parametrize(("name", "status"), [("TERM", 143), ("KILL", 137), ("SEGV", 139)])
def test_death_by_a_signal_is_128_and_its_number(link: Link, name: str, status: int) -> None:
    assert link.run(sh(f"ulimit -c 0; kill -s {name} $$")).status == status


def test_outputs_are_capped_each(link: Link) -> None:
    done = link.run(sh("head -c 5000000 /dev/zero; echo end >&2", cap=1000))
    assert (done.status, len(done.out), done.err, done.truncated) == (0, 1000, b"end\n", True)


def test_output_of_exactly_the_cap_is_not_truncated(link: Link) -> None:
    done = link.run(sh("head -c 1000 /dev/zero", cap=1000))
    assert (len(done.out), done.truncated) == (1000, False)


def test_a_closed_link_says_that_it_is_lost(link: Link) -> None:
    link.close()
    link.close()
    with pytest.raises(LinkError) as caught:
        link.run(Command(("true",)))
    assert caught.value.failure.code == "lost"


def test_a_stream_gives_out_and_err_and_the_status(link: Link) -> None:
    output = {"out": b"", "err": b""}
    with link.stream(sh("echo one; echo two >&2; exit 5")) as channel:
        channel.end_input()
        for stream, data in channel:
            output[stream] += data
        assert channel.status() == 5
    assert output == {"out": b"one\n", "err": b"two\n"}


def test_a_stream_is_read_piece_by_piece_to_its_end(link: Link) -> None:
    with link.stream(sh("echo one")) as channel:
        output = b""
        while (pieces := channel.read(60.0)) is not None:
            output += b"".join(data for stream, data in pieces if stream == "out")
        assert output == b"one\n"
        assert channel.read(60.0) is None


def test_writing_after_the_input_was_ended_is_refused(link: Link) -> None:
    with link.stream(Command(("cat",))) as channel:
        channel.end_input()
        with pytest.raises(BrokenPipeError):
            channel.write(b"x")


# What only a running process can show.


def alive(mark: Path) -> bool:
    """Does the process live that wrote its id there? One that only waits to be buried does not."""
    try:
        stat = Path(f"/proc/{mark.read_text().strip()}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


def find_running(mark: Path) -> list[str]:
    """The processes that have this path in their arguments."""
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(mark) in (process / "cmdline").read_bytes():
                result.append(process.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return result


def test_a_timed_out_command_leaves_no_process(real_link: Link, tmp_path: Path) -> None:
    marks = [tmp_path / "parent", tmp_path / "child"]
    child = f"(trap '' TERM; sh -c 'echo $PPID' > {marks[1]}; sleep 1000; :)"
    text = f"trap '' TERM; echo $$ > {marks[0]}; {child} & sleep 1000; :"
    with pytest.raises(LinkError) as caught:
        real_link.run(sh(text, timeout=1.0))
    assert caught.value.failure.code == "timeout-command"
    assert "timed out after 1 s" in caught.value.failure.what
    assert "may still" not in caught.value.failure.what
    assert not any(alive(mark) for mark in marks)


def test_a_command_with_a_process_left_in_the_background_ends_when_it_ends_itself(real_link: Link) -> None:
    done = real_link.run(sh("sleep 1000 & echo $!", timeout=1000))
    os.kill(int(done.out), signal.SIGTERM)  # it is still there
    assert done.status == 0


def test_what_a_command_writes_as_a_silence_ends_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read, silences = LocalChannel.read, [True]

    def read_late(channel: LocalChannel, timeout: float | None) -> object:
        if silences and silences.pop():  # it writes and ends before its reader, who saw nothing, goes on
            channel.status()
            return []
        return read(channel, timeout)

    monkeypatch.setattr(LocalChannel, "read", read_late)
    assert LocalLink(Host("here", "localhost")).run(sh("sleep 0.1; echo late")).out == b"late\n"


@pytest.mark.parametrize("home", [None, ""])
def test_without_home_a_command_on_this_machine_has_that_of_its_user(
    monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    assert LocalLink(Host("here", "localhost")).run(sh('printf %s "$HOME"')).out.startswith(b"/")


def test_several_threads_may_use_one_link(real_link: Link) -> None:
    with ThreadPoolExecutor(8) as pool:
        done = [*pool.map(lambda n: real_link.run(sh(f"sleep 0.1; echo {n}", timeout=30)), range(8))]
    assert [each.out for each in done] == [f"{n}\n".encode() for n in range(8)]


def test_pieces_of_a_stream_come_as_they_are_written(streaming_link: Link) -> None:
    with streaming_link.stream(Command(("cat",), stdin=b"first\n")) as channel:
        pieces = iter(channel)
        assert next(pieces) == ("out", b"first\n")
        channel.write(b"no line end")
        assert next(pieces) == ("out", b"no line end")
        channel.end_input()
        assert list(pieces) == []
        assert channel.status() == 0


def test_reading_a_silent_stream_takes_no_longer_than_allowed(streaming_link: Link) -> None:
    with streaming_link.stream(Command(("cat",), stdin=b"first\n")) as channel:
        assert channel.read(60.0) == [("out", b"first\n")]
        start = time.monotonic()
        assert channel.read(0.2) == []
        assert time.monotonic() - start > 0.1
        channel.write(b"second\n")
        assert channel.read(60.0) == [("out", b"second\n")]


def test_closing_a_stream_from_another_thread_ends_the_reading_at_once(real_link: Link, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    channel = real_link.stream(sh(f"echo $$ > {mark}.tmp && mv {mark}.tmp {mark}; exec sleep 1000"))
    wait(mark.exists)
    threading.Timer(0.1, channel.close).start()
    assert list(channel) == []
    assert alive(mark), "closing our side does not end the remote process"
    real_link.run(Command(("kill", mark.read_text().strip())))


def run_in_thread(link: Link, command: Command) -> tuple[threading.Thread, list[LinkError]]:
    """The thread that runs it, and the errors of that run as they come."""
    errors: list[LinkError] = []

    def body() -> None:
        try:
            link.run(command)
        except LinkError as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    return thread, errors


def test_closing_the_link_ends_a_run_in_another_thread_and_its_process(real_link: Link, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    command = sh(f"echo $$ > {mark}.tmp && mv {mark}.tmp {mark}; sleep 1000; :", timeout=1000)
    thread, errors = run_in_thread(real_link, command)
    wait(mark.exists)
    real_link.close()
    thread.join(60)
    assert not thread.is_alive()
    assert [error.failure.code for error in errors] == ["lost"]
    wait(lambda: not alive(mark))


def test_closing_the_link_ends_the_reading_and_the_writing_of_its_streams(remote_link: Link, tmp_path: Path) -> None:
    """What waits for input there gets its end."""
    errors: list[Exception] = []
    there = tmp_path / "there"
    channel = remote_link.stream(sh(f"echo begun; sleep 0.3; cat >{there}; touch {there}.ended"))
    assert channel.read(60.0)

    def write() -> None:
        try:
            while True:
                channel.write(b"x" * (1 << 20))
        except (LinkError, BrokenPipeError) as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    wait(lambda: there.exists() and there.stat().st_size > 1 << 20)
    remote_link.close()
    writer.join(60)
    assert not writer.is_alive()
    assert len(errors) == 1
    with pytest.raises(LinkError) as caught:
        list(channel)
    assert caught.value.failure.code == "lost"
    wait((tmp_path / "there.ended").exists)


@contextmanager
def relaying(port: int) -> Iterator[tuple[int, threading.Event]]:
    """Another port for the server at ``port``, and what lets the server's words through."""
    through = threading.Event()
    through.set()

    def serve(near: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", port)) as far:
            up = threading.Thread(target=pour, args=(near, far))
            up.start()
            pour(far, near, through)
            up.join()

    with listening(serve) as other:
        yield other, through
        through.set()


def test_closing_the_link_ends_a_run_whose_first_words_are_on_the_way(tmp_path: Path) -> None:
    """Its process id is in them. The login shell waits in a startup file until our side knows that it was started."""
    reads, go, mark = tmp_path / "reads", tmp_path / "go", tmp_path / "mark"
    waits = f"touch {reads}\nwhile [ ! -e {go} ]; do sleep 0.05; done\n"
    with sshd(tmp_path / "sshd", startup=waits) as server, relaying(server.port) as (port, through):
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {server.public()}\n")
        link = Links(known_hosts=known, config=None).open(server.host(port=port))
        thread, errors = run_in_thread(link, sh(f"touch {mark}; sleep 60; :", timeout=1000))
        wait(reads.exists)
        time.sleep(0.5)
        through.clear()
        go.touch()
        wait(mark.exists)
        threading.Timer(0.2, through.set).start()
        link.close()
        thread.join(60)
        assert [error.failure.code for error in errors] == ["lost"]
        assert not find_running(mark)


@pytest.mark.parametrize("text", ["echo output", "echo output; cat"], ids=["ended", "waits"])
def test_the_output_behind_megabytes_of_a_startup_file_is_read(tmp_path: Path, text: str) -> None:
    """All of it has come before our side reads: nothing wakes it again."""
    with sshd(tmp_path / "sshd", startup="head -c 1500000 /dev/zero\n") as server:
        link = Links(known_hosts=server.known_hosts, config=None).open(server.host())
        with link.stream(sh(text)) as channel:
            time.sleep(1.0)
            begun = time.monotonic()
            assert channel.read(20) == [("out", b"output\n")]
            assert time.monotonic() - begun < 10
        link.close()


def test_a_reader_that_pauses_slows_the_writer_down(streaming_link: Link, tmp_path: Path) -> None:
    counter = tmp_path / "count"
    text = f"i=0; while [ $i -lt 60 ]; do head -c 1000000 /dev/zero; i=$((i+1)); echo $i > {counter}; done"
    with streaming_link.stream(sh(text)) as channel:
        pieces = iter(channel)
        next(pieces)
        time.sleep(1.0)
        written = int(counter.read_text() or 0) if counter.exists() else 0
        assert written < 20
        total = sum(len(data) for _, data in pieces)
        assert total > 50_000_000
        assert channel.status() == 0


def test_writing_much_into_a_stream_that_echoes_it_does_not_lock_up(streaming_link: Link) -> None:
    data = b"x" * (16 << 20)
    with streaming_link.stream(Command(("cat",))) as channel:

        def write() -> None:
            channel.write(data)
            channel.end_input()

        thread = threading.Thread(target=write)
        thread.start()
        assert sum(len(piece) for _, piece in channel) == len(data)
        thread.join()


def test_writing_to_a_command_that_has_ended_is_a_broken_pipe(streaming_link: Link) -> None:
    with streaming_link.stream(Command(("true",))) as channel:
        assert channel.status() == 0
        with pytest.raises(BrokenPipeError):
            channel.write(b"x" * (16 << 20))
