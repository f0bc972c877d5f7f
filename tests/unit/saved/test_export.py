"""``runs --export``: figures of saved runs in the formats of other programs."""

import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.saved_runs import RunFilter, list_figures
from ipexctl.model import events as e
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Stamped
from ipexctl.model.saved_runs import COLUMNS, FigureRow
from ipexctl.store.figure_files import write_csv, write_json
from ipexctl.verbs.run.export_runs import choose_format, export_runs
from tests.unit.saved.test_runs import answer_of, save
from tests.unit.show import streams

AT = streams.START


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "state" / "runs"


def read(*events: e.Event) -> list[FigureRow]:
    fold, rows = RunFold(every_line=True), list[FigureRow]()
    for stamped in streams.stamp(list(events), AT, 1.0):
        fold.handle_event(stamped)
        rows += list_figures("k7", stamped, fold.state)
    return rows


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


def test_samples_become_figures() -> None:
    sample = e.HostSample(
        "a", AT - 5, 5.0, 3.5, 8, 1 << 30, 1 << 34, received={"eth0": 10}, pressure={"cpu": 0.5}, celsius=61.0,
        ranks=(e.RankSample(1, 0.75, 1 << 20),),
    )  # fmt: skip
    rows = read(sample)
    by_name = {(row.rank, row.name): row for row in rows}
    assert by_name[None, "cpu_cores"] == FigureRow("k7", AT - 5, "a", None, "sample", "cpu_cores", None, 3.5)
    assert by_name[None, "received_bytes/eth0"].value == 10
    assert by_name[None, "pressure/cpu"].value == 0.5
    assert by_name[None, "celsius"].value == 61.0
    assert by_name[1, "rss_bytes"].value == 1 << 20
    assert (None, "joules") not in by_name


# CSV --------------------------------------------------------------------------------------------------------------


def export(runs: Path, target: Path, form: Any = None, names: tuple[str, ...] = ()) -> Any:
    return answer_of(export_runs(runs, names, RunFilter(), str(target), form, {}))


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


# JSON -------------------------------------------------------------------------------------------------------------


def test_a_json_file_has_the_columns_and_rows_of_the_csv_file(runs: Path, tmp_path: Path) -> None:
    save(runs, list(streams.run(2, steps=6)))
    answer = export(runs, tmp_path / "x.json")
    values = json.loads((tmp_path / "x.json").read_text())
    assert answer.values == len(values) > 0
    assert all(tuple(value) == COLUMNS for value in values)
    export(runs, tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        assert [[row["name"], float(row["value"])] for row in csv.DictReader(file)] == [
            [value["name"], value["value"]] for value in values
        ]


def test_a_value_that_json_does_not_know_is_null(tmp_path: Path) -> None:
    rows = [FigureRow("k7", AT, "a", 0, "out", "loss", None, value) for value in (math.nan, math.inf, 0.5)]
    assert write_json(tmp_path / "x.json", rows) == 3
    assert [row["value"] for row in json.loads((tmp_path / "x.json").read_text())] == [None, None, 0.5]
    assert write_json(tmp_path / "x.json", []) == 0
    assert json.loads((tmp_path / "x.json").read_text()) == []


# the command ------------------------------------------------------------------------------------------------------


def test_a_files_name_says_its_format(tmp_path: Path) -> None:
    assert [choose_format(name) for name in ("a.csv", "a.JSON")] == ["csv", "json"]
    for name in ("figures", "a.parquet", "a.prom", "a/", str(tmp_path)):
        with pytest.raises(UsageError, match="names no format"):
            choose_format(name)


def test_an_export_that_is_not_possible_says_why(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no saved run matches"):
        export(runs, tmp_path / "x.csv")
    save(runs, streams.stamp([e.Started("sync", "src", ("a",)), e.Ended("sync", Exit.OK)]), "sync")
    with pytest.raises(UsageError, match="cannot be written: no such file") as refused:
        export(runs, tmp_path / "none" / "x.csv")
    assert refused.value.exit is Exit.STEP
    events = list(export_runs(runs, (), RunFilter(), str(tmp_path / "x.csv"), None, {}))
    assert [event.code for event in events if isinstance(event, e.Message)] == ["no-figures"]


def test_what_is_damaged_in_a_record_is_reported(runs: Path, tmp_path: Path) -> None:
    directory = save(runs, list(streams.run(1, steps=2)))
    with (directory / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "nonsense", "at": 1.0}) + "\n")
    events = list(export_runs(runs, (), RunFilter(), str(tmp_path / "x.csv"), None, {}))
    assert [event.code for event in events if isinstance(event, e.Message)] == ["record-gap"]


def test_stamps_are_those_of_the_record(runs: Path, tmp_path: Path) -> None:
    begun = [e.Started("run", "t", ("a",)), e.RunStarted("k7", "a", ("a",), "mpirun")]
    stream = [*streams.stamp([*begun]), Stamped(AT + 7.5, e.Output(0, "a", "out", b"loss 0.5\n"))]
    save(runs, [*stream, Stamped(AT + 8, e.Ended("run", Exit.OK))])
    export(runs, tmp_path / "x.csv")
    assert f",{AT + 7.5},a,0,out,loss,,0.5\n" in (tmp_path / "x.csv").read_text()
