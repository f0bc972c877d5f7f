"""Ten bad minutes on a terminal of 80 columns and 24 lines: its screen names the rank, the host, the line and the next
command. What each looks like: docs/failures.md. IPEXCTL_RECORD=1 keeps the events for those pictures."""

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests import wheels
from tests.cluster import Cluster
from tests.e2e.groups import memory, processor
from tests.e2e.recording import record
from tests.e2e.workspace import LIGHT, QUICK, RANKS, Started, Terminal, Workspace, find_orphans, write_hostfile
from tests.stock import over
from tests.waiting import wait
from tests.wheels import Index, crawl, serving

SCRIPT = RANKS / "minutes.py"
LINES = {
    words: number
    for number, text in enumerate(SCRIPT.read_text().splitlines(), 1)
    for words in ("time.sleep(600)", "raise KeyError", "torch.save", "ballast.append", "raise ValueError")
    if words in text
}
STEP = re.compile(r"step 1[2-9]|step [2-9]\d")


@pytest.fixture
def desk(workspace: Workspace) -> Workspace:
    """A user whose hostfile lies in the current directory: no command needs its path."""
    (workspace.path / "hostfile").symlink_to(workspace.env.pop("IPEXCTL_HOSTFILE"))
    return workspace


@contextmanager
def on_screen(workspace: Workspace, *words: str | Path) -> Iterator[Terminal]:
    """The command on a terminal, which is ended with its run."""
    terminal = Terminal(workspace, *words, columns=80, lines=24)
    try:
        yield terminal
        if terminal.process.poll() is None:
            terminal.process.send_signal(signal.SIGINT)
            terminal.end()
        assert "processes left on" in terminal.look()
        assert not find_orphans(workspace.cluster)
    finally:
        terminal.kill()


def expect(terminal: Terminal, *patterns: str, timeout: float = 90.0) -> str:
    """The screen, as soon as all of this is on it; broken lines count as one."""

    def look() -> str:
        return re.sub(r"\n(▌)?\s*", " ", terminal.look())

    wait(lambda: all(re.search(pattern, look()) for pattern in patterns), timeout, terminal.look)
    return terminal.look()


def run(group: tuple[str, ...], fault: str, *more: str) -> tuple[str | Path, ...]:
    return ("run", *group, "--ppn", "1", *more, SCRIPT, fault)


@over()
def test_a_host_at_half_speed(desk: Workspace, hosts: Cluster, group: tuple[str, ...]) -> None:
    with on_screen(desk, *run(group, "slow")) as terminal:
        expect(terminal, STEP.pattern)
        with processor(hosts, "node1", 0.02):
            expect(
                terminal,
                r"pace [\d.]+ it/s, was [\d.]+ until 00:\d\d:\d\d",
                r"node1: its control group limits CPU time, throttled \d+ % of the time",
                r"without it: ipexctl run .*--limit '!node1' .*minutes\.py slow",
                r" 1 ◀ +node1 ",
            )
    record("slow-host", desk)
    slow = desk.report()["run"]["slow_host"]
    assert (slow["host"], slow["ranks"]) == ("node1", [1])
    assert slow["command"][:2] == ["ipexctl", "run"]


@over()
def test_a_rank_that_sleeps_in_its_data_loader(desk: Workspace, hosts: Cluster, group: tuple[str, ...]) -> None:
    with on_screen(desk, *run(group, "loader")) as terminal:
        expect(
            terminal,
            r"2 of 3 ranks wait in all_reduce, rank 1 on node1 does not",
            rf"rank 1 +minutes\.py:{LINES['time.sleep(600)']} read_batch",
            r"end it: Ctrl-C here, or ipexctl stop \S+",
            r" 1 ◀ +node1 ",
        )
    record("loader", desk)


@over()
def test_nan_on_all_ranks(desk: Workspace, group: tuple[str, ...]) -> None:
    with on_screen(desk, *run(group, "nan")) as terminal:
        expect(
            terminal,
            r"loss is NaN on all 3 ranks since step 12 \(2\.39 at step 11\)",
            r"end it: Ctrl-C here, or ipexctl stop \S+",
            r" 1 +node1 +running \S+ s +\d+ +nan",
        )
    record("nan", desk)


def fill_disk(hosts: Cluster) -> AbstractContextManager[object]:
    hosts.exec("node0", ["mkdir", "-p", "/mnt/ckpt"], check=True)
    hosts.exec("node0", ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", "/mnt/ckpt"], check=True)
    return nullcontext()


ENDS: dict[str, tuple[Callable[[Cluster], AbstractContextManager[object]], tuple[str, ...]]] = {
    "exception": (
        lambda hosts: nullcontext(),
        (
            r"rank 1 on node1 exited with code 1",
            rf'minutes\.py", line {LINES["raise KeyError"]}, in read_batch',
            r"KeyError: 'label 812 of sample 12",
            r"ipexctl logs \S+ --rank 1",
        ),
    ),
    "flood": (  # lines of 10 MB hide nothing
        lambda hosts: nullcontext(),
        (
            r"minutes\.py +[\d.]+ s\s",
            r"rank 1 on node1 exited with code 1",
            rf'minutes\.py", line {LINES["raise ValueError"]}, in <module>',
            r"ValueError: label y+ … y+",
            r"ipexctl logs \S+ --rank 1",
        ),
    ),
    "memory": (
        lambda hosts: memory(hosts, "node1", 512 << 20),
        (
            r"rank 1 on node1 was killed \(out of memory",
            rf"minutes\.py:({LINES['ballast.append']}|{LINES['ballast.append'] + 1})",
            r"known +the memory of the host",
            r"ipexctl \w+",
        ),
    ),
    "disk": (
        fill_disk,
        (
            r"rank 0 on node0 exited with code 1",
            rf"line +minutes\.py:{LINES['torch.save']}",
            r"/mnt/ckpt on node0 had [\d.]+ \w+ free then",
            r"ipexctl exec",
        ),
    ),
}


@pytest.mark.parametrize("fault", ENDS)
@over()
def test_a_rank_that_ends(desk: Workspace, hosts: Cluster, group: tuple[str, ...], fault: str) -> None:
    prepare, patterns = ENDS[fault]
    try:
        with prepare(hosts), on_screen(desk, *run(group, fault)) as terminal:
            assert terminal.end(120) == 5
            expect(terminal, *patterns, timeout=5)
        if fault != "flood":
            record(fault, desk)
    finally:
        hosts.exec("node0", ["sh", "-c", "! mountpoint -q /mnt/ckpt || umount /mnt/ckpt"])


@over()
def test_a_cut_cable(desk: Workspace, hosts: Cluster, group: tuple[str, ...]) -> None:
    desk.env |= QUICK
    terminal = Terminal(desk, *run(group, "cable", "--node-lease", "5", "--grace", "1"), columns=80, lines=24)
    try:
        expect(terminal, STEP.pattern)
        with hosts.cut("node1"):
            assert terminal.end(120) == 6
            expect(terminal, r"node1 lost", r"end not observed: rank 1 on node1", r"ipexctl doctor", timeout=5)
        record("cable", desk)
        wait(lambda: not find_orphans(hosts), 30)
    finally:
        terminal.kill()


def test_a_mirror_that_is_slow_for_one_host(desk: Workspace, hosts: Cluster) -> None:
    """The others have their wheels; on its way to node1 one crawls."""
    victim, stop = hosts.address("node1"), threading.Event()
    (desk.path / "hostfile").unlink()
    write_hostfile(hosts, desk.path / "hostfile", "/root/mirror/env")

    def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        slow = client == victim and path.startswith("/files/torch") and path.endswith(".whl")
        if slow:
            crawl(handler, index.files[path[7:]].data, stop)
        return slow

    words = ["--torch", "2.8.0", "--track", "native", "--backend", "gloo", "--python", "/usr/bin/python3"]
    with hosts.inside(), serving(Index(wheels.stack(ballast=32 << 20), misbehave), "10.77.0.1") as index:
        terminal = Terminal(desk, "install", *words, "--index-url", index.url, columns=80, lines=24)
        try:
            expect(
                terminal,
                r"node1: install from 10\.77\.0\.1 at \d+ KiB/s, at most \d+ min left; node\[0,2\] had\s+it\s+sooner",
                r"--wheels-from controller\s",
                r"node1 ━*─* install · \d+ % of \d+ MiB · \d+ KiB/s · \d+ m \d\d s left",
            )
            assert terminal.look().count("install from") == 1, "said once"
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.end() == 130
            expect(terminal, r"node0, node1, node2 partly done; type the same command again", timeout=5)
            record("mirror", desk)
        finally:
            stop.set()
            terminal.kill()
            for name in hosts.names:  # what the install had begun
                hosts.exec(name, ["rm", "-rf", "/root/.local/share/ipexctl/env.d"])


def test_two_runs_on_the_same_hosts(desk: Workspace, start: Callable[..., Started]) -> None:
    first = start("run", "--venv", LIGHT, "--ppn", "1", RANKS / "loses.py")
    first.until("step 3")
    terminal = Terminal(desk, "run", "--venv", LIGHT, RANKS / "loses.py", columns=80, lines=24)
    try:
        assert terminal.end() == 7
        expect(terminal, r"node\[0-2\]: busy with run \S+ of \S+, since", r"ipexctl stop \S+", timeout=5)
        record("busy", desk)
    finally:
        terminal.kill()


def test_the_wrong_torch_on_one_host(desk: Workspace, hosts: Cluster, stock: str) -> None:
    marker = f"{hosts.path('node1', stock).readlink()}/ipexctl.json"
    right = hosts.read("node1", marker)
    hosts.write("node1", marker, right.replace(b'"torch": "2.13.0"', b'"torch": "2.8.0"'))
    terminal = Terminal(desk, "run", "--venv", stock, SCRIPT, "none", columns=80, lines=24)
    try:
        assert terminal.end() == 4
        expect(
            terminal,
            r"node1: the environment was changed: torch is 2\.13\.0\S*, not 2\.8\.0",
            r"ipexctl install --like node0 --limit node1",
            timeout=5,
        )
        record("wrong-torch", desk)
    finally:
        hosts.write("node1", marker, right)
        terminal.kill()
