"""``doctor --fix`` as people use it: at a terminal, on separate hosts that have each of the faults it can put right."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import wheels
from tests.cluster import Cluster, missing
from tests.e2e.workspace import Terminal, Workspace
from tests.integration.test_doctor import do
from tests.waiting import wait
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


@contextmanager
def fixing(cluster: Cluster, place: Path, index: str = "http://127.0.0.1:9") -> Iterator[Terminal]:
    workspace = Workspace(cluster, place / "desk")
    workspace.env |= {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": index}
    terminal = Terminal(workspace, "doctor", "--venv", VENV, "--pairwise", "off", "--connect-timeout", "4", "--fix")
    try:
        yield terminal
    finally:
        terminal.kill()


def answer_next(terminal: Terminal, keys: bytes) -> bytes:
    """Types this at the next question; what was written up to it."""
    before = len(terminal.screen)
    wait(lambda: b"[y/N] " in terminal.read()[before:], 60.0, lambda: repr(terminal.screen))
    asked = terminal.screen
    terminal.type(keys)
    return asked


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
        for words in (b"powersave", b"huge pages"):
            asked = answer_next(terminal, b"y\n")
            assert b"node1" in asked
            assert words in asked
        assert b"ipexctl install" in answer_next(terminal, b"n\n")
        terminal.end()
    assert now(planted) == ("madvise", "performance", [False, False, False])
    assert b"governor is powersave" not in terminal.screen.rpartition(b"[y/N] ")[2]  # it has looked again


def test_ctrl_c_at_a_question_ends_at_once_and_touches_nothing(planted: Cluster, tmp_path: Path) -> None:
    with fixing(planted, tmp_path) as terminal:
        answer_next(terminal, b"\x03")
        assert terminal.end() == 130, terminal.screen
    assert now(planted) == UNTOUCHED
    assert b"Traceback" not in terminal.screen


def test_a_missing_environment_is_installed_after_a_yes(planted: Cluster, tmp_path: Path) -> None:
    with (
        planted.inside(),
        serving(Index(DEFAULT), CONTROLLER) as index,
        fixing(planted, tmp_path, index.url) as terminal,
    ):
        for keys in (b"yesterday\n", b"\x04", b"y\n"):  # a word, and the end of the input, are no yes
            answer_next(terminal, keys)
        terminal.end(240.0)
    assert now(planted) == (*UNTOUCHED[:2], [True, True, True]), terminal.screen
    marker = json.loads(planted.exec("node2", ["cat", f"{VENV}/ipexctl.json"]).stdout)
    assert marker["packages"]["torch"] == "2.7.0"
    assert b"STK004" not in terminal.screen.rpartition(b"[y/N] ")[2]  # it has looked again
