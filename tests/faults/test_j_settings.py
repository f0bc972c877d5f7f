"""Keys and secrets in files that others can read (case J6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, LIGHT, Desk, Started
from tests.faults.checks import expect

RUN = ("run", "--venv", LIGHT, "--limit", "node[0-2]")

Start = Callable[..., Started]


@pytest.mark.fault("J6")
def test_j6_an_identity_file_that_others_can_read_is_not_used(
    new_controller: Callable[..., Desk], mpi: Cluster, tmp_path: Path
) -> None:
    key = tmp_path / "open_key"
    key.write_bytes(mpi.key.read_bytes())
    key.chmod(0o644)
    hostfile = tmp_path / "hostfile"
    hostfile.write_text(mpi.hostfile.read_text().replace(str(mpi.key), str(key)))
    told = new_controller("with an open key", hostfile=hostfile)("doctor")
    expect(told, 3, str(key), "0644", "chmod 600")


@pytest.mark.fault("J6")
def test_j6_a_secret_in_an_open_file_is_refused(controller: Desk, mpi: Cluster) -> None:
    file = controller.path / "secrets.env"
    file.write_text("HF_TOKEN=x\n")
    file.chmod(0o644)
    told = controller(*RUN, "--env-file", file, ACTOR, "say")
    expect(told, 2, str(file), "0644", f"chmod 600 {file}")
    file.chmod(0o600)
    expect(controller(*RUN, "--env-file", file, ACTOR, "say"), 0)
