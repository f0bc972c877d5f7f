"""The one loop: a verb's events go to every sink, are folded into the report, and the report gives the exit code."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ipexctl.act.interrupts import Interrupts
from ipexctl.model.errors import Exit, Interrupted, UsageError
from ipexctl.model.events import Event, Message, Stamped

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.decide.diagnosis.known_errors import KnownErrors
    from ipexctl.decide.reports import Report
    from ipexctl.show.record import Record
    from ipexctl.show.sinks import Sink

Workflow = Generator[Event, None, Any]
Output = Literal["auto", "live", "plain", "json"]
KEPT = 200  # saved runs; the oldest finished ones make room


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How a command connects and speaks; the same for every verb."""

    output: Output = "auto"
    json: bool = False
    raw: bool = False
    label: Literal["rank", "host"] = "rank"
    accept_new: bool = False
    connect_timeout: float = 10.0
    forks: int = 32
    ask_pass: bool = False
    only: str = ""  # of the answer, this key alone is what --json prints
    bare: bool = False  # the bytes of the ranks and nothing else on standard output
    detachable: bool = False  # a key of the live view may let go of what is watched


def state_directory() -> Path:
    """Where the user's runs and labs are kept."""
    from platformdirs import user_state_path

    return user_state_path("ipexctl", appauthor=False)


def cache_directory() -> Path:
    """Where wheels and locks are kept that can be fetched again."""
    from platformdirs import user_cache_path

    return user_cache_path("ipexctl", appauthor=False)


def perform(tell: Callable[[Context], Workflow], how: OutputOptions, *, acting: bool = False) -> Exit:
    """Tells a verb's story from beginning to end; its exit code. ``acting`` verbs are recorded.

    ``tell`` makes the story; what it refuses (`UsageError`) is printed, and nothing is recorded.
    """
    from ipexctl.act.context import Context
    from ipexctl.act.ssh import Links
    from ipexctl.show.pipe import Pipe
    from ipexctl.show.sinks import refusal

    interrupts = Interrupts()
    interrupts.install()
    out, err = Pipe(sys.stdout), Pipe(sys.stderr)
    links = Links(connect_timeout=how.connect_timeout, accept_new=how.accept_new, ask=_ask if how.ask_pass else None)
    context = Context(links, state_directory(), cache_directory(), how.forks, interrupts=interrupts)
    try:
        with interrupts.raising():
            story = tell(context)
            first = next(story)
        return _stage(story, first, how, interrupts, context if acting else None, out, err)
    except UsageError as refused:
        refusal(refused, err)
        return refused.exit
    except Interrupted as interrupted:
        err.write("interrupted: nothing was done\n")
        return interrupted.exit
    finally:
        links.close()
        out.flush()
        err.flush()


def _stage(
    story: Workflow,
    first: Event,
    how: OutputOptions,
    interrupts: Interrupts,
    recorded: Context | None,
    out: Any,
    err: Any,
) -> Exit:
    """Plays a story that has begun to all sinks."""
    from ipexctl.decide.reports import Folding
    from ipexctl.show.record import Record, retain
    from ipexctl.show.sinks import refusal

    folding = Folding(_known_errors())
    shown = screen(how, out, err, interrupts)
    record: Record | None = None
    sinks: list[Sink] = [folding, shown]

    def trouble(text: str) -> None:
        shown.take(Stamped(time.time(), Message(text, "warning")))

    if recorded is not None:
        runs = recorded.state / "runs"
        record = Record.create(runs, getattr(first, "verb", "run"), time.time(), trouble=trouble)
        retain(runs, KEPT, spare=[record.directory])
        sinks.insert(1, record)  # before the screen, which may be slow

    def take(event: Event) -> None:
        stamped = Stamped(time.time(), event)
        for sink in sinks:
            sink.take(stamped)

    refused: UsageError | None = None
    broken: Interrupted | None = None
    take(first)
    try:
        while True:
            try:
                waiting = interrupts.take() if interrupts.pending else None
                with interrupts.raising():
                    event = story.throw(waiting) if waiting else next(story)
            except StopIteration:
                break
            take(event)
    except UsageError as error:
        refused = error
    except Interrupted as error:
        broken = error
    report = folding.report(lost=record.lost() if record else {})
    exit = _judged(report, refused, broken)
    told = report.public() | {"exit": int(exit), "saved": str(record.directory) if record else None}
    told |= {"refused": refused.sentence} if refused else {}
    for sink in sinks:
        sink.close(told)
    if refused:
        refusal(refused, err)
    if broken:
        err.write(_broken_off(report) if recorded else "interrupted\n")
    return exit


def _broken_off(report: Report) -> str:
    """The last line of a command that acts, and that does what is left when it is typed again."""
    done = [host.host for host in report.hosts if host.steps and host.good]
    far = f": {', '.join(done)} had got somewhere" if done else ""
    return f"interrupted{far}; type the same command again to go on\n"


def _judged(report: Report, refused: UsageError | None, broken: Interrupted | None) -> Exit:
    """A refusal in the middle (hosts that cannot hold what is asked) and a broken-off story have their own codes."""
    from ipexctl.model.errors import worst

    if broken:
        return worst([broken.exit, *[cause for cause in report.causes if cause == Exit.RESIDUE]])
    if refused:
        return worst([refused.exit, *[cause for cause in report.causes if cause != Exit.LOST]])
    return report.exit


def screen(how: OutputOptions, out: Any, err: Any, interrupts: Interrupts) -> Sink:
    """The sink people or programs read: live on a terminal, plain elsewhere, JSON where asked for."""
    from ipexctl.show import sinks

    if how.bare:
        return sinks.Bare(out, err)
    if how.output == "json":
        return sinks.JsonLines(out)
    if how.json:
        return sinks.Answering(out, err, how.only)
    if how.output == "live" or (how.output == "auto" and out.isatty() and os.environ.get("TERM") != "dumb"):
        from ipexctl.show.live import Live

        return Live(out, err, on_detach=interrupts.detach.set if how.detachable else None)
    return sinks.Plain(out, err, raw=how.raw, label=how.label)


def _known_errors() -> KnownErrors:
    from importlib.resources import files

    from ipexctl.decide.diagnosis.known_errors import parse_errors

    return parse_errors(files("ipexctl.data").joinpath("errors.toml").read_text("utf-8"))


def _ask(question: str) -> str | None:
    """A passphrase, asked only where somebody can answer."""
    import getpass

    return getpass.getpass(question) if sys.stdin.isatty() and sys.stdout.isatty() else None


def environment() -> Mapping[str, str]:
    return dict(os.environ)


def again(word: str, how: OutputOptions) -> Exit:
    """Shows a saved run in this output mode; the exit code is that of the run."""
    from ipexctl.decide.reports import Folding
    from ipexctl.show.pipe import Pipe
    from ipexctl.show.sinks import refusal
    from ipexctl.verbs.run.replay import find, replay

    out, err = Pipe(sys.stdout), Pipe(sys.stderr)
    interrupts = Interrupts()
    interrupts.install()
    try:
        directory = find(state_directory() / "runs", word)
        folding = Folding(_known_errors())
        sink = screen(how, out, err, interrupts)
        with interrupts.raising():
            for stamped in replay(directory):
                folding.take(stamped)
                sink.take(stamped)
        report = folding.report()
        sink.close(report.public() | {"saved": str(directory)})
        return report.exit
    except UsageError as refused:
        refusal(refused, err)
        return refused.exit
    except Interrupted as interrupted:
        return interrupted.exit
