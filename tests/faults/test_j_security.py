"""Secrets, permissions, links, ports and forwarding (cases J1 to J5, J7 and J8)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, GATE, LIGHT, Desk, Started, open_gates
from tests.faults.checks import Checks, expect, find_listening

PLAYER = Path(__file__).parent / "ranks/player.py"
RUN = ("run", "--venv", LIGHT, "--limit", "node[0-2]")
Start = Callable[..., Started]
SECRET = "hf-0123456789-never-seen"


@contextmanager
def listening_to_the_cable(mpi: Cluster, host: str, word: str) -> Iterator[Callable[[], bool]]:
    """Everything that goes through this host's interface is searched for a word."""
    script = (
        "import socket,sys\ns = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))\n"
        "s.bind(('eth0', 0)); print('on', flush=True); tail = b''\n"
        "while True:\n    tail = tail[-100:] + s.recv(65536)\n"
        "    if sys.argv[1].encode() in tail: print('found', flush=True); break\n"
    )
    words = [*mpi.entrance(host), "python3", "-c", script, word]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as sniffer:
        assert sniffer.stdout is not None
        assert sniffer.stdout.readline() == "on\n"
        yield lambda: sniffer.poll() is not None
        os.killpg(sniffer.pid, signal.SIGKILL)


@pytest.mark.fault("J1")
def test_j1_a_secret_on_its_way_to_the_ranks(controller: Desk, mpi: Cluster, checks: Checks) -> None:
    file = controller.path / "secrets.env"
    file.write_text(f"HF_TOKEN={SECRET}\n")
    file.chmod(0o600)
    checks.secret(SECRET, file)
    # What is looked for on the cable is part of it: the listener's own command line is searched, too.
    with checks.sampling(), listening_to_the_cable(mpi, "node0", SECRET[4:-1]) as heard:
        told = controller("-vv", *RUN, "--env-file", file, PLAYER, "hash", "HF_TOKEN")
        expect(told, 0)
        assert not heard()
    assert SECRET not in told.out + told.err
    for rank in range(3):
        assert controller.written(rank).decode().strip() == hashlib.sha256(SECRET.encode()).hexdigest()


@pytest.mark.fault("J1")
def test_j1_a_secret_of_the_environment_is_passed_by_its_name_only(
    controller: Desk, mpi: Cluster, checks: Checks
) -> None:
    checks.secret(SECRET)
    with checks.sampling():
        told = controller(*RUN, "--pass-env", "HF_TOKEN", "--json", PLAYER, "hash", "HF_TOKEN", HF_TOKEN=SECRET)
    expect(told, 0)
    assert SECRET not in told.out + told.err
    assert controller.written(0).decode().strip() == hashlib.sha256(SECRET.encode()).hexdigest()


LEAKS = {
    "AWS_SECRET_ACCESS_KEY": "leak",
    "SSH_AUTH_SOCK": "/nowhere",
    "LD_PRELOAD": "libm.so.6",
    "BASH_FUNC_x%%": "() { :; }",
    "LINES_OF": "one\ntwo",
    "LC_LEAK": "leak",
}


@pytest.mark.fault("J2")
def test_j2_the_controllers_environment_stays_there(controller: Desk, start: Start, mpi: Cluster) -> None:
    told = start(*RUN, PLAYER, "tell", "PATH", **LEAKS).end()
    expect(told, 0)
    for rank in range(3):
        names = json.loads(controller.written(rank))["names"]
        assert not set(LEAKS) & set(names)
        assert "IPEXCTL_HOSTFILE" not in names
    for name in ("LD_PRELOAD", "SSH_AUTH_SOCK"):
        expect(start(*RUN, "--pass-env", name, PLAYER, "tell", "PATH", **LEAKS).end(), 2, name)
    expect(start(*RUN, "--pass-env", "AWS_*", PLAYER, "tell", "PATH", **LEAKS).end(), 2, "AWS_")


WORDS = (
    "two words", "it's", 'a "quote"', "$(touch pwned)", "`touch pwned`", ";touch pwned", "a&b", "*", "~", "new\nline",
    "-rf", "--env=X", "=", "é€\U0001f600", "", "\\", "%h", "x" * 100_000,
)  # fmt: skip


@pytest.mark.fault("J3")
def test_j3_every_word_arrives_as_it_was_given(controller: Desk, mpi: Cluster) -> None:
    folder = controller.path / "it's a;b & *"
    folder.mkdir()
    script = folder / "my play & er.py"
    script.write_bytes(PLAYER.read_bytes())
    values = {f"V{n}": word for n, word in enumerate(WORDS)}
    env = [word for name, value in values.items() for word in ("-e", f"{name}={value}")]
    told = controller(*RUN, *env, script, "tell", ",".join(values), *WORDS)
    expect(told, 0)
    for rank in range(3):
        rank_told = json.loads(controller.written(rank))
        assert rank_told["argv"] == list(WORDS)
        assert rank_told["env"] == values
        assert rank_told["cwd"].endswith("/it's a;b & *")


def find_open(top: Path) -> dict[str, str]:
    """What somebody else could read or write."""
    return {
        str(path): oct(path.lstat().st_mode)
        for path in [top, *top.rglob("*")]
        # What the ranks' own interpreters cache in a private directory has their umask.
        if not path.is_symlink()
        and path.name != "__pycache__"
        and path.suffix != ".pyc"
        and stat.S_IMODE(path.lstat().st_mode) & 0o077
    }


@pytest.mark.fault("J4")
@pytest.mark.parametrize("umask", ["000", "077"])
def test_j4_what_is_made_is_private_whatever_the_umask(controller: Desk, mpi: Cluster, umask: str) -> None:
    with_umask = ("sh", "-c", f'umask {umask}; exec "$@"', "sh")
    words = [*with_umask, *controller.words(*RUN, "--detach", ACTOR, "wait")]
    done = subprocess.run(words, env=controller.env, cwd=controller.path, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not find_open(controller.home / ".local/state/ipexctl")
    for host in ("node0", "node1", "node2"):
        runs = mpi.path(host, "/root/.local/state/ipexctl/runs")
        assert list(runs.iterdir())
        assert not find_open(runs)
    expect(controller("stop"), 0)
    expect(controller("reap"), 0)


@pytest.mark.fault("J4")
@pytest.mark.parametrize("how", ["of another user", "open to all", "a link"])
def test_j4_a_directory_that_is_not_ours_alone_is_refused(controller: Desk, mpi: Cluster, how: str) -> None:
    runs = mpi.path("node1", "/root/.local/state/ipexctl/runs")
    target = mpi.path("node1", "/root/elsewhere")
    runs.parent.mkdir(parents=True, mode=0o700)
    if how == "a link":
        target.mkdir(mode=0o777)
        target.chmod(0o777)
        runs.symlink_to("/root/elsewhere")
    else:
        runs.mkdir(mode=0o700)
        runs.chmod(0o777 if how == "open to all" else 0o700)
        os.chown(runs, 65534 if how == "of another user" else 0, -1)
    told = controller(*RUN, ACTOR, "say")
    expect(told, 4, "node1")
    assert not list((target if how == "a link" else runs).iterdir())
    mpi.exec("node1", ["rm", "-rf", "/root/elsewhere"])


@pytest.mark.fault("J4")
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_j4_a_state_directory_that_others_can_write_is_refused_here_too(
    controller: Desk, mpi: Cluster, mode: int
) -> None:
    runs = controller.home / ".local/state/ipexctl/runs"
    runs.mkdir(parents=True, mode=0o700)
    runs.chmod(mode)
    told = controller(*RUN, ACTOR, "say")
    expect(told, 4, "runs", "writable")
    assert not list(runs.iterdir())


@pytest.mark.fault("J5")
def test_j5_nothing_is_made_in_shared_temporary_directories(controller: Desk, mpi: Cluster, start: Start) -> None:
    """Names that are not used cannot be guessed: with these directories closed to everyone, all is as always."""
    places = ("/tmp", "/var/tmp")
    for host in mpi.names:
        for place in places:
            mpi.exec(host, ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", place], check=True)
    try:
        expect(controller("doctor", "--pairwise", "off"), 0)
        (controller.path / "proj").mkdir()
        (controller.path / "proj/data").write_text("x")
        expect(controller("sync", "proj"), 0)
        expect(controller(*RUN, ACTOR, "say"), 0)
    finally:
        for host in mpi.names:
            for place in places:
                mpi.exec(host, ["umount", place], check=True)


@pytest.mark.fault("J7")
def test_j7_strangers_at_every_port_disturb_no_run(start: Start, controller: Desk, mpi: Cluster) -> None:
    before = {host: set(find_listening(mpi.init(host))) for host in mpi.names}
    going = start(*RUN, ACTOR, "count", "40", GATE)
    going.until("0│tick 5\n", "1│tick 5\n", "2│tick 5\n")
    opened = [(host, port) for host in mpi.names for port in set(find_listening(mpi.init(host))) - before[host]]
    assert opened, "the keeper listens"
    strangers: list[socket.socket] = []
    with mpi.inside():
        for host, port in opened:
            for n in range(40):
                with suppress(OSError):
                    strangers.append(socket.create_connection((mpi.address(host), port), 2.0))
                    if n < 10:
                        strangers[-1].sendall(os.urandom(500))
                    elif n == 10:
                        strangers[-1].sendall(b'{"kind": "Hello", "role": "guard", "name": "node1", "nonce": "n"}\n')
    open_gates(mpi)
    told = going.end()
    for each in strangers:
        each.close()
    expect(told, 0)
    for rank in range(3):
        assert controller.written(rank) == b"".join(b"tick %d\n" % n for n in range(40))


@pytest.fixture
def agent(tmp_path: Path, mpi: Cluster) -> Iterator[str]:
    """An agent with a key of its own; its socket."""
    started = subprocess.run(["ssh-agent", "-s", "-a", tmp_path / "a"], capture_output=True, text=True, check=True)
    pid = re.search(r"SSH_AGENT_PID=(\d+)", started.stdout)
    assert pid
    env = {"SSH_AUTH_SOCK": str(tmp_path / "a"), "PATH": os.environ["PATH"]}
    subprocess.run(["ssh-add", "-q", mpi.key], env=env, check=True)
    yield env["SSH_AUTH_SOCK"]
    os.kill(int(pid[1]), 15)


@pytest.mark.fault("J8")
def test_j8_nothing_is_forwarded_and_no_key_stays(controller: Desk, mpi: Cluster, start: Start, agent: str) -> None:
    config = controller.home / ".ssh/config"
    config.parent.mkdir(mode=0o700)
    config.write_text(
        "Host *\n ForwardAgent yes\n ForwardX11 yes\n"
        " LocalForward 7777 localhost:22\n RemoteForward 7778 localhost:22\n"
    )
    config.chmod(0o600)
    keys = {host: mpi.read(host, "/root/.ssh/authorized_keys") for host in mpi.names}
    logs = {host: len(mpi.sshd_log(host)) for host in mpi.names}
    going = start(*RUN, PLAYER, "tell", "SSH_AUTH_SOCK,DISPLAY", SSH_AUTH_SOCK=agent)
    expect(going.end(), 0)
    for rank in range(3):
        told: dict[str, Any] = json.loads(controller.written(rank))
        assert told["env"] == {"SSH_AUTH_SOCK": None, "DISPLAY": None}
    for host in mpi.names:
        assert mpi.read(host, "/root/.ssh/authorized_keys") == keys[host]
        log = mpi.sshd_log(host)[logs[host] :].lower()
        assert "forward" not in log
        assert "agent" not in log
        assert not list(mpi.path(host, "/tmp").glob("ssh-*"))
