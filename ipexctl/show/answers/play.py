"""The screens of ``play``, and of the step ``command``."""

from rich.console import RenderableType

from ipexctl.model.answers import play as answers
from ipexctl.model.json_values import to_json
from ipexctl.model.text import group_pairs
from ipexctl.show import phrases
from ipexctl.show.tables import format_any_answer
from ipexctl.show.typeset import BAD, GOOD, QUIET, STRONG, Line, Part, outcome, text, whole


def format_answer(value: answers.PlayAnswer | answers.PlayListAnswer | answers.CommandAnswer) -> list[RenderableType]:
    """How each step of a play ended (in a dry run nothing was done), its list, or what a command wrote on each host."""
    items: list[RenderableType] = []
    if isinstance(value, answers.PlayListAnswer):
        return format_any_answer({"steps": to_json(value.list_)})
    if isinstance(value, answers.PlayAnswer):
        for step in value.steps:
            done = step.exit is not None and not value.dry
            mark: Part = ("✗ ", BAD) if step.exit else ("✓ ", GOOD) if done else ("- ", QUIET)
            words = [f"exit {step.exit}"] if step.exit else []
            words += [step.note] if step.note else ["not begun"] if step.exit is None else []
            items.append(Line(text(mark, step.step, (f"  {', '.join(words)}" if words else "", QUIET)), 2))
        return items
    rows = [row for row in value.hosts if isinstance(row, answers.CommandOutput)]
    outputs = group_pairs(((row.status, row.out, row.err), row) for row in rows)  # the same share an entry
    for (status, *output), group in outputs.items():
        names = phrases.format_hosts(row.host for row in group)
        names += f" ({len(group)})" if len(group) > 1 else ""
        items.append(outcome(not status, (names, STRONG), f" exit {status}" if status else ""))
        items += [line for part in output if str(part).strip() for line in whole(str(part), 2)]
    return items
