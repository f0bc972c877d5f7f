"""What Hugging Face Accelerate is told about the hosts: ``accelerate config``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipexctl.cli.flags import (
    Venv,
    inventory,
    on_hosts,
    perform,
)

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.loop import Workflow

app = typer.Typer()
accelerate_app = typer.Typer(no_args_is_help=True, help="Hugging Face Accelerate: its configuration for these hosts.")
app.add_typer(accelerate_app, name="accelerate")


class Precision(str, Enum):
    no = "no"
    fp16 = "fp16"
    bf16 = "bf16"


@accelerate_app.command("config")
@on_hosts
def accelerate_config(
    n: Annotated[int | None, typer.Option("-n", "--n", "--np", min=1, help="Ranks in all (world size).")] = None,
    ppn: Annotated[int | None, typer.Option("--ppn", min=1, help="Ranks per host.")] = None,
    precision: Annotated[Precision, typer.Option(help="Mixed precision.")] = Precision.bf16,
    no_ipex: Annotated[bool, typer.Option("--no-ipex", help="Stock torch, also where IPEX is installed.")] = False,
    port: Annotated[int, typer.Option(min=1024, max=65535, help="Rendezvous port on node0.")] = 29500,
    mpirun_hostfile: Annotated[
        str | None, typer.Option(metavar="PATH", help="Accelerate starts mpirun, with this file on node0.")
    ] = None,
    ccl_workers: Annotated[int, typer.Option(min=1, help="oneCCL worker threads per rank (with mpirun).")] = 1,
    accelerate_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Contact nobody: write it for this version of accelerate.")
    ] = None,
    venv: Venv = None,
    file: Annotated[str | None, typer.Option("--file", metavar="FILE", help="Write it there.")] = None,
    **common: Any,
) -> None:
    """Write Accelerate's default_config.yaml for these hosts. It is what `accelerate config` would write."""
    values = locals() | common

    def tell(context: Context) -> Workflow:
        from ipexctl.decide.launch.accelerate import Config
        from ipexctl.verbs.accelerate import accelerate_config as verb

        wish = Config(
            precision=precision.value, ipex=not no_ipex, port=port, hostfile=mpirun_hostfile or "", workers=ccl_workers
        )
        return verb(wish, inventory(values), context, n=n, ppn=ppn, version=accelerate_version, venv=venv, file=file)

    perform(tell, values)
