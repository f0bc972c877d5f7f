"""Signals at odd moments, odd input, secrets in odd texts (cases K7, K8 and K10)."""

import signal
import subprocess
import sys
import time

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, LIGHT, ROOT, CommandResult, Start, Workspace
from tests.faults.checks import Checks, expect, remove_kept_output
from tests.integration.test_planted_faults import FAULTY
from tests.waiting import wait

ON = ("--venv", LIGHT, "--limit", "node[0-2]")

RUN = ("run", *ON)


PASSWORD = "hunter2-" + "never-shown"  # not in one word: this file goes to the hosts, with its project


@pytest.mark.fault("K10")
def test_k10_a_password_in_a_proxy_command_that_fails(controller: Workspace, mpi: Cluster, checks: Checks) -> None:
    config = controller.home / ".ssh/config"
    config.parent.mkdir(mode=0o700)
    config.write_text(f"Host *\n  ProxyCommand nc-that-is-not --password {PASSWORD} %h %p\n")
    config.chmod(0o600)
    checks.secret(PASSWORD, config)
    result = controller("doctor")
    assert result.code == 3, result
    assert PASSWORD not in result.out + result.err
    expect(controller("sync", "--no-such"), 2)


@pytest.mark.fault("K10")
def test_k10_a_fault_of_ours(controller: Workspace, mpi: Cluster, checks: Checks) -> None:
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
    remove_kept_output(controller)
    wait(lambda: not any("IPEXCTL_RUN" in p.environ for host in mpi.names for p in mpi.processes(host)), 30.0)


@pytest.mark.fault("K8")
@pytest.mark.parametrize("moment", [0.4, 0.8, 1.5])
def test_k8_a_storm_of_ctrl_c_at_the_start(start: Start, mpi: Cluster, moment: float) -> None:
    """Once Python runs our code: in the first 20 ms it has no room for an answer, and its own trace was seen."""
    command = start(*RUN, "--grace", "2", ACTOR, "wait")
    time.sleep(moment)
    for _ in range(10):
        if command.process.poll() is None:
            command.signal(signal.SIGINT)
        time.sleep(0.1)
    result = command.end()
    assert result.code in (130, -signal.SIGINT), result  # a shell calls both 130
    assert "Traceback" not in result.err


@pytest.mark.fault("K7")
@pytest.mark.parametrize("source", ["&-", "/dev/zero"])
def test_k7_ranks_read_nothing_whatever_the_controllers_input_is(
    controller: Workspace, mpi: Cluster, source: str
) -> None:
    words = controller.words(*RUN, ACTOR, "read")
    done = subprocess.run(
        ["bash", "-c", f'exec "$@" <{source}', "sh", *words], env=controller.env, cwd=controller.path,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
    )  # fmt: skip
    result = CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert result.code == 0, result
    assert "Traceback" not in result.err
    for rank in range(3):
        assert f"{rank}│read b''" in result.out
