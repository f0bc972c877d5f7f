"""Writes docs/cli.md, the help of all commands on one page, and the man page. Tests hold both to the help.

.venv/bin/python tools/cli.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from ipexctl.cli import app

PAGE = Path(__file__).parents[1] / "docs/cli.md"
_WIDTH = 78  # of a terminal of 80 columns
_TOP = """\
# The command line

All commands with all flags, word for word as `ipexctl COMMAND --help` prints them on 80 columns: `tools/cli.py`
writes this page.

The flag `--install-completion` teaches your shell (bash, zsh, fish) to complete commands, flags, hosts of the
hostfile, steps of the playbook and runs; `--show-completion` only prints what that would be.
"""


def contexts(command: Any, name: str, parent: Any = None) -> Iterator[Any]:
    """Every command as it is called, the groups before what is in them."""
    settings = {"terminal_width": _WIDTH, **command.context_settings}
    context = command.context_class(command, info_name=name, parent=parent, **settings)
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


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    subprocess.run([sys.executable, Path(__file__).with_name("man.py")], check=True)
