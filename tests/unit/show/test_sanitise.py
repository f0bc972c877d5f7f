"""What comes from outside never steers the terminal."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.decide.run.lines import find_decodable_end
from ipexctl.model.text import strip_colours
from ipexctl.show.sanitise import decode_utf8, escape, escape_lines, is_printable_ascii, is_safe_to_print
from tests.tables import read_table

ANY_TEXT = st.text(alphabet=st.characters(codec=None, exclude_categories=()))
NASTY = st.lists(
    st.sampled_from(["\x1b", "[", "]", "0", "1", ";", "3", "m", "P", "\\", "\x9b", "\x07", "\u202e", "é", "x", "\r"])
).map("".join)


def is_shown_as_it_is(text: str) -> bool:
    """No control character but tab, nothing that reorders text, nothing that no stream can encode."""
    text.encode()
    return all(
        char == "\t" or (unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp") and char not in BIDI)
        for char in text
    )


BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@given(ANY_TEXT | NASTY)
def test_nothing_that_steers_a_terminal_is_left_in_any_text(text: str) -> None:
    assert is_shown_as_it_is(escape(text))
    assert is_shown_as_it_is(escape(strip_colours(text)))


@given(st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs"))))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert escape(text) == text


@given(ANY_TEXT | NASTY)
def test_what_is_called_harmless_is_not_changed_line_by_line(text: str) -> None:
    if is_safe_to_print(text):
        assert escape_lines(text) == text.split("\n")


@given(st.binary())
def test_bytes_called_plain_are_harmless_text(data: bytes) -> None:
    if is_printable_ascii(data):
        assert is_safe_to_print(data.decode("ascii"))


@given(st.text(alphabet=st.characters(codec="utf-8")), st.data())
def test_a_character_cut_by_a_read_is_never_replaced(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cut = data.draw(st.integers(0, len(raw)))
    end = find_decodable_end(raw[:cut])
    assert "\ufffd" not in decode_utf8(raw[:end]).replace("\ufffd" if "\ufffd" in text else "", "")
    assert decode_utf8(raw[:end]) + decode_utf8(raw[end:]) == text
    assert cut - end < 4


@given(st.binary())
def test_the_boundary_holds_back_at_most_one_character(data: bytes) -> None:
    assert len(data) - 3 <= find_decodable_end(data) <= len(data)


@pytest.mark.parametrize(("raw", "shown"), read_table("sanitise/control_characters_are_shown_as_escapes"))
def test_control_characters_are_shown_as_escapes(raw: str, shown: str) -> None:
    assert escape(raw) == shown


def test_plain_colours_can_be_dropped_and_everything_else_is_shown() -> None:
    assert escape(strip_colours("\x1b[1;31mred\x1b[0m \x1b[2J")) == r"red \x1b[2J"


def test_dropping_colours_does_not_build_new_ones() -> None:
    assert escape(strip_colours("\x1b[\x1b[0m31mred")) == r"\x1b[31mred"


@pytest.mark.parametrize("code", ["5", "6", "8", "1;8", "38;5;1000", "99", "300"])
def test_blinking_and_hidden_text_are_not_plain_colours(code: str) -> None:
    assert strip_colours(f"\x1b[{code}mx") == f"\x1b[{code}mx"


@pytest.mark.parametrize("code", ["", "0", "01;32", "38;5;208", "48;2;1;2;3", "97", "107", "1;4;7;22;24;27;39;49"])
def test_plain_colours_are_known_in_every_form(code: str) -> None:
    assert strip_colours(f"\x1b[{code}mx") == "x"
