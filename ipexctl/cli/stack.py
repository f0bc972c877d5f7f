"""What can be installed and what is: ``stacks``, ``verify``, ``uninstall``, ``wheels fetch``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipexctl.cli.flags import (
    Backend,
    BackendFlag,
    DryRun,
    ExtraIndexUrl,
    FindLinks,
    IndexUrl,
    Ipex,
    Json,
    Oneccl,
    OpenMP,
    Output,
    Requirements,
    Screen,
    Torch,
    TrackFlag,
    Venv,
    With,
    inventory,
    on_hosts,
    perform,
    task,
)

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.loop import Workflow

app = typer.Typer()
stacks_app = typer.Typer(invoke_without_command=True, help="The version table: what goes together, and why not.")
wheels_app = typer.Typer(no_args_is_help=True, help="Wheels for hosts without a way out.")
app.add_typer(stacks_app, name="stacks")
app.add_typer(wheels_app, name="wheels")


@stacks_app.callback()
@on_hosts
def stacks(
    context: typer.Context,
    for_torch: Annotated[str | None, typer.Option("--for-torch", help="Only the rows of this torch version.")] = None,
    for_hosts: Annotated[bool, typer.Option("--for-hosts", help="Say which rows these hosts can hold.")] = False,
    **common: Any,
) -> None:
    """The version table: what goes together."""
    if context.invoked_subcommand:
        return
    values = locals() | common | {"only": "rows"}

    def tell(context: Context) -> Workflow:
        from ipexctl.verbs.install.list_releases import stacks as verb

        return verb(torch=for_torch, inventory=inventory(values) if for_hosts else None, context=context)

    perform(tell, values)


@stacks_app.command("why")
def stacks_why(
    track: TrackFlag = None,
    torch: Torch = None,
    ipex: Ipex = None,
    oneccl: Oneccl = None,
    backend: BackendFlag = Backend.auto,
    python: Annotated[str | None, typer.Option(help="Python version, such as 3.11.")] = None,
    json: Json = False,
    output: Output = Screen.auto,
) -> None:
    """Say why a combination is chosen, or refused."""
    values = dict(locals())

    def tell(_: Context) -> Workflow:
        from ipexctl.model.stack import StackRequest
        from ipexctl.verbs.install.list_releases import stacks_why as verb

        wish = StackRequest(track.value if track else None, torch, ipex, oneccl, backend.value, python)
        return verb(wish)

    perform(tell, values)


@app.command()
@on_hosts
def verify(
    venv: Venv = None,
    **common: Any,
) -> None:
    """Ask every host whether its environment is as install made it."""
    values = locals() | common

    def tell(context: Context) -> Workflow:
        from ipexctl.verbs.doctor.verify import verify as verb

        return verb(task("Verify", values), inventory(values), context)

    perform(tell, values)


@app.command()
@on_hosts
def uninstall(
    venv: Venv = None,
    dry_run: DryRun = False,
    **common: Any,
) -> None:
    """Remove what install made on all hosts, and nothing else."""
    values = locals() | common

    def tell(context: Context) -> Workflow:
        from ipexctl.verbs.install.uninstall import uninstall as verb

        return verb(task("Uninstall", values), inventory(values), context, dry=dry_run)

    perform(tell, values, acting=not dry_run)


@wheels_app.command("fetch")
def wheels_fetch(
    directory: Annotated[str, typer.Argument(help="The wheelhouse here: a directory, .tar[.gz] or .zip.")],
    track: TrackFlag = None,
    torch: Torch = None,
    ipex: Ipex = None,
    oneccl: Oneccl = None,
    backend: BackendFlag = Backend.auto,
    python: Annotated[
        list[str] | None, typer.Option(help="Python of the hosts, such as 3.11 (else the row's newest).")
    ] = None,
    glibc: Annotated[str, typer.Option(help="Oldest glibc of the hosts.")] = "2.28",
    omp: Annotated[OpenMP, typer.Option(help="intel: with Intel's OpenMP.")] = OpenMP.auto,
    index_url: IndexUrl = None,
    extra_index_url: ExtraIndexUrl = None,
    find_links: FindLinks = None,
    requirements: Requirements = None,
    with_: With = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the wheels and their size; fetch nothing.")] = False,
    json: Json = False,
    output: Output = Screen.auto,
) -> None:
    """Fetch the wheels of one row into a directory here. install --wheels then needs no index."""
    values = dict(locals())

    def tell(context: Context) -> Workflow:
        from ipexctl.verbs.install.wheels import wheels_fetch as verb

        return verb(task("Wheels", values), context, environ=os.environ, dry=dry_run)

    perform(tell, values, acting=not dry_run)
