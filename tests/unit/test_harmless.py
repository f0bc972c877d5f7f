"""The catalogue of harmless messages: each entry finds its own lines, and none takes what may be a cause."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipexctl.model.harmless import LIMIT, find_harmless, read_harmless
from ipexctl.verbs.common.known_errors import read_known_errors
from tests.tables import read_table
from tests.unit.messages import read_catalogue, read_messages, read_sources

SOURCES = read_sources(read_catalogue("harmless"))
MESSAGES, ERRORS = read_messages("harmless"), read_messages("errors")
ENTRIES = list(read_harmless().values())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
def test_an_entry_finds_its_own_messages_and_says_why_and_from_where(entry) -> None:  # type: ignore[no-untyped-def]
    lines = MESSAGES[entry.code]
    assert lines
    assert SOURCES[entry.code]
    assert [find_harmless(line) for line in lines] == [entry.code] * len(lines)
    assert re.fullmatch(r"[A-Z\w'].*[^.]\.", entry.why)
    assert "\n" not in entry.why


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
@settings(max_examples=20)  # of each of the entries, and other ones in `make fuzz`
@given(data=st.data())
def test_a_line_that_a_pattern_finds_has_one_of_its_words(entry, data) -> None:  # type: ignore[no-untyped-def]
    line = data.draw(st.from_regex(entry.pattern))
    assert any(word in line for word in entry.words)


@pytest.mark.parametrize(
    "line",
    read_table("harmless/other_lines_are_not_harmless"),
)  # fmt: skip
def test_other_lines_are_not_harmless(line: str) -> None:
    assert find_harmless(line) is None


KNOWN = [error for error in read_known_errors() if error.pattern]


@pytest.mark.parametrize("error", KNOWN, ids=lambda error: error.code)
def test_no_known_error_is_harmless(error) -> None:  # type: ignore[no-untyped-def]
    lines = [line for text in ERRORS[error.code] for line in text.splitlines()]
    assert [line for line in lines if find_harmless(line)] == []


@pytest.mark.parametrize(
    "piece", [" ", "  operator", "[Gloo] Rank 1 is connected to 1", "(errno", "`use_cache", "warn("]
)
def test_a_hostile_line_is_looked_at_in_its_beginning_only(piece: str) -> None:
    assert find_harmless(piece * 500_000) is None
    assert find_harmless("x" * LIMIT + "My guessed rank = 0") is None
