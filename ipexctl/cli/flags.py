"""Flags that several commands share, and the way from flags to a task and its verb."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import Enum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.models import ArgumentInfo

from ipexctl.cli import completion

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.loop import OutputOptions, Workflow
    from ipexctl.model.hosts import Inventory


class Screen(str, Enum):
    auto = "auto"
    live = "live"
    plain = "plain"
    json = "json"


class Dialect(str, Enum):
    mpi = "mpi"
    openmpi = "openmpi"
    deepspeed = "deepspeed"
    ansible = "ansible"
    accelerate = "accelerate"


class Track(str, Enum):
    ipex = "ipex"
    native = "native"


class Backend(str, Enum):
    auto = "auto"
    ccl = "ccl"
    impi = "impi"
    gloo = "gloo"


class Stall(str, Enum):
    report = "report"
    kill = "kill"


class Launcher(str, Enum):
    script = "script"
    module = "module"
    accelerate = "accelerate"


class Allocator(str, Enum):
    auto = "auto"
    tcmalloc = "tcmalloc"
    jemalloc = "jemalloc"
    default = "default"


class OpenMP(str, Enum):
    auto = "auto"
    intel = "intel"
    gnu = "gnu"


class Emit(str, Enum):
    sh = "sh"
    sbatch = "sbatch"
    torchrun = "torchrun"
    accelerate = "accelerate"
    ansible = "ansible"
    pytorchjob = "pytorchjob"


class Pairwise(str, Enum):
    auto = "auto"
    all = "all"
    off = "off"


class Transfer(str, Enum):
    auto = "auto"
    tar = "tar"
    rsync = "rsync"


class WheelsFrom(str, Enum):
    auto = "auto"
    controller = "controller"
    hosts = "hosts"


Hostfile = Annotated[
    str | None,
    typer.Option("--hostfile", "-f", help="Hostfile or inventory (else $IPEXCTL_HOSTFILE, ./hostfile)."),
]
Hosts = Annotated[
    str | None,
    typer.Option("--hosts", help="Hosts themselves: a,b,node[01-16]; or slurm: this allocation."),
]
Limit = Annotated[
    str | None,
    typer.Option(
        "--limit",
        "-l",
        help="Only these: names, groups, globs, ranges, !exclusions, @failed.",
        autocompletion=completion.limit,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Only the answer, as one JSON document.")]
Output = Annotated[
    Screen,
    typer.Option("--output", "-o", help="live on a terminal, plain elsewhere, json: one object per event."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Look at the hosts, print exactly what would be done, do nothing.")
]
AcceptNew = Annotated[
    bool,
    typer.Option("--accept-new-host-keys", help="Record the keys of hosts never seen before."),
]
Timeout = Annotated[float, typer.Option("--connect-timeout", min=0.1, help="Seconds to connect and log in.")]
Forks = Annotated[int, typer.Option("--forks", min=1, help="Hosts worked on at once.")]
AskPass = Annotated[bool, typer.Option("--ask-pass", help="Ask for the passphrase of an identity file.")]


Venv = Annotated[str | None, typer.Option(help="Environment on the hosts (else the installed one).")]
TrackFlag = Annotated[Track | None, typer.Option(help="ipex (ends at 2.8.0) or native (plain torch).")]
Torch = Annotated[str | None, typer.Option(help="This torch version.")]
Ipex = Annotated[str | None, typer.Option(help="This intel_extension_for_pytorch version.")]
Oneccl = Annotated[str | None, typer.Option(help="This oneccl_bind_pt version.")]
BackendFlag = Annotated[Backend, typer.Option(help="Collectives: ccl needs oneccl_bind_pt, impi torch 2.6.")]
IndexUrl = Annotated[str | None, typer.Option(help="Package index instead of the default one.")]
ExtraIndexUrl = Annotated[list[str] | None, typer.Option(help="A further package index.")]
FindLinks = Annotated[list[str] | None, typer.Option(help="A further directory or page with wheels.")]
Requirements = Annotated[
    list[str] | None, typer.Option("--requirements", "-r", help="Requirements file, resolved with the row.")
]
With = Annotated[list[str] | None, typer.Option("--with", help="Requirement, such as 'transformers<4.53'.")]


def _where(hostfile: Hostfile = None, hosts: Hosts = None, limit: Limit = None) -> None:
    """Which hosts."""


def _talk(
    json: Json = False,
    output: Output = Screen.auto,
    accept_new: AcceptNew = False,
    connect_timeout: Timeout = 10.0,
    forks: Forks = 32,
    ask_pass: AskPass = False,
) -> None:
    """How we speak, with hosts and with the user."""


def on_hosts(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command that takes ``**common`` the flags of all that work on hosts: which ones behind its arguments, how
    to talk behind its own options. Typer reads them from the signature."""
    own = [one for one in _parameters(command) if one.kind is not Parameter.VAR_KEYWORD]
    first = [one for one in own if one.default is Parameter.empty or _is_argument(one)]
    every = [*first, *_parameters(_where), *(one for one in own if one not in first), *_parameters(_talk)]

    @wraps(command)
    def whole(*given: Any, **values: Any) -> None:
        command(*given, **values)

    whole.__signature__ = Signature(every)  # type: ignore[attr-defined]
    whole.__annotations__ = {one.name: one.annotation for one in every}
    return whole


def _is_argument(one: Parameter) -> bool:
    return any(isinstance(word, ArgumentInfo) for word in get_args(one.annotation))


def _parameters(function: Callable[..., None]) -> list[Parameter]:
    return list(signature(function, eval_str=True).parameters.values())


def how(values: dict[str, Any]) -> OutputOptions:
    """How the command connects and speaks."""
    from ipexctl.loop import OutputOptions

    return OutputOptions(
        output=values["output"].value,
        json=values["json"],
        raw=values.get("raw", False),
        accept_new=values.get("accept_new", False),
        connect_timeout=values.get("connect_timeout", 10.0),
        forks=values.get("forks", 32),
        ask_pass=values.get("ask_pass", False),
        label="host" if values.get("label_hosts") else "rank",
        detachable=values.get("detachable", False),
        bare=values.get("bare", False),
        only=values.get("only", ""),
    )


def task(kind: str, values: dict[str, Any]) -> Any:
    """The task of these flags. Flags that are no field of it say how to talk, or which hosts."""
    from pydantic import ValidationError

    from ipexctl.model import tasks
    from ipexctl.model.errors import UsageError
    from ipexctl.model.said import said

    model = getattr(tasks, kind)
    fields = {
        name: value.value if isinstance(value, Enum) else value
        for name, value in values.items()
        if name in model.model_fields and value is not None
    }
    try:
        return model(**fields)
    except ValidationError as error:
        reasons = [
            f"--{'.'.join(map(str, each['loc'])).replace('_', '-')} {said(each)}, not {each['input']!r:.80}"
            for each in error.errors(include_url=False)
        ]
        raise UsageError("the options cannot be used", reasons=reasons) from None


def inventory(values: dict[str, Any]) -> Inventory:
    """The hosts these flags name; what should be said about the file goes into ``values``. Raises `UsageError`."""
    from ipexctl.loop import state_directory
    from ipexctl.verbs.common.select import select

    found = select(
        hostfile=values["hostfile"],
        hosts=values["hosts"],
        limit=values["limit"],
        environ=os.environ,
        cwd=Path.cwd(),
        runs=state_directory() / "runs",
    )
    values["warnings"] = found.warnings
    return found


def perform(tell: Callable[[Context], Workflow], values: dict[str, Any], *, acting: bool = False) -> None:
    """Tells the story, with what is to be said about the hostfile, and ends the program with its code."""
    from ipexctl import loop

    def warned(context: Context) -> Workflow:
        from ipexctl.model.events import Message

        story = tell(context)
        yield next(story)
        yield from (Message(text, "warning") for text in values.get("warnings", ()))
        return (yield from story)

    raise typer.Exit(int(loop.run_command(warned, how(values), acting=acting)))


def pairs(flag: str, words: list[str]) -> dict[str, str]:
    """The NAME=value words of a flag as a mapping. Raises `UsageError`."""
    from ipexctl.model.errors import UsageError
    from ipexctl.model.text import printable

    bad = [f"'{printable(word)}'" for word in words if not word.partition("=")[0] or "=" not in word]
    if bad:
        raise UsageError(f"{flag} takes NAME=value, not {', '.join(bad)}")
    return dict(word.split("=", 1) for word in words)


def confirm(question: str) -> bool:
    """Asks on the terminal; no answer is no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def answer(question: str, default: str, why: str, choices: tuple[str, ...]) -> str:
    """Asks on the terminal, with what an empty answer means. Raises `Interrupted` where the input has ended."""
    from ipexctl.model.errors import Interrupted
    from ipexctl.model.text import printable

    said = f" [{'/'.join(choices)}]" if choices else ""
    print(f"{question}{said}{f'  ({printable(why, 160)})' if why else ''}", file=sys.stderr)
    print(f"  [{printable(default)}] " if default else "  ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise Interrupted
    return line.strip()
