"""Writes docs/cli.md, the help of all commands on one page, the tables of keys in docs/playbook.md and the man page.
Tests hold all of them to the help.

.venv/bin/python tools/cli.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import typer.main

from ipexctl.cli import app
from ipexctl.cli.command_options import Option, read_options
from ipexctl.cli.help_page import list_every_option
from ipexctl.model import tasks

PLAYBOOK = Path(__file__).parents[1] / "docs/playbook.md"
PAGE = Path(__file__).parents[1] / "docs/cli.md"
_WIDTH = 78  # of a terminal of 80 columns
_TOP = """\
# The command line

All commands with all flags, word for word as `ipexctl COMMAND --help-all` prints them on 80 columns (`--help` has
those that most people need): `tools/cli.py` writes this page.

The flag `--install-completion` teaches your shell (bash, zsh, fish) to complete commands, flags and saved runs;
`--show-completion` only prints what that would be.
"""


def contexts(command: Any, name: str, parent: Any = None) -> Iterator[Any]:
    """Every command as it is called, the groups before what is in them."""
    settings = {"terminal_width": _WIDTH, **command.context_settings}
    context = command.context_class(command, info_name=name, parent=parent, **settings)
    list_every_option(context)
    yield context
    for inner, sub in getattr(command, "commands", {}).items():
        if not sub.hidden:
            yield from contexts(sub, inner, context)


def shown(context: Any) -> str:
    return "\n".join(line.rstrip() for line in context.get_help().strip().splitlines())


def page() -> str:
    """The whole text of docs/cli.md."""
    parts = [_TOP]
    for context in contexts(typer.main.get_command(app), "ipexctl"):
        parts.append(f"## {context.command_path}\n\n```text\n{shown(context)}\n```\n")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts))


def value_of(option: Option) -> str:
    """What a key takes."""
    kinds = [kind for kind in get_args(option.type) if kind is not NoneType]
    kind = kinds[0] if NoneType in get_args(option.type) else option.type
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    words: dict[Any, str] = {tuple: "list", dict: "mapping", bool: "`true` or `false`", int: "number", float: "time"}
    return words.get(get_origin(kind) or kind, "text")


def key_table(task: Any) -> str:
    """The keys of a step as a table."""
    rows = ["| key | value | meaning |", "| --- | --- | --- |"]
    own = task.__annotations__ if issubclass(task, tasks.Tune) else None  # its others are those of run
    for option in read_options(task):
        if own is not None and option.name not in own:
            continue
        text = option.help_text.replace("; repeatable", "").replace("|", "\\|").replace("<", "&lt;")
        required = " Required." if option.default is Parameter.empty else ""
        rows.append(f"| `{option.key}` | {value_of(option)} | {text}{required} |")
    return "\n".join(rows)


def playbook_page(text: str) -> str:
    """docs/playbook.md with the tables of keys that the tasks have now."""
    actions = {"command": tasks.Execute} | {name: getattr(tasks, name.title()) for name in
               ("doctor", "install", "sync", "run", "fetch", "bench", "tune")}  # fmt: skip
    for action, task in actions.items():
        table = re.compile(rf"(\n### {action}\n(?:[^|#\n].*\n|\n)*)(?:\|.*\n)+")
        match = table.search(text)
        assert match, action
        text = f"{text[: match.end(1)]}{key_table(task)}\n{text[match.end() :]}"
    return text


if __name__ == "__main__":
    PLAYBOOK.write_text(playbook_page(PLAYBOOK.read_text("utf-8")), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    subprocess.run([sys.executable, Path(__file__).with_name("man.py")], check=True)
