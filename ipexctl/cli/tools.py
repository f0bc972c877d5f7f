"""Beside the main job: a lab on this machine, Accelerate's configuration, measurements, and the way from IPEX."""

from __future__ import annotations

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

    return demo(flags.hosts, flags.stack, context, keep=flags.keep)


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

    return bench(task, hosts.read_inventory(), context, dry=flags.dry_run)


@command(app, "migrate", examples=("train.py", "train.py --json"))
def migrate(flags: MigrateFlags) -> Workflow:
    """List what a script uses of IPEX, oneCCL and Accelerate. Beside each stands its replacement."""
    from ipexctl.verbs.migrate import migrate

    return migrate(flags.script)
