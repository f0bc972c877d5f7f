"""The main job on two separate hosts, with real torch, IPEX and Intel MPI: doctor, install, sync, run, play."""

from pathlib import Path

import pytest

from tests.e2e.conftest import TRAINERS, TWO, VENV, Installed
from tests.e2e.test_launch import renamed
from tests.e2e.trained import loss_fell
from tests.e2e.workspace import ROOT, Workspace, find_orphans

pytestmark = pytest.mark.timeout(1200)

EXAMPLE = ROOT / "examples/train_ddp.py"
ON = ("--limit", "node0,node1")


def test_install_puts_the_real_stack_on_every_host(installed: Installed) -> None:
    result = installed.result
    assert result.code == 0, result
    assert sorted(result.answer["changed"] + result.answer["unchanged"]) == ["node0", "node1"]
    assert result.answer["stack"]["torch"] == result.answer["stack"]["ipex"] == "2.8.0"
    for host in TWO:  # that they can be imported: the example prints their versions on each host
        size = installed.cluster.exec(host, ["du", "-sm", f"{VENV}.d"]).stdout
        assert int(size.split()[0]) > 500, "its own, on its own disk"


def test_doctor_finds_the_hosts_fit_for_the_run(installed: Installed, workspace: Workspace) -> None:
    result = workspace.succeed("doctor", "--json", *ON)
    assert [host["host"] for host in result.answer["hosts"]] == ["node0", "node1"]
    assert not [finding for finding in result.answer["findings"] if finding["level"] == "error"]


def test_the_example_trains_whatever_the_names_of_interfaces(installed: Installed, workspace: Workspace) -> None:
    """One host has Docker's bridge, the other one another name for its interface: torch finds its way."""
    cluster = installed.cluster
    for words in ("link add docker0 type bridge", "address add 172.17.0.1/16 dev docker0", "link set docker0 up"):
        cluster.exec("node0", ["ip", *words.split()], check=True)
    try:
        with renamed(cluster, "node1", "ens5"):
            result = workspace("run", *ON, "--ppn", "1", EXAMPLE, timeout=600)
    finally:
        cluster.exec("node0", ["ip", "link", "del", "docker0"])
    assert result.code == 0, result
    assert "0 processes left on 2 hosts" in result.out
    for rank in range(2):
        output = workspace.written(rank).decode()
        assert f"rank {rank} of 2 on node{rank}: torch 2.8.0, ipex 2.8.0" in output
        assert loss_fell(output, 0.6), output
    assert [row["state"] for row in workspace.report()["run"]["ranks"]] == ["ok"] * 2
    assert not find_orphans(cluster)


@pytest.mark.stack
def test_the_demo_playbook_takes_the_whole_road(installed: Installed, workspace: Workspace, tmp_path: Path) -> None:
    book = tmp_path / "demo.yaml"  # with what the recipes need besides: the environment stays as it is
    text = (ROOT / "playbooks/demo-ipex.yaml").read_text().replace("../examples", str(ROOT / "examples"))
    text = text.replace("backend: gloo\n", f"backend: gloo\n      with: [{', '.join(TRAINERS)}]\n")
    assert "--steps, 300" in text
    book.write_text(text.replace("--steps, 300", "--steps, 10"))  # two hosts on the cores of one
    result = workspace.succeed("play", book, *ON, "--allow-path", ROOT / "examples", timeout=600, **installed.env)
    assert "nothing to do" in result.err + result.out
    assert "mean loss of 2 ranks" in result.out
    assert "0 processes left on 2 hosts" in result.out
    assert not find_orphans(installed.cluster)
