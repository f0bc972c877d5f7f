"""``ipexctl init`` on separate hosts: asks, knows the answers, writes what lints and plays, overwrites nothing."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import Desk

pytestmark = pytest.mark.hosts


@pytest.fixture
def desk(hosts: Cluster, tmp_path: Path) -> Desk:
    made = Desk(hosts, tmp_path / "desk")
    made.env["HTTPS_PROXY"] = "http://127.0.0.1:9"  # no index is reached, and that is known at once
    (made.path / "train.py").write_text("import torch\nfrom accelerate import Accelerator\n")
    return made


def typed(desk: Desk, words: list[str], answers: dict[str, str]) -> tuple[int, str]:
    """A command on a terminal; each answer is typed when its question stands there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        desk.words(*words), env=desk.env, cwd=desk.path, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    said, waiting, deadline = "", dict(answers), time.monotonic() + 90
    while time.monotonic() < deadline:
        ready, _, _ = select.select([ours], [], [], 0.2)
        if ready:
            try:
                data = os.read(ours, 4096)
            except OSError:
                break
            said += data.decode("utf-8", "replace")
        for question in [question for question in waiting if question in said and said.endswith(("] ", "  "))]:
            os.write(ours, waiting.pop(question).encode() + b"\n")
            said += "\n"
            break
        if process.poll() is not None and not ready:
            break
    os.close(ours)
    return process.wait(60), said


def test_the_defaults_are_what_the_hosts_said_and_the_playbook_lints_and_checks(desk: Desk) -> None:
    told = desk("init", "--yes", "--backend", "gloo", "train.py", "--epochs", "1")
    assert told.code == 0, told
    text = (desk.path / "playbook.yaml").read_text()
    assert "with: [accelerate==1.7.0]" in text
    assert "#   node2  " in text
    linted = desk("play", "lint", "playbook.yaml", "--json")
    assert linted.code == 0, linted
    assert '"hosts": 3' in linted.out
    steps = desk("play", "playbook.yaml", "--list-steps")
    assert steps.code == 0, steps
    assert "node0,node1,node2" in steps.out
    looked = desk("play", "playbook.yaml", "--tags", "prepare", "--start-at", "look", "--check", "--skip-tags", "train")
    assert "step 1 of 2: look" in looked.err


def test_questions_are_asked_with_defaults_and_asked_again(desk: Desk) -> None:
    answers = {
        "How many ranks": "none", "a number from 1 to 1024": "3", "Use Intel Extension": "", "Mixed precision?": "no",
        "Which port": "", "Which collectives?": "gloo",
    }  # fmt: skip
    code, said = typed(desk, ["init", "train.py"], answers)
    assert code == 0, said
    text = (desk.path / "playbook.yaml").read_text()
    assert "ppn: 3" in text
    assert 'precision: "no"' in text
    assert 'torch: "2.8.0"' in text
    assert desk("play", "lint", "playbook.yaml").code == 0


def test_nothing_is_overwritten_without_asking(desk: Desk) -> None:
    (desk.path / "playbook.yaml").write_text("mine")
    told = desk("init", "--yes", "train.py")
    assert told.code == 2, told
    assert "playbook.yaml already exists" in told.err
    code, said = typed(desk, ["init", "train.py"], {"Overwrite playbook.yaml?": "no"})
    assert code == 2, said
    assert (desk.path / "playbook.yaml").read_text() == "mine"
    assert desk("init", "--yes", "--force", "train.py").code == 0
    assert (desk.path / "playbook.yaml").read_text() != "mine"


def test_without_a_terminal_and_without_yes_it_is_refused(desk: Desk) -> None:
    told = desk("init", "train.py")
    assert told.code == 2, told
    assert "which needs a terminal" in told.err
    assert "ipexctl init --yes train.py" in told.err
    (desk.path / "other.py").touch()
    told = desk("init", "--yes")
    assert told.code == 2, told
    assert "several scripts exist: other.py, train.py" in told.err
    assert not (desk.path / "playbook.yaml").exists()


def test_hosts_of_a_list_or_of_accelerate_become_a_hostfile(desk: Desk, hosts: Cluster) -> None:
    (desk.path / "mpi").write_text(hosts.hostfile.read_text())
    (desk.path / "default_config.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nmixed_precision: 'no'\nnum_machines: 3\n"
        "ipex_config: {ipex: false}\nnum_processes: 6\nmain_process_port: 29511\n"
        "mpirun_config: {mpirun_ccl: '1', mpirun_hostfile: mpi}\n"
    )
    env: dict[str, Any] = {"IPEXCTL_HOSTFILE": ""}
    told = desk("init", "--yes", "--from", "default_config.yaml", "train.py", **env)
    assert told.code == 0, told
    text = (desk.path / "playbook.yaml").read_text()
    assert "ppn: 2" in text
    assert "port: 29511" in text
    assert "track: native" in text
    assert "hosts: hostfile" in text
    assert desk("play", "lint", "playbook.yaml", **env).code == 0
    assert desk("hosts", "-f", "hostfile", "--json").answer["hosts"][2]["name"] == "node2"


def test_a_host_that_is_away_is_told_and_all_away_writes_nothing(desk: Desk, hosts: Cluster) -> None:
    with hosts.power_off("node2"):
        told = desk("init", "--yes", "--connect-timeout", "3", "train.py")
    assert told.code == 3, told
    assert "node2  did not answer" in (desk.path / "playbook.yaml").read_text()
    (desk.path / "playbook.yaml").unlink()
    told = desk("init", "--yes", "--hosts", "127.0.0.9", "--connect-timeout", "2", "train.py")
    assert told.code == 3, told
    assert "no file was written" in told.err
    assert not (desk.path / "playbook.yaml").exists()
