"""A short round of `make fuzz`, the same for everyone: no parser answers a stranger's text with an exception."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS, Target, damaged

EACH = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@EACH
def test_texts_of_the_grammar_are_accepted(target: Target) -> None:
    """Or the fuzzing would stop at the first check of every parser."""
    seen: list[bool] = []

    @settings(max_examples=40)
    @given(target.grammar)
    def attempt(data: bytes) -> None:
        seen.append(target.accepts(data))

    attempt()
    assert sum(seen) >= target.least * len(seen)


@EACH
def test_damaged_texts_are_accepted_or_refused(target: Target) -> None:
    @settings(max_examples=60)
    @given(damaged(target.grammar) | st.binary(max_size=40))
    def attempt(data: bytes) -> None:
        target.accepts(data)

    attempt()


@EACH
def test_what_once_was_a_finding_is_none(target: Target) -> None:
    for name, data in corpus.read(target.name):
        try:
            target.accepts(data)
        except Exception as error:
            raise AssertionError(f"{target.name}/{name}") from error


def test_the_corpus_has_no_other_targets() -> None:
    assert {path.name for path in corpus.PLACE.iterdir()} <= {target.name for target in TARGETS}
