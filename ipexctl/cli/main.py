"""The program ``ipexctl``: all commands together."""

import os
from getpass import getuser
from typing import Annotated

import typer

from ipexctl import __version__
from ipexctl.act.root_home import switch_to_root_home
from ipexctl.cli import job, play, runs, tools
from ipexctl.cli.command_options import VERBOSITY
from ipexctl.cli.help_page import LongHelp
from ipexctl.cli.usage_errors import RootGroup

app = typer.Typer(
    name="ipexctl",
    cls=RootGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train PyTorch on your Xeon and EPYC hosts over SSH, with a real mpirun.",
    epilog="Exit codes: 0 done, 2 input, 3 unreachable, 4 step, 5 rank, 6 lost or limit, 7 busy, 8 left over, "
    "9 not stored, 70 bug, 130 interrupted",
)
for group in (job, play, runs, tools):
    app.add_typer(group.app)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ipexctl {__version__}")
        raise typer.Exit


@app.callback()
def _root_callback(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "-v",
            "--verbose",
            show_default=False,
            help="Print what is executed on hosts; -vv: the debug.log.",
            **VERBOSITY,
        ),
    ] = 0,
    help_all: LongHelp = False,
) -> None:
    pass


def main() -> None:
    """The console script. Wrong flags end with code 2, as all wrong input does."""
    if home := switch_to_root_home(os.environ, os.geteuid()):
        typer.echo(f"under sudo, settings, keys and saved runs are root's, in {home}", err=True)
    try:
        getuser()
    except (KeyError, OSError):  # a container was started with a number that its /etc/passwd does not have
        os.environ["LOGNAME"] = os.environ["USER"] = f"uid{os.geteuid()}"
    try:
        app(prog_name="ipexctl")
    except Exception as error:  # a fault of ours before the loop
        from ipexctl.loop import end_with_error

        raise SystemExit(int(end_with_error(error))) from None
