"""Accelerate and Hugging Face's Trainer, which say `gloo` on CPUs, train over impi unchanged (ranks/frameworks.py)."""

from __future__ import annotations

import importlib.util
import socket
from typing import Any

import pytest
from conftest import Run

NEEDS = {"accelerate": "accelerate", "trainer": "transformers"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("which", list(NEEDS))
def test_frameworks_train_over_impi_to_the_parameters_that_gloo_gives(run: Run, which: str) -> None:
    if importlib.util.find_spec(NEEDS[which]) is None:
        pytest.skip(f"{NEEDS[which]} is not installed beside this torch")
    told = {}
    for override in ("0", "1"):
        place: dict[str, Any] = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        ended = run("frameworks", which, ranks=2, IMPI_TORCH_OVERRIDE=override, **place).ok()
        _, group, *sums = next(line for line in ended.out.splitlines() if "TRAINED" in line).split()
        told[group] = sums
    assert set(told) == {"ProcessGroup", "ImpiProcessGroup"}
    assert told["ImpiProcessGroup"] == told["ProcessGroup"], "two ranks: the same sums to the last bit"
