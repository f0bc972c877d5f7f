"""Small phrases."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipexctl.model.errors import Failure, Kind, UsageError
from ipexctl.model.text import format_clock, format_size
from ipexctl.show import phrases
from tests.tables import read_table


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["xeon01", "xeon02", "xeon03", "xeon05"], "xeon[01-03,05]"),
        (["node9", "node10", "node11"], "node[9-11]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["10.1.0.3", "10.1.0.4"], "10.1.0.[3-4]"),
        (["gpu", "cpu", "gpu"], "gpu, cpu"),
        (["one"], "one"),
        ([f"h{i}x" for i in range(4)] + list("abcdefg"), "h[0-3]x, a, b, c, d, e and 2 more"),
        (["a\x1b1", "a\x1b2"], r"a\x1b[1-2]"),
    ],
)
def test_host_names_are_folded_as_hostfiles_write_them(names: list[str], folded: str) -> None:
    assert phrases.format_hosts(names) == folded


@pytest.mark.parametrize(("value", "most"), [(1e308, 1e308), (float("inf"), 1e308), (-1e308, 1e-308)])
def test_no_number_makes_a_bar_longer_than_its_room(value: float, most: float) -> None:
    assert phrases.draw_bar(value, most, 8) in ("█" * 8, "▏")


def test_sizes_and_times_are_short() -> None:
    assert [format_size(n) for n in (0, 999, 1200, 884 << 20, 1_288_490_189)] == [
        "0 B",
        "999 B",
        "1.2 KiB",
        "884 MiB",
        "1.2 GiB",
    ]
    assert [phrases.format_duration(s) for s in (2.12, 59.99, 134, 11_100)] == [
        "2.1 s",
        "1 m 00 s",
        "2 m 14 s",
        "3 h 05 m",
    ]
    assert format_clock(751) == "00:12:31"


def test_hosts_that_failed_the_same_way_are_one_line() -> None:
    dark = [Failure(f"node{n}", Kind.UNREACHABLE, f"no answer within 10 s (10.0.0.{n}:22)") for n in range(1, 4)]
    other = Failure("node7", Kind.STEP, "no space left", "--venv /scratch/env")
    assert phrases.format_failure_lines([dark[0], other, *dark[1:]]) == [
        "node[1-3]: unreachable: no answer within 10 s",
        "node7: no space left",
    ]


def test_one_failed_host_keeps_its_address() -> None:
    failure = Failure("node2", Kind.UNREACHABLE, "connection refused (10.0.0.2:22)")
    assert phrases.format_failure_lines([failure]) == ["node2: unreachable: connection refused (10.0.0.2:22)"]


def test_different_reasons_and_hints_are_never_joined() -> None:
    keys = [Failure(f"n{n}", Kind.UNREACHABLE, f"unknown host key SHA256:{n}", f"add {n}") for n in range(3)]
    assert len(phrases.group_failures(keys)) == 3


def test_a_refusal_is_a_sentence_its_reasons_and_one_hint() -> None:
    refused = UsageError("hosts is not good", reasons=["hosts:3: bad \x1b[2J", "hosts:4: worse"], hint="ipexctl hosts")
    assert phrases.format_refusal_lines(refused) == [
        "error: hosts is not good",
        r"  hosts:3: bad \x1b[2J",
        "  hosts:4: worse",
        "  hint: ipexctl hosts",
    ]


@given(st.text("ab 日/'-:;()", max_size=120), st.integers(1, 60), st.booleans())
@example("  ", 1, False)  # a line wider than asked for
def test_a_line_is_broken_at_blanks_only_and_nothing_is_lost(line: str, width: int, copied: bool) -> None:
    folded = phrases.fold_line(line, width, 4, copied=copied)
    assert " ".join(folded).split() == line.split()
    for row in folded:
        assert copied or phrases.count_cells(row) <= width or len(row.split()) == 1


def test_a_megabyte_with_an_open_quote_is_broken_in_no_time() -> None:
    """A message of a host held the screen for hours: each of its parts was read from the first one on."""
    assert len(phrases.fold_line("' " + "a: " * 400_000, 80)) > 1000


@pytest.mark.parametrize(("hint", "rows"), read_table("phrases/of_a_hint_sentences_are_broken_and_commands_are_not"))
def test_of_a_hint_sentences_are_broken_and_commands_are_not(hint: str, rows: list[str]) -> None:
    assert phrases.fold_line(hint, 22, copied=True) == rows


@given(
    st.sampled_from(
        ["", "train.py imports einops (line 7), not in the environment: ", "a; ", "b, or ", "it's so: ", "x ("]
    ),
    st.sampled_from(
        ["ipexctl install --venv /opt/lab/env --like lab0 --with einops", "sudo ufw allow from 10.0.0.0/8"]
    ),
    st.integers(1, 90),
    st.booleans(),
)
def test_a_command_is_never_broken(before: str, command: str, width: int, copied: bool) -> None:
    """A part of one is another command: a bare install."""
    rows = phrases.fold_line(before + command, width, 4, copied=copied)
    assert sum(command in row for row in rows) == 1


def test_signals_have_names_where_they_have_one() -> None:
    assert (phrases.format_signal(9), phrases.format_signal(99)) == ("SIGKILL", "signal 99")


def test_what_is_done_but_goes_on_is_no_hundred_percent() -> None:
    assert phrases.format_amount(5, 10, "files") == "50 % (5 of 10 files)"
    assert phrases.format_amount(10, 10, "files") == phrases.format_short_amount(10, 10, "files") == "all of 10 files"
    assert [phrases.format_amount(n, 0, "files") for n in (1, 2)] == ["1 file", "2 files"]


@pytest.mark.parametrize(
    ("value", "most", "bar"), [(0, 0, ""), (1, 8, "█"), (0.001, 8, "▏"), (4.5, 8, "████▌"), (8, 8, "█" * 8)]
)
def test_a_bar_has_eighths_of_a_cell_and_the_least_one_is_seen(value: float, most: float, bar: str) -> None:
    assert phrases.draw_bar(value, most, 8) == bar
