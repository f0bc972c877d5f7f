"""What is saved of runs on this machine: ``runs`` lists, removes and exports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.command import command

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli.options import RunsFlags
    from ipexctl.loop import Workflow

app = typer.Typer()


@command(
    app,
    "runs",
    output=lambda flags: {"output": "plain"} if flags.output == "auto" else {},
    examples=(
        "--result failed --since 3d",
        "--prune --older-than 30d --keep 20",
        "last --export figures.csv",
    ),
)
def runs(context: Context, flags: RunsFlags) -> Workflow:
    """List the runs that are saved on this machine. Remove old ones, or export their figures."""
    from ipexctl.decide.parsing.amounts import parse_size, parse_span
    from ipexctl.decide.saved_runs import PrunePolicy, RunFilter
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.run.export_runs import export_runs
    from ipexctl.verbs.run.saved_runs import list_runs, parse_since, prune_runs

    since = parse_since(flags.since, time.time()) if flags.since is not None else None
    chosen = RunFilter(flags.verb, flags.result, flags.script, since)
    policy = PrunePolicy(
        parse_span("--older-than", flags.older_than) if flags.older_than is not None else None,
        parse_size("--larger-than", flags.larger_than) if flags.larger_than is not None else None,
        parse_size("--max-size", flags.max_size) if flags.max_size is not None else None,
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
        return prune_runs(saved, flags.names, chosen, policy, dry=not flags.yes)
    if not policy.is_empty or flags.yes:
        raise UsageError("rules that say which runs go, and --yes, need --prune")
    return list_runs(saved, flags.names, chosen)
