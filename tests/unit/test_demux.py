"""Demultiplexing the ranks' output: what a rank wrote comes out exactly, however the pieces were cut."""

import os

from hypothesis import given
from hypothesis import strategies as st

from ipexctl.decide.run.lines import Demux
from ipexctl.protocol import frames

NONCE = "5ca1ab1e"


def frame(rank: int, stream: str, data: bytes) -> bytes:
    return b"".join(frames.split_into_frames(frames.build_head(NONCE, rank), stream, data))


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    parts, at = [], 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return [*parts, data[at:]]


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
def test_frames_give_every_rank_both_its_streams(pieces: list[tuple[int, str, bytes]], sizes: list[int]) -> None:
    written: dict[tuple[int | None, str], bytes] = {}
    for rank, stream, data in pieces:
        written[rank, stream] = written.get((rank, stream), b"") + data
    assert streams(Demux(NONCE), cut(b"".join(frame(*piece) for piece in pieces), sizes)) == written


def test_a_frame_may_hold_anything_even_other_frames() -> None:
    inside = frame(2, "o", b"hello\n") + b"\x01" + NONCE.encode()
    data = b"a mark\n" + frame(3, "e", inside) + b"another\n"
    assert streams(Demux(NONCE), [data[i : i + 1] for i in range(len(data))]) == {
        (None, "e"): b"a mark\nanother\n",
        (3, "e"): inside,
    }


def test_much_is_cut_into_frames_that_a_pipe_takes_whole() -> None:
    data = os.urandom(3 * frames.FRAME)
    parts = list(frames.split_into_frames(frames.build_head(NONCE, 999), "o", data))
    assert max(map(len, parts)) <= frames.FRAME
    assert streams(Demux(NONCE), parts) == {(999, "o"): data}


def test_an_output_whose_beginning_is_gone_goes_on_at_the_next_frame() -> None:
    data = frame(0, "o", b"one\ntwo\n") + frame(1, "o", b"three\n")
    got = streams(Demux(NONCE), [data[12:]])
    assert got[1, "o"] == b"three\n"
    assert (0, "o") not in got


def test_an_output_that_ends_inside_a_frame_loses_nothing() -> None:
    data = frame(1, "o", b"x") + frame(2, "e", b"two")[:6]
    assert streams(Demux(NONCE), [data]) == {(1, "o"): b"x", (None, "e"): frame(2, "e", b"two")[:6]}


@given(st.lists(st.binary(max_size=9), max_size=6), st.integers(0, 80))
def test_where_frames_end_is_found(pieces: list[bytes], least: int) -> None:
    ends, data = [0], b""
    for number, piece in enumerate(pieces):
        data += frame(number, "o", piece) if piece else b""
        ends.append(len(data))
    pattern = frames.compile_frame_pattern(NONCE)
    for cut_at in range(len(data) + 1):
        assert frames.find_frame_end(data[:cut_at], pattern) == max(end for end in ends if end <= cut_at)
    assert (
        frames.find_frame_end(data, pattern, least) == next((end for end in ends if end >= least), ends[-1])
        or not least
    )
