"""The main job on hosts of arm64: doctor, install, sync, run, stop, and the proof that nothing is left."""

import os
import time

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import Workspace, find_orphans

pytestmark = [pytest.mark.beyond_core, pytest.mark.timeout(3000)]

VENV = "/opt/env"
ARM = ("--limit", "arm0,arm1")
TORCH = "2.9.1"  # the last one whose wheel for ARM on the ordinary index is the CPU build
SLOW = {"IPEXCTL_TIMINGS": '{"ping": 5, "silent": 120, "quiet": 180, "ready_timeout": 300}'}


def test_doctor_knows_the_architecture_and_refuses_both_in_one_run(workspace: Workspace) -> None:
    result = workspace("doctor", "--json", timeout=300)
    facts = {entry["host"]: entry["facts"] for entry in result.answer["hosts"]}
    assert [facts[host]["arch"] for host in ("arm0", "arm1", "x0")] == ["aarch64", "aarch64", "x86_64"]
    assert (facts["arm0"]["uarch"], facts["arm0"]["isa_level"]) == ("neoverse_n1", "NEON_DOT")
    assert facts["arm0"]["glibc"] == "2.36"
    assert facts["arm0"]["glibcxx"] == "GLIBCXX_3.4.30"
    codes = {finding["code"]: finding["hosts"] for finding in result.answer["findings"]}
    assert codes["CPU014"] == ["x0"]
    assert "CPU012" not in codes
    refused = workspace("install", "--venv", VENV, "--torch", TORCH, timeout=300)
    assert refused.code == 4
    assert "these hosts are of several architectures" in refused.err
    assert "arm0, arm1: aarch64" in refused.err
    (workspace.path / "nothing.py").write_text("")
    refused = workspace("run", "--venv", VENV, "nothing.py", timeout=300)
    assert refused.code == 4
    assert "these hosts are of several architectures" in refused.err


def test_a_release_with_ipex_is_refused_with_the_reason(workspace: Workspace) -> None:
    refused = workspace("install", *ARM, "--venv", VENV, "--torch", "2.8.0", "--track", "ipex", timeout=300)
    assert refused.code == 4, refused
    assert "aarch64, and wheels of intel_extension_for_pytorch 2.8.0 are for x86_64 only" in refused.err


def test_install_takes_mpich_by_itself_and_trains_a_step_on_each_host(hosts: Cluster, workspace: Workspace) -> None:
    with hosts.uplink() as uplink:
        words = ("--venv", VENV, "--torch", TORCH, "--wheels-from", "controller", "--lock", "ipexctl.lock", "--json")
        settings = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
        for hosts_so_far, host in (("arm0", "arm0"), ("arm0,arm1", "arm1")):  # the import takes minutes: one at a time
            result = workspace.succeed(
                "install", "--limit", hosts_so_far, *words, timeout=1500, **settings, **uplink.env
            )
            assert result.answer["stack"]["mpi"]["kind"] == "mpich"
            assert result.answer["changed"] == [host]
    done = hosts.exec("arm0", [f"{VENV}/bin/python", "-c", "import platform; print(platform.machine())"], timeout=120)
    assert done.stdout == "aarch64\n"
    assert "aarch64.whl" in (workspace.path / "ipexctl.lock").read_text()
    workspace.succeed("install", *ARM, "--venv", VENV, "--locked", "--lock", "ipexctl.lock", "--check", timeout=300)


@pytest.mark.parametrize("backend", ["impi", "gloo"])
def test_two_ranks_on_two_hosts_meet_over_mpich(hosts: Cluster, workspace: Workspace, backend: str) -> None:
    script = workspace.path / "reduce.py"
    script.write_text(REDUCE)
    words = ("--venv", VENV, "--ppn", "1", "--backend", backend)
    result = workspace.succeed("run", *ARM, *words, script, timeout=900, **SLOW)
    assert "rank 0 of 2 on aarch64: 3.0" in result.out
    assert "rank 1 of 2 on aarch64: 3.0" in result.out
    assert "0 processes left on 2 hosts" in result.out + result.err
    assert not find_orphans(hosts, ("arm0", "arm1"))


def test_a_stopped_run_leaves_nothing(hosts: Cluster, workspace: Workspace) -> None:
    script = workspace.path / "wait.py"
    script.write_text("import time\nprint('waiting', flush=True)\ntime.sleep(3000)\n")
    started = workspace.start("run", *ARM, "--venv", VENV, "--ppn", "1", script, **SLOW)
    try:
        started.until("waiting", timeout=600)
        begun = time.monotonic()
        stopped = workspace.succeed("stop", *ARM, timeout=300)
        assert "0 processes left on 2 hosts" in stopped.out + stopped.err
        assert time.monotonic() - begun < 120
        started.end(timeout=300)
    finally:
        started.close()
    assert not find_orphans(hosts, ("arm0", "arm1"))


REDUCE = """
import os, platform
import torch, torch.distributed as dist
if os.environ["IPEXCTL_BACKEND"] == "impi":
    import impi_torch
dist.init_process_group(os.environ["IPEXCTL_BACKEND"])
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {platform.machine()}: {value.item()}", flush=True)
dist.destroy_process_group()
"""
