"""The embedded cluster: ``lab up|down|status`` and ``demo``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipexctl.cli.flags import Json, Output, Screen, perform

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.loop import Workflow

app = typer.Typer()
lab_app = typer.Typer(no_args_is_help=True, help="A small cluster on this machine: real SSH servers on loopback.")
app.add_typer(lab_app, name="lab")


@lab_app.command("up")
def lab_up(
    hosts: Annotated[int, typer.Option("--hosts", min=1, max=64, help="How many hosts.")] = 2,
    json: Json = False,
    output: Output = Screen.auto,
) -> None:
    """Start the lab: SSH servers on loopback, a hostfile, keys."""
    values = dict(locals())
    perform(lambda context: _lab().up(hosts, context.state / "lab"), values)


@lab_app.command("down")
def lab_down(json: Json = False, output: Output = Screen.auto) -> None:
    """Stop the lab and everything that was started in it."""
    values = dict(locals())
    perform(lambda context: _lab().down(context.state / "lab"), values)


@lab_app.command("status")
def lab_status(json: Json = False, output: Output = Screen.auto) -> None:
    """Say which hosts of the lab are up."""
    values = dict(locals())
    perform(lambda context: _lab().status(context.state / "lab"), values)


def _lab() -> Any:
    from ipexctl.verbs import lab

    return lab


@app.command()
def demo(
    hosts: Annotated[int, typer.Option("--hosts", min=1, max=16, help="How many lab hosts.")] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the lab up afterwards.")] = False,
    json: Json = False,
    output: Output = Screen.auto,
) -> None:
    """The main job on this machine: from lab up to lab down. With doctor, install, sync and run between."""
    values = dict(locals())

    def tell(context: Context) -> Workflow:
        from ipexctl.verbs.demo import demo as verb

        return verb(hosts, context, os.environ, keep=keep)

    perform(tell, values, acting=True)
