"""``doctor --fix`` as people use it: at a terminal, on separate hosts that have each of the faults it can put right."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import wheels
from tests.cluster import Cluster, missing
from tests.integration.test_doctor import ROOT, do
from tests.wheels import Index, serving

THP = "/sys/kernel/mm/transparent_hugepage/enabled"
GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
VENV = "/root/share/fixed"
CONTROLLER = "10.77.0.1"
DEFAULT = [  # what a plain `ipexctl install` asks for
    wheels.torch("2.7.0"),
    wheels.ipex("2.7.0"),
    wheels.binding("2.7.0", "oneccl_bindings_for_pytorch", "opt-mpi"),
    wheels.impi("2021.15.0"),
    wheels.numpy(),
    wheels.wheel("setuptools", "80.9.0", {"pkg_resources/__init__.py": ""}),
]

pytestmark = pytest.mark.hosts


class Terminal:
    """ipexctl on the controller, at a terminal of 100 columns; what it said so far is ``screen``."""

    def __init__(self, cluster: Cluster, words: list[str], env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.screen = ""
        self.process = subprocess.Popen(
            [*cluster.controller, "setsid", "-c", sys.executable, "-m", "ipexctl", *words],
            cwd=ROOT,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **env},
        )
        os.close(theirs)

    def until(self, words: str, seconds: float = 60) -> bool:
        """Whether it says these words (new ones: what was waited for before does not count) before it ends."""
        seen, deadline = len(self.screen), time.monotonic() + seconds
        while words not in self.screen[seen:] and time.monotonic() < deadline:
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    self.screen += os.read(self._ours, 1 << 16).decode("utf-8", "replace").replace("\r", "")
                except OSError:  # it has ended
                    break
        return words in self.screen[seen:]

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """Its exit code, once it has said all."""
        self.until("\0")
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)


@contextmanager
def fixing(cluster: Cluster, place: Path, *flags: str, index: str = "http://127.0.0.1:9") -> Iterator[Terminal]:
    words = ["doctor", "-f", str(cluster.hostfile), "--venv", VENV, "--pairwise", "off", "--fix", *flags]
    env = {"HOME": str(place), "XDG_CACHE_HOME": f"{place}/cache", "PIP_CONFIG_FILE": "/dev/null"}
    terminal = Terminal(cluster, words, {**env, "PIP_INDEX_URL": index})
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.fixture(scope="module")
def faulty() -> Iterator[Cluster]:
    """On node1 huge pages are off and the governor saves power: files of its own, where the kernel's are elsewhere."""
    if reason := missing():
        pytest.skip(reason)
    with Cluster() as cluster:
        cpu = GOVERNOR.removesuffix("/cpufreq/scaling_governor")
        do(
            cluster,
            "node1",
            "echo >/root/thp",
            f"mount --bind /root/thp {THP}",
            f"mount -t tmpfs tmpfs {cpu}",
            f"mkdir {cpu}/topology {cpu}/cpufreq",
            f"echo 0 | tee {cpu}/topology/physical_package_id >{cpu}/topology/thread_siblings_list",
        )
        yield cluster


@pytest.fixture
def planted(faulty: Cluster) -> Cluster:
    """As it was before anything was fixed."""
    do(faulty, "node1", f"echo 'always madvise [never]' >{THP}", f"echo powersave >{GOVERNOR}")
    for host in faulty.names:
        do(faulty, host, f"rm -rf {VENV} {VENV}.d")
    return faulty


def now(cluster: Cluster) -> tuple[str, str, list[bool]]:
    """Huge pages and governor of node1, and which hosts have an environment."""
    thp, governor = (cluster.read("node1", path).decode().strip() for path in (THP, GOVERNOR))
    return thp, governor, [cluster.path(host, VENV).is_symlink() for host in cluster.names]


UNTOUCHED = ("always madvise [never]", "powersave", [False, False, False])


def test_each_fix_is_asked_for_with_its_reason_and_done_after_a_yes(planted: Cluster, tmp_path: Path) -> None:
    with fixing(planted, tmp_path) as terminal:
        for words in ("powersave", "huge pages"):
            assert terminal.until("[y/N] "), terminal.screen
            assert "node1" in terminal.screen
            assert words in terminal.screen
            terminal.type("y\n")
        assert terminal.until("ipexctl install"), terminal.screen
        terminal.type("n\n")
        terminal.end()
    assert now(planted) == ("madvise", "performance", [False, False, False])
    assert "governor is powersave" not in terminal.screen.rpartition("[y/N] ")[2]  # it has looked again


@pytest.mark.parametrize("answer", ["n\n", "\n", "yesterday\n", "\x04"], ids=["no", "nothing", "a word", "end of file"])
def test_anything_but_yes_touches_nothing(planted: Cluster, tmp_path: Path, answer: str) -> None:
    with fixing(planted, tmp_path) as terminal:
        for _ in range(3):
            assert terminal.until("[y/N] "), terminal.screen
            terminal.type(answer)
        code = terminal.end()
    assert now(planted) == UNTOUCHED
    assert code in (0, 4), terminal.screen
    assert "powersave" in terminal.screen


def test_ctrl_c_at_a_question_ends_at_once_and_touches_nothing(planted: Cluster, tmp_path: Path) -> None:
    with fixing(planted, tmp_path) as terminal:
        assert terminal.until("[y/N] "), terminal.screen
        terminal.type("\x03")
        assert terminal.end() == 130, terminal.screen
    assert now(planted) == UNTOUCHED
    assert "Traceback" not in terminal.screen


def test_without_a_terminal_nobody_is_asked_and_nothing_is_touched(planted: Cluster) -> None:
    words: list[str | Path] = [
        sys.executable,
        "-m",
        "ipexctl",
        "doctor",
        "-f",
        planted.hostfile,
        "--fix",
        "--pairwise",
        "off",
    ]
    done = planted.run(words, cwd=ROOT, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, "")
    assert "which needs a terminal" in done.stderr
    assert now(planted) == UNTOUCHED


def test_a_missing_environment_is_installed_after_a_yes(planted: Cluster, tmp_path: Path) -> None:
    with (
        planted.inside(),
        serving(Index(DEFAULT), CONTROLLER) as index,
        fixing(planted, tmp_path, index=index.url) as terminal,
    ):
        for answer in ("n\n", "n\n", "y\n"):
            assert terminal.until("[y/N] "), terminal.screen
            terminal.type(answer)
        terminal.end()
    assert now(planted) == (*UNTOUCHED[:2], [True, True, True]), terminal.screen
    marker = json.loads(planted.exec("node2", ["cat", f"{VENV}/ipexctl.json"]).stdout)
    assert marker["packages"]["torch"] == "2.7.0"
    assert "STK004" not in terminal.screen.rpartition("[y/N] ")[2]  # it has looked again
