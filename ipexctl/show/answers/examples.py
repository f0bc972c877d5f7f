"""The screens of ``examples``."""

from collections.abc import Sequence

from rich.console import RenderableType

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
        items += [
            Line(text(f"  {each.name:{width}}  {each.title}"), width + 4) for each in examples if each.kind == kind
        ]
    return items
