"""How a command travels through login shells."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipexctl.act.ssh.quoting import (
    OutputSplitter,
    fit_argument_limit,
    format_shell_line,
    make_nonce,
    make_stop_script,
    wrap_command,
)
from ipexctl.model.hosts import Command

SHELLS = [
    path
    for name in ("bash", "dash", "sh", "tcsh", "csh", "fish", "zsh", "ksh")
    if (path := shutil.which(name)) is not None
]
HOSTILE = (
    "a b", "", "'", '"', "$(touch pwned)", "`id`", "\\", "\\\\n", "!x", "!!", "a\nb\n", "-rf", "~", "*", "%h",
    "%b\\0101", "é\u202e", "\udcff", "a;b|c&d>e<f", "{a,b}", "[x]", "#no", "$HOME ${x} $1", "\t\x01\x7f",
    "^a^b", "=ls", "a=b",
)  # fmt: skip


def through(
    shell: str, words: tuple[str, ...], stdin: bytes = b"", before: str = ""
) -> tuple[bytes, OutputSplitter, int]:
    """What comes back from words that print their arguments, given to a login shell as sshd does."""
    command = Command(("printf", "%s\\0", *words))
    nonce = make_nonce()
    way = wrap_command(format_shell_line(command), nonce)
    line = before.encode() + way.line
    done = subprocess.run([shell, "-c", line], input=way.stdin + stdin, capture_output=True, timeout=30)
    marked = OutputSplitter(nonce)
    return marked.extract_output(done.stdout), marked, done.returncode


@pytest.mark.parametrize("shell", SHELLS)
def test_hostile_words_come_through_every_login_shell_unchanged(shell: str) -> None:
    out, marked, status = through(shell, HOSTILE)
    assert status == 0
    assert out == b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in HOSTILE)
    assert marked.pid > 0


@pytest.mark.parametrize("shell", SHELLS)
def test_a_word_of_a_hundred_kilobytes_comes_through_every_login_shell(shell: str) -> None:
    word = "x'\n!$" * 20_000
    out, _, status = through(shell, (word,))
    assert status == 0
    assert out == word.encode() + b"\0"


def test_of_a_long_command_that_did_not_arrive_whole_nothing_is_executed(tmp_path: Path) -> None:
    way = fit_argument_limit(b"touch early; : %s; touch late" % (b"x" * 150_000))
    for cut in (20, 100_000, len(way.stdin) - 1):
        done = subprocess.run(["sh", "-c", way.line], input=way.stdin[:cut], capture_output=True, cwd=tmp_path)
        assert done.returncode != 0
    assert not list(tmp_path.iterdir())
    subprocess.run(["sh", "-c", way.line], input=way.stdin, check=True, cwd=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("word", [b"x" * 50_000, b"x" * 150_000, b'"x"' * 30_000])  # the last is long once it is quoted
@pytest.mark.parametrize("tools", ["coreutils", "busybox", "a dd that does not know the word"])
def test_a_command_of_any_length_has_its_own_input(tmp_path: Path, tools: str, word: bytes) -> None:
    busybox = shutil.which("busybox")
    if tools == "busybox" and not busybox:
        pytest.skip("there is no busybox here")
    for tool in ("sh", "cat", "dd", "head"):
        (tmp_path / tool).symlink_to(str(busybox if tools == "busybox" else shutil.which(tool)))
    if tools.startswith("a dd"):
        (tmp_path / "dd").unlink()
        (tmp_path / "dd").symlink_to("/bin/false")
    own = b"the command's own\n" * 10_000
    for way in (fit_argument_limit(b": %s; cat" % word), wrap_command(b": %s; cat" % word, b"mark")):
        given, env = way.stdin + own, {"PATH": str(tmp_path)}
        done = subprocess.run([tmp_path / "sh", "-c", way.line], input=given, capture_output=True, env=env, timeout=30)
        assert done.stdout.rpartition(b"mark ")[2].lstrip(b"0123456789").lstrip(b"\n") == own, done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_noise_of_startup_files_stays_outside_the_mark(shell: str) -> None:
    noise = "echo Welcome to node1; echo ipexctl- 1; cd /; "
    out, marked, _ = through(shell, ("x",), before=noise)
    assert out == b"x\0"
    assert bytes(marked.noise) == b"Welcome to node1\nipexctl- 1\n"


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40), max_size=5))
@settings(max_examples=40, deadline=None)
def test_any_words_come_through_sh(words: list[str]) -> None:
    out, _, _ = through("/bin/sh", tuple(words) or ("",))
    assert out == b"".join(word.encode() + b"\0" for word in words or [""])


def test_a_mark_that_arrives_in_pieces_is_found() -> None:
    nonce = make_nonce()
    data = b"noise" + nonce + b" $$\n" + nonce + b" 4711\nout"
    for cut in range(1, len(data)):
        marked = OutputSplitter(nonce)
        assert marked.extract_output(data[:cut]) + marked.extract_output(data[cut:]) == b"out"
        assert marked.pid == 4711


def test_endless_noise_without_a_mark_does_not_fill_memory() -> None:
    marked = OutputSplitter(make_nonce())
    for _ in range(40):
        assert marked.extract_output(b"x" * 100_000) == b""
    assert len(marked.noise) < 2 << 20


class CountingNoise(bytearray):
    searched = 0

    def find(self, part: Any, start: Any = 0) -> int:  # type: ignore[override]
        found = super().find(part, start)
        self.searched += (found if found >= 0 else len(self)) - start
        return found


def test_noise_is_searched_once_however_often_it_looks_like_the_mark() -> None:
    """Of a host that sent the nonce in 5,000 packets, without a process, 128 KiB took half a minute."""
    nonce, noise = make_nonce(), CountingNoise()
    marked = OutputSplitter(nonce, noise=noise)
    for line in (nonce + b" x\n", b"x") * 1000:
        assert marked.extract_output(line) == b""
    assert noise.searched < 200_000


def test_a_nul_in_an_argument_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"train.*NUL"):
        format_shell_line(Command(("train", "a\0b")))


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox ash"])
@pytest.mark.parametrize(
    ("text", "status"),
    [
        pytest.param(b"trap '' TERM; sleep 300 & echo $$; sleep 300; sleep 300", -9, id="all of it ignores SIGTERM"),
        pytest.param(b"(trap '' TERM; echo $$; sleep 300; sleep 300) & wait", -15, id="its leader ends by SIGTERM"),
    ],
)
def test_ending_stops_a_process_group_that_ignores_sigterm(shell: str, text: bytes, status: int) -> None:
    words = shell.split()
    if not shutil.which(words[0]):
        pytest.skip(f"{shell} is not installed here")
    line = fit_argument_limit(text).line
    process = subprocess.Popen(["/bin/sh", "-c", line], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    output = subprocess.run([*words, "-c", make_stop_script(process.pid)], capture_output=True, timeout=60)
    assert output.stdout == b""
    assert process.wait(60) == status
    assert process.stdout.read() == b"", "nobody holds its output any more"
    process.stdout.close()
