"""The screens of ``examples``."""

from collections.abc import Iterator

from rich.console import RenderableType

from ipexctl.model.answers.examples import CopiedExampleAnswer, ExamplesAnswer, ListedExample
from ipexctl.show.typeset import STRONG, AtWidth, Line, labelled, text


def format_answer(value: ExamplesAnswer | CopiedExampleAnswer) -> list[RenderableType]:
    """Playbooks and examples by their names, each with its first line; or what was copied."""
    if isinstance(value, CopiedExampleAnswer):
        return [labelled("into", value.directory), labelled("files", ", ".join(value.files))]
    items: list[RenderableType] = []
    width = max((len(each.name) for each in value.examples), default=0)
    for kind in dict.fromkeys(each.kind for each in value.examples):
        items.append(text((f"{kind}s", STRONG)))
        items += [AtWidth(_draw_entry, each, width) for each in value.examples if each.kind == kind]
    return items


_TITLE = 30  # cells that a title has at least beside its name


def _draw_entry(screen: int, example: ListedExample, width: int) -> Iterator[RenderableType]:
    """A name, and beside it what it is; below it where the screen is narrow."""
    if screen - width - 4 >= _TITLE:
        yield Line(text(f"  {example.name:{width}}  {example.title}"), width + 4)
    else:
        yield Line(text(f"  {example.name}"), whole=True)
        yield Line(text(f"    {example.title}"), 4)
