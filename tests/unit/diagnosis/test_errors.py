"""The catalogue of known errors is true to its own messages, and says one thing of a failure."""

from __future__ import annotations

import re

import pytest

from ipexctl.data import read_data
from ipexctl.decide.diagnosis.known_errors import KnownError, diagnose, parse_known_errors

ERRORS = parse_known_errors(read_data("errors.toml"))


@pytest.mark.parametrize("known", ERRORS, ids=lambda known: known.code)
def test_each_entry_is_what_its_own_message_is_taken_for(known: KnownError) -> None:
    found = diagnose(ERRORS, ["step 1\n" + known.message + "\nstep 2"], known.signal)
    assert found is not None
    assert found.code == known.code
    assert found.evidence in known.message
    assert found.evidence
    assert "{" not in found.title + found.fix


@pytest.mark.parametrize("known", ERRORS, ids=lambda known: known.code)
def test_each_entry_says_why_what_to_do_and_where_it_was_met(known: KnownError) -> None:
    assert known.why.endswith(".")
    assert known.fix
    assert known.source
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|[\w./ -]+: \S+", source) for source in known.source)


def test_the_catalogue_knows_at_least_fifteen_errors() -> None:
    assert len(ERRORS) >= 15


def test_what_is_in_no_entry_is_not_explained() -> None:
    assert diagnose(ERRORS, ["ValueError: the answer is not 42", ""], 0) is None


def test_a_message_tells_more_than_the_signal() -> None:
    found = diagnose(
        ERRORS, ["Fatal Python error: Bus error", "OSError: libtbb.so.12: cannot open shared object file"], 7
    )
    assert found is not None
    assert found.code == "sigbus"
    found = diagnose(ERRORS, ["nothing"], 4)
    assert found is not None
    assert (found.code, found.evidence) == ("sigill", "")


def test_names_in_the_message_are_in_the_advice() -> None:
    found = diagnose(ERRORS, ["ModuleNotFoundError: No module named 'transformers'"])
    assert found is not None
    assert found.fix == "ipexctl install --with transformers"


def test_megabytes_of_one_letter_take_no_time() -> None:
    assert diagnose(ERRORS, ["a" * 5_000_000, "undefined /dev/shm CCL_ERROR ibv_" * 100_000]) is None


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        (
            'File "/v/lib/python3.11/site-packages/torch_ccl/__init__.py", line 3\n'
            "ImportError: libmpi.so.12: cannot open shared object file: No such file or directory",
            "libmpi-binding",
            "inside oneccl_bind_pt",
        ),
        ("ImportError: libmpi.so.12: cannot open shared object file", "libmpi", "Intel MPI's libmpi.so.12"),
        ("OSError: libccl.so.1: cannot open shared object file", "libccl", "oneCCL's library"),
        ("oneCCL: env.cpp:1363 EXCEPTION: failed to parse worker affinity", "ccl-affinity", "CCL_WORKER_AFFINITY"),
    ],
)
def test_what_oneccl_misses_is_named_by_where_it_lies(lines: str, code: str, words: str) -> None:
    found = diagnose(ERRORS, [lines])
    assert found is not None
    assert found.code == code
    assert words in found.title
    assert "impi-rt into" not in found.fix
