"""Playbooks and what goes with them: ``play``, ``fetch``, ``init``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ipexctl.cli import questions
from ipexctl.cli.command import HostSelection, command

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli.options import DryRunFlags, InitFlags, PlayFlags
    from ipexctl.loop import Workflow
    from ipexctl.model.tasks import Fetch

app = typer.Typer()


def _is_lint(files: list[str] | tuple[str, ...]) -> bool:
    return files[0] == "lint" and len(files) > 1


@command(
    app,
    "play",
    acting=lambda flags: not _is_lint(flags.files),
    output=lambda flags: {"only": "playbooks" if _is_lint(flags.files) else "list" if flags.list_steps else "",
                          "detachable": not _is_lint(flags.files)},
    examples=(
        "ipexctl play playbook.yaml --check --diff",
        "ipexctl play playbook.yaml --var epochs=3 --tags train",
        "ipexctl play lint playbook.yaml",
    ),
)  # fmt: skip
def play(context: Context, hosts: HostSelection, flags: PlayFlags) -> Workflow:
    """Play a playbook: the same tasks, with the same keys, in order. `play lint FILE...` only reads."""
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.common.select import FAILED, limit_hosts, read_playbook, select_play_hosts
    from ipexctl.verbs.play.lint import lint
    from ipexctl.verbs.play.play import PlayOptions, list_steps, play

    if _is_lint(flags.files):
        return lint(flags.files[1:], environ=os.environ, cwd=Path.cwd(), variables=flags.var)
    if len(flags.files) > 1:
        raise UsageError(
            f"play takes one playbook, not {len(flags.files)}", hint="ipexctl play lint FILE... checks several"
        )
    book = read_playbook(flags.files[0], environ=os.environ, cwd=Path.cwd(), variables=flags.var)
    inventory = select_play_hosts(book, hostfile=hosts.hostfile, hosts=hosts.hosts, environ=os.environ, cwd=Path.cwd())
    limit = hosts.limit
    chosen = None if limit is None else limit_hosts(inventory, limit, context.state / "runs")
    options = PlayOptions(
        tags=flags.tags,
        skip_tags=flags.skip_tags,
        start_at=flags.start_at,
        dry=flags.dry_run,
        diff=flags.diff,
        hosts=None if chosen is None else frozenset(chosen.names),
        again=limit is not None and FAILED in limit,
    )
    if flags.list_steps:
        return list_steps(book, inventory, options)
    return play(book, inventory, context, os.environ, options)


@command(
    app,
    "fetch",
    acting=True,
    examples=("ipexctl fetch 'checkpoints/*.pt' --from rank:0", "ipexctl fetch logs --into results --dry-run"),
)
def fetch(context: Context, hosts: HostSelection, task: Fetch, flags: DryRunFlags) -> Workflow:
    """Copy results back from the hosts: changed files only. Each host has a directory of its own."""
    from ipexctl.verbs.files.fetch import fetch

    return fetch(task, hosts.inventory(), context, dry=flags.dry_run)


@command(
    app,
    "init",
    script=True,
    output=lambda flags: {"output": "plain"} if not flags.yes and flags.output == "auto" else {},  # not under questions
    examples=("ipexctl init train.py --epochs 3", "ipexctl init --yes --hosts node0,node1 --ppn 2 train.py"),
)
def init(context: Context, hosts: HostSelection, flags: InitFlags) -> Workflow:
    """Write a first playbook and hostfile. It asks a few questions, most of them answered by the hosts."""
    from ipexctl.decide.parsing import parse_list
    from ipexctl.decide.planning.init import Answers, Question
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.play.init import Source, Target, init, read_source

    asking = not flags.yes
    if asking and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("init asks a few questions, and nobody can answer here", hint="ipexctl init --yes train.py")

    def ask(question: Question) -> str:
        return questions.ask(question.text, question.default, question.why, question.choices)

    source = read_source(flags.from_, cwd=Path.cwd()) if flags.from_ else Source()
    target = Path(os.path.abspath(flags.playbook))  # noqa: PTH100 - links stay as they are written
    inventory, hostfile = source.inventory, None
    default = os.environ.get("IPEXCTL_HOSTFILE") or ("hostfile" if Path("hostfile").is_file() else None)
    named = hosts.hostfile or default
    if hosts.hosts or hosts.hostfile or (inventory is None and named):
        inventory = hosts.inventory()
        hostfile = None if hosts.hosts or hosts.limit else os.path.relpath(named or "", target.parent)
    if inventory is None and asking:
        names = questions.ask("Which hosts?", "", "names between commas: node0,node1,node[02-07]", ())
        inventory = parse_list(names, "hosts")
    inventory = hosts.inventory() if inventory is None else inventory  # says what is missing
    answers = Answers(
        script=None if flags.script is None else os.path.relpath(flags.script, target.parent),
        args=flags.args,
        ppn=flags.ppn,
        ipex=flags.ipex,
        backend=flags.backend,
        torch=flags.torch,
        precision=flags.precision,
        port=flags.port,
    )
    place = Target(target, target.with_name("hostfile"), hostfile, flags.force)
    return init(answers, inventory, source.config, place, context, ask if asking else None)
