"""``runs --export``: figures of saved runs in the formats of other programs."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ipexctl.decide.run_figures import FigureReader
from ipexctl.decide.saved_runs import RunFilter
from ipexctl.model import events as e
from ipexctl.model.answers.saved import SavedRun
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Stamped
from ipexctl.model.run_figures import COLUMNS, FigureRow
from ipexctl.show import tensorboard
from ipexctl.show.figure_files import write_csv, write_prometheus, write_tensorboard
from ipexctl.verbs.run.export_runs import choose_format, export_runs
from tests.unit.saved.test_runs import answer_of, save
from tests.unit.show import streams

AT = streams.START


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "state" / "runs"


def read(*events: e.Event) -> list[FigureRow]:
    reader = FigureReader("k7")
    return [row for stamped in streams.stamp(list(events), AT, 1.0) for row in reader.read(stamped)]


# which figures ----------------------------------------------------------------------------------------------------


def test_lines_become_figures_with_the_step_of_their_rank() -> None:
    rows = read(
        e.Output(0, "a", "out", b"step 10 loss 0.5\nhello\nlr=1e"),
        e.Output(1, "b", "out", b"step 11 loss 0.25\n"),
        e.Output(0, "a", "out", b"-4\n"),
        e.Output(0, "a", "err", b"::metric name=val/f1 value=0.75 step=12\n"),
        e.Output(0, "a", "out", b"loss: nan\n"),
    )
    assert rows[:4] == [
        FigureRow("k7", AT, "a", 0, "out", "loss", 10, 0.5),
        FigureRow("k7", AT + 1, "b", 1, "out", "loss", 11, 0.25),
        FigureRow("k7", AT + 2, "a", 0, "out", "lr", 10, 1e-4),
        FigureRow("k7", AT + 3, "a", 0, "err", "val/f1", 12, 0.75),
    ]
    assert (rows[4].name, rows[4].step, math.isnan(rows[4].value)) == ("loss", 12, True)


def test_samples_and_files_become_figures() -> None:
    sample = e.HostSample(
        "a", AT - 5, 5.0, 3.5, 8, 1 << 30, 1 << 34, received={"eth0": 10}, pressure={"cpu": 0.5}, celsius=61.0,
        ranks=(e.RankSample(1, 0.75, 1 << 20),),
    )  # fmt: skip
    rows = read(sample, e.FiguresRead("b", -1, "tb/x", "train/loss", ((1, 0.5), (2, None))))
    by_name = {(row.rank, row.name): row for row in rows}
    assert by_name[None, "cpu_cores"] == FigureRow("k7", AT - 5, "a", None, "sample", "cpu_cores", None, 3.5)
    assert by_name[None, "received_bytes/eth0"].value == 10
    assert by_name[None, "pressure/cpu"].value == 0.5
    assert by_name[None, "celsius"].value == 61.0
    assert by_name[1, "rss_bytes"].value == 1 << 20
    assert (None, "joules") not in by_name
    first, second = (row for row in rows if row.name == "train/loss")
    assert (first.time, first.host, first.rank, first.origin, first.step) == (None, "b", None, "tb/x", 1)
    assert math.isnan(second.value)


# CSV --------------------------------------------------------------------------------------------------------------


def export(runs: Path, target: Path, form: Any = None, names: tuple[str, ...] = ()) -> Any:
    return answer_of(export_runs(runs, names, RunFilter(), str(target), form))


def test_a_csv_file_has_every_value_of_every_run(runs: Path, tmp_path: Path) -> None:
    save(runs, list(streams.run(2, steps=6)))
    save(runs, list(streams.run(1, steps=3)), at=AT + 60)
    answer = export(runs, tmp_path / "figures.csv")
    with (tmp_path / "figures.csv").open(newline="") as file:
        heading, *lines = csv.reader(file)
    assert tuple(heading) == COLUMNS
    assert answer.values == len(lines)
    names = {line[0] for line in lines}
    assert names == set(answer.runs)
    losses = [line for line in lines if line[5] == "loss"]
    assert len(losses) == 6 * 4 + 3 * 2
    assert losses[0][2:5] == ["xeon01", "0", "out"]
    assert (int(losses[0][6]), float(losses[0][7])) == (1, 1.818)
    assert float(losses[0][1]) > AT


def test_cells_are_no_formulas(tmp_path: Path) -> None:
    write_csv(tmp_path / "x.csv", [FigureRow("k7", AT, "=cmd|' /C calc'!A0", 0, "out", "loss", None, -0.5)])
    _, cells = csv.reader(io.StringIO((tmp_path / "x.csv").read_text()))
    assert cells[2] == "'=cmd|' /C calc'!A0"
    assert cells[6:] == ["", "-0.5"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target, other = tmp_path / "x.csv", tmp_path / "other"
    other.write_text("other")
    target.symlink_to(other)

    def broken() -> Iterator[FigureRow]:
        yield FigureRow("k7", AT, "a", 0, "out", "loss", 1, 0.5)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        write_csv(target, broken())
    assert target.is_symlink()
    write_csv(target, [])
    assert not target.is_symlink()
    assert other.read_text() == "other"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "x.csv"]


# Parquet ----------------------------------------------------------------------------------------------------------


def test_parquet_without_pyarrow_is_refused_with_what_helps(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(runs, list(streams.run(1, steps=2)))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match="need the package pyarrow") as refused:
        export(runs, tmp_path / "x.parquet")
    assert refused.value.hint
    assert refused.value.hint.endswith("-m pip install pyarrow")
    assert not list(tmp_path.glob("*x.parquet*"))


def test_parquet_has_the_columns_of_the_csv_file(runs: Path, tmp_path: Path) -> None:
    save(runs, list(streams.run(2, steps=6)))
    answer = export(runs, tmp_path / "x.parquet")
    table = parquet.read_table(tmp_path / "x.parquet")
    assert tuple(table.column_names) == COLUMNS
    assert table.num_rows == answer.values > 0
    export(runs, tmp_path / "x.csv")
    written = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert [(row["name"], float(row["value"])) for row in written] == [
        (row["name"], row["value"]) for row in table.to_pylist()
    ]
    assert [str(field.type) for field in table.schema] == [
        "string", "double", "string", "int32", "string", "string", "int64", "double"]  # fmt: skip


# TensorBoard ------------------------------------------------------------------------------------------------------


def test_the_checksum_is_crc_32c() -> None:
    """The examples of RFC 3720, appendix B.4, and the usual check value."""
    assert tensorboard.compute_crc32c(b"123456789") == 0xE3069283
    assert tensorboard.compute_crc32c(bytes(32)) == 0x8A9136AA
    assert tensorboard.compute_crc32c(b"\xff" * 32) == 0x62A8AB43
    assert tensorboard.compute_crc32c(bytes(range(32))) == 0x46DD794E


@given(st.integers(0, (1 << 32) - 1))
def test_a_masked_checksum_can_be_unmasked(crc: int) -> None:
    rotated = (tensorboard.mask_crc(crc) - 0xA282EAD8) & 0xFFFFFFFF
    assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == crc


def records(data: bytes) -> list[bytes]:
    """The records of an event file, with their checksums checked."""
    parsed = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == tensorboard.mask_crc(tensorboard.compute_crc32c(data[:8]))
        body, after = data[12 : 12 + length], data[12 + length :]
        assert struct.unpack("<I", after[:4])[0] == tensorboard.mask_crc(tensorboard.compute_crc32c(body))
        parsed.append(body)
        data = after[4:]
    return parsed


def fields(message: bytes) -> dict[int, Any]:
    """A protocol buffer by the numbers of its fields."""
    parsed: dict[int, Any] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(message):
        key = varint()
        wire = key & 7
        if wire == 0:
            parsed[key >> 3] = varint()
        else:
            size = {1: 8, 5: 4}.get(wire) or varint()
            piece, at = message[at : at + size], at + size
            parsed[key >> 3] = struct.unpack("<d" if wire == 1 else "<f", piece)[0] if wire in (1, 5) else piece
    return parsed


def test_tensorboard_gets_a_directory_for_each_rank_and_host(tmp_path: Path) -> None:
    rows = [
        FigureRow("../k7", AT, "a", 0, "out", "loss", 300, 0.5),
        FigureRow("../k7", AT + 1, "a", 0, "out", "pace", None, 2.5),
        FigureRow("../k7", AT + 2, "a", 0, "out", "pace", None, 2.0),
        FigureRow("../k7", AT + 2, "a/b", None, "sample", "cpu_cores", None, 1e300),
        FigureRow("../k7", None, "a", 1, "tb/x", "train/loss", 1, math.nan),
    ]
    assert write_tensorboard(tmp_path / "tb", rows, AT) == 5
    files = {path.parent.relative_to(tmp_path / "tb").as_posix(): path for path in tmp_path.rglob("events.out.*")}
    assert sorted(files) == ["_k7/host-a_b", "_k7/rank0", "_k7/rank1"]
    version, *events = [fields(body) for body in records(files["_k7/rank0"].read_bytes())]
    assert version == {1: AT, 3: b"brain.Event:2"}
    values = [(each[1], each[2], fields(fields(each[5])[1])) for each in events]
    assert values == [
        (AT, 300, {1: b"loss", 2: 0.5}),
        (AT + 1, 0, {1: b"pace", 2: 2.5}),
        (AT + 2, 1, {1: b"pace", 2: 2.0}),
    ]
    [host] = [fields(body) for body in records(files["_k7/host-a_b"].read_bytes())][1:]
    assert fields(fields(host[5])[1]) == {1: b"host/cpu_cores", 2: math.inf}
    assert len(list(tmp_path.rglob("*"))) == 2 + 3 + 3  # no part of a file is left


def test_tensorboard_itself_reads_them(runs: Path, tmp_path: Path) -> None:
    save(runs, list(streams.run(1, ppn=1, steps=5)))
    export(runs, tmp_path / "tb", "tensorboard")
    [directory] = {path.parent for path in tmp_path.rglob("events.out.*")}
    accumulator = EventAccumulator(str(directory)).Reload()
    assert [scalar.step for scalar in accumulator.Scalars("loss")] == [1, 2, 3, 4, 5]


# Prometheus -------------------------------------------------------------------------------------------------------

# prometheus.io/docs/instrumenting/exposition_formats: a sample without a time stamp.
SAMPLE = re.compile(
    r'[a-zA-Z_:][a-zA-Z0-9_:]*\{([a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*\} (?:[-+]?\d[\d.e+-]*|NaN|[-+]Inf)'
)
EVIL = 'a"b\\c\nd{e="f"}\x1b[2J'


def made(**changes: Any) -> SavedRun:
    values: dict[str, Any] = {"name": "n", "word": "k7", "verb": "run", "title": EVIL, "result": "failed", "cause": ""}
    values |= {"started": AT, "changed": AT, "seconds": 12.5, "ranks": 1, "hosts": 1, "bytes": 1, "directory": "/r"}
    return SavedRun(**values | {"exit": 5} | changes)


def test_prometheus_gets_the_last_values_with_escaped_labels(tmp_path: Path) -> None:
    rows = [
        FigureRow("k7", AT, EVIL, 0, "out", "loss", 1, 0.5),
        FigureRow("k7", AT + 1, EVIL, 0, "out", "loss", 2, 0.25),
        FigureRow("k7", AT + 1, "a", 0, "out", EVIL, 2, math.nan),
        FigureRow("k7", AT + 1, "a", None, "sample", "cpu_cores", None, math.inf),
    ]
    assert write_prometheus(tmp_path / "x.prom", [made()], rows) == 3
    text = (tmp_path / "x.prom").read_text()
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in samples), samples
    assert len({line.rpartition(" ")[0] for line in samples}) == len(samples) == 7
    assert [line.split()[-1] for line in samples] == ["1.0", repr(AT), "12.5", "5.0", "0.25", "NaN", "+Inf"]
    assert 'name="loss"' in samples[4]
    assert r'host="a\"b\\c' in samples[4]
    for family in {line.partition("{")[0] for line in samples}:
        assert text.count(f"# TYPE {family} gauge\n") == 1


@given(st.text(max_size=30), st.floats())
def test_any_label_and_any_value_is_a_sample(text: str, value: float) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "x.prom")
        write_prometheus(path, (), [FigureRow(text, None, text, 0, text, text, None, value)])
        *_, line = path.read_text("utf-8").rstrip("\n").split("\n")
    assert SAMPLE.fullmatch(line), line


# the command ------------------------------------------------------------------------------------------------------


def test_a_files_name_says_its_format(tmp_path: Path) -> None:
    assert [choose_format(name) for name in ("a.csv", "a.PARQUET", "a.prom", "a/", str(tmp_path))] == [
        "csv", "parquet", "prometheus", "tensorboard", "tensorboard"]  # fmt: skip
    with pytest.raises(UsageError, match="names no format"):
        choose_format("figures")


def test_an_export_that_is_not_possible_says_why(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no saved run matches"):
        export(runs, tmp_path / "x.csv")
    save(runs, streams.stamp([e.Started("sync", "src", ("a",)), e.Ended("sync", Exit.OK)]), "sync")
    with pytest.raises(UsageError, match="cannot be written: no such file") as refused:
        export(runs, tmp_path / "none" / "x.csv")
    assert refused.value.exit is Exit.STEP
    events = list(export_runs(runs, (), RunFilter(), str(tmp_path / "x.csv"), None))
    assert [event.code for event in events if isinstance(event, e.Message)] == ["no-figures"]


def test_what_is_damaged_in_a_record_is_said(runs: Path, tmp_path: Path) -> None:
    directory = save(runs, list(streams.run(1, steps=2)))
    with (directory / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "nonsense", "at": 1.0}) + "\n")
    events = list(export_runs(runs, (), RunFilter(), str(tmp_path / "x.csv"), None))
    assert [event.code for event in events if isinstance(event, e.Message)] == ["record-gap"]


def test_stamps_are_those_of_the_record(runs: Path, tmp_path: Path) -> None:
    begun = [e.Started("run", "t", ("a",)), e.RunStarted("k7", "a", ("a",), "mpirun")]
    stream = [*streams.stamp([*begun]), Stamped(AT + 7.5, e.Output(0, "a", "out", b"loss 0.5\n"))]
    save(runs, [*stream, Stamped(AT + 8, e.Ended("run", Exit.OK))])
    export(runs, tmp_path / "x.csv")
    assert f"k7,{AT + 7.5},a,0,out,loss,,0.5\n" in (tmp_path / "x.csv").read_text()
