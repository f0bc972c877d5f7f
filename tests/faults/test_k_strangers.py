"""Hostile hosts, signals at odd moments, secrets in odd texts, weak SSH (cases K4, K6, K8, K10, K11)."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, GATE, LIGHT, ROOT, Desk, Started, Terminal, open_gates, wait
from tests.faults.checks import Checks, expect
from tests.integration.test_planted_faults import FAULTY

PLAYER = Path(__file__).parent / "ranks/player.py"

ON = ("--venv", LIGHT, "--limit", "node[0-2]")

RUN = ("run", *ON)

Start = Callable[..., Started]

NewController = Callable[..., Desk]

TICKS = b"".join(b"tick %d\n" % n for n in range(40))


@pytest.fixture
def shell(tmp_path: Path) -> str:
    """A shell with job control whose job is stopped once, looks at its terminal then, and goes on with the job."""
    script = tmp_path / "shell"
    script.write_text(
        '#!/bin/bash\nset -m\n"$@"\necho "<stopped $?>"\nstty -a | grep -ow -e "-\\?echo" -e "-\\?icanon"\n'
        "sleep 2\necho '<goes on>'\nfg >/dev/null\necho \"<code $?>\"\n"
        "stty -a | grep -ow -e '-\\?echo'\necho '<over>'\n"
    )
    script.chmod(0o755)
    return str(script)


PASSWORD = "hunter2-never-shown"


@pytest.mark.fault("K4")
def test_k4_what_a_hostile_host_hands_over_stays_where_it_belongs(controller: Desk, mpi: Cluster) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, target in (
            ("../../pwned", tarfile.REGTYPE, ""),
            ("/root/pwned1", tarfile.REGTYPE, ""),
            ("out/link", tarfile.SYMTYPE, "../../.."),
            ("out/link/pwned2", tarfile.REGTYPE, ""),
            ("out/hard", tarfile.LNKTYPE, "/etc/passwd"),
            ("out/zero", tarfile.CHRTYPE, ""),
            ("out/pipe", tarfile.FIFOTYPE, ""),
            ("out/\x1b[2J\n", tarfile.REGTYPE, ""),
            ("out/good.txt", tarfile.REGTYPE, ""),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, target, 4 if kind == tarfile.REGTYPE else 0
            tar.addfile(entry, io.BytesIO(b"evil") if entry.size else None)
    mpi.write("node1", "/root/ipexctl/controller/out/good.txt", b"good")
    mpi.write("node1", "/root/hostile.tar", packed.getvalue())
    # The whole program is another: it lists an honest name and hands over whatever it likes.
    mpi.write("node1", "/usr/local/bin/tar", b"#!/bin/sh\ncat >/dev/null; exec cat /root/hostile.tar\n", 0o755)
    before = {str(path) for path in controller.path.parent.rglob("*")}
    try:
        told = controller("fetch", "out", "--from", "node1")
    finally:
        mpi.exec("node1", ["rm", "-f", "/usr/local/bin/tar", "/root/hostile.tar"])
    assert told.code == 4, told
    assert "\x1b" not in told.out + told.err
    assert "Traceback" not in told.err
    new = {str(path) for path in controller.path.parent.rglob("*")} - before
    allowed = (str(controller.path / "fetched"), str(controller.home))
    assert not [path for path in new if not path.startswith(allowed)], new
    for path in (controller.path / "fetched").rglob("*"):
        assert not path.is_symlink()
        assert path.is_file() or path.is_dir()


@pytest.mark.fault("K6")
def test_k6_ctrl_z_and_back(controller: Desk, mpi: Cluster, shell: str) -> None:
    terminal = Terminal(controller, *RUN, ACTOR, "count", "40", GATE, program=shell)
    try:
        terminal.until(b"tick 5")
        terminal.type(b"\x1a")
        terminal.until(b"<goes on>")
        stopped = terminal.read().rpartition(b"<stopped ")[2].partition(b"<goes on>")[0].decode()
        assert stopped.startswith("148>"), stopped
        open_gates(mpi)
        terminal.until(b"<over>")
        screen = terminal.read()
    finally:
        terminal.kill()
    assert b"<code 0>" in screen
    assert re.findall(r"-?(?:echo|icanon)\b", stopped) == ["icanon", "echo"] or "-echo" not in stopped, stopped
    assert b"-echo" not in screen.rpartition(b"<code 0>")[2]
    assert screen.rfind(b"\x1b[?25h") > screen.rfind(b"\x1b[?25l")
    for rank in range(3):
        assert controller.written(rank) == TICKS


@pytest.mark.fault("K10")
def test_k10_a_password_in_the_url_of_an_index(controller: Desk, mpi: Cluster, checks: Checks) -> None:
    checks.secret(PASSWORD)
    url = f"http://ada:{PASSWORD}@{mpi.address('node0')}:9/simple"
    told = controller("install", "--torch", "2.8.0", PIP_INDEX_URL=url, UV_INDEX_URL=url)
    assert told.code in (3, 4), told
    assert PASSWORD not in told.out + told.err
    assert "Traceback" not in told.err


@pytest.mark.fault("K10")
def test_k10_a_password_in_a_proxy_command_that_fails(controller: Desk, mpi: Cluster, checks: Checks) -> None:
    config = controller.home / ".ssh/config"
    config.parent.mkdir(mode=0o700)
    config.write_text(f"Host *\n  ProxyCommand nc-that-is-not --password {PASSWORD} %h %p\n")
    config.chmod(0o600)
    checks.secret(PASSWORD, config)
    told = controller("doctor")
    assert told.code == 3, told
    assert PASSWORD not in told.out + told.err
    expect(controller("sync", "--no-such"), 2)


@pytest.mark.fault("K10")
def test_k10_a_fault_of_ours(controller: Desk, mpi: Cluster, checks: Checks) -> None:
    checks.secret(PASSWORD)
    words = [*mpi.controller, sys.executable, "-c", FAULTY, "ipexctl.show.sinks", "Plain.handle_event", "tick 3"]
    env = {**controller.env, "HF_TOKEN": PASSWORD, "PYTHONPATH": str(ROOT)}
    words += [*RUN, "--pass-env", "HF_TOKEN", str(ACTOR), "count", "3000"]
    done = subprocess.run(
        words, env=env, cwd=controller.path, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
    )
    assert done.returncode == 70, done.stderr
    assert PASSWORD.encode() not in done.stdout + done.stderr
    expect(controller("stop"), 0)
    expect(controller("reap"), 0)
    wait(lambda: not any("IPEXCTL_RUN" in p.environ for host in mpi.names for p in mpi.processes(host)), 30.0)


@pytest.mark.fault("K11")
@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("HostKeyAlgorithms ssh-rsa", "ssh-rsa"),
        ("Ciphers aes128-cbc,aes256-cbc", "aes128-cbc"),
        ("KexAlgorithms diffie-hellman-group1-sha1", "diffie-hellman-group1-sha1"),
        ("MACs hmac-md5", "hmac-md5"),
    ],
)
def test_k11_weak_algorithms_are_refused_by_their_names(
    odd_sshd: Callable[..., Desk], mpi: Cluster, line: str, named: str
) -> None:
    more = []
    if "HostKey" in line:
        mpi_key = "/etc/ssh/odd_rsa"
        for host in mpi.names:
            mpi.exec(host, ["rm", "-f", mpi_key])
            mpi.exec(host, ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", mpi_key], check=True)
        more = [f"HostKey {mpi_key}"]
    lines = [*more, line, *(["Ciphers aes128-ctr"] if line.startswith("MACs") else [])]
    told = odd_sshd(1, *lines)("doctor", "--pairwise", "off")
    expect(told, 3, named)


@pytest.mark.fault("K8")
@pytest.mark.parametrize("moment", [0.4, 0.8, 1.5])
def test_k8_a_storm_of_ctrl_c_at_the_start(start: Start, mpi: Cluster, moment: float) -> None:
    """Once Python runs our code: in the first 20 ms it has no room for an answer, and its own trace was seen."""
    going = start(*RUN, "--grace", "2", ACTOR, "wait")
    time.sleep(moment)
    for _ in range(10):
        if going.process.poll() is None:
            going.signal(signal.SIGINT)
        time.sleep(0.1)
    told = going.end()
    assert told.code in (130, -signal.SIGINT), told  # a shell calls both 130
    assert "Traceback" not in told.err
