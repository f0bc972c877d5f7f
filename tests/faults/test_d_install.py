"""Section D: installs that are killed, cut off, starved or lied to. Only the wheels are doubles; all else is real."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import random
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests import wheels
from tests.cluster import Cluster
from tests.e2e.desk import Desk, Started, Told
from tests.faults.checks import expect
from tests.wheels import Built, Index, require_login

SHARE = "/root/.local/share/ipexctl"
VENV = f"{SHARE}/env"
CONTROLLER = "10.77.0.1"
BESIDE = {"lock", "tokens", "bin", "cache"}  # in env.d, beside the environments
FEW = ("--limit", "node0,node1")


def built(*versions: str, ballast: int = 0) -> list[Built]:
    return [*(wheels.torch(version, ballast=ballast) for version in versions), wheels.impi(), wheels.numpy()]


@dataclass
class Site:
    """``site("2.9.0")`` installs this version of the doubles on all hosts, by the command line."""

    controller: Desk
    hosts: Cluster
    index: Index
    python: tuple[str, ...] = ("--python", "/usr/bin/python3")
    env: dict[str, Any] = field(default_factory=lambda: {"PIP_CONFIG_FILE": "/dev/null"})

    def words(self, version: str, *more: str) -> tuple[str, ...]:
        stack = ("--torch", version, "--track", "native", "--backend", "gloo", *self.python)
        return ("install", *stack, "--index-url", self.index.url, *more)

    def __call__(self, version: str, *more: str, timeout: float = 120.0) -> Told:
        return self.controller(*self.words(version, *more), timeout=timeout, **self.env)

    def start(self, version: str, *more: str) -> Started:
        return self.controller.start(*self.words(version, *more), **self.env)

    def works(self, host: str) -> str:
        """The version of torch that the active environment of a host imports, or why it does not."""
        said = self.hosts.exec(host, [f"{VENV}/bin/python", "-c", "import torch; print(torch.__version__)"])
        return said.stdout.strip() or said.stderr

    def left(self, host: str) -> list[str]:
        """What lies beside the environments."""
        place = self.hosts.path(host, f"{VENV}.d")
        return sorted(each.name for each in place.iterdir() if each.name not in BESIDE) if place.is_dir() else []

    def active(self, host: str) -> str:
        return os.readlink(self.hosts.path(host, VENV)).rpartition("/")[2]

    def tree(self, host: str, *, times: bool = False) -> dict[str, Any]:
        """Every file of the active environment with its hash, or everything ipexctl has there with its time."""
        top = self.hosts.path(host, SHARE if times else f"{VENV}.d/{self.active(host)}")
        found: dict[str, Any] = {}
        for place in top.rglob("*"):
            status, name = place.lstat(), str(place.relative_to(top))
            if times:
                found[name] = (status.st_size, status.st_mtime_ns)
            elif place.is_file() and not place.is_symlink() and "__pycache__" not in name:
                found[name] = hashlib.sha256(place.read_bytes()).hexdigest()
        return found


@pytest.fixture
def site(controller: Desk, hosts: Cluster) -> Iterator[Site]:
    index = Index([*built("2.8.0", "2.9.0")])
    with hosts.inside(), wheels.serving(index, CONTROLLER):
        yield Site(controller, hosts, index)


def is_wheel(path: str, name: str = "torch") -> bool:
    return path.startswith(f"/files/{name}") and path.endswith(".whl")


# What was said last before the kill, seconds after it, and whether the switch may have begun by then.
POINTS = [
    ("probe: ok", 0.0, False), ("clean: ok", 0.3, False), ("verify: ok", 0.0, True),
    ("", 2.0, True), ("", 4.0, True),
]  # fmt: skip


def kill_all(command: Started) -> None:
    os.killpg(command.process.pid, signal.SIGKILL)
    command.process.wait()


@pytest.mark.fault("D1")
def test_d1_whenever_the_controller_is_killed_the_old_environment_works_and_the_next_install_heals(site: Site) -> None:
    names = ("node0", "node1")
    expect(site("2.8.0", *FEW), 0)
    old, new = "2.8.0", "2.9.0"
    for step, after, switching in POINTS:
        command = site.start(new, *FEW)
        command.until(*filter(None, [step]))
        time.sleep(after * random.random() if not step else after)
        kill_all(command)
        assert {site.works(host) for host in names} <= ({old, new} if switching else {old}), step
        wait_for_lock(site, new)
        assert {site.works(host) for host in names} == {new}
        for host in names:
            assert site.left(host) == [site.active(host)], step
        old, new = new, old
    healed = {host: site.tree(host) for host in names}
    for host in names:
        site.hosts.exec(host, ["rm", "-rf", SHARE])
    expect(site(old, *FEW), 0)
    for host in names:
        fresh = site.tree(host)
        assert fresh.keys() == healed[host].keys()
        assert {n for n in fresh if fresh[n] != healed[host][n]} <= {"ipexctl.json"}  # it says when it was made


def wait_for_lock(site: Site, version: str) -> None:
    """A host needs a moment to notice that a killed controller is gone; nothing else is done by hand."""
    told = site(version, *FEW)
    for _ in range(20):
        if told.code != 7:
            break
        told = site(version, *FEW)
    expect(told, 0)


@pytest.mark.fault("D2")
def test_d2_a_host_that_loses_power_is_told_and_the_next_install_heals_it(site: Site) -> None:
    expect(site("2.8.0"), 0)
    site.index.wheels[:] = built("2.9.0", ballast=8 << 20)
    victim, asked, go = site.hosts.address("node2"), threading.Event(), threading.Event()

    def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        if client == victim and is_wheel(path) and handler.command == "GET":
            asked.set()
            go.wait(30)
        return False

    site.index.misbehave = misbehave
    command = site.start("2.9.0", "--wheels-from", "hosts")
    assert asked.wait(60)
    site.hosts.power_off("node2")
    told = command.end(90.0)
    go.set()
    expect(told, 3, "node2")
    site.index.misbehave = None
    site.hosts.power_on("node2")
    assert {site.works(host) for host in site.hosts.names} == {"2.8.0"}
    expect(site("2.9.0"), 0)
    assert {site.works(host) for host in site.hosts.names} == {"2.9.0"}
    assert site.left("node2") == [site.active("node2")]


def free(hosts: Cluster, host: str) -> int:
    status = os.statvfs(hosts.path(host, "/root"))
    return status.f_bavail * status.f_frsize


@pytest.mark.fault("D3")
def test_d3_a_disk_that_is_too_small_is_told_before_unpacking_and_nobody_is_switched(site: Site) -> None:
    site.hosts.small_home("node3", 100)
    site.hosts.exec("node3", ["mkdir", "-m", "700", "/root/ledger"])
    try:
        expect(site("2.8.0"), 0)
        before, room = site.tree("node3", times=True), free(site.hosts, "node3")
        site.index.wheels[:] = built("2.9.0", ballast=80 << 20)
        told = site("2.9.0")
        expect(told, 4, "node3", "no space left: need", "free in /root")
        assert {site.works(host) for host in site.hosts.names} == {"2.8.0"}
        assert abs(free(site.hosts, "node3") - room) < 1 << 20
        after = site.tree("node3", times=True)
        assert {n: t for n, t in after.items() if n.startswith("env.d/torch")} == {
            n: t for n, t in before.items() if n.startswith("env.d/torch")
        }
        partial = site("2.9.0", "--partial")
        expect(partial, 4, "node3")
        assert [site.works(host) for host in site.hosts.names] == ["2.9.0"] * 3 + ["2.8.0"]
    finally:
        site.hosts.exec("node3", ["umount", "--lazy", "/root"], check=True)


@pytest.mark.fault("D4")
def test_d4_interpreters_that_cannot_be_used_are_told_together(site: Site, hosts: Cluster) -> None:
    shims = {"node0": "echo Python 3.7.17", "node1": "echo no ensurepip here >&2; exit 3", "node2": "exit 1"}
    with contextlib.ExitStack() as opened:
        for host, text in shims.items():
            opened.enter_context(only_python(hosts, host, f"#!/bin/sh\n{text}\n"))
        found, site.python = site.python, ()
        told = site("2.8.0")
        site.python = found
        named = site("2.8.0")
    for refused in (told, named):
        expect(refused, 4, "node0", "node1", "node2", "/usr/bin/python3")
    assert "3.7" in told.out + told.err
    for host in hosts.names:
        assert not hosts.path(host, SHARE).exists()


@contextlib.contextmanager
def only_python(hosts: Cluster, host: str, text: str) -> Iterator[None]:
    """Meanwhile this is the only python3 of the host."""
    hide = "mkdir /usr/away && mv /usr/bin/python3* /usr/away/"
    hosts.exec(host, ["sh", "-c", hide], check=True)
    hosts.write(host, "/usr/bin/python3", text.encode(), 0o755)
    try:
        yield
    finally:
        hosts.exec(host, ["sh", "-c", "rm /usr/bin/python3 && mv /usr/away/* /usr/bin/ && rmdir /usr/away"], check=True)


@pytest.mark.fault("D5")
def test_d5_an_index_that_answers_503_twice_is_asked_again(site: Site) -> None:
    asked: list[str] = []

    def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        if path.startswith("/simple/torch/"):
            asked.append(path)
        if path.startswith("/simple/torch/") and len(asked) <= 2:
            wheels.reply(handler, 503, b"later")
            return True
        return False

    site.index.misbehave = misbehave
    expect(site("2.8.0", *FEW), 0)
    assert len(asked) > 2


Answer = Callable[[BaseHTTPRequestHandler, threading.Event], None]


def dribble(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
    wheels.dribbling(handler, stop)


ANGRY: dict[str, tuple[Answer, str]] = {
    "always 503": (lambda handler, _: wheels.reply(handler, 503, b"later"), "503"),
    "a hundred bytes a second": (dribble, "does not answer"),
    "never": (lambda _, stop: (stop.wait(1000), None)[1], "does not answer"),
}


@pytest.mark.fault("D5")
def test_d5_an_index_that_gets_nowhere_is_named_without_its_password(
    site: Site, new_controller: Callable[..., Desk]
) -> None:
    """All at once, since some of them take the limit of a minute."""
    expect(site("2.8.0", *FEW), 0)
    before = site.tree("node0", times=True)
    stop = threading.Event()
    with contextlib.ExitStack() as opened:
        going: dict[str, tuple[Started, str]] = {}
        for name, (answer, why) in ANGRY.items():

            def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler, answer: Answer = answer) -> bool:
                answer(handler, stop)
                return True

            index = opened.enter_context(wheels.serving(Index([], misbehave), CONTROLLER))
            index.url = index.url.replace("://", "://user:geheim@")
            other = Site(new_controller(name.replace(" ", "-")), site.hosts, index)
            going[name] = (other.start("2.9.0", *FEW), why)
        refusing = Site(
            new_controller("refusing"), site.hosts, Index([], url=f"http://user:geheim@{CONTROLLER}:9/simple")
        )
        going["refusing"] = (refusing.start("2.9.0", *FEW), "does not answer")
        for name, (command, why) in going.items():
            told = command.end(240.0)
            expect(told, 4, CONTROLLER, why)
            assert "geheim" not in told.out + told.err, name
        stop.set()
    assert site.works("node0") == "2.8.0"
    assert site.tree("node0", times=True) == before


@pytest.mark.fault("D5")
def test_d5_an_index_that_wants_a_login_gets_it_and_nobody_else_sees_it(site: Site) -> None:
    site.index.misbehave = require_login
    expect(site("2.8.0", *FEW), 4, "401")
    site.index.url = site.index.url.replace("://", "://user:geheim@")
    told = site("2.8.0", *FEW, "--wheels-from", "controller")
    expect(told, 0)
    assert "geheim" not in told.out + told.err
    for host in ("node0", "node1"):
        found = site.hosts.exec(host, ["grep", "-rl", "geheim", "/root", "/tmp"]).stdout
        assert not found


def truncate(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[: len(data) * 7 // 10])
    handler.close_connection = True


def flip(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    wheels.reply(handler, 200, data[:5000] + bytes([data[5000] ^ 1]) + data[5001:], "application/octet-stream")


def error_page(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    wheels.reply(handler, 200, b"<html><body>please log in</body></html>")


@pytest.mark.fault("D6")
@pytest.mark.parametrize(("damage", "way"), [(truncate, "hosts"), (flip, "controller"), (error_page, "hosts")])
def test_d6_a_damaged_wheel_is_never_unpacked_and_never_kept(
    site: Site, damage: Callable[[BaseHTTPRequestHandler, bytes], None], way: str
) -> None:
    expect(site("2.8.0", *FEW), 0)
    site.index.wheels[:] = built("2.9.0", ballast=1 << 16)
    data = site.index.files["torch-2.9.0-py3-none-any.whl"].data

    def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        if is_wheel(path, "torch-2.9.0") and handler.command == "GET":
            damage(handler, data)
            return True
        return False

    site.index.misbehave = misbehave
    told = site("2.9.0", *FEW, "--wheels-from", way)
    expect(told, 4, "torch")
    assert {site.works(host) for host in ("node0", "node1")} == {"2.8.0"}
    kept = list(site.controller.home.rglob("*torch-2.9.0*.whl"))
    kept += [
        place for host in ("node0", "node1") for place in site.hosts.path(host, "/root").rglob("*torch-2.9.0*.whl")
    ]
    assert not kept
    site.index.misbehave = None
    expect(site("2.9.0", *FEW, "--wheels-from", way), 0)


@pytest.mark.fault("D7")
def test_d7_a_host_that_is_served_another_wheel_stops_the_switch_everywhere(site: Site) -> None:
    expect(site("2.8.0"), 0)
    before = [site.active(host) for host in site.hosts.names]
    victim, other = site.hosts.address("node2"), wheels.torch("2.9.0", note="not the one that was locked")

    def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        if client == victim and is_wheel(path, "torch-2.9.0"):
            wheels.reply(handler, 200, other.data)
            return True
        return False

    site.index.misbehave = misbehave
    told = site("2.9.0", "--wheels-from", "hosts")
    expect(told, 4, "node2", "is not the one that was locked")
    assert [site.active(host) for host in site.hosts.names] == before
    assert {site.works(host) for host in site.hosts.names} == {"2.8.0"}
    expect(site("2.9.0", "--wheels-from", "hosts", "--partial"), 4)
    assert [site.works(host) for host in site.hosts.names] == ["2.9.0", "2.9.0", "2.8.0", "2.9.0"]
    site.index.misbehave = None
    healed = site("2.9.0", "--json")
    expect(healed, 0)
    assert healed.answer["changed"] == ["node2"]


@pytest.mark.fault("D8")
def test_d8_of_two_installs_at_once_one_set_is_everywhere(site: Site, new_controller: Callable[..., Desk]) -> None:
    other = Site(new_controller("second"), site.hosts, site.index)
    going = {"2.8.0": site.start("2.8.0"), "2.9.0": other.start("2.9.0")}
    told = {version: command.end(120.0) for version, command in going.items()}
    codes = sorted(one.code for one in told.values())
    assert codes in ([0, 0], [0, 7]), told
    assert len({site.active(host) for host in site.hosts.names}) == 1
    installed = {site.works(host) for host in site.hosts.names}
    assert len(installed) == 1
    assert told[installed.pop()].code == 0
    for host in site.hosts.names:
        assert site.left(host) == [site.active(host)]
    said = "".join(one.err for one in told.values())
    if codes == [0, 7] or "waits" in said:
        assert re.search(r"pid \d+", said), told
    expect(site("2.8.0"), 0)  # no lock is left


@contextlib.contextmanager
def one_home(hosts: Cluster, place: Path) -> Iterator[None]:
    """Meanwhile /root is one directory on all hosts."""
    shutil.copytree(hosts.home("node0"), place, symlinks=True)
    for host in hosts.names:
        mount_there(place, hosts.init(host), b"/root")
    try:
        yield
    finally:
        for host in hosts.names:
            hosts.exec(host, ["umount", "--lazy", "/root"], check=True)


def mount_there(place: Path, pid: int, target: bytes) -> None:
    """Mounts a directory of this machine in another process's namespace: open_tree(2), setns(2), move_mount(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        tree = libc.syscall(428, -100, os.fsencode(place), 1)  # OPEN_TREE_CLONE
        space = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
        moved = libc.setns(space, 0x00020000) or libc.syscall(
            429, tree, b"", -100, target, 4
        )  # MOVE_MOUNT_F_EMPTY_PATH
        os._exit(0 if tree >= 0 and moved == 0 else ctypes.get_errno() or 1)
    _, status = os.waitpid(child, 0)
    assert status == 0, os.strerror(os.waitstatus_to_exitcode(status))


@pytest.mark.fault("D9")
def test_d9_hosts_with_one_home_are_installed_once(site: Site, hosts: Cluster, tmp_path: Path) -> None:
    with one_home(hosts, tmp_path / "shared"):
        told = site("2.8.0")
        expect(told, 0, "shared")
        assert {site.works(host) for host in hosts.names} == {"2.8.0"}
        got = [path for _, path in site.index.asked if path.startswith("GET") and is_wheel(path.split()[1])]
        assert len(got) == 1
        assert site.left("node0") == [site.active("node0")]
        again = site("2.8.0", "--json")
        expect(again, 0)
        assert again.answer["changed"] == []


@pytest.mark.fault("D10")
def test_d10_an_install_with_nothing_to_do_does_nothing_and_check_says_what_would_be_done(site: Site) -> None:
    foreseen = site("2.8.0", "--check", "--json")
    expect(foreseen, 0)
    for host in site.hosts.names:
        assert not site.hosts.path(host, SHARE).exists()
    done = site("2.8.0", "--json")
    expect(done, 0)
    assert foreseen.answer["changed"] == done.answer["changed"] == list(site.hosts.names)
    before = {host: site.tree(host, times=True) for host in site.hosts.names}
    asked = len(site.index.asked)
    again, checked = site("2.8.0", "--json"), site("2.8.0", "--check", "--json")
    for told in (again, checked):
        expect(told, 0)
        assert told.answer["changed"] == []
    assert len(site.index.asked) == asked
    assert {host: site.tree(host, times=True) for host in site.hosts.names} == before
    other = site("2.9.0", "--check", "--json")
    expect(other, 0)
    assert other.answer["changed"] == list(site.hosts.names)
    assert {host: site.tree(host, times=True) for host in site.hosts.names} == before
