"""After IPEX, and how fast: ``migrate`` and ``bench``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.command import HostSelection, command

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.cli.options import DryRunFlags, MigrateFlags
    from ipexctl.loop import Workflow
    from ipexctl.model.tasks import Bench

app = typer.Typer()


@command(
    app,
    "bench",
    acting=True,
    examples=("ipexctl bench bert", "ipexctl bench --size tiny --mode infer --no-cluster", "ipexctl bench --dry-run"),
)
def bench(context: Context, hosts: HostSelection, task: Bench, flags: DryRunFlags) -> Workflow:
    """Measure BERT on the hosts, in fp32 and bf16. With stock torch, torch.compile and IPEX."""
    from ipexctl.verbs.bench import bench

    return bench(task, hosts.inventory(), context, os.environ, dry=flags.dry_run)


@command(
    app,
    "migrate",
    acting=lambda flags: flags.compare,
    script=True,
    examples=("ipexctl migrate train.py", "ipexctl migrate --compare --native-venv ~/native train.py --epochs 1"),
)
def migrate(context: Context, hosts: HostSelection, flags: MigrateFlags) -> Workflow:
    """List what a script uses of IPEX, oneCCL and Accelerate. Beside each stands its replacement."""
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.migrate import Comparison, migrate

    if not flags.compare:
        needless = {
            "--migrated": flags.migrated,
            "--ipex-venv": flags.ipex_venv,
            "--native-venv": flags.native_venv,
            "arguments": flags.args,
        }
        if given := [name for name, value in needless.items() if value]:
            raise UsageError(f"{', '.join(given)}: only with --compare", hint="nothing is run without it")
        return migrate(flags.script, None, context, os.environ)
    if flags.native_venv is None:
        raise UsageError(
            "--compare needs two environments: the one without IPEX is --native-venv",
            hint="ipexctl install --track native --torch 2.13.0 --venv PATH",
        )
    comparison = Comparison(
        hosts.inventory(), flags.migrated or flags.script, flags.ipex_venv, flags.native_venv, flags.ppn, flags.args
    )
    return migrate(flags.script, comparison, context, os.environ)
