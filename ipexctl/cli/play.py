"""Playbooks and what goes with them: ``play``, ``fetch``, ``init``, and ``examples`` to start from."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.command import HostSelection, command, get_words

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli.options import CopyFlags, DryRunFlags, ExampleFlags, InitFlags, PlayFlags
    from ipexctl.decide.planning.init import Question
    from ipexctl.loop import Workflow
    from ipexctl.model.tasks import Fetch


app = typer.Typer()
_WRITTEN = "playbook.yaml"  # by init


def _asks_for_lint(files: list[str] | tuple[str, ...] | None) -> bool:
    return files is not None and [*files[:1]] == ["lint"]


def _format_command(hosts: HostSelection, flags: PlayFlags) -> str:
    """Returns the command line of a play, without ``--limit`` and ``--start-at``."""
    pairs = [("-f", hosts.hostfile or ""), ("--hosts", hosts.hosts or "")]
    pairs += [("--var", f"{name}={value}") for name, value in flags.var.items()]
    pairs += [("--allow-path", path) for path in flags.allow_path]
    pairs += [("--allow-env", name) for name in flags.allow_env]
    pairs += [("--tags", tag) for tag in flags.tags] + [("--skip-tags", tag) for tag in flags.skip_tags]
    return shlex.join(["ipexctl", "play", flags.files[0], *(word for pair in pairs if pair[1] for word in pair)])


@command(
    app,
    "play",
    acting=lambda flags: not (flags.list_ or _asks_for_lint(flags.files)),
    output=lambda flags: {"detachable": not _asks_for_lint(flags.files)},
    examples=(
        "playbook.yaml --check --diff",
        "playbook.yaml --var epochs=3 --tags train",
        "demo --dry-run",
    ),
)  # fmt: skip
def play(context: Context, hosts: HostSelection, flags: PlayFlags) -> Workflow:
    """Play a playbook: the same tasks, with the same keys, in order. `play lint FILE...` only reads."""
    from ipexctl.decide.parsing.host_patterns import FAILED
    from ipexctl.model.errors import UsageError, advise
    from ipexctl.model.json_values import select_attributes
    from ipexctl.verbs.common.playbooks import Permits, read_playbook, select_play_hosts
    from ipexctl.verbs.common.select import limit_hosts
    from ipexctl.verbs.examples import examples
    from ipexctl.verbs.play.lint import lint
    from ipexctl.verbs.play.play import PlayOptions, list_steps, play

    if flags.list_:
        return examples(playbooks_only=True)
    if not flags.files:
        hint = advise("play", _WRITTEN) if Path(_WRITTEN).is_file() else advise("play", "--list")
        raise UsageError("play needs a playbook: a file, or the name of a bundled one", hint=hint)
    permits = Permits(flags.allow_path, flags.allow_env)
    if _asks_for_lint(flags.files):
        files = flags.files[1:] or (_WRITTEN,)
        return lint(files, environ=os.environ, cwd=Path.cwd(), variables=flags.var, permits=permits)
    if len(flags.files) > 1:
        raise UsageError(
            f"play takes one playbook, not {len(flags.files)}",
            hint=advise("play", "lint", *flags.files, text="this checks several:"),
        )
    book = read_playbook(flags.files[0], environ=os.environ, cwd=Path.cwd(), variables=flags.var, permits=permits)
    context.masker.add_words([f"{name}={value}" for name, value in book.variables.items()])
    inventory = select_play_hosts(
        book,
        hostfile=hosts.hostfile,
        hosts=hosts.hosts,
        environ=os.environ,
        cwd=Path.cwd(),
        runs=context.state / "runs",
        words=hosts.words,
    )
    limit = hosts.limit
    chosen = None if limit is None else frozenset(limit_hosts(inventory, limit, context.state / "runs").names)
    same = select_attributes(flags, "tags", "skip_tags", "start_at", "diff")
    again = limit is not None and FAILED in limit
    command = _format_command(hosts, flags)
    options = PlayOptions(**same, dry=flags.dry_run, hosts=chosen, again=again, command=command)
    if flags.list_steps:
        return list_steps(book, inventory, options)
    return play(book, inventory, context, options)


@command(app, "fetch", acting=True, examples=("'checkpoints/*.pt' --from rank:0", "logs --into results --dry-run"))
def fetch(context: Context, hosts: HostSelection, task: Fetch, flags: DryRunFlags) -> Workflow:
    """Copy results back from the hosts: changed files only. Each host has a directory of its own."""
    from ipexctl.verbs.files.fetch import fetch

    return fetch(task, hosts.read_inventory(), context, dry=flags.dry_run)


def _ask_on_terminal(question: Question) -> str:
    """The answer on the terminal; an empty one is the default. Raises `Interrupted` where the input has ended."""
    from ipexctl.model.errors import Interrupted
    from ipexctl.model.text import printable

    offered = f" [{'/'.join(question.choices)}]" if question.choices else ""
    why = f"  ({printable(question.why, 160)})" if question.why else ""
    columns = shutil.get_terminal_size().columns
    print(textwrap.fill(f"{question.text}{offered}{why}", columns, break_on_hyphens=False), file=sys.stderr)
    default = f"[{printable(question.default)}] " if question.default else ""
    print(f"  {default}", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise Interrupted
    return line.strip()


@command(
    app,
    "init",
    script=True,
    output=lambda flags: {"output": "plain"} if not flags.yes and flags.output == "auto" else {},  # not under questions
    examples=("train.py --epochs 3", "--yes --hosts node0,node1 --ppn 2 train.py"),
)
def init(ctx: typer.Context, context: Context, hosts: HostSelection, flags: InitFlags) -> Workflow:
    """Write a first playbook and hostfile. It asks a few questions, most of them answered by the hosts."""
    from ipexctl.cli.job import find_misplaced_options
    from ipexctl.decide.parsing import parse_list
    from ipexctl.decide.planning.init import Answers, Question
    from ipexctl.model.errors import Hint, UsageError
    from ipexctl.model.json_values import select_attributes
    from ipexctl.verbs.play.init import Target, init, read_source

    if flags.script and Path(flags.script).is_file():
        find_misplaced_options(ctx, flags.args, flags.script, refuse=True)
    asking = not flags.yes
    if asking and not (sys.stdin.isatty() and sys.stderr.isatty()):
        hint = Hint(["init", "--yes", *get_words(ctx)[1:]])
        raise UsageError("init asks a few questions, which needs a terminal", hint=hint)

    unnamed = not (hosts.hosts or hosts.hostfile)
    inventory, config = read_source(flags.from_, cwd=Path.cwd(), hosts=unnamed) if flags.from_ else (None, None)
    target = Path(os.path.abspath(flags.playbook))  # noqa: PTH100 - links stay as they are written
    hostfile = None
    default = os.environ.get("IPEXCTL_HOSTFILE") or ("hostfile" if Path("hostfile").is_file() else None)
    named = hosts.hostfile or default
    if hosts.hosts or hosts.hostfile or (inventory is None and named):
        inventory = hosts.read_inventory()
        hostfile = None if hosts.hosts or hosts.limit else os.path.relpath(named or "", target.parent)
    if inventory is None and asking:
        question, names = Question("hosts", "Which hosts?", "", "names between commas: node0,node1,node[02-07]"), ""
        while not names:
            names = _ask_on_terminal(question)
        inventory = parse_list(names, "hosts")
    inventory = hosts.read_inventory() if inventory is None else inventory  # says what is missing
    answers = Answers(
        script=None if flags.script is None else os.path.relpath(flags.script, target.parent),
        **select_attributes(flags, "args", "ppn", "ipex", "backend", "torch", "precision", "port"),
    )
    place = Target(target, target.with_name("hostfile"), hostfile, flags.force)
    return init(answers, inventory, config, place, context, _ask_on_terminal if asking else None)


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
