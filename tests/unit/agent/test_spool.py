"""What mpirun writes, stored in segments: exact, under a cap, and with a full disk."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ipexctl.decide.demux import Demux
from ipexctl.remote.agent.spool import LEAST, Spool, Tail, list_segments

OPENING = b"\x01n0nce"


def line(number: int) -> bytes:
    return OPENING + b":%d\x02line %07d\n" % (number % 4, number)


def everything(tail: Tail) -> bytes:
    return b"".join(iter(lambda: tail.read(100_000), b""))


def test_what_is_written_is_read_from_any_offset_on(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "out.bin"), 80 * LEAST, OPENING)
    noise = random.Random(1)
    written = b""
    for _ in range(80):
        piece = noise.randbytes(noise.randrange(1, 1 << 20))
        assert spool.write(piece) == 0
        written += piece
    assert len(list_segments(str(tmp_path / "out.bin"))) > 3
    for start in (0, 1, spool.size - 1, spool.size, spool.size + 1, len(written) - 5, len(written)):
        assert everything(Tail(str(tmp_path / "out.bin"), 80 * LEAST, start)) == written[start:]


def test_a_reader_that_waits_sees_what_comes_later(tmp_path: Path) -> None:
    base = str(tmp_path / "out.bin")
    tail = Tail(base, 0, 0)
    assert tail.read(10) == b""
    spool = Spool(base, 0, OPENING)
    spool.write(b"one")
    assert tail.read(10) == b"one"
    assert tail.read(10) == b""
    spool.write(b"two")
    assert tail.read(10) == b"two"


def test_under_a_cap_the_oldest_go_and_the_offset_tells(tmp_path: Path) -> None:
    base, cap = str(tmp_path / "out.bin"), 4 * LEAST
    spool = Spool(base, cap, OPENING)
    piece = b"".join(line(number) for number in range(10_000))
    for _ in range(60):
        assert spool.write(piece) == 0
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= cap
    tail = Tail(base, cap, 0)
    first = tail.read(100)
    assert tail.offset - len(first) > 0
    assert tail.offset - len(first) + len(first) + len(everything(tail)) == 60 * len(piece)


def test_a_cap_is_used_to_its_last_byte(tmp_path: Path) -> None:
    base, cap = str(tmp_path / "out.bin"), 8 * LEAST
    spool = Spool(base, cap, OPENING)
    assert spool.write(b"x" * cap) == 0
    assert list_segments(base) == list(range(cap // spool.size))
    assert spool.write(b"x") == 0
    assert list_segments(base) == list(range(1, cap // spool.size + 1))


FULL = """
import resource, signal, sys
from ipexctl.remote.agent.spool import Spool
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
OPENING = b"\\x01n0nce"
line = lambda number: OPENING + b":%d\\x02line %07d\\n" % (number % 4, number)
spool = Spool(sys.argv[1], 0, OPENING)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
lost = sum(spool.write(line(number)) for number in range(10_000))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
lost += sum(spool.write(b"end of a line\\n" + line(number)) for number in range(10_000, 10_010))
print(lost)
"""


def test_without_space_bytes_are_counted_and_a_mark_stands_where_they_are_missing(tmp_path: Path) -> None:
    """A limit of the file's size stands for a full disk: a write is short, the next ones fail."""
    base = tmp_path / "out.bin"
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(base)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    lost = int(done.stdout)
    stored = everything(Tail(str(base), 0, 0))
    mark = b"\n[%d bytes of output were not stored here: no space]\n" % lost
    assert stored.count(mark) == 1
    every = sum(len(line(number)) for number in range(10_000))
    every += sum(len(b"end of a line\n" + line(number)) for number in range(10_000, 10_010))
    assert len(stored) - len(mark) + lost == every
    demux = Demux("n0nce")
    ranks: dict[int | None, bytes] = {}
    for rank, _, data in demux.feed(stored) + demux.end():
        ranks[rank] = ranks.get(rank, b"") + data
    assert mark.strip() in ranks[None]
    assert b"line 0010009\n" in ranks[1]


@pytest.mark.parametrize("cap", [0, 1, 10 * LEAST])
def test_files_that_are_not_segments_are_left_alone(tmp_path: Path, cap: int) -> None:
    (tmp_path / "out.bin.txt").write_text("mine")
    (tmp_path / "out.bins.000001").write_text("mine")
    Spool(str(tmp_path / "out.bin"), cap, OPENING).write(b"x")
    assert list_segments(str(tmp_path / "out.bin")) == [0]
