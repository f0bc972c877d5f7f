"""Writes docs/ipexctl.1, the man page, from the help of the commands and the table of exit codes. A test holds it.

.venv/bin/python tools/man.py           writes the page
.venv/bin/python tools/man.py --check   changes nothing; exit code 1 where the page is not what would be written
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from ipexctl import __version__
from ipexctl.cli import app
from ipexctl.cli.help_page import list_every_option

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "ipexctl.1"
_OPENING = """\
.SH NAME
ipexctl \\- train PyTorch on the CPUs of many hosts over SSH
.SH SYNOPSIS
.B ipexctl
.RI [ OPTIONS ]
.I COMMAND
.RI [ ARGUMENTS ]
"""
_ENDING = """\
.SH ENVIRONMENT
.TP
.B IPEXCTL_HOSTFILE
Hostfile to use where neither
.B \\-\\-hostfile
nor
.B \\-\\-hosts
is given (default: ./hostfile).
.TP
.B NO_COLOR
Print no colors.
.SH SEE ALSO
.BR ssh (1),
.BR ssh_config (5),
.BR mpirun (1)
"""


def escaped(text: str) -> str:
    """Text as roff reads it literally, on one line."""
    line = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def visible_commands(command: Any, path: str, parent: Any = None) -> Iterator[Any]:
    """A context for each command that the help lists, a group before its members."""
    context = command.context_class(command, info_name=path, parent=parent, **command.context_settings)
    list_every_option(context)
    yield context
    for name, member in getattr(command, "commands", {}).items():
        if not member.hidden:
            yield from visible_commands(member, name, context)


def command_section(context: Any) -> Iterator[str]:
    """The heading, usage, description and parameters of one command."""
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {escaped(context.command_path)}"
    yield f".B {escaped(context.command_path)}\n{escaped(usage)}"
    for paragraph in re.split(r"\n\s*\n", (command.help or "").replace("\b", "").strip()):
        yield f".PP\n{escaped(paragraph)}"
    sections = command.help_sections(context) if hasattr(command, "help_sections") else {}
    for title, records in sections.items():
        yield f".PP\n{title}:"
        for names, text in records:
            yield f".TP\n.B {escaped(names)}\n{escaped(text)}"
    if examples := getattr(command, "examples", ()):
        yield "\n".join([".PP\nExamples:", ".nf", *map(escaped, examples), ".fi"])


def exit_status() -> Iterator[str]:
    """The first two columns of the table in docs/exit-codes.md."""
    yield ".SH EXIT STATUS"
    for code, meaning in re.findall(r"^\| ([\d, ]+) \| ([^|]+) \|", (DOCS / "exit-codes.md").read_text("utf-8"), re.M):
        yield f".TP\n.B {code}\n{escaped(meaning)}"


def man_page() -> str:
    """The whole text of docs/ipexctl.1."""
    root, *commands = visible_commands(typer.main.get_command(app), "ipexctl")
    sections = [f'.TH IPEXCTL 1 "" "ipexctl {__version__}"', _OPENING.rstrip(), ".SH DESCRIPTION"]
    sections += [escaped(root.command.help), ".SH COMMANDS"]
    for context in commands:
        sections += command_section(context)
    return "\n".join([*sections, *exit_status(), _ENDING])


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(PAGE.read_text("utf-8") != man_page())
    PAGE.write_text(man_page(), encoding="utf-8")
