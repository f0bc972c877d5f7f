"""Whole lines, whatever the pieces in which their bytes come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.decide.run.lines import LINE_LIMIT, MORE, LineHolder, LineSplitter, drop_overwritten, extend_tail


def split(pieces: list[bytes]) -> bytes:
    lines = LineSplitter()
    return b"".join(lines.feed(piece) for piece in pieces) + lines.end()


@given(st.lists(st.text(max_size=3) | st.sampled_from(["\n", "\r", "€", "😀", "\x1b[A", "\x1b[A\n"])), st.data())
def test_the_lines_do_not_depend_on_where_reads_cut_the_bytes(texts: list[str], data: st.DataObject) -> None:
    raw = "".join(texts).encode("utf-8", "ignore")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert split(pieces) == split([raw])


@given(st.binary())
def test_every_line_has_an_end_and_no_redraw_is_left(data: bytes) -> None:
    lines = split([data])
    assert lines.count(b"\n") >= data.count(b"\n") - data.count(b"\x1b[A\n")
    assert b"\r" not in lines
    assert not lines or lines.endswith(b"\n")


@pytest.mark.fault("H8")
def test_of_a_line_that_redraws_itself_the_latest_state_counts() -> None:
    lines = LineSplitter()
    for percent in range(101):
        assert lines.feed(f"\r{percent:3d}%|{'#' * percent}".encode()) == b""
    assert lines.redraws
    assert lines.current.startswith(b"100%")
    assert lines.feed(b"\n") == b"100%|" + b"#" * 100 + b"\n"


def test_a_bar_within_a_bar_is_one_line_that_redraws_itself() -> None:
    lines = LineSplitter()  # as tqdm writes them
    for percent in range(10):
        assert lines.feed(f"\n\r{percent}% of an epoch\x1b[A".encode()) == (b"" if percent else b"\n")
    assert lines.redraws
    assert lines.current == b"9% of an epoch"
    assert lines.feed(b"Traceback (most recent call last):\n") == b"Traceback (most recent call last):\n"
    assert split([b"9% of an epoch\x1b[A"]) == b"9% of an epoch\n"


def test_a_return_at_the_end_of_a_state_leaves_it_visible() -> None:
    lines = LineSplitter()
    assert lines.feed(b" 10%\r 20%\r") == b""
    assert lines.current == b" 20%"
    assert drop_overwritten(b"one\rtwo\r") == b"two"


def test_windows_line_ends_are_line_ends() -> None:
    assert split([b"one\r\ntwo\r", b"\n"]) == b"one\ntwo\n"


@pytest.mark.fault("H8")
def test_an_endless_line_comes_in_marked_pieces_and_little_is_held() -> None:
    lines = LineSplitter()
    shown = b"".join(lines.feed("€".encode() * 10_000) for _ in range(40))
    assert len(lines.current) <= LINE_LIMIT
    pieces = (shown + lines.end()).splitlines()
    assert all(piece.endswith(MORE) for piece in pieces[:-1])
    assert all(piece.startswith(MORE) for piece in pieces[1:])
    assert "".join(piece.decode().strip("…") for piece in pieces) == "€" * 400_000


@pytest.mark.fault("H8")
def test_a_character_that_is_not_complete_is_no_part_of_the_line_yet() -> None:
    lines = LineSplitter()
    lines.feed("a€".encode()[:-1])
    assert lines.current == b"a"
    assert lines.feed("€\n".encode()[2:]) == "a€\n".encode()


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_what_is_held_back_and_what_is_not_are_what_went_in(pieces: list[bytes]) -> None:
    holder = LineHolder()
    out = b"".join(holder.feed(piece) for piece in pieces)
    assert not out or out[-1:] in (b"\n", b"\r")
    assert out + holder.end() == b"".join(pieces)


def test_an_endless_line_is_not_held() -> None:
    holder = LineHolder()
    assert len(holder.feed(b"x" * (3 * LINE_LIMIT + 5))) == 3 * LINE_LIMIT + 5


def test_a_redrawn_bar_is_passed_on_at_once() -> None:
    assert LineHolder().feed(b"10%\r20%\r30%") == b"10%\r20%\r"


def test_a_line_without_its_end_is_released_once_it_has_not_grown() -> None:
    holder = LineHolder()
    assert holder.feed(b"name? ") == b""
    assert [holder.release(), holder.release(), holder.release()] == [b"", b"name? ", b""]
    assert holder.feed(b"me\n") == b"me\n"


@given(st.integers(64, 1 << 17))
def test_a_line_of_any_length_leaves_room_for_those_before_it_in_the_tail(piece: int) -> None:
    splitter, tail = LineSplitter(), b""
    data = b"before\n" + "ValueError: €".encode() + "é".encode() * (1 << 18) + b" end\nafter\n"
    for at in range(0, len(data), piece):
        if lines := splitter.feed(data[at : at + piece]):
            tail = extend_tail(tail, lines)
    before, long, after = tail.decode().splitlines()
    assert (before, after) == ("before", "after")
    assert long.startswith("ValueError: €é")
    assert long.endswith("é end")
    assert len(long) < 1200
