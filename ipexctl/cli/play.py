"""Playbooks and what goes with them: ``play``, ``fetch``, ``init``."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipexctl.cli import completion
from ipexctl.cli.flags import (
    Backend,
    Screen,
    Torch,
    Transfer,
    answer,
    inventory,
    on_hosts,
    pairs,
    perform,
    task,
)

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.loop import Workflow

app = typer.Typer()


def _schema(asked: bool) -> None:
    if asked:
        import json

        from ipexctl.decide.parsing.playbook import schema

        typer.echo(json.dumps(schema(), indent=2))
        raise typer.Exit


@app.command()
@on_hosts
def play(
    files: Annotated[list[str], typer.Argument(metavar="FILE | lint FILE...", help="The playbook (YAML).")],
    tags: Annotated[
        list[str] | None,
        typer.Option("--tags", "-t", help="Only steps with one of these tags.", autocompletion=completion.tag),
    ] = None,
    skip_tags: Annotated[
        list[str] | None, typer.Option("--skip-tags", help="No steps with one of these.", autocompletion=completion.tag)
    ] = None,
    start_at: Annotated[
        str | None,
        typer.Option("--start-at", metavar="NAME", help="Begin at this step.", autocompletion=completion.step),
    ] = None,
    var: Annotated[list[str] | None, typer.Option("--var", metavar="K=V", help="Variable of the playbook.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show how text files differ that sync sends.")] = False,
    list_steps: Annotated[bool, typer.Option("--list-steps", help="List the steps; contact nobody.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", callback=_schema, is_eager=True, help="Print a JSON schema for editors.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--check", help="Say what each step would change; change nothing.")
    ] = False,
    **common: Any,
) -> None:
    """Play a playbook: the same tasks, with the same keys, in order. `play lint FILE...` only reads."""
    values = locals() | common
    limit = common["limit"]

    def linted(_: Context) -> Workflow:
        from ipexctl.verbs.play.lint import lint

        return lint(files[1:], environ=os.environ, cwd=Path.cwd(), variables=pairs("--var", var or []))

    def tell(context: Context) -> Workflow:
        from ipexctl.model.errors import UsageError
        from ipexctl.verbs.common.select import FAILED, limited, read_play, select_for
        from ipexctl.verbs.play.play import PlayOptions
        from ipexctl.verbs.play.play import list_steps as listed
        from ipexctl.verbs.play.play import play as verb

        if len(files) > 1:
            raise UsageError(
                f"play takes one playbook, not {len(files)}", hint="ipexctl play lint FILE... checks several"
            )
        book = read_play(files[0], environ=os.environ, cwd=Path.cwd(), variables=pairs("--var", var or []))
        told = {name: common[name] for name in ("hostfile", "hosts")}
        everyone = select_for(book, **told, environ=os.environ, cwd=Path.cwd())
        chosen = None if limit is None else limited(everyone, limit, context.state / "runs")
        how = PlayOptions(
            tags=tuple(tags or ()),
            skip_tags=tuple(skip_tags or ()),
            start_at=start_at,
            dry=dry_run,
            diff=diff,
            hosts=None if chosen is None else frozenset(chosen.names),
            again=limit is not None and FAILED in limit,
        )
        return listed(book, everyone, how) if list_steps else verb(book, everyone, context, os.environ, how)

    if files[0] == "lint" and len(files) > 1:
        perform(linted, values | {"only": "playbooks"})
    else:
        acting = not (dry_run or list_steps)
        perform(tell, values | {"detachable": True, "only": "list" if list_steps else ""}, acting=acting)


@app.command()
@on_hosts
def fetch(
    paths: Annotated[list[str], typer.Argument(help="Files, directories and globs on the hosts.")],
    into: Annotated[str, typer.Option(help="Directory here; each host's files go into INTO/HOST.")] = "fetched",
    from_: Annotated[
        str, typer.Option("--from", metavar="all|rank:N|HOSTS", help="Who has them.", autocompletion=completion.limit)
    ] = "all",
    source: Annotated[str, typer.Option(help="What sync carried there: where relative paths start.")] = ".",
    workdir: Annotated[str | None, typer.Option(help="Where they start (else where sync put SOURCE).")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Leave these out, as in .gitignore.")] = None,
    transfer: Annotated[Transfer, typer.Option(help="rsync where it saves much, never, or always.")] = Transfer.auto,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would come; bring nothing.")] = False,
    **common: Any,
) -> None:
    """Bring results back from the hosts: changed files only. Each host has a directory of its own."""
    values = locals() | common

    def tell(context: Context) -> Workflow:
        from ipexctl.verbs.files.fetch import fetch as verb

        return verb(task("Fetch", values), inventory(values), context, dry=dry_run)

    perform(tell, values, acting=not dry_run)


class Precision(str, Enum):
    bf16 = "bf16"
    no = "no"


@app.command(context_settings={"allow_interspersed_args": False})
@on_hosts
def init(
    script: Annotated[str | None, typer.Argument(help="The script to train with (else asked).")] = None,
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments; nothing after it is ours.")] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="FILE", help="Accelerate's configuration, or any hostfile.")
    ] = None,
    ppn: Annotated[int | None, typer.Option("--ppn", min=1, help="Ranks per host (else asked).")] = None,
    backend: Annotated[Backend | None, typer.Option(help="Collectives (else asked).")] = None,
    ipex: Annotated[bool | None, typer.Option("--ipex/--no-ipex", help="With IPEX, or stock torch.")] = None,
    torch: Torch = None,
    precision: Annotated[Precision | None, typer.Option(help="Mixed precision (else asked).")] = None,
    port: Annotated[int | None, typer.Option(min=1024, max=65535, help="Rendezvous port (else a free one).")] = None,
    playbook: Annotated[str, typer.Option(help="The playbook to write.")] = "playbook.yaml",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: what the hosts say is taken.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    **common: Any,
) -> None:
    """Write a first playbook and hostfile. It asks a few questions, most of them answered by the hosts."""
    values = locals() | common
    asking = not yes
    if asking and common["output"] is Screen.auto:
        values["output"] = Screen.plain  # questions and a live screen do not go together

    def tell(context: Context) -> Workflow:
        from ipexctl.decide.planning.init import Answers, Question
        from ipexctl.model.errors import UsageError
        from ipexctl.verbs.play.init import Source, Target, parsed, read_source
        from ipexctl.verbs.play.init import init as verb

        if asking and not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                "init asks a few questions, and nobody can answer here", hint="ipexctl init --yes train.py"
            )

        def ask(question: Question) -> str:
            return answer(question.text, question.default, question.why, question.choices)

        source = read_source(from_, cwd=Path.cwd()) if from_ else Source()
        target = Path(os.path.abspath(playbook))  # noqa: PTH100 - links stay as they are written
        found, kept = source.inventory, None
        hostfile, hosts, limit = (common[name] for name in ("hostfile", "hosts", "limit"))
        named = hostfile or os.environ.get("IPEXCTL_HOSTFILE") or ("hostfile" if Path("hostfile").is_file() else None)
        if hosts or hostfile or (found is None and named):
            found = inventory(values)
            kept = None if hosts or limit else os.path.relpath(named or "", target.parent)
        if found is None and asking:
            found = parsed(answer("Which hosts?", "", "names between commas: node0,node1,node[02-07]", ()))
        found = inventory(values) if found is None else found  # says what is missing
        given = Answers(
            script=None if script is None else os.path.relpath(script, target.parent),
            args=tuple(args or ()),
            ppn=ppn,
            ipex=ipex,
            backend=backend.value if backend else None,
            torch=torch,
            precision=precision.value if precision else None,
            port=port,
        )
        place = Target(target, target.with_name("hostfile"), kept, force)
        return verb(given, found, source.config, place, context, ask if asking else None)

    perform(tell, values)
