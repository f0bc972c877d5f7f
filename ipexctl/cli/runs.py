"""Runs that were started: ``ps``, ``attach``, ``stop``, ``logs``; and what is saved of them here: ``replay``,
``report``, ``runs``, ``support`` …"""

from __future__ import annotations

import re
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.command import HostSelection, command, confirm, get_words
from ipexctl.cli.help_page import COMMANDS
from ipexctl.cli.words import find_nearest

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli import options
    from ipexctl.loop import OutputOptions, Workflow
    from ipexctl.model.errors import Exit

app = typer.Typer()


@command(app, "ps", examples=("", "--hosts node[0-3] --json"))
def ps(context: Context, hosts: HostSelection) -> Workflow:
    """List your runs on these hosts, from any controller."""
    from ipexctl.verbs.run.manage import ps

    return ps(hosts.read_inventory(), context)


@command(app, "attach", acting=True, output=lambda flags: {"detachable": True}, examples=("", "1120-083015-a3f2 --raw"))
def attach(context: Context, hosts: HostSelection, flags: options.AttachFlags) -> Workflow:
    """Watch a run from its first byte on. Ctrl-C stops the run, the key d detaches."""
    from ipexctl.verbs.run.manage import attach
    from ipexctl.verbs.run.saved_logs import refuse_ended_run

    refuse_ended_run(context.state / "runs", flags.run)
    return attach(flags.run, hosts.read_inventory(), context)


@command(app, "stop", examples=("", "1120-083015-a3f2 --kill", "--orphans"))
def stop(context: Context, hosts: HostSelection, flags: options.StopFlags) -> Workflow:
    """End a run on all its hosts and prove it."""
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.run.manage import reap, stop

    if flags.orphans and flags.kill:
        raise UsageError("--kill does not fit --orphans, which always ends processes at once")
    if flags.orphans:
        return reap(flags.run, hosts.read_inventory(), context)
    return stop(flags.run, hosts.read_inventory(), context, kill=flags.kill)


def _follow_logs(words: list[str]) -> list[str]:
    """``-f`` follows, as it does elsewhere, where no hostfile is behind it: nothing, or what must be the run."""
    at = words.index("-f") if "-f" in words else len(words)
    after = words[at + 1] if at + 1 < len(words) else "-"
    first = all(word.startswith("-") for word in words[:at])
    follows = after.startswith("-") or (first and not Path(after).is_file())
    return [*words[:at], "--follow", *words[at + 1 :]] if at < len(words) and follows else words


@command(
    app,
    "logs",
    without="json_",
    expand=lambda words, _: _follow_logs(words),
    output=lambda flags: {"bare": not flags.stacks and bool(re.fullmatch(r"(\d+)([-,]\1)*", flags.rank or ""))},
    examples=("-f", "--rank 0 > rank0.log", "1120-083015-a3f2 --stacks"),
)
def logs(context: Context, hosts: HostSelection, flags: options.LogsFlags) -> Workflow:
    """Print what the ranks of a run wrote so far. Standard error goes to standard error: add 2>&1 before | grep."""
    from ipexctl.decide.facts.numbers import parse_cpu_list
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.run.manage import logs, print_stacks
    from ipexctl.verbs.run.saved_logs import find_ended_run, print_newest_output, print_saved_output, print_saved_stacks

    ranks = frozenset(parse_cpu_list(flags.rank) or ())  # numbers and ranges, as those of ranks
    if flags.rank is not None and not ranks:
        raise UsageError(f"--rank takes numbers and ranges such as 3,5-7, not {flags.rank!r}")
    if flags.stacks and flags.follow:
        raise UsageError("--follow does not fit --stacks, which shows one moment")
    saved = find_ended_run(context.state / "runs", flags.run)
    if saved and flags.stacks:
        return print_saved_stacks(saved, context, ranks)
    if saved:
        return print_saved_output(saved, context, ranks, flags.run or "")
    if flags.stacks:
        return print_stacks(flags.run, hosts.read_inventory(), context, ranks)

    hosts.words = ("logs", *_follow_logs([*hosts.words[1:]]))

    def ask_hosts() -> Workflow:
        yield from logs(flags.run, hosts.read_inventory(), context, ranks, follow=flags.follow)

    return ask_hosts() if flags.run else print_newest_output(ask_hosts(), context, ranks)


@command(app, "profile", examples=("", "1120-083015-a3f2 --json"))
def profile(context: Context, flags: options.ProfileFlags) -> Workflow:
    """Show the profile of a saved run. Costly operators, who waited for whom, oneDNN's kernels."""
    from ipexctl.verbs.run.profile import show_saved_profile

    return show_saved_profile(flags.run, context)


@command(app, "replay", examples=("", "1120-083015-a3f2 --output json", "last --speed 10 --at 00:12:30"))
def replay(flags: options.ReplayFlags, output: OutputOptions) -> Exit:
    """Show a saved run again, in any output mode."""
    from ipexctl.loop import replay_run

    return replay_run(flags.run, output, flags.speed, flags.at)


@command(
    app,
    "watch",
    alone={"--serve": "--serve=127.0.0.1:0"},
    output=lambda flags: {"output": "plain"} if flags.output == "auto" else {},
    examples=("--serve", "1120-083015-a3f2 --serve 127.0.0.1:8000 --open"),
)
def watch(context: Context, hosts: HostSelection, flags: options.WatchFlags) -> Workflow:
    """Serve the page of a run that goes on. Only browsers on this machine can read it."""
    from ipexctl.decide.parsing.amounts import parse_loopback
    from ipexctl.verbs.common.known_errors import read_known_errors
    from ipexctl.verbs.run.report import MaskedFold
    from ipexctl.verbs.run.serve import LivePage, watch

    address = parse_loopback(flags.serve)
    page = LivePage(MaskedFold(context.masker, read_known_errors), context)
    return watch(flags.run, hosts.read_inventory(), context, page, address, show=flags.open_)


@command(app, "report", without="output", examples=("", "last --open", "1120-083015-a3f2 1120-091500-19c0"))
def report(context: Context, flags: options.ReportFlags) -> Workflow:
    """Draw a saved run as one page. Several are set side by side."""
    from ipexctl.verbs.common.known_errors import read_known_errors
    from ipexctl.verbs.run.report import report

    return report(flags.runs, context, read_known_errors, page=flags.page, show=flags.open_)


@command(
    app,
    "runs",
    output=lambda flags: {"output": "plain"} if flags.output == "auto" else {},
    examples=("--verb run --result failed", "--prune --older-than 30d --keep 20", "last --export figures.csv"),
)
def runs(ctx: typer.Context, context: Context, flags: options.RunsFlags) -> Workflow:
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
        parse_span("--older-than", flags.older_than) if flags.older_than is not None else None, flags.keep
    )
    saved = context.state / "runs"
    if flags.export is not None:
        if flags.prune:
            raise UsageError("--export does not fit --prune")
        return export_runs(saved, flags.names, chosen, flags.export, flags.format, context.environ)
    if flags.format is not None:
        raise UsageError("--format needs --export")
    if flags.prune:
        words = [word for word in get_words(ctx)[1:] if word != "--json"]
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
def support(ctx: typer.Context, context: Context, flags: options.SupportFlags) -> Workflow:
    """Pack a saved run for a maintainer, without secrets. What goes in is listed first."""
    from ipexctl.model.errors import Hint, UsageError
    from ipexctl.verbs.run.replay import find_saved_run
    from ipexctl.verbs.run.support import support

    find_saved_run(context.state / "runs", flags.run)  # one that does not exist is refused before a question
    asking = not (flags.yes or flags.dry_run)
    if asking and not (sys.stdin.isatty() and sys.stderr.isatty()):
        what = "support asks before it writes, which needs a terminal"
        hint = Hint([*get_words(ctx), "--yes"])
        raise UsageError(what, reasons=["--dry-run lists what goes in, --yes writes it"], hint=hint)
    return support(
        context,
        flags.run,
        flags.file,
        with_output=flags.with_output,
        dry=flags.dry_run,
        ask=confirm if asking else None,
    )
