"""Lines and sentences for a terminal, as Rich renderables. Every word from outside goes through `text`.

Rich is imported here: import this module only to show something. 80 columns do; nothing depends on colour."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

from ipexctl.model.errors import Failure
from ipexctl.show import phrases
from ipexctl.show.pipe import Pipe
from ipexctl.show.sanitise import escape, escape_lines

Part = str | tuple[str, str]  # words, perhaps with a Rich style

GOOD, BAD, WARN, QUIET, STRONG = "green", "bold red", "yellow", "dim", "bold"


def text(*parts: Part) -> Text:
    """Words in a row, harmless whatever they hold."""
    return Text.assemble(*(escape(part) if isinstance(part, str) else (escape(part[0]), part[1]) for part in parts))


class Line:
    """A line broken between words (`words.spans`): what is longer than the screen is left to the terminal's own
    wrapping, which a copy does not contain. A ``whole`` one is never broken: a command, a host's line, an output."""

    def __init__(
        self, line: Text, hang: int = 0, *, copied: bool = False, whole: bool = False, most: int = 1 << 16
    ) -> None:
        self._line, self._hang, self._copied, self._whole, self._most = line, hang, copied, whole, most

    @property
    def plain(self) -> str:
        return self._line.plain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = 0 if self._whole else min(options.max_width, self._most)
        spans = phrases.split_line(self._line.plain, width, self._hang, copied=self._copied)
        for index, part in enumerate(self._line.divide(chain(*spans))[1::2]):  # a slice for each would copy all of it
            part.pad_left(self._hang if index else 0)
            part.no_wrap, part.overflow = not console.record, "fold" if console.record else "ignore"
            yield part


class AtWidth:
    """What ``draw`` makes for the width of the screen."""

    def __init__(self, draw: Callable[..., Iterator[RenderableType]], *arguments: object) -> None:
        self._draw, self._arguments = draw, arguments

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield from self._draw(options.max_width, *self._arguments)


def outcome(good: bool, *parts: Part) -> Line:
    """A line that begins with ✓ or ✗."""
    return Line(text(("✓ ", GOOD) if good else ("✗ ", BAD), *parts), 2)


class _WholeLines:
    """Harmless lines, one object for all of them: a host's output has a million, and Rich takes 60 µs for each."""

    def __init__(self, words_: str, indent: int) -> None:
        self._words, self._indent = words_, " " * indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        lines = (self._indent + line for line in split_harmless_lines(self._words))
        if console.record:  # a page, where they are folded
            yield from (Line(Text(line), whole=True) for line in lines)
        else:
            yield Segments([Segment("".join(f"{line}\n" for line in lines))])


def whole(words_: str, indent: int = 0) -> list[RenderableType]:
    """Lines as they are, for what is copied from the screen."""
    return [_WholeLines(words_, indent)]


def sentences(words_: str, indent: int = 0, style: str = "") -> list[RenderableType]:
    """Lines broken between words."""
    return [Line(text(" " * indent, (line, style)), indent) for line in split_harmless_lines(words_)]


def format_paragraphs(words_: str) -> list[RenderableType]:
    """Prose whose lines were broken elsewhere: a blank line ends a paragraph, an indented line stays one."""
    joined: list[str] = []
    for line in split_harmless_lines(words_):
        if joined and joined[-1] and line and not line.startswith(" "):
            joined[-1] += f" {line}"
        else:
            joined.append(line)
    return [Line(text(line), copied=line.startswith("fix: "), most=_READABLE) for line in joined]


_LABEL = re.compile(r"\s*(?:\S+(?: \S+)? {2,}|\S+: (?=\S))")  # what begins a line of a plan: a name and blanks, a host
_LABEL_LIMIT = 16  # cells: a longer label does not indent the lines below it


def format_plan(words_: str) -> list[RenderableType]:
    """Lines of a plan or a report, each broken between words; the further lines of one are below its first word, or
    below what follows its label. Commands stay whole."""
    items: list[RenderableType] = []
    for line in split_harmless_lines(words_):
        label = _LABEL.match(line)
        blanks = len(line) - len(line.lstrip(" "))
        hang = label.end() if label and label.end() <= _LABEL_LIMIT else blanks + 2
        items.append(Line(text(line), hang, copied=True))
    return items


_READABLE = 100  # cells: longer lines of prose are hard to read


def format_message(words_: str, *mark: Part) -> list[Line]:
    """A message of ipexctl, the first line marked: a sentence, perhaps with a command below it, or several lines that
    are laid out already."""
    first, *more = escape_lines(words_)
    laid_out = bool(more) and not more[0].startswith(_PROGRAMS)
    return [Line(text(*mark, first), 2, whole=laid_out), *(Line(text(line), 2, whole=True) for line in more)]


def format_failures(every: Iterable[Failure]) -> list[Line]:
    """Failures with the same cause are one. Their hints are for the end of the screen (`format_hint`)."""
    lines: list[Line] = []
    for sentence, more, _ in phrases.group_failures(every):
        lines.append(Line(text(("✗ ", BAD), sentence), 4))
        lines += [Line(text(f"  {line}"), 4) for line in more]
    return lines


_PROGRAMS = ("ipexctl ", "sudo ")  # of the commands that hints have


def format_hint(hint: str) -> list[RenderableType]:
    """A hint of one or several lines, of which the last one may be a command."""
    lines = escape_lines(hint)
    command = lines.pop() if lines[-1].startswith(_PROGRAMS) else ""
    items: list[RenderableType] = [labelled("" if n else "hint", line, copied=True) for n, line in enumerate(lines)]
    return [*items, *format_next_step("", command)]


def format_next_step(words_: str, command: str) -> list[RenderableType]:
    """What helps in words, and as the last line one command, which is never broken: it is copied."""
    items: list[RenderableType] = [labelled("hint", words_)] if words_ else []
    return [*items, Line(text((command, STRONG)), whole=True)] if command else items


def split_harmless_lines(words_: str) -> list[str]:
    return escape_lines(words_.rstrip("\n"))


PIPE_WIDTH = 1000  # cells


def make_console(pipe: Pipe, width: int | None = None) -> Console:
    """Rich without markup, emoji and highlighting. A pipe is taken as wide as it needs to be: nothing is wrapped."""
    return Console(
        file=pipe,  # type: ignore[arg-type]  # all that Rich asks of a file
        width=width if width or pipe.isatty() else PIPE_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def print_items(screen: Console, pipe: Pipe, items: Iterable[RenderableType]) -> None:
    """Prints, without blanks at the ends of lines."""
    for item in items:
        with screen.capture() as captured:
            screen.print(item, crop=False)
        pipe.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
    pipe.flush()


def labelled(label: str, *value: Part, copied: bool = False, room: int = 10) -> RenderableType:
    """A named line; its further lines are below the first."""
    shown = text(*value)
    unbroken = " " not in shown.plain  # a path stays beside its name
    return Line(text((label.ljust(room), QUIET), " ") + shown, room + 1, copied=copied, whole=unbroken)
