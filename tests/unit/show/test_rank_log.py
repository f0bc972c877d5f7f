"""The newest lines of a rank can be read and searched; memory is bounded however many it wrote."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ipexctl.model import events as e
from ipexctl.show.rank_log import LOG_SIZE, RankLog, format_line
from tests.unit.show import streams
from tests.unit.show.test_live import drawn, watch

MANY = 100_000  # lines, of 40 bytes each


def fill(log: RankLog, many: int = MANY) -> None:
    for start in range(0, many, 500):
        log.append(b"".join(b"step %-34d\n" % n for n in range(start + 1, start + 501)))


def find(log: RankLog, text: str, start: int = 1 << 40, *, forwards: bool = False, fold: bool = False) -> int:
    return log.search(text, start, forwards=forwards, fold=fold)


def test_the_newest_lines_can_be_read_and_memory_is_bounded() -> None:
    log = RankLog()
    fill(log)
    assert (log.first, log.count) == (MANY - LOG_SIZE // 40 + 1, MANY)
    for first in (1, log.first, MANY - 2, MANY):
        expected = [f"step {n}" for n in range(max(first, log.first), min(first + 3, MANY + 1))]
        assert [line.rstrip() for line in log.read_lines(first, first + 2)] == expected


def test_the_log_is_searched_both_ways() -> None:
    log = RankLog()
    fill(log, 10_000)
    log.append(b"\x1b[31mLoss\x1b[0m is \tNaN\n")
    fill(log, 10_000)
    assert find(log, "step 7 ", 20_000) == 10_008
    assert find(log, "step 7 ", 10_008) == 7
    assert find(log, "step 7 ", 7) == 0
    assert find(log, "step 7 ", 7, forwards=True) == 10_008
    assert find(log, "step 7 ", 10_008, forwards=True) == 0
    assert find(log, "loss is     nan", fold=True) == 10_001
    assert find(log, "loss is") == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=60), st.text(max_size=3))
def test_a_search_finds_what_reading_each_line_finds(lines: list[bytes], text: str) -> None:
    log = RankLog()
    for line in lines:
        log.append(line + b"\n")
    shown = list(map(format_line, lines))
    assert log.read_lines(1, len(lines)) == shown
    if text:
        assert find(log, text) == max((n for n, line in enumerate(shown, 1) if text in line), default=0)


def test_a_search_that_finds_nothing_says_from_where_on_lines_are_held() -> None:
    view = watch(streams.stamp([e.RunStarted("k7", "a", ("a",), "")]), keys=True)
    fill(view.logs[0])
    for key in ("/", *"nowhere", "enter"):
        view.press(key)
    assert drawn(view)[-1].startswith(f"no «nowhere» from line {view.logs[0].first:,} on, the first that is held")
