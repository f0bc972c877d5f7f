"""Hosts as they are: ``exec`` runs a command on all of them, ``shell`` opens one, ``forward`` brings a port here."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.command import HostSelection, command

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli.options import DryRunFlags, ForwardFlags, ShellFlags
    from ipexctl.loop import OutputOptions, Workflow
    from ipexctl.model.tasks import Execute

app = typer.Typer()


@command(app, "exec", script=True, examples=("-- uptime", "--limit node[1-3] 'df -h /data | tail -1'"))
def exec_(context: Context, hosts: HostSelection, task: Execute, flags: DryRunFlags) -> Workflow:
    """Run one command on all hosts. Hosts with the same output share an entry; a single word is a line for sh."""
    from ipexctl.verbs.play.execute import execute, search_environment

    words = ("/bin/sh", "-c", *task.argv) if len(task.argv) == 1 else task.argv
    task, inventory = replace(task, argv=words), hosts.read_inventory()
    return execute(task, inventory, context, dry=flags.dry_run, verb="exec", prepare=search_environment)


@command(app, "shell", script=True, without="limit", examples=("node1", "node1 -- htop"))
def shell(hosts: HostSelection, flags: ShellFlags, output: OutputOptions) -> int:
    """Log in to one host in this terminal, or run one command there. The exit code is the remote one."""
    from ipexctl.loop import run_command
    from ipexctl.verbs.shell import shell

    argv = flags.command[1:] if flags.command[:1] == ("--",) else flags.command
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    statuses: list[int] = []
    exit = run_command(
        lambda context: shell(hosts.read_host(flags.host), argv, context, terminal=terminal, on_status=statuses.append),
        replace(output, bare=True),
    )
    return int(exit) or statuses[0]


@command(
    app,
    "forward",
    without="limit",
    output=lambda flags: {"output": "plain"} if flags.output == "auto" else {},
    examples=("node0 6006", "node1 8888:80"),
)
def forward(context: Context, hosts: HostSelection, flags: ForwardFlags) -> Workflow:
    """Bring a port of one host to this machine, until Ctrl-C. Only programs on this machine can connect."""
    from ipexctl.decide.parsing.amounts import parse_ports
    from ipexctl.verbs.shell import forward

    return forward(hosts.read_host(flags.host), *parse_ports(flags.ports), context)
