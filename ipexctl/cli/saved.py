"""What is saved of runs on this machine: ``runs`` lists, removes and exports, ``support`` packs one to send it."""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.command import command, confirm
from ipexctl.cli.command_options import read_options
from ipexctl.cli.help_page import COMMANDS
from ipexctl.cli.usage_errors import find_nearest

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli.options import RunsFlags, SupportFlags
    from ipexctl.loop import Workflow

app = typer.Typer()


@command(
    app,
    "runs",
    output=lambda flags: {"output": "plain"} if flags.output == "auto" else {},
    examples=(
        "--verb run --result failed",
        "--prune --older-than 30d --keep 20",
        "last --export figures.csv",
    ),
)
def runs(context: Context, flags: RunsFlags) -> Workflow:
    """List the runs that are saved on this machine. Remove old ones, or export their figures."""
    from ipexctl.decide.parsing.amounts import parse_span
    from ipexctl.decide.saved_runs import PrunePolicy, RunFilter
    from ipexctl.model.errors import UsageError, advise
    from ipexctl.verbs.run.export_runs import export_runs
    from ipexctl.verbs.run.saved_runs import list_runs, prune_runs

    names = ["demo", *chain(*COMMANDS.values())]
    if flags.verb is not None and flags.verb not in names:
        near = find_nearest(flags.verb, names)
        hint = advise("runs", "--verb", near) if near else None
        raise UsageError(f"--verb must be a command of ipexctl, not {flags.verb!r:.80}", hint=hint)
    chosen = RunFilter(flags.verb, flags.result)
    policy = PrunePolicy(
        parse_span("--older-than", flags.older_than) if flags.older_than is not None else None,
        flags.keep,
    )
    saved = context.state / "runs"
    if flags.export is not None:
        if flags.prune:
            raise UsageError("--export does not fit --prune")
        return export_runs(saved, flags.names, chosen, flags.export, flags.format)
    if flags.format is not None:
        raise UsageError("--format needs --export")
    if flags.prune:
        every = read_options(type(flags))  # type: ignore[arg-type]  # types are hashable
        options = [option for option in every if not option.flag.argument and option.name != "yes"]
        given = [(f"--{option.key.replace('_', '-')}", getattr(flags, option.name)) for option in options]
        words = [word for name, value in given if value is not None and value is not False
                 for word in ([name] if value is True else [name, str(value)])]  # fmt: skip
        words = [*flags.names, *words]
        return prune_runs(saved, flags.names, chosen, policy, dry=not flags.yes, words=words)
    if not policy.is_empty or flags.yes:
        raise UsageError("--yes and the rules of which runs to remove need --prune")
    return list_runs(saved, flags.names, chosen)


@command(
    app,
    "support",
    without="output",
    output=lambda flags: {"output": "plain"},
    examples=("", "1120-083015-a3f2 -o k7.tar.gz --yes"),
)
def support(context: Context, flags: SupportFlags) -> Workflow:
    """Pack a saved run for a maintainer, without secrets. What goes in is listed first."""
    from ipexctl.model.errors import UsageError, advise
    from ipexctl.verbs.run.support import support

    asking = not (flags.yes or flags.dry_run)
    if asking and not (sys.stdin.isatty() and sys.stderr.isatty()):
        what = "support asks before it writes, which needs a terminal"
        hint = advise("support", *([] if flags.run == "last" else [flags.run]), "--yes")
        raise UsageError(what, reasons=["--dry-run lists what goes in, --yes writes it"], hint=hint)
    return support(
        context,
        flags.run,
        flags.file,
        with_output=flags.with_output,
        dry=flags.dry_run,
        ask=confirm if asking else None,
    )
