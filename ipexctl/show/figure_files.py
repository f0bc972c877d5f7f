"""Figures of saved runs in files for other programs: CSV, Parquet, TensorBoard, Prometheus' textfile collector."""

import csv
import io
import math
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

from ipexctl.model.answers.saved import SavedRun
from ipexctl.model.errors import UsageError
from ipexctl.model.run_figures import COLUMNS, FigureRow
from ipexctl.model.text import printable
from ipexctl.show.tensorboard import encode_scalar, encode_version, pack_record

_get_cells = attrgetter(*COLUMNS)
_BATCH = 1 << 16  # rows of Parquet at a time
_BUFFER = 1 << 16  # bytes of one event file that wait to be written


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` by one rename when all is written, else leaves nothing. A link at
    ``path`` is replaced, not followed. Raises `OSError`."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def write_csv(path: Path, rows: Iterable[FigureRow]) -> int:
    """One line a value, with a heading; returns the number of values. Raises `OSError`."""
    count = 0
    with replace_file(path) as file, io.TextIOWrapper(file, "utf-8", "replace", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow(_format_cell(cell) for cell in _get_cells(row))
            count += 1
    return count


def _format_cell(cell: object) -> object:
    """Text that a spreadsheet would compute as a formula is marked as text (OWASP, CSV injection)."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r") else cell


def import_pyarrow() -> tuple[Any, Any]:
    """The packages that Parquet needs. Raises `UsageError` where they are not installed."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        hint = f"{sys.executable} -m pip install pyarrow"
        raise UsageError("files of Parquet need the package pyarrow, which is not installed", hint=hint) from None


def write_parquet(path: Path, rows: Iterable[FigureRow]) -> int:
    """The columns of the CSV file with their types; returns the number of values. Raises `OSError`, `UsageError`."""
    arrow, parquet = import_pyarrow()
    kinds = {"time": arrow.float64(), "rank": arrow.int32(), "step": arrow.int64(), "value": arrow.float64()}
    schema = arrow.schema([(name, kinds.get(name, arrow.string())) for name in COLUMNS])
    count, every = 0, iter(rows)
    with replace_file(path) as file, parquet.ParquetWriter(file, schema) as writer:
        while batch := list(islice(every, _BATCH)):
            cells = zip(*map(_get_cells, batch), strict=True)
            arrays = [arrow.array(cell, field.type) for cell, field in zip(cells, schema, strict=True)]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
            count += len(batch)
    return count


def write_tensorboard(directory: Path, rows: Iterable[FigureRow], begun: float) -> int:
    """A directory for each run, in it one for each rank and each host, as TensorBoard lists them; returns the number
    of values. A value without a step gets the number of values before it. Raises `OSError`."""
    count = 0
    buffers: dict[tuple[str, str], bytearray] = {}
    parts: dict[tuple[str, str], Path] = {}
    steps: dict[tuple[str, str, str], int] = {}
    name = f"events.out.tfevents.{int(begun)}.ipexctl"
    try:
        for row in rows:
            key = (row.run, f"rank{row.rank}" if row.rank is not None else f"host-{row.host}")
            if key not in buffers:
                place = directory.joinpath(*map(_make_file_name, key))
                place.mkdir(parents=True, exist_ok=True)
                parts[key] = place / f".{name}.{secrets.token_hex(4)}"
                buffers[key] = bytearray(pack_record(encode_version(begun)))
            step, counted = row.step, (*key, row.name)
            if step is None:
                step = steps.get(counted, 0)
                steps[counted] = step + 1
            tag = f"host/{row.name}" if row.origin == "sample" else row.name
            time = begun if row.time is None else row.time
            buffers[key] += pack_record(encode_scalar(time, step, tag, row.value))
            if len(buffers[key]) >= _BUFFER:
                _append_buffer(parts[key], buffers[key])
            count += 1
        for key, part in parts.items():
            _append_buffer(part, buffers[key])
            part.replace(part.with_name(name))
    except BaseException:
        for part in parts.values():
            with suppress(OSError):
                part.unlink()
        raise
    return count


def _append_buffer(part: Path, buffer: bytearray) -> None:
    """Writes a buffer out; the file is open for this moment only, for there is one for each rank."""
    with part.open("ab") as file:
        file.write(buffer)
    buffer.clear()


def _make_file_name(word: str) -> str:
    """A word as one harmless name of a file."""
    return re.sub(r"[^\w.-]", "_", word, flags=re.ASCII).lstrip(".")[:100] or "_"


_FAMILIES = {
    "ipexctl_run_info": "A saved run; the value is 1.",
    "ipexctl_run_started_seconds": "Start of the run, in Unix seconds.",
    "ipexctl_run_duration_seconds": "Seconds from the start of the run to its end.",
    "ipexctl_run_exit_code": "Exit code of the command.",
    "ipexctl_figure": "Last value of a figure that a rank printed or wrote into a file.",
    "ipexctl_sample": "Last value sampled on a host; of a rank, where the label rank is set.",
}


def write_prometheus(path: Path, runs: Sequence[SavedRun], rows: Iterable[FigureRow]) -> int:
    """The last value of each figure in Prometheus' text format (prometheus.io/docs/instrumenting/exposition_formats),
    without time stamps, which the textfile collector refuses; returns how many. Raises `OSError`."""
    samples: dict[str, dict[str, float]] = {family: {} for family in _FAMILIES}
    for run in runs:
        labels = {"run": run.word}
        info = {**labels, "verb": run.verb, "result": run.result, "title": run.title}
        samples["ipexctl_run_info"][_format_labels(info)] = 1
        samples["ipexctl_run_started_seconds"][_format_labels(labels)] = run.started
        samples["ipexctl_run_duration_seconds"][_format_labels(labels)] = run.seconds
        if run.exit is not None:
            samples["ipexctl_run_exit_code"][_format_labels(labels)] = run.exit
    figures: set[tuple[str, str]] = set()
    for row in rows:
        labels = {"run": row.run, "host": row.host, "name": row.name}
        labels |= {} if row.rank is None else {"rank": str(row.rank)}
        family = "ipexctl_sample" if row.origin == "sample" else "ipexctl_figure"
        samples[family][shown := _format_labels(labels)] = row.value
        figures.add((family, shown))
    lines = []
    for family, values in samples.items():
        heading = [f"# HELP {family} {_FAMILIES[family]}", f"# TYPE {family} gauge"] if values else []
        lines += [*heading, *(f"{family}{labels} {_format_number(value)}" for labels, value in values.items())]
    with replace_file(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    return len(figures)


def _format_labels(labels: dict[str, str]) -> str:
    shown = {name: printable(value, 500).translate(_ESCAPED) for name, value in labels.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in shown.items()) + "}"


_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _format_number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(float(value)) if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")
