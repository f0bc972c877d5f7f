"""Brief commands share one shell on a host, and nobody notices but by the time it takes."""

import os
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.act.bundled_files import read_script
from ipexctl.act.ssh import Links, LocalLink
from ipexctl.act.ssh.shared_shell import EndFinder
from ipexctl.model.hosts import Command, Host, LinkError
from tests.contract.sshd import Server, sshd


def sh(text: str, *, brief: bool = True, stdin: bytes = b"", timeout: float = 60.0) -> Command:
    return Command(("sh", "-c", text), brief=brief, stdin=stdin, timeout=timeout)


def open_links(server: Server) -> Links:
    return Links(known_hosts=server.known_hosts, config=None)


def test_the_startup_files_are_executed_once(tmp_path: Path) -> None:
    logins = tmp_path / "logins"
    with sshd(tmp_path / "sshd", startup=f"echo login >> {logins}\n") as server:
        link = (links := open_links(server)).open(server.host())
        for number in range(5):
            assert link.run(sh(f"cat; echo {number}", stdin=b"input ")).out == b"input %d\n" % number
        assert logins.read_text() == "login\n"
        assert link.run(sh("echo other", brief=False)).out == b"other\n"
        assert logins.read_text() == "login\n" * 2
        links.close()


def test_a_command_that_could_not_be_read_has_not_succeeded(tmp_path: Path) -> None:
    """Startup files had lost the PATH of the system: each brief command ended with 0, and nothing was done."""
    with sshd(tmp_path / "sshd", env={"PATH": "/opt/mine"}) as server:
        done = (links := open_links(server)).open(server.host()).run(sh("true"))
        assert (done.status, done.out, done.err) == (127, b"", b"neither dd nor head is in PATH: /opt/mine")
        links.close()


@pytest.mark.parametrize("size", [1, 900, 1024, 5000])
@pytest.mark.parametrize("word", ["x", "ä ", "back\\slash ", "two\nlines ", "$HOME 'quoted' ", " \t\r\x1b*"])
def test_a_command_of_any_length_and_any_characters_arrives_as_it_is(server: Server, word: str, size: int) -> None:
    link = (links := open_links(server)).open(server.host())
    words = (word * size)[:size], word, ""
    for stdin in (b"", b"input"):
        done = link.run(Command(("sh", "-c", 'printf "<%s>" "$@"; cat', "sh", *words), brief=True, stdin=stdin))
        assert done.out.decode() == "".join(f"<{each}>" for each in words) + stdin.decode()
    links.close()


@pytest.mark.parametrize("size", [10, 50_000, 120_000])  # in an argument, in one as octal numbers too long, too long
def test_the_first_command_of_a_shell_may_have_any_length(server: Server, size: int) -> None:
    for word in ("x" * size, "'\n" * (size // 2)):
        link = (links := open_links(server)).open(server.host())
        for stdin in (b"input", b""):
            command = Command(("", word), script='printf %s "$1"; cat', brief=True, stdin=stdin)
            done = link.run(command)
            assert done.out.decode() == word + stdin.decode()
        links.close()


def test_what_ends_an_output_is_in_no_argument_that_other_users_of_a_host_could_read(server: Server) -> None:
    link = (links := open_links(server)).open(server.host())
    command = Command(("",), script='tr "\\0" "\\n" </proc/$PPID/cmdline', brief=True)
    first, second = (link.run(command).text for _ in range(2))
    assert "fullblock" in first, "the shared shell"
    assert not re.findall("ipexctl-[0-9a-f]{16}", first)
    assert second == first
    links.close()


def test_a_script_has_its_words_and_its_own_end_in_each_way_that_it_is_executed(server: Server) -> None:
    text = "cat\nprintf '<%s>' \"$@\"\nX=1 size=7 text=none\necho lost >&2\nexit 7\n"
    words = ("a script", "a b", "", "it's", "~", "two\nlines")
    command = Command(words, script=text, stdin=b"input ")
    expected = b"input <a b><><it's><~><two\nlines>"
    assert str(command).startswith("'a script' 'a b'")  # its name, not its text
    links = open_links(server)
    for link in (links.open(server.host()), LocalLink(Host("here", "localhost"))):
        for _ in range(3):
            for brief in (True, False):
                done = link.run(replace(command, brief=brief))
                assert (done.status, done.out, done.err) == (7, expected, b"lost\n")
    links.close()


def test_a_server_with_room_for_one_session_gets_one_at_a_time(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd", "MaxSessions 1") as server:
        link = (links := open_links(server)).open(server.host())
        assert link.run(sh("echo shared")).out == b"shared\n"
        assert link.run(sh("echo own", brief=False)).out == b"own\n"
        with link.stream(sh("cat")) as channel:
            channel.write(b"piece")
            channel.end_input()
            assert b"".join(data for _, data in channel) == b"piece"
        for number in range(3):
            assert link.run(sh(f"echo {number}", brief=False)).out == b"%d\n" % number
        assert link.run(sh("echo again")).out == b"again\n"
        with link.stream(sh("cat")), pytest.raises(LinkError, match="opens no further session"):
            link.run(sh("echo beside it"))
        links.close()


@pytest.mark.parametrize("shell", ["sh", "bash", "busybox"])
def test_a_shell_without_a_command_ends_after_a_limit_though_its_client_says_nothing(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    text = read_script("shared_shell.sh").replace("limit=600", "limit=1")
    words = [shell, *(["sh"] if shell == "busybox" else []), "-c", text]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"26 5 end\n{ sleep 2; cat; exit 3 \n }input")
        process.stdin.flush()
        assert process.stdout.read() == b"input\nend 3\n"
        assert process.wait(60) == 255, "a command that comes at that moment has not ended well"


def test_a_shell_that_was_killed_is_replaced(server: Server) -> None:
    link = (links := open_links(server)).open(server.host())
    pid = int(link.run(sh("echo $PPID")).text)
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}").exists():  # until sshd has taken its status
        time.sleep(0.01)
    link.run(sh("true", brief=False))  # behind what sshd says of it
    assert int(link.run(sh("echo $PPID")).text) != pid
    links.close()


def test_after_a_command_that_did_not_end_another_shell_is_used(server: Server) -> None:
    link = (links := open_links(server)).open(server.host())
    first = link.run(sh("echo $PPID")).out
    with pytest.raises(LinkError, match="timed out"):
        link.run(sh("sleep 300", timeout=0.5))
    second = link.run(sh("echo $PPID")).out
    assert second not in (first, b"")
    assert link.run(sh("echo $PPID")).out == second
    links.close()


def test_what_a_command_changes_of_its_shell_ends_with_it(server: Server) -> None:
    link = (links := open_links(server)).open(server.host())
    for text in ("cd /tmp; umask 0; X=1; export X; exec 2>&1; trap '' TERM; set -e; false", "exit 7", "kill -9 $$"):
        link.run(Command(("eval", text), brief=True))
    done = link.run(sh('echo "$X"; echo err >&2; pwd; umask; kill -TERM $$'))
    assert (done.status, done.err) == (143, b"err\n")
    assert re.fullmatch(rb"\n/\S+/home\n00?\d+\n", done.out)
    links.close()


def test_threads_get_shells_of_their_own(server: Server) -> None:
    link = (links := open_links(server)).open(server.host())
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda number: link.run(sh(f"echo {number}; sleep 0.05; echo {number}")).out, range(40))
        assert list(answers) == [b"%d\n%d\n" % (number, number) for number in range(40)]
    links.close()


@given(st.binary(max_size=80), st.lists(st.integers(0, 120)), st.integers(0, 255))
def test_the_end_is_found_however_the_bytes_come(output: bytes, cuts: list[int], status: int) -> None:
    end = EndFinder(b"ipexctl-0123")
    data = output + b"\nipexctl-0123 %d\n" % status
    ends = [*sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[start:stop] for start, stop in zip([0, *ends[:-1]], ends, strict=True)]
    result = b""
    for piece in pieces:
        assert not end.ended or not piece
        result += end.extract_output(piece)
    assert (result, end.ended, end.status) == (output, True, status)


def test_what_only_resembles_the_end_is_output() -> None:
    end = EndFinder(b"ipexctl-0123")
    data = b"a\nipexctl-0124 0\n\nipexctl-012\n ipexctl-0123 1\nb"
    assert end.extract_output(data) + end.extract_output(b"\nipexctl-0123\n") == data
    assert end.ended


def test_a_last_line_without_an_end_is_not_gathered() -> None:
    """A host that never ended it took a core here, the longer the more."""
    end = EndFinder(b"ipexctl-0123")
    assert end.extract_output(b"a\nipexctl-0123 " + b"0" * 99) == b"a"
    assert (end.ended, end.status) == (True, 255)
