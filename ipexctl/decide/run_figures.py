"""The figures of a saved run, one value a row: what its ranks printed or wrote into files, and samples of its hosts."""

from collections.abc import Iterator
from math import nan

from ipexctl.model import events as e
from ipexctl.model.events import Stamped
from ipexctl.model.figures import LIMIT, read_figures
from ipexctl.model.run_figures import FigureRow

_POSITIONS = ("step", "steps")  # where a rank is, no figure by themselves


class FigureReader:
    """Takes the events of one run in order, gives its figures. ``run`` names it in each row."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._unfinished: dict[tuple[int, str], bytes] = {}
        self._steps: dict[int, int] = {}

    def read(self, stamped: Stamped) -> Iterator[FigureRow]:
        match stamped.event:
            case e.Output() as output:
                yield from self._read_output(stamped.at, output)
            case e.HostSample() as sample:
                yield from self._read_sample(sample)
            case e.FiguresRead(host=host, rank=rank, name=name, points=points, source=source):
                for step, value in points:
                    of_rank = rank if rank >= 0 else None
                    yield FigureRow(self._run, None, host, of_rank, source, name, step, nan if value is None else value)

    def _read_output(self, at: float, output: e.Output) -> Iterator[FigureRow]:
        key = (output.rank, output.stream)
        data = self._unfinished.pop(key, b"") + output.data
        *lines, unfinished = data.replace(b"\r", b"\n").split(b"\n")
        if unfinished:
            self._unfinished[key] = unfinished[-LIMIT:]
        for line in lines:
            figures = read_figures(line.decode("utf-8", "replace")) if line else {}
            if "step" in figures:
                self._steps[output.rank] = int(figures["step"])
            for name, value in figures.items():
                if name not in _POSITIONS:
                    step = self._steps.get(output.rank)
                    yield FigureRow(self._run, at, output.host, output.rank, output.stream, name, step, value)

    def _read_sample(self, sample: e.HostSample) -> Iterator[FigureRow]:
        values: dict[str, float | None] = {
            "cpu_cores": sample.cpu,
            "memory_bytes": sample.memory,
            "swap_bytes": sample.swap,
            "disk_read_bytes": sample.read,
            "disk_written_bytes": sample.written,
            "context_switches": sample.switches,
            "mhz": sample.mhz,
            "throttled": sample.throttled,
            "celsius": sample.celsius,
            "joules": sample.joules,
        }
        values |= {f"received_bytes/{name}": count for name, count in sample.received.items()}
        values |= {f"sent_bytes/{name}": count for name, count in sample.sent.items()}
        values |= {f"pressure/{name}": share for name, share in sample.pressure.items()}
        for name, value in values.items():
            if value is not None:
                yield FigureRow(self._run, sample.at, sample.host, None, "sample", name, None, value)
        for rank in sample.ranks:
            of_rank = {"cpu_cores": rank.cpu, "rss_bytes": rank.rss, "context_switches": rank.switches}
            for name, value in of_rank.items():
                yield FigureRow(self._run, sample.at, sample.host, rank.rank, "sample", name, None, value)
