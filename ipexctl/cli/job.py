"""The main job: ``doctor``, ``install``, ``sync``, ``run``; what can be installed (``stacks``); and hosts as they are:
``hosts``, ``exec``, ``shell`` …"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ipexctl.cli.command import HostSelection, command, confirm, get_words
from ipexctl.cli.usage_errors import CommandGroup, name_hosts

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli import options
    from ipexctl.loop import OutputOptions, Workflow
    from ipexctl.model.hosts import Inventory
    from ipexctl.model.tasks import Doctor, Execute, Install, Run, Sync, Tune, Uninstall, Wheels

app = typer.Typer()
_TRANSLATION = "ipexctl.translation"  # in a context's ``meta``: what to know about a launch line


def _can_ask(flags: Any) -> bool:
    return bool(flags.fix and not flags.yes and sys.stdin.isatty() and sys.stderr.isatty())


@command(
    app,
    "doctor",
    output=lambda flags: {"output": "plain"} if flags.output == "auto" and _can_ask(flags) else {},  # for questions
    examples=("--hosts node0,node1", "--bench --limit node[1-3]", "--verify"),
)
def doctor(context: Context, hosts: HostSelection, task: Doctor, flags: options.DoctorFlags) -> Workflow:
    """Look at every host: what it is, what is wrong, how to fix it."""
    from ipexctl.model.errors import UsageError
    from ipexctl.model.hosts import Inventory
    from ipexctl.verbs.doctor.doctor import doctor
    from ipexctl.verbs.doctor.verify import verify

    if flags.files and not task.recorded:
        saved = all(Path(file).is_dir() or (Path(file).is_file() and file.endswith(".json")) for file in flags.files)
        better = ["doctor", "--recorded", *flags.files] if saved else name_hosts(hosts.words, flags.files)
        what = f"doctor takes no argument {flags.files[0]!r}"
        raise UsageError(what, hint=shlex.join(["ipexctl", *better]))
    if flags.verify:
        other = sorted({each.name for each in fields(task) if getattr(task, each.name) != each.default} - {"venv"})
        if other:
            raise UsageError(f"--{other[0].replace('_', '-')} does not fit --verify")
        return verify(task.venv, hosts.read_inventory(), context)
    task = replace(task, recorded=(*task.recorded, *flags.files))
    hostless = task.explain is not None or task.recorded
    inventory = Inventory(()) if hostless else hosts.read_inventory()
    return doctor(task, inventory, context, ask=confirm if _can_ask(task) else None, alone=True)


@command(
    app,
    "install",
    acting=True,
    examples=("--dry-run", "--torch 2.8.0 --backend ccl", "--wheels wheels --with 'transformers<4.53'"),
)
def install(context: Context, hosts: HostSelection, task: Install, flags: options.DryRunFlags) -> Workflow:
    """Put matching wheels on all hosts: torch, IPEX, oneCCL, MPI."""
    from ipexctl.verbs.install.install import install

    task = replace(task, check=task.check or flags.dry_run)
    return install(task, hosts.read_inventory(), context, builds=True)


@command(
    app,
    "sync",
    acting=True,
    examples=("--dry-run", "src --workdir /data/src --exclude '*.pt' --delete", "hf:Qwen/Qwen3-0.6B"),
)
def sync(context: Context, hosts: HostSelection, task: Sync, flags: options.DryRunFlags) -> Workflow:
    """Copy a directory to all hosts: changed files only."""
    from ipexctl.verbs.files.sync import sync

    return sync(task, hosts.read_inventory(), context, dry=flags.dry_run)


def _expand_mpirun_line(words: list[str], ctx: typer.Context) -> list[str]:
    """``--from-mpirun LINE`` as the options and the script that it means; options given beside it win. What it leaves
    out is in ``ctx.meta``."""
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--from-mpirun=") else [word])]
    if "--from-mpirun" not in words[:-1]:
        return words
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.migrate import LaunchLines

    at = words.index("--from-mpirun")
    try:
        translation = LaunchLines().translate_line(words[at + 1])
    except ValueError as error:
        raise UsageError(f"--from-mpirun: {error}") from None
    beside, options = [*words[:at], *words[at + 2 :]], list(translation.options)
    if any(word.partition("=")[0] in {"-f", "--hostfile", "--hosts"} for word in beside):
        for place in [options.index(name) for name in ("-f", "--hosts") if name in options]:
            del options[place : place + 2]
    notes = [str(note) for note in translation.notes]
    for place in reversed([at for at, word in enumerate(options) if word == "--pass-env"]):
        if options[place + 1] not in os.environ:  # launchers pass over a variable that is not set
            notes.append(f"left out: {options[place + 1]} (it is not set on this machine)")
            del options[place : place + 2]
    ctx.meta[_TRANSLATION] = [f"--from-mpirun: {note}" for note in notes]
    return [*options, *beside, *translation.script]


@command(
    app,
    "run",
    acting=True,
    script=True,
    output=lambda flags: {"detachable": not (flags.dry_run or flags.emit)},
    expand=_expand_mpirun_line,
    examples=(
        "train.py --epochs 3",
        "--dry-run --ppn 2 --backend ccl train.py",
        "-m trl.scripts.sft --config sft.yaml",
    ),
)
def run(ctx: typer.Context, context: Context, hosts: HostSelection, task: Run, flags: options.RunFlags) -> Workflow:
    """Start a script or a program on all hosts, and show each rank's output."""
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.run.run import run

    if not (task.script or task.role[1:]):
        reasons = ["a Python file, a module (-m) or a program; or both --role head:COMMAND and --role rest:COMMAND"]
        own = get_words(ctx)
        before = own[: len(own) - len(task.args)]
        words = [*(before[:-1] if before[-1:] == ("",) else before), "train" if task.module else "train.py", *task.args]
        if words[-2].endswith(".py") and not task.args:
            reasons, words = [f"{words[-3]} took {words[-2]} as its value"], [*words[:-3], words[-2]]
        raise UsageError("run needs WHAT", reasons=reasons, hint=shlex.join(["ipexctl", *words]))
    others = task.module or task.program or not task.script.endswith(".py")  # whose own options may have these names
    inventory = _read_hosts(hosts, ctx, () if others else task.args, task.script)
    if flags.emit:
        from ipexctl.decide.launch.emit import check_form

        check_form(task, flags.emit)
    unread = [_UNREAD_INPUT] if task.stdin is None and _is_given_a_file() else []
    hosts.warnings += [*ctx.meta.get(_TRANSLATION, ()), *unread]
    return run(task, inventory, context, dry=flags.dry_run or flags.emit is not None, emit=flags.emit)


_UNREAD_INPUT = "standard input is a file, which no rank reads: --stdin - gives it to rank 0"


def _is_given_a_file() -> bool:
    """Whether standard input is a file of which nobody has read (a loop of the shell that takes its lines has)."""
    try:
        opened = os.fstat(0)
        return stat.S_ISREG(opened.st_mode) and opened.st_size > 0 and os.lseek(0, 0, os.SEEK_CUR) == 0
    except OSError:  # it is closed
        return False


@command(
    app,
    "tune",
    acting=True,
    script=True,
    alone={"--resume": "--resume=last"},
    examples=("--budget 30m --keep-batch batch train.py --batch 64", "--resume"),
)
def tune(ctx: typer.Context, context: Context, hosts: HostSelection, task: Tune, flags: options.TuneFlags) -> Workflow:
    """Find the fastest way to start a script on these hosts, by short runs of it."""
    from ipexctl.verbs.tune import tune

    inventory = _read_hosts(hosts, ctx, task.args if task.script.endswith(".py") else (), task.script)
    return tune(task, inventory, context, dry=flags.dry_run, resume=flags.resume)


def _read_hosts(hosts: HostSelection, ctx: typer.Context, args: tuple[str, ...], script: str) -> Inventory:
    """Returns the selected hosts; options that stand behind the script are warned of. Raises `UsageError`."""
    from ipexctl.model.errors import UsageError

    misplaced = find_misplaced_options(ctx, args, script)
    try:
        inventory = hosts.read_inventory()
    except UsageError as error:
        if {"--hosts", "--hostfile", "-f"} & {word.partition("=")[0] for word in args}:
            error.hint = misplaced[0] if misplaced else error.hint
        raise
    hosts.warnings += misplaced
    return inventory


def find_misplaced_options(
    ctx: typer.Context, args: tuple[str, ...], script_name: str, *, refuse: bool = False
) -> list[str]:
    """Returns a warning, with the line that gives them to this command, about words behind the script that are options
    of it, which it was not given, and may have been meant for it: its text has no such word.

    Raises:
        UsageError: one of them says that nothing is to be started; or there is one, and ``refuse``.
    """
    from ipexctl.model.errors import Hint, UsageError

    words = get_words(ctx)
    script = len(words) - len(args)
    if words[script:] != args or "--" in words[:script]:
        return []
    own = _list_options_not_given(ctx)
    if Path(script_name).is_file():  # and no module: it may be Hydra's --multirun
        own = {name: takes_value for name, takes_value in own.items() if name not in ("-m", "--module")}
    names = list(dict.fromkeys(name for word in args if (name := word.partition("=")[0]) in own))
    if names:
        from ipexctl.act.inputs import read_script_text

        text = read_script_text(Path(script_name))
        names = [name for name in names if f'"{name}"' not in text and f"'{name}'" not in text]
        if "argparse" not in text:  # a configuration of the script's own: backend = "nccl", backend: str
            keys = {*re.findall(r"(?m)^ *(\w+) *[:=]", text)}
            names = [name for name in names if name[2:].replace("-", "_") not in keys]
    if not names:
        return []
    warning = f"{', '.join(names)} {'go' if names[1:] else 'goes'} to the script; options of ipexctl stand before it"
    better = _move_options(words[:script], args, own)
    if refuse or _STARTS_NOTHING & {*args, *names}:
        left = shlex.join(["ipexctl", *words[: script - 1], "--", words[script - 1], *args])
        reasons = ["nothing was started; options of the script itself:", left]
        raise UsageError(warning, reasons=reasons, hint=shlex.join(["ipexctl", *better]))
    return [Hint(better, f"{warning}:")]


_STARTS_NOTHING = frozenset(("--dry-run", "--emit", "--check", "--help"))


def _list_options_not_given(ctx: typer.Context) -> dict[str, bool]:
    """Returns each name of the command's options but for those of this command line, and whether it takes a value."""
    sources = {param: getattr(ctx.get_parameter_source(param.name or ""), "name", "") for param in ctx.command.params}
    return {
        name: not getattr(param, "is_flag", True)
        for param in (param for param, source in sources.items() if source != "COMMANDLINE")
        for name in (*param.opts, *param.secondary_opts)
        if name.startswith("-")
    }


def _move_options(before: Sequence[str], args: Sequence[str], own: Mapping[str, bool]) -> list[str]:
    """Returns the words of the line that gives ``own`` options among ``args`` to this command; the last word ``before``
    them is the script."""
    moved: list[str] = []
    left: list[str] = []
    for word in args:
        is_value = bool(moved) and own.get(moved[-1], False)
        is_meant = is_value or word in ("--check", "--help") or word.partition("=")[0] in own
        (moved if is_meant else left).append("--dry-run" if word == "--check" else word)
    return [*before[:-1], *moved, before[-1], *left]


@command(app, "hosts", contacts=False, examples=("", "-f cluster.yaml --as mpi", "--hosts node[01-16] --json"))
def hosts_(context: Context, hosts: HostSelection, flags: options.HostsFlags) -> Workflow:
    """Print the hosts as they were read: a linter and a converter. Contacts nobody."""
    from ipexctl.verbs.hosts import hosts as show_hosts

    return show_hosts(hosts.read_inventory(), machine_file=flags.as_ == "mpi")  # type: ignore[return-value]


@command(app, "du", examples=("", "--prune --older-than 30d"))
def du(context: Context, hosts: HostSelection, flags: options.UsageFlags) -> Workflow:
    """Measure what ipexctl takes on the hosts and here. Remove old projects and wheels."""
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.files.usage import make_no_age_error, show_usage

    inventory = hosts.read_inventory()
    if not flags.prune and (flags.older_than or flags.yes):
        raise UsageError("--older-than and --yes need --prune")
    if flags.prune and not flags.older_than:
        raise make_no_age_error(inventory)
    return show_usage(inventory, context, older_than=flags.older_than, dry=not flags.yes)


stacks_app = typer.Typer(name="stacks", invoke_without_command=True)
wheels_app = typer.Typer(
    name="wheels", cls=CommandGroup, no_args_is_help=True, help="Wheels for hosts without internet access."
)
app.add_typer(stacks_app)
app.add_typer(wheels_app)


@command(stacks_app, examples=("", "--for-torch 2.8.0", "--for-hosts --hosts node0,node1"))
def stacks(context: Context, hosts: HostSelection, flags: options.StacksFlags) -> Workflow:
    """Print the version table: which versions fit together."""
    from ipexctl.verbs.install.list_releases import stacks

    return stacks(torch=flags.for_torch, inventory=hosts.read_inventory() if flags.for_hosts else None, context=context)


@command(stacks_app, "why", examples=("--torch 2.8.0", "--track ipex --python 3.9"))
def stacks_why(flags: options.WhyFlags) -> Workflow:
    """Explain why a combination is chosen or refused."""
    from ipexctl.model.stack import StackRequest
    from ipexctl.verbs.install.list_releases import stacks_why

    return stacks_why(StackRequest(**vars(flags)))


@command(app, "uninstall", acting=True, examples=("--dry-run", "--limit node1"))
def uninstall(context: Context, hosts: HostSelection, task: Uninstall, flags: options.DryRunFlags) -> Workflow:
    """Remove what install made on all hosts, and nothing else."""
    from ipexctl.verbs.install.uninstall import uninstall

    return uninstall(task, hosts.read_inventory(), context, dry=flags.dry_run)


@command(wheels_app, "fetch", acting=True, examples=("wheels --dry-run", "wheels --torch 2.8.0 --python 3.11"))
def wheels_fetch(context: Context, task: Wheels, flags: options.DryRunFlags) -> Workflow:
    """Download the wheels of one release into a local directory. install --wheels then needs no index."""
    from ipexctl.verbs.install.wheels import wheels_fetch

    return wheels_fetch(task, context, dry=flags.dry_run)


@command(app, "exec", script=True, examples=("-- uptime", "--limit node[1-3] 'df -h /data | tail -1'"))
def exec_(context: Context, hosts: HostSelection, task: Execute, flags: options.DryRunFlags) -> Workflow:
    """Run one command on all hosts. Hosts with the same output share an entry; a single word is a line for sh."""
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.play.execute import execute, search_environment

    words = ("/bin/sh", "-c", *task.argv) if len(task.argv) == 1 else task.argv
    try:
        inventory = hosts.read_inventory()
    except UsageError as error:
        own = [word for word in hosts.words[: -len(task.argv)] if word != "--"]
        first, *rest = map(shutil.which, task.argv[:2])
        if error.code == "no-hosts" and first is None and any(rest):
            error.hint = shlex.join(["ipexctl", *own, "--hosts", task.argv[0], "--", *task.argv[1:]])
        raise
    task = replace(task, argv=words)
    return execute(task, inventory, context, dry=flags.dry_run, verb="exec", prepare=search_environment)


@command(app, "shell", script=True, without="limit", examples=("node1", "node1 -- htop"))
def shell(hosts: HostSelection, flags: options.ShellFlags, output: OutputOptions) -> int:
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
def forward(context: Context, hosts: HostSelection, flags: options.ForwardFlags) -> Workflow:
    """Bring a port of one host to this machine, until Ctrl-C. Only programs on this machine can connect."""
    from ipexctl.decide.parsing.amounts import parse_ports
    from ipexctl.verbs.shell import forward

    return forward(hosts.read_host(flags.host), *parse_ports(flags.ports), context)
