"""CPU lists and masks are read as taskset reads them: the CPUs of this machine that each allows are the same."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ipexctl.decide.facts.numbers import parse_cpu_list, parse_cpu_mask
from ipexctl.model.text import format_cpus

HERE = os.sched_getaffinity(0)
ranges = st.tuples(st.integers(0, 63), st.integers(0, 63)).map(sorted)
written = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def process() -> Iterator[int]:
    """A process whose affinity may be changed."""
    if not shutil.which("taskset"):
        pytest.skip("taskset is not installed")
    with subprocess.Popen(["sleep", "300"]) as sleeping:
        yield sleeping.pid
        sleeping.kill()


def bind(process: int, *arguments: str) -> set[int]:
    subprocess.run(["taskset", *arguments, str(process)], check=True, stdout=subprocess.DEVNULL)
    return os.sched_getaffinity(process)


@written
@given(parts=st.lists(ranges, min_size=1, max_size=6))
def test_lists_in_any_order_with_overlaps(process: int, parts: list[list[int]]) -> None:
    text = ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)
    cpus = set(parse_cpu_list(text) or ())
    assume(cpus & HERE)  # a process needs a CPU
    assert bind(process, "-pc", text) == cpus & HERE
    assert bind(process, "-pc", format_cpus(tuple(cpus))) == cpus & HERE  # and as we write them


@written
@given(bits=st.integers(1, (1 << 64) - 1))
def test_masks(process: int, bits: int) -> None:
    low, high = bits & 0xFFFFFFFF, bits >> 32
    cpus = set(parse_cpu_mask(f"{high:08x},{low:08x}") or ())
    assume(cpus & HERE)
    assert bind(process, "-p", f"{bits:x}") == cpus & HERE


@pytest.mark.parametrize("text", ["3-1", "x", "1-", "-2", "1--2", "0x3"])
def test_what_taskset_refuses_is_no_list(process: int, text: str) -> None:
    refused = subprocess.run(["taskset", "-pc", text, str(process)], capture_output=True, check=False).returncode
    assert refused
    assert parse_cpu_list(text) is None
