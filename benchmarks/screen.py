"""Bytes per second that the live screen of a run writes to its terminal, and the processor time for it.

Frames are drawn as `Live` draws them (`FRAME` where ranks print, `IDLE` where only time goes by), on a clock that this
script sets: no waiting, and the bytes are the same each time. Silent ranks print nothing; the others a line of figures
for each step.

    python benchmarks/screen.py
"""

from __future__ import annotations

import io
import time
from dataclasses import dataclass

from ground import arguments, conditions, read_load
from rich.console import Console
from tables import Cell, Measurement, Table, publish

from ipexctl.decide.run.fold import RunFold
from ipexctl.model import events as e
from ipexctl.model.events import Stamped
from ipexctl.show.live import Live
from ipexctl.show.painter import Painter
from ipexctl.show.pipe import Pipe
from ipexctl.show.rank_log import RankLogs
from ipexctl.show.run_frame import draw_run
from ipexctl.show.view import View


@dataclass(frozen=True)
class Cost:
    """Of one second of a screen: bytes written, and milliseconds of a core."""

    sent: float
    milliseconds: float


class _Memory(io.BytesIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def measure(ranks: int, hosts: int, *, steps: float, width: int = 120, height: int = 40, seconds: int = 60) -> Cost:
    """A run of so many ranks whose loop makes ``steps`` a second (0: silent), over ``seconds`` after the first ten."""
    raw = _Memory()
    pipe = Pipe(raw)
    console = Console(
        file=pipe,  # type: ignore[arg-type]
        force_terminal=True,
        color_system="256",
        width=width,
        height=height,
        markup=False,
        emoji=False,
        highlight=False,
    )
    fold, painter = RunFold(), Painter(console, pipe)
    view = View(fold.state, RankLogs(), keys=True, can_detach=True)

    def send(at: float, event: e.Event) -> None:
        fold.handle_event(Stamped(at, event))
        view.logs.add_lines(fold.state)

    names = tuple(f"xeon{1 + rank * hosts // ranks:02d}" for rank in range(ranks))
    start = 1e9
    send(start, e.Started("run", "train_ddp.py", tuple(dict.fromkeys(names))))
    send(start, e.RunStarted("1120-103105-7c1f", names[0], names, "python -u train_ddp.py"))
    for rank, name in enumerate(names):
        send(start, e.RankStage(rank, name, "running", start))
        send(start + 1, e.Output(rank, name, "out", b"step 0 loss 2.3012 2.31 it/s\n"))
    sent = spent = step = 0.0
    rate = Live.FRAME if steps else Live.IDLE
    for frame in range(int((seconds + 10) / rate)):
        now = start + 1 + frame * rate
        if steps and int((now - start) * steps) > step:
            step = int((now - start) * steps)
            for rank, name in enumerate(names):
                line = f"step {step:.0f} loss {2.3 / (1 + step / 100) + rank / 1000:.4f} {steps:.2f} it/s\n"
                send(now, e.Output(rank, name, "out", line.encode()))
        begun = time.process_time()
        painter.paint(draw_run(view, width, height - 1, now))
        if frame * rate >= 10:
            spent += time.process_time() - begun
            sent += raw.tell()
        raw.seek(0)
        raw.truncate()
    return Cost(sent / seconds, 1000 * spent / seconds)


def main() -> None:
    given = arguments(__doc__ or "", seconds=60).parse_args()
    said, load = conditions(), read_load()
    rows: list[list[Cell]] = []
    for ranks, hosts in ((8, 4), (64, 16), (256, 64)):
        for steps, what in ((0.0, "silent"), (2.0, "2 steps a second")):
            for width, height in ((80, 24), (120, 40), (160, 50)):
                cost = measure(ranks, hosts, steps=steps, width=width, height=height, seconds=given.seconds)
                rows.append([str(ranks), str(hosts), what, f"{width} × {height}", cost.sent, cost.milliseconds])
    heads = ["ranks", "hosts", "the ranks", "screen", "bytes/s", "ms of a core per second"]
    table = Table(heads, rows, digits={"bytes/s": 0, "ms of a core per second": 1})
    subject = f"{given.seconds} seconds of a run's screen on a clock that the script sets"
    publish(Measurement("screen", subject, said, [table], [load]), given)


if __name__ == "__main__":
    main()
