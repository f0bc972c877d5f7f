"""The screens as a terminal shows them, at fixed moments of fixed events: docs/images/*.svg, tests/data/screens/*.txt.

python -m tests.unit.show.pictures    # writes both anew; `git diff` shows what has changed

The runs were recorded by tests/faults/record_screens.py on two real hosts; the other screens are of made-up events
(`streams`).
"""

import io
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path

from pyte.screens import Char
from rich.color import ColorSystem
from rich.default_styles import DEFAULT_STYLES
from rich.style import Style

from ipexctl.cli import app
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.model import events as e
from ipexctl.model.answers import AnyAnswer
from ipexctl.model.answers.install import VerifyAnswer
from ipexctl.model.answers.play import PlayAnswer, PlayedStep
from ipexctl.model.errors import Exit, Failure, Kind, advise
from ipexctl.model.events import Stamped
from ipexctl.show import typeset
from ipexctl.show.live import Live
from ipexctl.show.pipe import Pipe, choose_terminal_encoding
from ipexctl.show.sinks import Plain
from ipexctl.store import event_json
from ipexctl.verbs.common.known_errors import read_known_errors
from tests.unit.show import streams
from tests.unit.show.answers import ANSWERS
from tests.unit.show.terminal import Panel, Terminal, as_moving_svg, as_sheet, as_svg, as_text, read_screen

ROOT = Path(__file__).parents[3]
DATA, IMAGES = ROOT / "tests/data/screens", ROOT / "docs/images"
SHEETS = IMAGES / "screens"
WIDTHS, WIDTH, HEIGHT = (40, 80, 120, 160), 80, 24
SHOWN = 40  # lines of a dumb terminal, whose output has no end of its own
_SAVED = "/home/me/.local/state/ipexctl/runs/"


@dataclass(frozen=True)
class Picture:
    """A screen: ``at`` so many seconds after the first event (None: when the command has ended), after ``keys``. Where
    there is a ``command``, it is what that prints, and there are no events."""

    name: str
    title: str
    events: Callable[[], Iterable[Stamped]] = list
    at: float | None = None
    drawn: bool = False  # there is a picture in docs/images too
    keys: tuple[str, ...] = ()
    command: str = ""


def recorded(name: str) -> Callable[[], Iterator[Stamped]]:
    """The events of a run that was recorded on real hosts."""

    def read() -> Iterator[Stamped]:
        with (DATA / f"{name}.jsonl").open() as lines:
            for line in lines:
                yield event_json.decode_event(json.loads(line))

    return read


def _answer(verb: str, value: AnyAnswer, *, failed: bool = False) -> Callable[[], list[Stamped]]:
    every: list[e.Event] = [e.Started(verb, "", ("node0", "node1") if failed else ())]
    if failed:
        failure = Failure("node1", Kind.STEP, "sh ended with status 3: no such dataset", code="status")
        every += [
            e.Started("install", "", ()),
            e.StepEnded("node0", "the stack", "changed"),
            e.StepEnded("node1", "the stack", "ok"),
        ]
        every += [e.Started("run", "", ()), e.StepEnded("node1", "train", "failed"), e.HostFailed(failure)]
    if isinstance(value, VerifyAnswer):
        reasons = value.failed.items()
        every += [e.HostFailed(Failure(host, Kind.STEP, why, advise("install"))) for host, why in reasons]
    every += [e.Answer(value), e.Ended(verb, Exit.STEP if failed else Exit.OK)]
    return lambda: streams.stamp([*every])


_STEPS = (PlayedStep("the stack", "install", 0), PlayedStep("train", "run", 5), PlayedStep("results", "fetch", None))
_PLAY = PlayAnswer("train.yaml", _STEPS, True, {"node1": "train"}, next="ipexctl play train.yaml -f hosts")

PICTURES = (
    Picture("run", "a run that goes well", recorded("well"), 9.1, drawn=True),
    Picture("run-ended", "its end", recorded("well")),
    Picture("straggler", "8 ranks, one of them at half the pace of the others", streams.training, 21.0, drawn=True),
    Picture("hang", "rank 1 hangs, and the others wait for it", recorded("hang"), 32.5),
    Picture("hang-ended", "the end of that run", recorded("hang")),
    Picture("failed", "rank 1 raises an exception", recorded("failed")),
    Picture("loader", "rank 1 sleeps in its data loader", recorded("loader"), 32.4, drawn=True),
    Picture("exception", "rank 1 raises an exception in a collective's way", recorded("exception"), drawn=True),
    Picture("memory", "the kernel kills rank 1, whose memory group is full", recorded("memory"), drawn=True),
    Picture("cable", "the cable of a host is cut", recorded("cable"), drawn=True),
    Picture("slow-host", "a host at half speed", recorded("slow-host"), 22.0, drawn=True),
    Picture("nan", "the loss is NaN on all ranks", recorded("nan"), 7.4, drawn=True),
    Picture("disk", "rank 0 saves a checkpoint on a full disk", recorded("disk"), drawn=True),
    Picture("busy", "another run has the hosts", recorded("busy"), drawn=True),
    Picture("wrong-torch", "one host has another torch", recorded("wrong-torch"), drawn=True),
    Picture("mirror", "a mirror is slow for one host", recorded("mirror"), 20.0, drawn=True),
    Picture("many", "64 ranks: a row for each host", lambda: streams.run(8, 8), 21.0),
    Picture("many-host", "the ranks of one of them (Enter)", lambda: streams.run(8, 8), 21.0, keys=("j", "enter")),
    Picture("log", "what one rank printed (j, Enter)", streams.training, 21.0, keys=("j", "enter")),
    Picture("search", "a search in it", streams.training, 21.0, keys=("enter", "/", *"step 17", "enter")),
    Picture("harmless", "the lines that were folded (w)", streams.training, 21.0, keys=("w",)),
    Picture("keys", "the keys (?)", streams.training, 21.0, keys=("?",)),
    Picture("stopping", "Ctrl-C was pressed", lambda: streams.stopping("stop"), 21.0),
    Picture("killing", "Ctrl-C was pressed twice", lambda: streams.stopping("stop", "kill"), 21.0),
    Picture("doctor", "doctor at work on 8 hosts", lambda: streams.doctor(8), 1.51),
    Picture("doctor-ended", "what doctor found", lambda: streams.doctor(8), drawn=True),
    Picture("install", "wheels on their way", lambda: streams.install(8), 2.51, drawn=True),
    Picture("install-ended", "the end of an install", lambda: streams.install(8)),
    Picture("play", "the end of a play", _answer("play", _PLAY, failed=True)),
    *(Picture(name, title, _answer(verb, answer)) for name, title, verb, answer in ANSWERS),
    Picture("help", "the help of a command", command="run --help"),
    Picture("commands", "the help of the program", command="--help"),
    Picture("examples", "what comes with the program", command="examples"),
    Picture("wrong-word", "a command that is none", command="rnu -f hosts train.py"),
    Picture("wrong-flag", "an option that is none", command="run -f hosts --pnp 2 train.py"),
)


class _Still(Live):
    """The sink of a terminal, whose frames are drawn when asked and not by a clock."""

    def _draw_all(self) -> None:
        pass

    def look(self, now: float) -> None:
        """A frame that nobody keeps: what it showed has been seen."""
        self._make_frame(*self._console.size, now)

    def press(self, key: str) -> None:
        self._view.press(key)

    def draw(self, now: float) -> None:
        width, height = self._console.size
        self._view.keys = True
        self._show_failures()
        for item in self._above:
            self._console.print(item, crop=False)
        self._console.print(self._make_frame(width, max(height - 1, 4), now))
        self._out.flush()


def write(picture: Picture, width: int, encoding: str = "utf-8") -> bytes:
    """What the command writes to a terminal of this size until this moment."""
    return _write(picture, width, encoding, os.environ.get("NO_COLOR", ""))


@cache  # a run's events are many, and every picture and test of a screen needs the same few writings
def _write(picture: Picture, width: int, encoding: str, _no_color: str) -> bytes:
    if picture.command:
        return _run_command(picture.command, width, encoding)
    for style in DEFAULT_STYLES.values():
        style._ansi = None  # Rich keeps the codes of the colour system that asked first
    Style.parse.cache_clear()
    Style._add.cache_clear()
    raw = Terminal(encoding)
    out, fold = Pipe(raw), RunFold()
    console = typeset.make_console(out, width)
    console._force_terminal, console._height, console._color_system = True, HEIGHT, ColorSystem.STANDARD
    sink = _Still(out, console=console, on_detach=lambda: None)
    events, seen = _until(picture), 0.0
    for stamped in events:
        fold.handle_event(stamped)
        sink.handle_event(stamped, fold.state)
        if picture.at is not None and stamped.at >= seen + 0.5:
            sink.look(seen := stamped.at)
    if picture.at is None:
        report = make_report(fold.state, read_known_errors)
        sink.close(replace(report, saved=_SAVED + report.run.run if report.run else ""))
    else:
        sink.look(events[0].at + picture.at)
        for key in picture.keys:
            sink.press(key)
        sink.draw(events[0].at + picture.at)
    data = raw.getvalue()
    sink.close()
    return data


def _run_command(command: str, width: int, encoding: str = "utf-8") -> bytes:
    """What ipexctl itself writes to a terminal, of both its outputs."""
    raw = Terminal(encoding)
    with set_environ("COLUMNS", str(width)), io.TextIOWrapper(raw, encoding, write_through=True) as text:
        with redirect_stdout(text), redirect_stderr(text), suppress(SystemExit):
            app(shlex.split(command), prog_name="ipexctl")
        return raw.getvalue()


def write_plainly(picture: Picture) -> str:
    """What a dumb terminal shows in the end."""
    if picture.command:
        return _run_command(picture.command, WIDTH).decode()
    out = Pipe(raw := Terminal(), choose_terminal_encoding({"TERM": "dumb"}))
    sink = Plain(out, out)
    with set_environ("COLUMNS", str(WIDTH)), set_environ("LINES", str(HEIGHT)):
        sink.close(make_report(streams.feed(sink, picture.events()), read_known_errors))
    return raw.getvalue().decode()


def _until(picture: Picture) -> list[Stamped]:
    events = list(picture.events())
    end = float("inf") if picture.at is None else events[0].at + picture.at
    return list(takewhile(lambda stamped: stamped.at <= end, events))


def read(picture: Picture, width: int, *, whole: bool = False) -> list[list[Char]]:
    return _read(write(picture, width), width, whole)


@cache  # several pictures and tests look at the same screen
def _read(data: bytes, width: int, whole: bool) -> list[list[Char]]:
    return read_screen(data, width, HEIGHT, whole=whole)


def as_texts(picture: Picture) -> str:
    """The screen in every width, all its lines."""
    rules = (f"{f'─ {width} columns ':─<{width}}\n{as_text(read(picture, width, whole=True))}" for width in WIDTHS)
    return f"{picture.title}\n\n" + "\n".join(rules)


def as_picture(picture: Picture) -> str:
    return as_svg(read(picture, WIDTH), picture.title, WIDTH, HEIGHT)


_MOVIE = ("first-run", "well", 8)  # its name, the recorded run, frames before its end


def as_movie() -> str:
    """The recorded run as a picture that plays: one frame after the other, again and again."""
    _, name, count = _MOVIE
    moments = [3.0 + 0.75 * number for number in range(count)] + [None]
    frames = [read(Picture(name, "a first run", recorded(name), at), WIDTH) for at in moments]
    return as_moving_svg(frames, "A run on two hosts, from its first steps to the proof at its end", WIDTH, HEIGHT)


@contextmanager
def set_environ(name: str, value: str) -> Iterator[None]:
    """A variable for the time of a picture: Rich reads it when a console is made."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        os.environ |= {name: before} if before is not None else {}


def as_width_sheet(picture: Picture) -> str:
    """The screen in every width, in one picture in the reader's own theme."""
    panels = [Panel(f"{width} columns", read(picture, width, whole=True), width) for width in WIDTHS]
    return as_sheet(panels, picture.title)


def as_setting_sheet(picture: Picture) -> str:
    """The screen of 80 columns on a light and a dark terminal, without colours, in the locale C, on a dumb terminal."""
    rows = read(picture, WIDTH, whole=True)
    with set_environ("NO_COLOR", "1"):
        bare = read(picture, WIDTH, whole=True)
    ascii_only = read_screen(write(picture, WIDTH, encoding="ascii"), WIDTH, HEIGHT, whole=True)
    with set_environ("TERM", "dumb"):
        dumb = read_screen(write_plainly(picture).encode(), WIDTH, HEIGHT, whole=True)
    panels = [
        Panel("light", rows, WIDTH, "light"),
        Panel("dark", rows, WIDTH, "dark"),
        Panel("NO_COLOR=1", bare, WIDTH),
        Panel("LC_ALL=C", ascii_only, WIDTH),
        Panel("TERM=dumb", dumb[-SHOWN:], WIDTH),
    ]
    return as_sheet(panels, f"{picture.title}, in each setting of a terminal")


def files() -> Iterator[tuple[Path, Callable[[], str]]]:
    """Every golden file and what makes it."""
    yield IMAGES / f"{_MOVIE[0]}.svg", as_movie
    for picture in PICTURES:
        yield DATA / f"{picture.name}.txt", lambda picture=picture: as_texts(picture)  # type: ignore[misc]
        if picture.drawn:
            yield IMAGES / f"{picture.name}.svg", lambda picture=picture: as_picture(picture)  # type: ignore[misc]
        yield SHEETS / f"{picture.name}.svg", lambda picture=picture: as_width_sheet(picture)  # type: ignore[misc]
        name = f"{picture.name}-settings.svg"
        yield SHEETS / name, lambda picture=picture: as_setting_sheet(picture)  # type: ignore[misc]


if __name__ == "__main__":
    SHEETS.mkdir(exist_ok=True)
    for path, make in files():
        path.write_text(make())
