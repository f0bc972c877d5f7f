"""What a person would be advised at the end of a command, for programs: commands as words, and codes."""

import shlex
from collections.abc import Iterable

from ipexctl.model.answers import AnyAnswer, get_next_command
from ipexctl.model.errors import Kind, complete_hint
from ipexctl.model.reports import CommandReport, RunOutcome


def list_next_commands(answer: AnyAnswer | None, report: CommandReport | None) -> list[list[str]]:
    """Commands of ipexctl, the most helpful first, each once."""
    texts = [get_next_command(answer)]
    if report is not None:
        run = report.run
        texts.append(report.without)
        # A program would end the run of somebody else, as a person may choose to.
        texts += [failure.hint for failure in report.failures if failure.kind is not Kind.BUSY]
        texts += [finding.fix for finding in report.findings if finding.level == "error"]
        texts.append(_find_next_step(run, report.selection_flags) if run else None)
        texts += [shlex.join(run.slow_host.command)] if run and run.slow_host else []
        texts.append(report.hint)
    return split_commands(texts)


def _find_next_step(run: RunOutcome, place: tuple[str, ...]) -> str:
    from ipexctl.show.run_screen import choose_next_step  # with Rich

    return complete_hint(choose_next_step(run)[1], place)


def split_commands(texts: Iterable[str | None]) -> list[list[str]]:
    """The words of the command that each text ends with; of texts that end with none, nothing."""
    lines = dict.fromkeys(text.splitlines()[-1].removeprefix("hint: ") for text in texts if text)
    return [shlex.split(line) for line in lines if line.startswith("ipexctl ")]


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
