"""The configuration of Hugging Face Accelerate for the hosts: ``accelerate config``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ipexctl.cli.command import HostSelection, command

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli.options import AccelerateFlags
    from ipexctl.loop import Workflow

app = typer.Typer()
accelerate_app = typer.Typer(no_args_is_help=True, help="Hugging Face Accelerate: its configuration for these hosts.")
app.add_typer(accelerate_app, name="accelerate")


@command(
    accelerate_app,
    "config",
    examples=(
        "ipexctl accelerate config --file default_config.yaml",
        "ipexctl accelerate config --hosts node0,node1 --accelerate-version 1.10.0",
    ),
)
def accelerate_config(context: Context, hosts: HostSelection, flags: AccelerateFlags) -> Workflow:
    """Write Accelerate's default_config.yaml for these hosts. It is what `accelerate config` would write."""
    from ipexctl.decide.launch.accelerate import AccelerateConfig
    from ipexctl.verbs.accelerate import accelerate_config

    config = AccelerateConfig(
        precision=flags.precision,
        ipex=not flags.no_ipex,
        port=flags.port,
        hostfile=flags.mpirun_hostfile or "",
        workers=flags.ccl_workers,
    )
    return accelerate_config(
        config,
        hosts.inventory(),
        context,
        n=flags.n,
        ppn=flags.ppn,
        version=flags.accelerate_version,
        venv=flags.venv,
        file=flags.file,
    )
