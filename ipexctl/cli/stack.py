"""What can be installed and what is: ``stacks``, ``uninstall``, ``wheels fetch``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.command import HostSelection, command
from ipexctl.cli.usage_errors import CommandGroup

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli.options import DryRunFlags, StacksFlags, WhyFlags
    from ipexctl.loop import Workflow
    from ipexctl.model.tasks import Uninstall, Wheels

app = typer.Typer()
stacks_app = typer.Typer(name="stacks", invoke_without_command=True)
wheels_app = typer.Typer(
    name="wheels", cls=CommandGroup, no_args_is_help=True, help="Wheels for hosts without internet access."
)
app.add_typer(stacks_app)
app.add_typer(wheels_app)


@command(stacks_app, examples=("", "--for-torch 2.8.0", "--for-hosts --hosts node0,node1"))
def stacks(context: Context, hosts: HostSelection, flags: StacksFlags) -> Workflow:
    """Print the version table: which versions fit together."""
    from ipexctl.verbs.install.list_releases import stacks

    return stacks(torch=flags.for_torch, inventory=hosts.read_inventory() if flags.for_hosts else None, context=context)


@command(stacks_app, "why", examples=("--torch 2.8.0", "--track ipex --python 3.9"))
def stacks_why(flags: WhyFlags) -> Workflow:
    """Explain why a combination is chosen or refused."""
    from ipexctl.model.stack import StackRequest
    from ipexctl.verbs.install.list_releases import stacks_why

    return stacks_why(StackRequest(**vars(flags)))


@command(app, "uninstall", acting=True, examples=("--dry-run", "--limit node1"))
def uninstall(context: Context, hosts: HostSelection, task: Uninstall, flags: DryRunFlags) -> Workflow:
    """Remove what install made on all hosts, and nothing else."""
    from ipexctl.verbs.install.uninstall import uninstall

    return uninstall(task, hosts.read_inventory(), context, dry=flags.dry_run)


@command(wheels_app, "fetch", acting=True, examples=("wheels --dry-run", "wheels --torch 2.8.0 --python 3.11"))
def wheels_fetch(context: Context, task: Wheels, flags: DryRunFlags) -> Workflow:
    """Download the wheels of one release into a local directory. install --wheels then needs no index."""
    from ipexctl.verbs.install.wheels import wheels_fetch

    return wheels_fetch(task, context, environ=os.environ, dry=flags.dry_run)
