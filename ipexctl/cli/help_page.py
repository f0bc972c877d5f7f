"""The help of a command: its examples first, then the options most people need on one screen; --help-all has the rest.

A field's `Flag.advanced` decides where an option is listed. docs/cli.md and the man page list all of them."""

from __future__ import annotations

import re
from inspect import Parameter
from textwrap import wrap
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_FIRST, _LAST = ("Options", "Hosts"), ("Output", "Connection")  # sections of the help; the others stand between
_MIN_TEXT_COLUMNS = 20  # columns that a text has at least
_TEXT_COLUMN = 32  # where the texts of a short help begin at the latest
_ALL_OPTIONS = "ipexctl.help.every"  # in a context's ``meta``: advanced options are listed too


def list_every_option(ctx: Any) -> None:
    """Makes the help of this context the long one."""
    ctx.meta[_ALL_OPTIONS] = True


def _print_long_help(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        list_every_option(ctx)
        typer.echo(ctx.get_help())
        ctx.exit()


LongHelp = Annotated[
    bool,
    typer.Option(
        "--help-all",
        callback=_print_long_help,
        is_eager=True,
        show_default=False,
        rich_help_panel="Output",
        help="Show this help with all options and exit.",
    ),
]
LONG_HELP = Parameter("help_all", Parameter.KEYWORD_ONLY, default=False, annotation=LongHelp)

# The commands as the help of the program lists them, by what one does with them.
COMMANDS: dict[str, tuple[str, ...]] = {
    "Hosts": ("init", "hosts", "du", "doctor", "install", "sync", "fetch", "exec", "shell", "forward", "uninstall"),
    "Runs": ("run", "play", "tune", "bench", "ps", "attach", "watch", "logs", "stop"),
    "Saved runs": ("runs", "report", "replay", "profile", "support"),
    "Other": ("examples", "stacks", "wheels", "migrate", "accelerate", "lab"),
}
_PROGRAM_EXAMPLES = ("ipexctl doctor --hosts node0,node1", "ipexctl run -f hostfile train.py")


def write_program_help(command: Any, ctx: Any, formatter: Any) -> None:
    """The help of the program: examples, its commands in groups, the exit codes; its options with --help-all only."""
    formatter.write_usage(ctx.command_path, "[OPTIONS] COMMAND [ARGS]...")
    command.format_help_text(ctx, formatter)
    formatter.write("\nExamples:\n" + "".join(f"  {line}\n" for line in _PROGRAM_EXAMPLES))
    helps = {
        name: f"{each.help.split('. ')[0].splitlines()[0].rstrip('.')}." for name, each in command.commands.items()
    }
    _write_groups({title: [(name, helps[name]) for name in names] for title, names in COMMANDS.items()}, formatter)
    if every := ctx.meta.get(_ALL_OPTIONS, False):
        with formatter.section("Options"):
            formatter.write_dl([param.get_help_record(ctx) for param in command.get_params(ctx)])
        formatter.write_paragraph()
    lines = wrap(command.epilog, formatter.width, subsequent_indent="  ", break_on_hyphens=False)
    lines += [] if every else [f"All options: {ctx.command_path} --help-all"]
    formatter.write("\n".join(lines) + "\n")


class HelpPage:
    """The part of a command's class that writes its help. The class has ``examples``; ``advanced`` names options."""

    def help_sections(self: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Title → names and help of its arguments or options, in the order of the help."""
        every = ctx.meta.get(_ALL_OPTIONS, False)
        sections: dict[str, list[Any]] = {"Arguments": [], **{heading: [] for heading in _FIRST}}
        for param in self.get_params(ctx):
            if not every and (param.name in self.advanced or param.name in ("help", "help_all")):
                continue
            names, text = param.get_help_record(ctx)
            if param.param_type_name == "argument":
                sections["Arguments"].append((re.sub(r"[][]", "", param.metavar), param.help))
            else:
                heading = "Output" if param.name == "help" else param.rich_help_panel or "Options"
                sections.setdefault(heading, []).append((names, _describe_range(text) if every else param.help))
        headings = sorted(sections, key=lambda heading: _LAST.index(heading) if heading in _LAST else -1)
        return {heading: sections[heading] for heading in headings if sections[heading]}

    def format_usage(self: Any, ctx: Any, formatter: Any) -> None:
        arguments = (param.metavar for param in self.get_params(ctx) if param.param_type_name == "argument")
        group = ["COMMAND [ARGS]..."] if isinstance(self, TyperGroup) else []
        formatter.write_usage(ctx.command_path, " ".join(["[OPTIONS]", *arguments, *group]))

    def format_help_text(self: Any, ctx: Any, formatter: Any) -> None:
        super().format_help_text(ctx, formatter)  # type: ignore[misc]
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        sections = self.help_sections(ctx)
        if ctx.meta.get(_ALL_OPTIONS, False):
            for heading, records in sections.items():
                with formatter.section(heading):
                    formatter.write_dl(records)
        else:
            _write_short_sections(sections, formatter)
        if isinstance(self, TyperGroup):
            self.format_commands(ctx, formatter)

    def format_epilog(self: Any, ctx: Any, formatter: Any) -> None:
        if self.advanced and not ctx.meta.get(_ALL_OPTIONS, False):
            formatter.write(f"\nAll options: {ctx.command_path} --help-all\n")


def _write_short_sections(sections: dict[str, list[tuple[str, str]]], formatter: Any) -> None:
    """One line for each option, in one column; a group of one option stands among the general ones."""
    groups = dict(sections)
    single = [name for name, records in groups.items() if len(records) == 1 and name not in ("Arguments", "Hosts")]
    general = [*groups.pop("Options", []), *(groups.pop(name)[0] for name in single if name != "Options")]
    first = {name: groups.pop(name) for name in ("Arguments",) if name in groups}
    formatter.write_paragraph()
    _write_groups(first | ({"Options": general} if general else {}) | groups, formatter)


def _write_groups(groups: dict[str, list[tuple[str, str]]], formatter: Any) -> None:
    """A heading and its records for each group; the texts of all begin in one column."""
    longest = max(len(names) for records in groups.values() for names, _ in records)
    column = min(2 + longest, _TEXT_COLUMN, max(formatter.width - _MIN_TEXT_COLUMNS - 2, 2))
    for heading, records in groups.items():
        formatter.write_heading(heading)
        formatter.indent()
        for names, text in records:
            indent = formatter.current_indent
            hang = indent + max(column, len(names) + 2)
            below = formatter.width - hang < _MIN_TEXT_COLUMNS  # behind many choices
            hang = indent + column if below else hang
            room, newline = max(formatter.width - hang, _MIN_TEXT_COLUMNS), "\n" + " " * hang
            lines = [*([""] if below else []), *wrap(shorten_help(text, room), room)]
            line = f"{'':{indent}}{f'{names}  ':{column}}"
            formatter.write(f"{line.rstrip() if below else line}{newline.join(lines)}\n")
        formatter.dedent()


def shorten_help(line: str, width: int) -> str:
    """Returns the help if it fits into the width, else as many of its first clauses as do, but at least one."""
    cuts = [mark.start() for mark in re.finditer(r"[;:,] | \(default: ", line)]
    listing = re.search(r": |$", line).start()  # type: ignore[union-attr]  # the end matches; commas behind it part a list
    cuts = [cut for cut in cuts if line[cut] != "," or cut < listing]
    clauses = [f"{line[:cut]}." for cut in cuts if line.count("(", 0, cut) == line.count(")", 0, cut)]
    bare = re.sub(r"[ ;]+\(?default: [^()]*\)\.$", ".", line)  # without the default behind it
    forms = sorted({line, bare, *clauses}, key=len, reverse=True)
    return next((form for form in forms if len(form) <= width), forms[-1])


def _describe_range(text: str) -> str:
    """Returns the bounds of a number, behind its help, in words."""
    text = re.sub(r"  \[(\S+)<=x<=(\S+)\]$", r"  [\1 to \2]", text)
    return re.sub(r"  \[x>=(\S+)\]$", r"  [at least \1]", text)
