"""Secrets, permissions, links, ports and forwarding (cases J1 to J3, J5 and J7)."""

import hashlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, GATE, LIGHT, Start, Workspace, open_gates
from tests.faults.checks import Checks, expect, find_listening

PLAYER = Path(__file__).parent / "ranks/player.py"
RUN = ("run", "--venv", LIGHT, "--limit", "node[0-2]")
SECRET = "hf-0123456789-" + "never-seen"  # not in one word: this file goes to the hosts, with its project


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
def test_j1_a_secret_on_its_way_to_the_ranks(controller: Workspace, mpi: Cluster, checks: Checks) -> None:
    file = controller.path / "secrets.env"
    file.write_text(f"HF_TOKEN={SECRET}\n")
    file.chmod(0o600)
    checks.secret(SECRET, file)
    words = ("--env-file", file, "--pass-env", "API_TOKEN", PLAYER, "hash", "HF_TOKEN", "API_TOKEN")
    # What is looked for on the cable is part of it: the listener's own command line is searched, too.
    with checks.sampling(), listening_to_the_cable(mpi, "node0", SECRET[4:-1]) as heard:
        result = controller("-vv", *RUN, *words, API_TOKEN=SECRET)
        expect(result, 0)
        assert not heard()
    assert SECRET not in result.out + result.err
    for rank in range(3):
        assert controller.written(rank).decode().split() == [hashlib.sha256(SECRET.encode()).hexdigest()] * 2


LEAKING = """
import base64, os, sys
value = os.environ["DB"]
print("plain", value, "base64", base64.b64encode(value.encode()).decode(), "word", sys.argv[2], flush=True)
sys.exit(f"no login with {value!r}")
"""


@pytest.mark.fault("J1")
def test_j1_a_secret_of_a_detached_run_is_not_shown_by_its_watchers(controller: Workspace, mpi: Cluster) -> None:
    word = "w0rd-of-the-scripts"
    (controller.path / "leaking.py").write_text(LEAKING)
    expect(controller(*RUN, "--detach", "--pass-env", "DB", "leaking.py", "--api_token", word, DB=SECRET), 0)
    attached = controller("attach")
    expect(attached, 5)
    logs = controller("logs", controller.records[-1].name)
    for result in (attached, logs):
        assert "plain *** base64 *** word ***" in result.out
        assert SECRET not in result.out + result.err


LEAKS = {
    "AWS_SECRET_ACCESS_KEY": "leak",
    "SSH_AUTH_SOCK": "/nowhere",
    "LD_PRELOAD": "libm.so.6",
    "BASH_FUNC_x%%": "() { :; }",
    "LINES_OF": "one\ntwo",
    "LC_LEAK": "leak",
}


@pytest.mark.fault("J2")
def test_j2_the_controllers_environment_stays_there(controller: Workspace, start: Start, mpi: Cluster) -> None:
    result = start(*RUN, PLAYER, "tell", "PATH", **LEAKS).end()
    expect(result, 0)
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
def test_j3_every_word_arrives_as_it_was_given(controller: Workspace, mpi: Cluster) -> None:
    folder = controller.path / "it's a;b & *"
    folder.mkdir()
    script = folder / "my play & er.py"
    script.write_bytes(PLAYER.read_bytes())
    values = {f"V{n}": word for n, word in enumerate(WORDS)}
    env = [word for name, value in values.items() for word in ("-e", f"{name}={value}")]
    result = controller(*RUN, *env, script, "tell", ",".join(values), *WORDS)
    expect(result, 0)
    for rank in range(3):
        rank_report = json.loads(controller.written(rank))
        assert rank_report["argv"] == list(WORDS)
        assert rank_report["env"] == values
        assert "/it's a;b & *-" in rank_report["cwd"]


@pytest.mark.fault("J5")
def test_j5_nothing_is_made_in_shared_temporary_directories(controller: Workspace, mpi: Cluster, start: Start) -> None:
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
def test_j7_strangers_at_every_port_disturb_no_run(start: Start, controller: Workspace, mpi: Cluster) -> None:
    before = {host: set(find_listening(mpi.init(host))) for host in mpi.names}
    command = start(*RUN, ACTOR, "count", "40", GATE)
    command.until("0│tick 5\n", "1│tick 5\n", "2│tick 5\n")
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
    result = command.end()
    for each in strangers:
        each.close()
    expect(result, 0)
    for rank in range(3):
        assert controller.written(rank) == b"".join(b"tick %d\n" % n for n in range(40))
