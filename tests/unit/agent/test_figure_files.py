"""Figures that scripts wrote into files, and files that are not what they seem."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from ipexctl.remote.agent import figure_files, procs
from ipexctl.remote.agent.figure_files import FigureFiles, Points, compute_masked_crc

# Written by TensorBoard 2.21's own EventFileWriter: "train/loss" 1, 0.5, 0.25, NaN; "acc" as tensors of a float, a
# double, an int64 and a bfloat16; a vector, a text and a histogram of 140 kB, which are no figures; "late" at step
# 2**40; then "train/loss" 0.125 at step 12.
WRITTEN = zlib.decompress(base64.b64decode((Path(__file__).parents[2] / "data/figures/tensorboard.b64").read_bytes()))
LOG = "events.out.tfevents.1700000000.xeon01.4711.0"


def frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    checks = (struct.pack("<I", compute_masked_crc(part)) for part in (length, data))
    return length + next(checks) + data + next(checks)


def event(step: int, tag: bytes, value: float) -> bytes:
    body = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(body)]) + body
    return frame(b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary)


@pytest.fixture
def made(tmp_path: Path) -> FigureFiles:
    return FigureFiles(str(tmp_path), 0.0, "xeon01", lambda pid: 3 if pid == 4711 else -1)


def read(made: FigureFiles) -> list[Points]:
    return list(made.read(time.monotonic() + 60))


def test_the_checksum_is_the_one_of_the_format() -> None:
    crc = 0xE3069283  # of "123456789", as RFC 3720 and every catalogue of CRC-32C have it
    assert compute_masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_scalars_of_tensorboard_in_each_of_its_forms_are_read_with_their_rank(
    made: FigureFiles, tmp_path: Path
) -> None:
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a" / LOG).write_bytes(WRITTEN)
    source = f"runs/a/{LOG}"
    assert read(made) == [
        Points(source, 3, "train/loss", [(0, "1.0"), (1, "0.5"), (2, "0.25"), (3, "nan"), (12, "0.125")]),
        Points(source, 3, "acc", [(4, "0.75"), (5, "0.875"), (6, "-7.0"), (7, "1.5")]),
        Points(source, 3, "late", [(1 << 40, "1e+30")]),
    ]
    assert read(made) == [], "what was read once is not read again"


def test_what_tensorboards_own_writer_is_still_writing_is_read_with_its_rank(tmp_path: Path) -> None:
    made = FigureFiles(str(tmp_path), 0.0, socket.gethostname(), lambda pid: 5 if pid == os.getpid() else -1)
    writer = EventFileWriter(str(tmp_path / "runs"))
    for step, value in ((1, 2.5), (2, 1.25)):
        summary = Summary(value=[Summary.Value(tag="train/loss", simple_value=value)])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        writer.flush()
        [points] = read(made)
        assert (points.rank, points.name, points.points) == (5, "train/loss", [(step, str(value))])
    writer.close()


def test_a_file_that_grows_is_read_from_where_it_ended_also_within_a_record(made: FigureFiles, tmp_path: Path) -> None:
    path, whole = tmp_path / LOG, event(1, b"loss", 0.5) + event(2, b"loss", 0.25)
    got: list[tuple[int, str]] = []
    for end in range(0, len(whole) + 1, 7):
        path.write_bytes(whole[:end])
        got += [point for points in read(made) for point in points.points]
    path.write_bytes(whole)
    got += [point for points in read(made) for point in points.points]
    assert got == [(1, "0.5"), (2, "0.25")]


@pytest.mark.parametrize("at", [3, 9, 20, -2], ids=["length", "its checksum", "data", "their checksum"])
def test_nothing_after_a_damaged_record_is_believed(made: FigureFiles, tmp_path: Path, at: int) -> None:
    damaged = bytearray(event(2, b"loss", 0.25))
    damaged[at] ^= 1
    (tmp_path / LOG).write_bytes(event(1, b"loss", 0.5) + bytes(damaged) + event(3, b"loss", 0.125))
    assert [points.points for points in read(made)] == [[(1, "0.5")]]
    assert read(made) == []


def test_the_history_of_a_trainer_is_one_figure_over_all_its_checkpoints(made: FigureFiles, tmp_path: Path) -> None:
    history: list[dict[str, Any]] = [{"step": 10, "loss": 2.5, "epoch": 0.1}, {"step": 20, "loss": float("nan")}]

    def save(directory: str, at: float) -> None:
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        path = tmp_path / directory / "trainer_state.json"
        path.write_text(json.dumps({"global_step": 20, "log_history": history}))
        os.utime(path, (at, at))

    save("out/checkpoint-20", 100.0)
    assert read(made) == [
        Points("out/trainer_state.json", -1, "loss", [(10, "2.5"), (20, "nan")]),
        Points("out/trainer_state.json", -1, "epoch", [(10, "0.1")]),
    ]
    history.append({"step": 30, "eval_loss": 1, "loss": None, "done": True})
    save("out/checkpoint-30", 200.0)
    assert read(made) == [Points("out/trainer_state.json", -1, "eval_loss", [(30, "1.0")])]
    path = tmp_path / "out/checkpoint-30/trainer_state.json"
    path.write_text(path.read_text()[:-20])  # as it is while the trainer writes it again
    assert read(made) == []
    save("out", 300.0)
    assert read(made) == [], "the same history at the end of the training"


def test_files_of_before_the_run_of_other_hosts_and_behind_links_are_left_alone(tmp_path: Path) -> None:
    root, other = tmp_path / "work", tmp_path / "elsewhere"
    for directory in (root, root / ".cache", root / "site-packages", other):
        directory.mkdir()
        (directory / LOG).write_bytes(event(1, b"loss", 0.5))
    (root / LOG.replace("xeon01", "xeon02")).write_bytes(event(1, b"loss", 0.5))
    (root / "link").symlink_to(other)
    (root / "events.out.tfevents.1.xeon01.1.0").symlink_to(other / LOG)
    now = os.stat(root / LOG).st_mtime
    assert [points.source for points in read(FigureFiles(str(root), now, "xeon01", lambda pid: -1))] == [LOG]
    os.utime(root / LOG, (now - 60, now - 60))
    assert read(FigureFiles(str(root), now, "xeon01", lambda pid: -1)) == []


def test_the_time_is_that_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "written"
    written.touch()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86400.0)
    assert 0.0 <= procs.read_clock(str(tmp_path)) - written.stat().st_mtime < 1000.0
    assert os.listdir(tmp_path) == ["written"]
    assert procs.read_clock(str(tmp_path / "missing")) - written.stat().st_mtime > 80000.0


def test_what_is_no_file_or_cannot_be_read_harms_nobody(made: FigureFiles, tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").mkdir()
    os.mkfifo(tmp_path / LOG)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/trainer_state.json").write_text("[" * 100_000)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/trainer_state.json").write_text(
        '{"log_history": [{"step": 1, "loss": 1' + "0" * 400 + "}, 7, null]}"
    )
    assert read(made) == [Points("b/trainer_state.json", -1, "loss", [(1, "inf")])]


def test_a_figure_of_many_points_is_thinned_and_everything_has_an_end(
    made: FigureFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure_files, "POINTS", 10)
    monkeypatch.setattr(figure_files, "ALL_POINTS", 30)
    monkeypatch.setattr(figure_files, "FIGURES", 2)
    (tmp_path / LOG).write_bytes(b"".join(event(step, b"loss", 1.0) for step in range(100)))
    [points] = read(made)
    assert [step for step, _ in points.points] == [*range(10), *range(10, 30, 2), *range(32, 72, 4)]
    for name in ("b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / LOG).write_bytes(event(1, b"loss", 1.0))
    assert read(made) == [], "no more points"
    assert len(made.figures) == 2


def test_a_file_of_many_images_is_read_in_several_searches(
    made: FigureFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure_files, "BYTES", 100_000)
    images = frame(bytes(figure_files.RECORD + 1)) * 3
    (tmp_path / LOG).write_bytes(images + event(1, b"loss", 0.5))
    assert [read(made), read(made)] == [[], [Points(LOG, 3, "loss", [(1, "0.5")])]]


def test_a_search_ends_when_its_time_is_over(made: FigureFiles, tmp_path: Path) -> None:
    (tmp_path / LOG).write_bytes(event(1, b"loss", 0.5))
    assert list(made.read(time.monotonic() - 1)) == []


def scalars(data: bytes) -> Iterator[tuple[int, str, float]]:
    with io.BytesIO(data) as file:
        for _, step, values in figure_files.read_records(file, 1 << 20, len(data)):
            yield from ((step, name, value) for name, value in values)


@given(st.binary(max_size=80) | st.binary(max_size=80).map(frame))
@example(frame(b"\x2a\x02\x0a\x00"))
@example(frame(b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"))
def test_any_bytes_are_records_or_malformed(data: bytes) -> None:
    try:
        for _, name, value in scalars(data):
            assert isinstance(name, str)
            assert isinstance(value, float)
    except figure_files.MalformedError:
        pass


@given(st.integers(0, 127), st.floats(width=32))
def test_a_number_comes_back_as_it_was_written(step: int, value: float) -> None:
    [(got_step, name, got)] = scalars(event(step, b"loss", value))
    assert (got_step, name) == (step, "loss")
    assert struct.pack("<f", got) == struct.pack("<f", value) or math.isnan(got)
