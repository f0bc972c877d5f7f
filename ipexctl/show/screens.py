"""What people read at the end of a verb, as Rich renderables: the screen of its answer, and what stands below it;
for programs the same advice as words and codes.

What only some screens need is imported for them, and Rich for those that are not empty."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, cast

from ipexctl.model.answers import AnyAnswer, UnknownAnswer, get_answer_kind, get_next_command, is_dry
from ipexctl.model.errors import Hint, Kind, advise, complete_hint
from ipexctl.model.reports import Cleanup, CommandReport, RunOutcome

if TYPE_CHECKING:
    from rich.console import RenderableType


_TEXTS = {"hosts": "text", "emit": "text", "shown-example": "text", "accelerate": "text", "run-plan": "plan"}
_PLANS = {"stacks-why": "text", "migrate": "text", "dry-run": "plan"}
_PLANS_IF_DRY = dict.fromkeys(("install", "wheels", "sync", "fetch"), "plan")
_ROWS = ("uninstall", "lint", "init", "lab", "accelerate")  # answers that have no screen of their own


def get_whole_text(value: AnyAnswer) -> str | None:
    """The text of an answer whose screen is one, line by line as it is; None of all others."""
    text: str | None = getattr(value, _TEXTS.get(get_answer_kind(type(value)), ""), None)
    return text


def format_answer(value: AnyAnswer) -> list[RenderableType]:
    """The screen of an answer; of a dry run, its plan. The card of a run is made from the report (`format_ending`)."""
    from ipexctl.show import tables, typeset

    kind = get_answer_kind(type(value))
    if isinstance(value, UnknownAnswer):
        return tables.format_any_answer(value.value)
    if kind == "run-plan":
        from ipexctl.show.tables import format_launch_plan

        return format_launch_plan(get_whole_text(value) or "")
    if (text := get_whole_text(value)) is not None:
        return typeset.whole(text)
    plans = {**_PLANS, **_PLANS_IF_DRY} if is_dry(value) else _PLANS
    if kind in plans:
        return typeset.format_plan(getattr(value, plans[kind]) or "")
    if kind in _ROWS:
        return tables.format_rows_of_answer(value)
    module = type(value).__module__.rpartition(".")[2]
    items: list[RenderableType] = import_module(f"ipexctl.show.answers.{module}").format_answer(value)
    return items


def format_ending(report: CommandReport, *, dry: bool = False) -> list[RenderableType]:
    """The screen of a report: the run's card, the recap, what is not stored. Failures are shown before."""
    items: list[RenderableType] = []
    if report.run and report.verb != "logs":  # which reads outputs and not how the run ends
        from ipexctl.show.run_screen import format_run_card

        items += format_run_card(report.run)
    if report.hosts and not dry and report.verb in ("play", "demo"):
        from ipexctl.show.answers.play import format_recap

        items += ["", *format_recap(report.hosts)] if items else format_recap(report.hosts)
    if report.lost:
        from ipexctl.show.answers.play import format_lost_output

        items += format_lost_output(report.lost)
    return items


def format_saved_path(report: CommandReport) -> list[RenderableType]:
    if not report.saved:
        return []
    from ipexctl.show.typeset import labelled

    return [labelled("saved", report.saved)]


def format_next_steps(
    report: CommandReport | None, answer: AnyAnswer | None = None, hints: Sequence[str] = ()
) -> list[RenderableType]:
    """The end of every screen: the hints of failures, then what to do next. The last line is a command where there is
    one."""
    command, place = get_next_command(answer), report.selection_flags if report else ()
    stopped = answer is not None and get_answer_kind(type(answer)) in ("stop", "reap")
    without = report.without if report else None
    if not (hints or command or stopped or without or (report and report.run)):
        return []
    from ipexctl.show import typeset
    from ipexctl.show.run_screen import format_next_step, format_orphans_step

    items = [item for hint in dict.fromkeys(hints) for item in typeset.format_hint(hint)]
    if stopped:
        items += format_orphans_step(getattr(answer, "run", ""), cast(Cleanup, answer), place)
    elif command and getattr(answer, "then", ""):
        items += typeset.format_next_step("see first what it would do, then play without --check:", command)
    elif command and not hints:
        items += typeset.format_next_step("", command)
    if without:
        words = "without the hosts that cannot be reached:"
        if report and report.run and report.run.reason == "lost":
            each, them = ("it is", "it") if len(report.run.lost_hosts) == 1 else ("they are", "them")
            words = f"why {each} lost: {complete_hint(advise('doctor'), place)}; without {them}:"
        return [*items, *typeset.format_next_step(words, without)]
    if report and report.run and report.verb != "logs":
        step = _find_next_step(report.run, place)
        if not isinstance(step, Hint) or step.words not in [hint.words for hint in hints if isinstance(hint, Hint)]:
            items += format_next_step(report.run, place)
    return items


def list_next_commands(answer: AnyAnswer | None, report: CommandReport) -> list[list[str]]:
    """Commands of ipexctl, the most helpful first, each once."""
    run = report.run
    texts = [get_next_command(answer), report.without]
    # A program would end the run of somebody else, as a person may choose to.
    texts += [failure.hint for failure in report.failures if failure.kind is not Kind.BUSY]
    texts += [finding.fix for finding in report.findings if finding.level == "error"]
    texts.append(_find_next_step(run, report.selection_flags) if run else None)
    if run and run.slow_host:
        texts.append(shlex.join(run.slow_host.command))
    return split_commands([*texts, report.hint])


def _find_next_step(run: RunOutcome, place: Sequence[str]) -> str:
    from ipexctl.show.run_screen import choose_next_step  # with Rich

    return complete_hint(choose_next_step(run)[1], place)


def split_commands(texts: Iterable[str | None]) -> list[list[str]]:
    """The words of the command that each text ends with; of texts that end with none, nothing."""
    lines = dict.fromkeys(text.splitlines()[-1].removeprefix("hint: ") for text in texts if text)
    commands = []
    for line in lines:
        with suppress(ValueError):  # of somebody else's record
            if line.startswith("ipexctl "):
                commands.append(shlex.split(line))
    return commands


def list_codes(report: CommandReport) -> list[str]:
    """The codes of what went wrong, each once."""
    codes = [failure.code for failure in report.failures]
    codes += [finding.code for finding in report.findings if finding.level == "error"]
    codes.append(report.refusal_code)
    if run := report.run:
        codes += [run.diagnosis.code if run.diagnosis else "", run.reason if run.reason != "done" else ""]
        codes += ["stall" if run.stall else "", "nan" if run.lost_loss else ""]
        codes.append(run.separate.code if run.separate else "")
    return list(dict.fromkeys(filter(None, codes)))
