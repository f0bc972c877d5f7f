"""The four checks find what they are for."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import CommandResult, Workspace
from tests.faults import checks as module
from tests.faults.cases import load
from tests.faults.checks import Broken, Checks, expect


def test_the_list_has_99_cases_of_which_45_are_core() -> None:
    cases = load()
    assert len(cases) == 99
    assert sum(case.core for case in cases.values()) == 45


@pytest.fixture
def broken(hosts: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checks:
    monkeypatch.setattr(module, "SETTLE", 0.2)
    hosts.restore()
    return Checks(hosts, tmp_path)


def count(checks: Checks) -> str:
    with pytest.raises(Broken) as raised:
        checks.all()
    return raised.value.count


def test_a_process_of_a_run_that_stays_is_found(broken: Checks, hosts: Cluster) -> None:
    left = subprocess.Popen([*hosts.entrance("node1"), "env", "IPEXCTL_RUN=x", "sleep", "60"])
    try:
        while not (inside := [p.outer for p in hosts.processes("node1") if p.argv[0] == "sleep"]):
            time.sleep(0.01)
        assert count(broken) == "processes left"
        os.kill(inside[0], signal.SIGKILL)
        left.wait(60)
    finally:
        left.kill()
        left.wait()
    broken.all()


@pytest.mark.parametrize("place", ["/tmp/ipexctl-x", "/dev/shm/x", "/root/.ipexctl-part-x"])
def test_a_file_that_stays_is_found(broken: Checks, hosts: Cluster, place: str) -> None:
    hosts.exec("node2", ["mkdir", place])
    assert count(broken) == "processes left"
    hosts.exec("node2", ["rmdir", place])
    broken.all()


def test_a_sentinel_is_found(broken: Checks, hosts: Cluster) -> None:
    hosts.write("node0", "/root/pwned", b"")
    assert count(broken) == "sentinels or secrets found"
    hosts.exec("node0", ["rm", "/root/pwned"])
    (broken.path / "$(touch pwned)").touch()
    broken.all()


def test_a_secret_is_found_in_files_and_command_lines(broken: Checks, hosts: Cluster, tmp_path: Path) -> None:
    source = tmp_path / "token"
    source.write_text("hf_planted")
    broken.secret("hf_planted", source)
    broken.all()
    hosts.write("node3", "/root/log", b"token hf_planted")
    assert count(broken) == "sentinels or secrets found"
    hosts.exec("node3", ["rm", "/root/log"])
    with broken.sampling():
        subprocess.run(["sh", "-c", "sleep 0.2 # hf_planted"], check=True)
    assert count(broken) == "sentinels or secrets found"


@pytest.mark.parametrize("output", ["", '{"lost": {"ranks": {"0": 3}}}'], ids=["unsaid", "said"])
def test_a_missing_byte_is_found_unless_the_report_counts_it(broken: Checks, hosts: Cluster, output: str) -> None:
    workspace = Workspace(hosts, broken.path / "desk")
    broken.workspaces.append(workspace)
    record = workspace.home / ".local/state/ipexctl/runs/x"
    (record / "ranks").mkdir(parents=True)
    (record / "ranks/0.out").write_bytes(b"abc")
    if output:
        (record / "report.json").write_text(output)
    hosts.write("node0", "/root/ledger/0.out", b"abcdef")
    try:
        if output:
            broken.all()
        else:
            assert count(broken) == "bytes lost unsaid"
    finally:
        hosts.exec("node0", ["rm", "-r", "/root/ledger"])


def test_a_wrong_success_is_counted_as_one() -> None:
    with pytest.raises(Broken) as raised:
        expect(CommandResult(0, "", ""), 4)
    assert raised.value.count == "wrong success"
