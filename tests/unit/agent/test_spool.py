"""What ranks write, stored in segments: exact, under a cap, and with a full disk."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ipexctl.decide.run.lines import Demux
from ipexctl.protocol.frames import build_head, compile_frame_pattern, split_into_frames
from ipexctl.remote.agent.spool import SEGMENT_SIZE, SPARE_SPACE, Spool, Tail, list_segments

FRAMES = compile_frame_pattern("n0nce")


def line(number: int) -> bytes:
    return b"".join(split_into_frames(build_head("n0nce", number % 4), "o", b"line %07d\n" % number))


def everything(tail: Tail) -> bytes:
    return b"".join(iter(lambda: tail.read(100_000), b""))


def test_what_is_written_is_read_from_any_offset_on(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "out.bin"))
    noise = random.Random(1)
    written = b""
    for _ in range(80):
        piece = noise.randbytes(noise.randrange(1, 1 << 20))
        assert spool.write(piece) == 0
        written += piece
    assert len(list_segments(str(tmp_path / "out.bin"))) > 2
    for start in (0, 1, SEGMENT_SIZE - 1, SEGMENT_SIZE, SEGMENT_SIZE + 1, len(written) - 5, len(written)):
        assert everything(Tail(str(tmp_path / "out.bin"), start)) == written[start:]


def test_a_reader_that_waits_sees_what_comes_later(tmp_path: Path) -> None:
    base = str(tmp_path / "out.bin")
    tail = Tail(base, 0)
    assert tail.read(10) == b""
    spool = Spool(base)
    spool.write(b"one")
    assert tail.read(10) == b"one"
    assert tail.read(10) == b""
    spool.write(b"two")
    assert tail.read(10) == b"two"


def test_under_a_cap_the_oldest_go_and_the_offset_tells(tmp_path: Path) -> None:
    base, cap = str(tmp_path / "out.bin"), 2 * SEGMENT_SIZE
    spool = Spool(base, cap=cap)
    piece = b"".join(line(number) for number in range(40_000))
    for _ in range(60):
        assert spool.write(piece) == 0
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= cap
    tail = Tail(base, 0)
    first = tail.read(100)
    assert tail.offset - len(first) > 0
    assert tail.offset - len(first) + len(first) + len(everything(tail)) == 60 * len(piece)


def test_a_cap_is_used_to_its_last_byte(tmp_path: Path) -> None:
    base, cap = str(tmp_path / "out.bin"), 2 * SEGMENT_SIZE
    spool = Spool(base, cap=cap)
    assert spool.write(b"x" * cap) == 0
    assert list_segments(base) == list(range(cap // SEGMENT_SIZE))
    assert spool.write(b"x") == 0
    assert list_segments(base) == list(range(1, cap // SEGMENT_SIZE + 1))


FULL = """
import resource, signal, sys
from ipexctl.remote.agent.spool import Spool
from tests.unit.agent.test_spool import FRAMES, line
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spool = Spool(sys.argv[1], FRAMES)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_003, resource.RLIM_INFINITY))
lost = sum(spool.write(line(number) + line(number + 1)) for number in range(0, 10_000, 2))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
lost += sum(spool.write(line(number)) for number in range(10_000, 10_010))
print(lost + spool.close())
"""


def test_without_space_bytes_are_counted_and_a_mark_stands_where_they_are_missing(tmp_path: Path) -> None:
    """A limit of the file's size stands for a full disk: a write is short, the next ones fail."""
    base = tmp_path / "out.bin"
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(base)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    assert done.returncode == 0, done.stderr
    lost = int(done.stdout)
    stored = everything(Tail(str(base), 0))
    mark = b"\n[%d bytes of output were not stored here: no space]\n" % lost
    assert stored.count(mark) == 1
    assert len(stored) - len(mark) + lost == sum(len(line(number)) for number in range(10_010))
    demux = Demux("n0nce")
    ranks: dict[int | None, bytes] = {}
    for rank, _, data in demux.feed(stored) + demux.end():
        ranks[rank] = ranks.get(rank, b"") + data
    assert ranks[None] == mark, "no frame was stored in part"
    assert b"line 0010009\n" in ranks[1]


def test_a_frame_whose_rest_finds_no_space_is_counted_at_the_end(tmp_path: Path) -> None:
    program = FULL.replace("lost += sum(spool.write(line(number)) for number in range(10_000, 10_010))\n", "")
    program = program.replace("(resource.RLIM_INFINITY, resource.RLIM_INFINITY)", "(100_003, resource.RLIM_INFINITY)")
    base = tmp_path / "out.bin"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", program, str(base)], capture_output=True, text=True, env=env)
    every = sum(len(line(number)) for number in range(10_000))
    assert len(everything(Tail(str(base), 0))) + int(done.stdout) == every, done.stderr


@pytest.mark.parametrize("cap", [0, 1, 10 * SEGMENT_SIZE])
def test_files_that_are_not_segments_are_left_alone(tmp_path: Path, cap: int) -> None:
    (tmp_path / "out.bin.txt").write_text("mine")
    (tmp_path / "out.bins.000001").write_text("mine")
    Spool(str(tmp_path / "out.bin"), cap=cap).write(b"x")
    assert list_segments(str(tmp_path / "out.bin")) == [0]


def test_what_is_needed_to_go_on_is_more_than_what_found_no_space(tmp_path: Path) -> None:
    need, free = Spool(str(tmp_path / "out.bin")).measure_free_space(500)
    assert need == 500 + SPARE_SPACE
    assert free > 0
