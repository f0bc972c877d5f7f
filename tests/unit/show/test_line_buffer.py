"""Whole lines for the eye, whatever the pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ipexctl.show.line_buffer import LIMIT, MORE, Lines, drop_overwritten


def fed(pieces: list[bytes]) -> list[str]:
    lines = Lines()
    return [line for piece in pieces for line in lines.feed(piece)] + lines.flush()


@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("\n\n\r€😀")), st.data())
def test_the_lines_do_not_depend_on_where_reads_cut_the_bytes(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert fed(pieces) == fed([raw])


@given(st.binary())
def test_no_bytes_break_it(data: bytes) -> None:
    assert len(fed([data])) >= data.count(b"\n")


def test_a_bar_is_shown_in_its_latest_state_only() -> None:
    lines = Lines()
    for percent in range(101):
        assert lines.feed(f"\r{percent:3d}%|{'#' * percent}".encode()) == []
    assert lines.redraws
    assert lines.current.startswith("100%")
    assert lines.feed(b"\n") == ["100%|" + "#" * 100]


def test_a_bar_with_its_return_at_the_end_is_shown_too() -> None:
    lines = Lines()
    assert lines.feed(b" 10%\r 20%\r") == []
    assert lines.current == " 20%"


def test_windows_line_ends_are_line_ends() -> None:
    assert fed([b"one\r\ntwo\r\n"]) == ["one", "two"]


def test_an_endless_line_comes_in_marked_pieces_and_little_is_held() -> None:
    lines = Lines()
    shown = [line for _ in range(40) for line in lines.feed("€".encode() * 10_000)]
    assert len(lines.current) < LIMIT
    shown += lines.flush()
    assert all(line.endswith(MORE) for line in shown[:-1])
    assert all(line.startswith(MORE) for line in shown[1:])
    assert "".join(line.strip(MORE) for line in shown) == "€" * 400_000


def test_a_last_line_without_an_end_is_kept() -> None:
    assert fed([b"loss 0.1\nlast"]) == ["loss 0.1", "last"]


def test_the_latest_state_is_what_a_terminal_shows() -> None:
    assert drop_overwritten(b"one\rtwo\r") == b"two"
