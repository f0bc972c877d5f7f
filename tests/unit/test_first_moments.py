"""Ctrl-C before a command has begun, or after it has ended: a code and never a trace."""

import subprocess
import sys
from pathlib import Path

import pytest

# The signal arrives where Python can raise nothing and would print a trace instead: in a `__del__`.
PROGRAM = """
import atexit, os, signal, sys
class Bomb:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            Bomb()
sys.meta_path.insert(0, Finder())
if not {module!r}:
    atexit.register(Bomb)
from ipexctl.__main__ import main
sys.argv = ["ipexctl", {word!r}]
main()
"""


@pytest.mark.parametrize(
    ("module", "word", "code"),
    [("ipexctl.cli", "--version", 130), ("typer", "--version", 130), ("ipexctl.loop", "ps", 130), ("", "--version", 0)],
)
def test_ctrl_c_in_the_first_and_the_last_moment(module: str, word: str, code: int) -> None:
    program = PROGRAM.format(module=module, word=word)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (code, "")


@pytest.mark.parametrize(
    ("words", "hint"),
    [(["nosuch1", "uptime"], "hint: ipexctl exec --hosts nosuch1 -- uptime"), (["--", "ulimit", "-f"], "such as:")],
)
def test_a_host_in_the_place_of_a_command(words: list[str], hint: str, tmp_path: Path) -> None:
    """A word that is no program here is taken for a host where one follows, and not a shell's own command."""
    ended = subprocess.run(
        [sys.executable, "-m", "ipexctl", "exec", *words], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert ended.returncode == 2
    assert hint in ended.stderr


@pytest.mark.parametrize(("closed", "out"), [("<&-", "x\n"), (">&-", ""), ("2>&- <&-", "x\n"), (">&- 2>&- <&-", "")])
def test_streams_that_a_service_has_closed(closed: str, out: str) -> None:
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "ipexctl"]
    echo = [*words, "exec", "--hosts", "localhost", "echo", "x"]
    ended = subprocess.run(echo, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, out in ended.stdout, "internal error" in ended.stderr) == (0, True, False)
