"""The embedded cluster: ``lab up|down|status|demo``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.command import command

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli.options import DemoFlags, LabFlags
    from ipexctl.loop import Workflow

app = typer.Typer()
lab_app = typer.Typer(no_args_is_help=True, help="A small cluster on this machine: real SSH servers on loopback.")
app.add_typer(lab_app, name="lab")


@command(lab_app, "up", examples=("ipexctl lab up", "ipexctl lab up --hosts 4"))
def lab_up(context: Context, flags: LabFlags) -> Workflow:
    """Start the lab: SSH servers on loopback, a hostfile, keys."""
    from ipexctl.verbs.lab import up

    return up(flags.hosts, context.state / "lab")


@command(lab_app, "down", examples=("ipexctl lab down", "ipexctl lab down --json"))
def lab_down(context: Context) -> Workflow:
    """Stop the lab and everything that was started in it."""
    from ipexctl.verbs.lab import down

    return down(context.state / "lab")


@command(lab_app, "status", examples=("ipexctl lab status", "ipexctl lab status --json"))
def lab_status(context: Context) -> Workflow:
    """Print which hosts of the lab are up."""
    from ipexctl.verbs.lab import status

    return status(context.state / "lab")


@command(app, "demo", acting=True, hidden=True)
@command(lab_app, "demo", acting=True, examples=("ipexctl lab demo", "ipexctl lab demo --hosts 3 --keep"))
def lab_demo(context: Context, flags: DemoFlags) -> Workflow:
    """Train on an embedded cluster on this machine. Lab up, doctor, install, sync, run, lab down."""
    from ipexctl.verbs.demo import demo

    return demo(flags.hosts, context, os.environ, keep=flags.keep)
