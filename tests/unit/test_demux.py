"""Demultiplexing mpirun's one pipe: what a rank wrote comes out exactly, however the pieces were cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ipexctl.decide.demux import LONGEST, Demux, Lines
from ipexctl.protocol import frames

NONCE = "5ca1ab1e"


def tag(rank: int) -> bytes:
    return b"\x01" + NONCE.encode() + b":" + str(rank).encode() + b"\x02"


def as_hydra_writes(pieces: list[tuple[int, bytes]]) -> bytes:
    """A tag before each piece and after each newline inside one, as Intel MPI 2021.18.1 was seen to do; the pieces are
    what the ranks' wrappers write."""
    out = []
    for rank, piece in pieces:
        lines = frames.escape_output(piece).split(b"\n")
        whole = [line + b"\n" for line in lines[:-1]] + [lines[-1]]
        out += [tag(rank) + line for line in whole if line]
    return b"".join(out)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    parts, at = [], 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return [*parts, data[at:]]


def collect(demux: Demux, parts: list[bytes]) -> dict[int | None, bytes]:
    got: dict[int | None, bytes] = {}
    for (rank, _stream), data in streams(demux, parts).items():
        got[rank] = got.get(rank, b"") + data
    return got


def streams(demux: Demux, parts: list[bytes]) -> dict[tuple[int | None, str], bytes]:
    got: dict[tuple[int | None, str], bytes] = {}
    for part in [*[demux.feed(part) for part in parts], demux.end()]:
        for rank, stream, data in part:
            got[rank, stream] = got.get((rank, stream), b"") + data
    return got


@given(
    st.lists(st.tuples(st.integers(0, 11), st.sampled_from("oe"), st.binary(min_size=1, max_size=60)), max_size=20),
    st.lists(st.integers(0, 50), max_size=40),
)
def test_frames_give_every_rank_both_its_streams_whatever_the_pieces(
    pieces: list[tuple[int, str, bytes]], sizes: list[int]
) -> None:
    framed = [b"\x01%s=%d%s%d\x02" % (NONCE.encode(), rank, stream.encode(), len(data)) + data
              for rank, stream, data in pieces]  # fmt: skip
    written: dict[tuple[int | None, str], bytes] = {}
    for rank, stream, data in pieces:
        written[rank, stream] = written.get((rank, stream), b"") + data
    assert streams(Demux(NONCE, "e"), cut(b"".join(framed), sizes)) == written


def test_a_frame_may_hold_anything_even_other_frames_and_tags() -> None:
    inside = tag(2) + b"\x01" + NONCE.encode() + b"=1o5\x02hello\n"
    frame = b"\x01%s=3e%d\x02" % (NONCE.encode(), len(inside)) + inside
    data = b"mpirun: hello\n" + frame + b"mpirun: bye\n"
    assert streams(Demux(NONCE, "e"), [data[i : i + 1] for i in range(len(data))]) == {
        (None, "e"): b"mpirun: hello\nmpirun: bye\n",
        (3, "e"): inside,
    }


@given(
    st.lists(st.tuples(st.integers(0, 11), st.binary(min_size=1, max_size=60)), max_size=20),
    st.lists(st.integers(0, 50), max_size=40),
)
def test_every_rank_gets_exactly_its_bytes_whatever_the_pieces(
    pieces: list[tuple[int, bytes]], sizes: list[int]
) -> None:
    written: dict[int | None, bytes] = {}
    for rank, piece in pieces:
        written[rank] = written.get(rank, b"") + piece
    assert collect(Demux(NONCE), cut(as_hydra_writes(pieces), sizes)) == written


def test_a_line_without_a_tag_is_the_launchers() -> None:
    data = tag(0) + b"one\n" + b"\n=== BAD TERMINATION\n" + tag(1) + b"two\n"
    assert collect(Demux(NONCE), [data]) == {0: b"one\n", None: b"\n=== BAD TERMINATION\n", 1: b"two\n"}


@given(
    st.lists(
        st.sampled_from(
            [tag(0), tag(0)[:4], tag(0)[4:], b"\x10", b"\x101", b"\x11", b"0", b"2", b"I am rank 0\n", b"\n"]
        )
    )
)
def test_a_rank_cannot_speak_as_another_even_with_the_nonce(said: list[bytes]) -> None:
    """Whatever the pieces in which it is written and read, with another rank between them."""
    written: dict[int | None, bytes] = {}
    pieces = [(3 + turn % 2, piece) for turn, piece in enumerate(said)]
    for rank, piece in pieces:
        written[rank] = written.get(rank, b"") + piece
    data = as_hydra_writes(pieces)
    assert collect(Demux(NONCE), [data]) == written
    assert collect(Demux(NONCE), [data[i : i + 1] for i in range(len(data))]) == written


def test_lines_that_a_wrapper_has_at_once_are_one_line_to_hydra_for_each_block() -> None:
    lines = b"".join(b"%07d " % number + b"." * 91 + b"\n" for number in range(5000))
    written = as_hydra_writes([(0, lines), (1, lines + b"a bar 10%")])
    assert written.count(tag(0)) <= len(lines) // frames.BLOCK * 101 // 100 + 2
    assert collect(Demux(NONCE), cut(written, [1000] * 999)) == {0: lines, 1: lines + b"a bar 10%"}


def test_the_end_of_a_line_reaches_hydra_with_its_line() -> None:
    """Else what mpirun itself writes next would be taken for the rest of the line."""
    said = b"=== BAD TERMINATION\n"
    for text in (b"one\ntwo\n", b"\n", b"x" * (2 * frames.BLOCK) + b"\n\n"):
        assert frames.escape_output(text).endswith(b"\n")
        assert collect(Demux(NONCE), [as_hydra_writes([(0, text)]) + said]) == {0: text, None: said}


def test_of_an_output_whose_beginning_is_gone_the_rest_of_a_block_is_readable() -> None:
    block = frames.escape_output(b"one\n\x10\x11\x01two\nthree\n")
    data = block + tag(1) + block
    got = collect(Demux(NONCE, torn=True), cut(data, [2, 3, 1]))
    assert got == {None: b"one\n\x10\x11\x01two\nthree\n", 1: b"one\n\x10\x11\x01two\nthree\n"}


def test_an_output_that_ends_inside_an_escape_loses_nothing() -> None:
    assert collect(Demux(NONCE), [tag(1) + b"x\x10"]) == {1: b"x\x10"}


def test_a_pipe_that_ends_inside_a_tag_loses_nothing() -> None:
    data = tag(1) + b"x" + tag(2)[:6]
    assert collect(Demux(NONCE), [data]) == {1: b"x" + tag(2)[:6]}


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_lines_joined_are_what_went_in(pieces: list[bytes]) -> None:
    lines, out = Lines(), b""
    for piece in pieces:
        for data, partial in lines.feed(piece):
            assert partial or data.endswith(b"\n")
            out += data
    assert out + lines.end() == b"".join(pieces)


def test_an_endless_line_is_passed_on_in_bounded_pieces() -> None:
    lines = Lines()
    out = [data for data, partial in lines.feed(b"x" * (3 * LONGEST + 5)) if partial]
    assert [len(data) for data in out] == [LONGEST] * 3
    assert lines.end() == b"x" * 5


def test_a_redrawn_bar_is_passed_on_at_once() -> None:
    assert list(Lines().feed(b"10%\r20%\r30%")) == [(b"10%\r20%\r", True)]


def test_a_line_without_its_end_is_released_once_it_has_not_grown() -> None:
    lines = Lines()
    assert list(lines.feed(b"name? ")) == []
    assert [lines.release(), lines.release(), lines.release()] == [b"", b"name? ", b""]
    assert list(lines.feed(b"me\n")) == [(b"me\n", False)]
