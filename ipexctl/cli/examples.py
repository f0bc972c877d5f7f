"""What comes with ipexctl to start from: ``examples``, ``examples show``, ``examples copy``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.command import command

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli.options import CopyFlags, ExampleFlags
    from ipexctl.loop import Workflow

app = typer.Typer()
examples_app = typer.Typer(name="examples", invoke_without_command=True)
app.add_typer(examples_app)


@command(examples_app, examples=("", "--json"))
def examples(context: Context) -> Workflow:
    """List the playbooks and scripts that come with ipexctl."""
    from ipexctl.verbs.examples import examples

    return examples()


@command(examples_app, "show", examples=("demo", "train_ddp.py > train.py"))
def examples_show(context: Context, flags: ExampleFlags) -> Workflow:
    """Print a playbook or an example."""
    from ipexctl.verbs.examples import show

    return show(flags.name)


@command(examples_app, "copy", examples=("train_ddp.py", "demo my-demo"))
def examples_copy(context: Context, flags: CopyFlags) -> Workflow:
    """Copy a playbook or an example, and what it needs. Existing files stay."""
    from ipexctl.verbs.examples import copy

    return copy(flags.name, Path(flags.directory), force=flags.force)
