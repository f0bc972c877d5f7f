"""Runs that were started: ``ps``, ``attach``, ``stop``, ``logs``, ``reap``; and ``replay`` of saved ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipexctl.cli import completion
from ipexctl.cli.flags import (
    AcceptNew,
    AskPass,
    Forks,
    Hostfile,
    Hosts,
    Json,
    Limit,
    Output,
    Screen,
    Timeout,
    how,
    inventory,
    on_hosts,
    perform,
)

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.loop import Workflow

app = typer.Typer()


Run = Annotated[
    str | None,
    typer.Argument(help="The run's id, or its beginning (else the only one).", autocompletion=completion.run),
]


@app.command()
@on_hosts
def ps(
    **common: Any,
) -> None:
    """List the runs on these hosts, whoever watches them."""
    _runs("ps", locals() | common)


@app.command()
@on_hosts
def attach(
    run: Run = None,
    raw: Annotated[bool, typer.Option("--raw", help="Plain output: the ranks' bytes unescaped.")] = False,
    **common: Any,
) -> None:
    """Watch a run from its first byte on. Ctrl-C stops it, the key d lets go."""
    _runs("attach", locals() | common | {"detachable": True}, run, acting=True)


@app.command()
@on_hosts
def stop(
    run: Run = None,
    kill: Annotated[bool, typer.Option("--kill", help="SIGKILL at once.")] = False,
    **common: Any,
) -> None:
    """End a run on all its hosts and prove it."""
    _runs("stop", locals() | common, run, kill=kill)


@app.command()
def logs(
    run: Run = None,
    hostfile: Hostfile = None,
    hosts: Hosts = None,
    limit: Limit = None,
    rank: Annotated[
        str | None, typer.Option("--rank", help="Only these: 3,5-7. One alone: its bytes, nothing added.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Go on to the end of the run.")] = False,
    output: Output = Screen.plain,
    accept_new: AcceptNew = False,
    connect_timeout: Timeout = 10.0,
    forks: Forks = 32,
    ask_pass: AskPass = False,
) -> None:
    """Print what the ranks of a run wrote so far."""
    from ipexctl.model.errors import UsageError

    values = dict(locals()) | {"json": False}

    def tell(context: Context) -> Workflow:
        from ipexctl.verbs.run.manage import logs as verb

        return verb(run, inventory(values), context, chosen, follow=follow)

    try:
        chosen = _ranks(rank)
    except UsageError as refused:
        typer.echo(str(refused), err=True)
        raise typer.Exit(2) from None
    bare = chosen is not None and len(chosen) == 1
    values["bare"] = bare
    perform(tell, values)


def _ranks(text: str | None) -> frozenset[int] | None:
    from ipexctl.model.errors import UsageError

    if text is None:
        return None
    chosen: set[int] = set()
    for word in text.split(","):
        first, dash, last = word.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UsageError(f"--rank takes numbers and ranges such as 3,5-7, not {word!r}")
        chosen.update(range(int(first), int(last or first) + 1))
    return frozenset(chosen)


@app.command()
@on_hosts
def reap(
    run: Annotated[
        str | None,
        typer.Argument(help="This run, whatever its state (else all that are over).", autocompletion=completion.run),
    ] = None,
    **common: Any,
) -> None:
    """End what is left of runs that nobody looks after. Their files on the hosts are removed, too."""
    _runs("reap", locals() | common, run)


def _runs(verb: str, values: dict[str, Any], *words: str | None, acting: bool = False, **more: Any) -> None:
    def tell(context: Context) -> Workflow:
        from ipexctl.verbs.run import manage

        story: Workflow = getattr(manage, verb)(*words, inventory(values), context, **more)
        return story

    perform(tell, values, acting=acting)


@app.command()
def replay(
    run: Annotated[
        str, typer.Argument(help="A saved run: last, its id, a path.", autocompletion=completion.saved)
    ] = "last",
    json: Json = False,
    output: Output = Screen.auto,
    raw: Annotated[bool, typer.Option("--raw", help="Plain output: the ranks' bytes unescaped.")] = False,
) -> None:
    """Show a saved run again, in any output mode."""
    from ipexctl.loop import replay_run

    raise typer.Exit(int(replay_run(run, how(dict(locals())))))
