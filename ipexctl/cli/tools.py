"""Beside the main job: a lab on this machine, Accelerate's configuration, measurements, and the way from IPEX."""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.command import HostSelection, command
from ipexctl.cli.usage_errors import CommandGroup

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli.options import AccelerateFlags, DemoFlags, DryRunFlags, LabFlags, MigrateFlags
    from ipexctl.loop import Workflow
    from ipexctl.model.tasks import Bench

app = typer.Typer()
lab_app = typer.Typer(
    name="lab",
    cls=CommandGroup,
    no_args_is_help=True,
    help="A small cluster on this machine: real SSH servers on loopback.",
)
accelerate_app = typer.Typer(
    name="accelerate",
    cls=CommandGroup,
    no_args_is_help=True,
    help="Hugging Face Accelerate: its configuration for these hosts.",
)
app.add_typer(lab_app)
app.add_typer(accelerate_app)


@command(lab_app, "up", examples=("", "--hosts 4"))
def lab_up(context: Context, flags: LabFlags) -> Workflow:
    """Start the lab: SSH servers on loopback, a hostfile, keys."""
    from ipexctl.verbs.lab import up

    return up(flags.hosts, context.state / "lab")


@command(lab_app, "down", examples=("", "--json"))
def lab_down(context: Context) -> Workflow:
    """Stop the lab and everything that was started in it."""
    from ipexctl.verbs.lab import down

    return down(context.state / "lab")


@command(lab_app, "status", examples=("", "--json"))
def lab_status(context: Context) -> Workflow:
    """Print which hosts of the lab are up."""
    from ipexctl.verbs.lab import status

    return status(context.state / "lab")


@command(lab_app, "demo", acting=True, examples=("", "--stack ipex", "--hosts 3 --keep"))
def lab_demo(context: Context, flags: DemoFlags) -> Workflow:
    """Train on an embedded cluster on this machine. Lab up, doctor, install, sync, run, lab down."""
    from ipexctl.verbs.demo import demo

    return demo(flags.hosts, flags.stack, context, os.environ, keep=flags.keep)


@command(
    accelerate_app, "config", examples=("--file default_config.yaml", "--hosts node0,node1 --accelerate-version 1.10.0")
)
def accelerate_config(context: Context, hosts: HostSelection, flags: AccelerateFlags) -> Workflow:
    """Write Accelerate's default_config.yaml for these hosts. It is what `accelerate config` would write."""
    from ipexctl.decide.launch.accelerate import AccelerateConfig
    from ipexctl.model.json_values import select_attributes
    from ipexctl.verbs.accelerate import accelerate_config

    config = AccelerateConfig(
        precision=flags.precision,
        ipex=not flags.no_ipex,
        port=flags.port,
        hostfile=flags.mpirun_hostfile or "",
        workers=flags.ccl_workers,
    )
    placed = select_attributes(flags, "n", "ppn", "venv", "file")
    return accelerate_config(config, hosts.read_inventory(), context, version=flags.accelerate_version, **placed)


@command(app, "bench", acting=True, examples=("bert", "--size tiny --mode infer --no-cluster", "--dry-run"))
def bench(context: Context, hosts: HostSelection, task: Bench, flags: DryRunFlags) -> Workflow:
    """Measure BERT on the hosts, in fp32 and bf16. By stock torch, torch.compile and IPEX, as one study."""
    from ipexctl.verbs.bench import bench

    return bench(task, hosts.read_inventory(), context, os.environ, dry=flags.dry_run)


def _allow_options_behind(words: list[str], ctx: typer.Context) -> list[str]:
    """Words behind the script are its own only where --compare before it starts it."""
    ctx.allow_interspersed_args = "--compare" not in takewhile(lambda word: not Path(word).is_file(), words)
    return words


@command(
    app,
    "migrate",
    acting=lambda flags: flags.compare,
    script=True,
    expand=_allow_options_behind,
    examples=("train.py", "--compare --native-venv ~/native train.py --epochs 1"),
)
def migrate(context: Context, hosts: HostSelection, flags: MigrateFlags) -> Workflow:
    """List what a script uses of IPEX, oneCCL and Accelerate. Beside each stands its replacement."""
    from ipexctl.model.errors import UsageError
    from ipexctl.model.hints import advise
    from ipexctl.verbs.migrate import ComparedRuns, migrate

    if not flags.compare:
        needless = {
            "--migrated": flags.migrated,
            "--ipex-venv": flags.ipex_venv,
            "--native-venv": flags.native_venv,
            " ".join(map(repr, flags.args)): flags.args,
        }
        if given := [name for name, value in needless.items() if value]:
            reasons = ["without it, migrate reads one file, and starts nothing"]
            hint = advise("migrate", flags.script)
            raise UsageError(f"{', '.join(given)}: only with --compare", reasons=reasons, hint=hint)
        return migrate(flags.script, None, context, os.environ)
    if flags.native_venv is None:
        raise UsageError(
            "--compare needs two environments: the one without IPEX is --native-venv",
            hint=advise(
                "install",
                "--track",
                "native",
                "--venv",
                "/opt/native",
                text="an install makes it:",
            ),
        )
    inventory, script = hosts.read_inventory(), flags.migrated or flags.script
    comparison = ComparedRuns(inventory, script, flags.ipex_venv, flags.native_venv, flags.ppn, flags.args)
    return migrate(flags.script, comparison, context, os.environ)
