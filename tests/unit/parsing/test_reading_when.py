"""``when:`` what it understands, what it refuses, and what it says of a host."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipexctl.decide.facts.isa import ORDER
from ipexctl.decide.parsing.conditions import (
    UnknownFact,
    evaluate_condition,
    find_condition_error,
    list_condition_names,
    needs_host_facts,
)
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host
from ipexctl.model.json_values import to_json
from tests.tables import read_table

HOST = Host("xeon01", "10.0.0.1", slots=4, groups=("cpu", "amx"))
FACTS = Facts(
    isa_level="AVX512_BF16",
    mem_total_kb=64 << 20,
    is_vm=False,
    sockets=2,
    glibc="2.28",
    kernel="5.15.0-91-generic",
    uarch="cpx",
    flags=frozenset({"avx512_bf16", "avx512f"}),
    tools={"numactl": "/usr/bin/numactl"},
)


def true(text: str) -> bool:
    assert find_condition_error(text) is None, find_condition_error(text)
    return evaluate_condition(text, HOST, FACTS)


@pytest.mark.parametrize("text", read_table("when/what_is_true_of_a_host"))
def test_what_is_true_of_a_host(text: str) -> None:
    assert true(text)
    assert not true(f"not ({text})")


def test_levels_of_two_architectures_have_no_order() -> None:
    arm = replace(FACTS, isa_level="SVE_BF16")
    for sign in (">", ">=", "<", "<="):
        assert not true(f"isa_level {sign} SVE_BF16")
        assert not evaluate_condition(f"isa_level {sign} AVX2", HOST, arm)
    assert evaluate_condition("isa_level >= NEON_BF16 and isa_level < SME", HOST, arm)
    assert evaluate_condition("isa_level > below", HOST, arm)
    with pytest.raises(UnknownFact):
        evaluate_condition("isa_level > AVX2", HOST, replace(FACTS, isa_level="MMX"))


@pytest.mark.parametrize(
    "text", ["load > 3", "not load > 3", "sockets == 2 and load > 3", "sockets / (sockets - 2) > 1"]
)
def test_what_a_host_cannot_tell_is_not_guessed(text: str) -> None:
    assert find_condition_error(text) is None
    with pytest.raises(UnknownFact):
        evaluate_condition(text, HOST, FACTS)


def test_what_the_hostfile_says_is_true_without_facts() -> None:
    assert not needs_host_facts("host == 'xeon01' and slots >= 4 and true")
    assert evaluate_condition("host == 'xeon01' and slots >= 4 and true", HOST)
    assert needs_host_facts("host == 'xeon01' and sockets == 2")
    with pytest.raises(UnknownFact, match="sockets"):
        evaluate_condition("host == 'xeon01' and sockets == 2", HOST)


def test_an_instruction_set_of_a_later_version_has_no_place_in_the_order() -> None:
    with pytest.raises(UnknownFact, match="isa_level"):
        evaluate_condition("isa_level >= AVX2", HOST, Facts(isa_level="AVX99"))


def test_instruction_sets_are_ordered_by_what_they_can_do() -> None:
    ladder = list(reversed(ORDER))
    for number, level in enumerate(ladder):
        facts = Facts(isa_level=level)
        assert [other for other in ladder if evaluate_condition(f"isa_level >= {other}", HOST, facts)] == ladder[
            : number + 1
        ]


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        *read_table("when/what_is_not_understood_is_refused_with_its_place"),
        ("is_vm or " * 200 + "is_vm", 0, "longer than 1000"),
        ("-" * 990 + "1 > 0", 0, "when is too deep"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(text: str, column: int, why: str) -> None:
    result = find_condition_error(text)
    assert result is not None
    assert why in result[1]
    assert result[0] == column or why == "when is"


def test_every_fact_has_a_kind_and_a_value_of_it() -> None:
    kinds = list_condition_names()
    assert {"isa_level", "mem_total_kb", "is_vm", "flags", "host", "groups", "slots"} <= kinds.keys()
    assert {key for key, value in to_json(FACTS).items() if isinstance(value, bool)} <= {
        k for k, v in kinds.items() if v == "truth"
    }
    assert {key for key, value in to_json(FACTS).items() if type(value) in (int, float)} <= {
        k for k, v in kinds.items() if v == "number"
    }
    assert kinds["isa_level"] == kinds["silicon"] == "isa"


@given(st.text(alphabet="()[]'\"<>=!&|*/+-%.,: \nabAMXisa_level0123456789andornotin", max_size=60))
@settings(max_examples=400, deadline=None)
def test_any_text_is_true_false_unknown_or_refused(text: str) -> None:
    result = find_condition_error(text)
    if result is not None:
        assert result[1].isprintable()
        return
    try:
        assert evaluate_condition(text, HOST, FACTS) in (True, False)
    except UnknownFact:
        pass


@pytest.mark.parametrize(
    "text", ["physical_cores in '8 16'", "1 in 'abc'", "none in 'abc'", "slots in '4 8'", "is_vm in 'yes'"]
)
def test_what_is_no_text_is_not_looked_for_in_a_text(text: str) -> None:
    """Found before any host was touched: Python would end the play in its middle."""
    output = find_condition_error(text)
    assert output is not None
    assert "a text has only texts in it" in output[1]


def test_an_expression_that_is_too_deep_for_the_stack_where_it_is_asked_is_unknown() -> None:
    def ask(depth: int) -> bool:
        return ask(depth - 1) if depth else evaluate_condition("-" * 600 + "slots < 1", HOST)

    assert find_condition_error("-" * 600 + "slots < 1") is None
    with pytest.raises(UnknownFact):
        ask(600)
