"""The screens of ``play``, and of the step ``command``."""

from collections.abc import Sequence

from rich.console import RenderableType

from ipexctl.model.answers import play as answers
from ipexctl.model.json_values import to_json
from ipexctl.model.text import group_pairs
from ipexctl.show import phrases
from ipexctl.show.tables import format_any_answer
from ipexctl.show.typeset import BAD, GOOD, QUIET, STRONG, Line, Part, outcome, text, whole


def format_answer(value: answers.PlayAnswer | answers.PlayListAnswer | answers.CommandAnswer) -> list[RenderableType]:
    match value:
        case answers.PlayAnswer():
            return format_play_steps(value.steps, dry=bool(value.dry))
        case answers.PlayListAnswer():
            return format_any_answer({"steps": to_json(value.list_)})
        case answers.CommandAnswer():
            return format_command_outputs(value.hosts)


def format_play_steps(rows: Sequence[answers.PlayedStep], *, dry: bool = False) -> list[RenderableType]:
    """How each step of a play ended; in a dry run nothing was done."""
    items: list[RenderableType] = []
    for row in rows:
        mark: Part = ("✗ ", BAD) if row.exit else ("- ", QUIET) if row.exit is None or dry else ("✓ ", GOOD)
        words = [f"exit {row.exit}"] if row.exit else []
        words += [row.note] if row.note else ["not begun"] if row.exit is None else []
        items.append(Line(text(mark, row.step, (f"  {', '.join(words)}" if words else "", QUIET)), 2))
    return items


def format_command_outputs(rows: Sequence[answers.CommandOutput | answers.FailedCommand]) -> list[RenderableType]:
    """What a command wrote on each host; hosts where it wrote the same share an entry."""
    outputs = group_pairs(
        ((row.status, row.out, row.err), row) for row in rows if isinstance(row, answers.CommandOutput)
    )
    items: list[RenderableType] = []
    for (status, *output), group in outputs.items():
        names = phrases.format_hosts(row.host for row in group)
        names += f" ({len(group)})" if len(group) > 1 else ""
        items.append(outcome(not status, (names, STRONG), f" exit {status}" if status else ""))
        items += [line for part in output if str(part).strip() for line in whole(str(part), 2)]
    return items
