"""The catalogue of harmless messages: each entry finds its own lines, and none takes what may be a cause."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.data import read_data
from ipexctl.decide.diagnosis.known_errors import parse_known_errors
from ipexctl.model.harmless import LIMIT, find_harmless, read_harmless

ENTRIES = list(read_harmless().values())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
def test_an_entry_finds_its_own_messages_and_says_why_and_from_where(entry) -> None:  # type: ignore[no-untyped-def]
    assert entry.message
    assert entry.source
    assert [find_harmless(line) for line in entry.message] == [entry.code] * len(entry.message)
    assert re.fullmatch(r"[A-Z\w'].*[^.]\.", entry.why)
    assert "\n" not in entry.why


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
@given(data=st.data())
def test_a_line_that_a_pattern_finds_has_one_of_its_words(entry, data) -> None:  # type: ignore[no-untyped-def]
    line = data.draw(st.from_regex(entry.pattern))
    assert any(word in line for word in entry.words)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step 10 loss 0.3",
        "UserWarning: lr_scheduler.step() before optimizer.step()",
        "[Gloo] Rank 0 is connected to 2 peer ranks. Expected number of connected peer ranks is : 3",
        "[Gloo] Rank 0 is connected to 2 peer ranks. Expected number of connected peer ranks is : 21",
        "[W socket.cpp:558] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 111).",
        "[W ProcessGroupGloo.cpp:684] Warning: Unable to resolve hostname to a (local) address. Using the loopback",
        "2024:01:23-06:12:16:(1532) |CCL_ERROR| global.cpp:150 getenv_local_coord: condition",
        "Some weights of BertForSequenceClassification were not initialized from the model checkpoint",
        "DeprecationWarningHandler failed",
        "RuntimeError: warnings.warn(",
        "  File \"train.py\", line 7, in <module>",
        "My guessed rank = 0 is wrong",
    ],
)  # fmt: skip
def test_other_lines_are_not_harmless(line: str) -> None:
    assert find_harmless(line) is None


@pytest.mark.parametrize("error", parse_known_errors(read_data("errors.toml")), ids=lambda error: error.code)
def test_no_known_error_is_harmless(error) -> None:  # type: ignore[no-untyped-def]
    assert [line for line in error.message.splitlines() if find_harmless(line)] == []


@pytest.mark.parametrize(
    "piece", [" ", "  operator", "[Gloo] Rank 1 is connected to 1", "(errno", "`use_cache", "warn("]
)
def test_a_hostile_line_is_looked_at_in_its_beginning_only(piece: str) -> None:
    assert find_harmless(piece * 500_000) is None
    assert find_harmless("x" * LIMIT + "My guessed rank = 0") is None
