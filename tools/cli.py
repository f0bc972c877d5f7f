"""Writes docs/cli.md: what ``ipexctl COMMAND --help`` says, all commands on one page. A test holds the page to it.

.venv/bin/python tools/cli.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from ipexctl.cli import app

PAGE = Path(__file__).parents[1] / "docs/cli.md"
_WIDTH = 110
_TOP = """\
# The command line

All commands with all flags, as `ipexctl COMMAND --help` prints them: this page is written by `tools/cli.py`
from the same text.

The flag `--install-completion` teaches your shell (bash, zsh, fish) to complete commands, flags, hosts of the
hostfile, steps of the playbook and runs; `--show-completion` only prints what that would be.
"""


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command, the groups before what is in them."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


def shown(command: Any, path: str) -> str:
    context = command.context_class(command, info_name=path, terminal_width=_WIDTH, max_content_width=_WIDTH)
    return "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())


def page() -> str:
    """The whole text of docs/cli.md."""
    parts = [_TOP]
    for path, command in commands(typer.main.get_command(app), "ipexctl"):
        parts.append(f"## {path}\n\n```text\n{shown(command, path)}\n```\n")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
