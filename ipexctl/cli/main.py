"""The program ``ipexctl``: all commands together."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ipexctl import __version__
from ipexctl.cli import accelerate, job, lab, measure, play, runs, stack


def _set_verbosity(context: typer.Context, count: int) -> None:
    """``-v`` before and after a command's name add up. The level of our logger is what `DebugLog` shows."""
    logger = logging.getLogger("ipexctl")
    levels = [logging.NOTSET, logging.INFO, logging.DEBUG]
    before = levels.index(logger.level) if context.parent and logger.level in levels else 0
    logger.setLevel(levels[min(before + count, 2)])


Verbose = Annotated[
    int,
    typer.Option(
        "-v", "--verbose", count=True, expose_value=False, show_default=False, callback=_set_verbosity,
        help="Print each command executed on a host to standard error; -vv: all of debug.log.",
    ),
]  # fmt: skip


def _verbose_option() -> Any:
    """``-v`` as an option of any command, made as Typer makes options."""
    single = typer.Typer(add_completion=False)
    single.command()(_take_verbose)
    command: Any = typer.main.get_command(single)
    return command.params[0]


def _take_verbose(verbose: Verbose = 0) -> None:
    """The signature of a command that takes nothing but ``-v``."""


class Group(TyperGroup):
    """Gives every command ``-v``; wrong values are told in our words, whatever checks them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in _commands(self):
            command.params.append(_verbose_option())

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from ipexctl.model.said import said

            error.message = said({"msg": error.message})
            raise


def _commands(group: Any) -> Iterator[Any]:
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from _commands(command)
        else:
            yield command


app = typer.Typer(
    name="ipexctl",
    cls=Group,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train PyTorch on your Xeon and EPYC hosts: doctor, install, sync and run over SSH, with a real mpirun.",
    epilog="Exit codes: 0 done · 2 wrong input · 3 unreachable · 4 a step failed · 5 a rank failed"
    " · 6 lost or at a limit · 7 busy · 8 something left · 9 output not stored · 70 a bug · 130 interrupted",
)
for group in (job, play, stack, runs, lab, accelerate, measure):
    app.add_typer(group.app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"ipexctl {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Verbose = 0,
) -> None:
    pass


def main() -> None:
    """The console script. Wrong flags end with code 2, as all wrong input does."""
    gc.set_threshold(50_000, 20, 50)  # nearly all we make lives to the end: looking for what does not cost a tenth
    try:
        app(prog_name="ipexctl")
    except KeyboardInterrupt:  # before any command had begun
        raise SystemExit(130) from None
    except Exception as error:  # a fault of ours before the loop
        from ipexctl.loop import end_with_internal_error

        raise SystemExit(int(end_with_internal_error(error))) from None
