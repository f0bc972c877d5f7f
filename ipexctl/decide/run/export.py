"""The figures of a saved run, one value a row: what its ranks printed, and samples of its hosts."""

from collections.abc import Iterator

from ipexctl.model.events import HostSample, Stamped
from ipexctl.model.run_state import RunState
from ipexctl.model.saved_runs import FigureRow


def list_figures(run: str, stamped: Stamped, state: RunState) -> Iterator[FigureRow]:
    """The figures that the last event of a run brought. ``run`` names it in each row."""
    for value in state.values:
        yield FigureRow(run, stamped.at, value.host, value.rank, value.stream, value.name, value.step, value.value)
    if isinstance(stamped.event, HostSample):
        yield from _list_sample(run, stamped.event)


def _list_sample(run: str, sample: HostSample) -> Iterator[FigureRow]:
    values: dict[str, float | None] = {
        "cpu_cores": sample.cpu,
        "memory_bytes": sample.memory,
        "swap_bytes": sample.swap,
        "disk_read_bytes": sample.read,
        "disk_written_bytes": sample.written,
        "mhz": sample.mhz,
        "celsius": sample.celsius,
        "joules": sample.joules,
        "capped": sample.capped,
        "resent": sample.resent,
        "delay_ms": sample.delay,
    }
    values |= {f"received_bytes/{name}": count for name, count in sample.received.items()}
    values |= {f"sent_bytes/{name}": count for name, count in sample.sent.items()}
    values |= {f"pressure/{name}": share for name, share in sample.pressure.items()}
    for name, value in values.items():
        if value is not None:
            yield FigureRow(run, sample.at, sample.host, None, "sample", name, None, value)
    for rank in sample.ranks:
        for name, value in (("cpu_cores", rank.cpu), ("rss_bytes", rank.rss)):
            yield FigureRow(run, sample.at, sample.host, rank.rank, "sample", name, None, value)
