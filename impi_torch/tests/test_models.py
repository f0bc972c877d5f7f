"""DDP, FSDP, FSDP2, tensor parallelism and checkpoints: impi against Gloo (ranks/parallelism.py)."""

from __future__ import annotations

import pytest
from conftest import Run


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_training_gives_the_parameters_that_gloo_gives(run: Run, ranks: int) -> None:
    run("parallelism", ranks=ranks).ok()


def test_training_across_hosts_gives_the_parameters_that_gloo_gives(across: Run) -> None:
    across("parallelism", ranks=2, per_host=1).ok()
