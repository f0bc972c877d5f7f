"""The screens of ``examples``."""

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType

from ipexctl.model.answers.examples import CopiedExampleAnswer, ExamplesAnswer, ListedExample
from ipexctl.show.typeset import STRONG, Line, labelled, text


def format_answer(value: ExamplesAnswer | CopiedExampleAnswer) -> list[RenderableType]:
    if isinstance(value, ExamplesAnswer):
        return format_examples(value.examples)
    return [labelled("into", value.directory), labelled("files", ", ".join(value.files))]


def format_examples(examples: Sequence[ListedExample]) -> list[RenderableType]:
    """Playbooks and examples by their names, each with its first line."""
    items: list[RenderableType] = []
    width = max((len(each.name) for each in examples), default=0)
    for kind in dict.fromkeys(each.kind for each in examples):
        items.append(text((f"{kind}s", STRONG)))
        items += [_Entry(each, width) for each in examples if each.kind == kind]
    return items


class _Entry:
    """A name, and beside it what it is; below it where the screen is narrow."""

    NARROW = 30  # cells that a title has at least beside its name

    def __init__(self, example: ListedExample, width: int) -> None:
        self._example, self._width = example, width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        name, title, hang = self._example.name, self._example.title, self._width + 4
        if options.max_width - hang >= self.NARROW:
            yield Line(text(f"  {name:{self._width}}  {title}"), hang)
        else:
            yield Line(text(f"  {name}"), whole=True)
            yield Line(text(f"    {title}"), 4)
