"""Which steps ``--profile`` means, and what ranks record of them."""

import json

import pytest

from ipexctl.cli.command import make_model
from ipexctl.decide.profile.steps import parse_profile_steps, parse_recorded_steps
from ipexctl.model.errors import UsageError
from ipexctl.model.tasks import Run
from tests.tables import read_table


@pytest.mark.parametrize(("text", "steps"), [("10:15", (10, 15)), ("5", (3, 7)), ("1", (3, 3)), ("7:7", (7, 7))])
def test_steps(text: str, steps: tuple[int, int]) -> None:
    assert parse_profile_steps(text) == steps
    assert parse_profile_steps("{}:{}".format(*steps)) == steps


@pytest.mark.parametrize(("text", "why"), read_table("steps/other_words_are_refused"))
def test_other_words_are_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_profile_steps(text)
    assert why in f"{refused.value.sentence} {' '.join(refused.value.reasons)}"


def test_a_ranks_record_is_read() -> None:
    value = {"first": 3, "steps": 5, "ends": [1, 2, 4], "traced": True, "why": ""}
    recorded = parse_recorded_steps(json.dumps(value).encode())
    assert recorded is not None
    assert (recorded.ends, recorded.traced) == ((1, 2, 4), True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"ends": [3, 1]}',
        b'{"ends": [-1, 1]}',
        b"[" * 100_000,
        b'{"first": -1}',
        b'{"works": [["x", 3, 1]]}',
        b'{"works": [[1, 2]]}',
    ],
)
def test_a_damaged_record_is_none(data: bytes) -> None:
    assert parse_recorded_steps(data) is None


@pytest.mark.parametrize("text", ["x", "0", "3-5", "1:", "-1"])
def test_a_flag_of_another_form_is_refused_with_both_forms(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_model(Run, {"script": "train.py", "profile": text})
    assert (
        "--profile must be a number of steps or the first and the last step such as 10:15" in refused.value.reasons[0]
    )
