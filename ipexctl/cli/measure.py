"""After IPEX, and how fast: ``migrate`` and ``bench``."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipexctl.cli.flags import (
    DryRun,
    Venv,
    inventory,
    on_hosts,
    perform,
    task,
)

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.loop import Workflow

app = typer.Typer()


class Model(str, Enum):
    bert = "bert"


class Size(str, Enum):
    tiny = "tiny"
    small = "small"
    base = "base"


class Mode(str, Enum):
    both = "both"
    train = "train"
    infer = "infer"


@app.command()
@on_hosts
def bench(
    model: Annotated[Model, typer.Argument(help="What is measured.")] = Model.bert,
    size: Annotated[Size, typer.Option(help="Of the model; base is bert-base-uncased.")] = Size.small,
    mode: Annotated[Mode, typer.Option(help="Training, inference, or both.")] = Mode.both,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step, on each host.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are measured; their median counts.")] = 10,
    compile: Annotated[bool, typer.Option("--compile/--no-compile", help="torch.compile, too: it needs g++.")] = True,
    cluster: Annotated[bool, typer.Option("--cluster/--no-cluster", help="Training on all hosts at once, too.")] = True,
    venv: Venv = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw it into this SVG file.")] = None,
    time_limit: Annotated[float, typer.Option(min=0.1, help="End a measurement after so many seconds.")] = 3600.0,
    dry_run: DryRun = False,
    **common: Any,
) -> None:
    """Measure BERT on the hosts, in fp32 and bf16. With stock torch, torch.compile and IPEX."""
    values = locals() | common

    def tell(context: Context) -> Workflow:
        from ipexctl.verbs.bench import bench as verb

        return verb(task("Bench", values), inventory(values), context, os.environ, dry=dry_run)

    perform(tell, values, acting=not dry_run)


@app.command(context_settings={"allow_interspersed_args": False})
@on_hosts
def migrate(
    script: Annotated[str, typer.Argument(help="The script, shell file or configuration, here. It is not run.")],
    args: Annotated[list[str] | None, typer.Argument(help="With --compare: the script's arguments.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Run it with and without IPEX on the first host.")] = False,
    migrated: Annotated[
        str | None, typer.Option(metavar="FILE", help="The script without IPEX (else the same).")
    ] = None,
    ipex_venv: Annotated[
        str | None, typer.Option(help="Environment with IPEX on the host (else the installed one).")
    ] = None,
    native_venv: Annotated[str | None, typer.Option(help="Environment without IPEX on the host.")] = None,
    ppn: Annotated[int, typer.Option("--ppn", min=1, help="Ranks, with --compare.")] = 1,
    **common: Any,
) -> None:
    """Say what a script uses of IPEX, oneCCL and Accelerate. Beside each stands what it became."""
    values = locals() | common

    def tell(context: Context) -> Workflow:
        from ipexctl.model.errors import UsageError
        from ipexctl.verbs.migrate import Comparison
        from ipexctl.verbs.migrate import migrate as verb

        if not compare:
            needless = {
                "--migrated": migrated,
                "--ipex-venv": ipex_venv,
                "--native-venv": native_venv,
                "arguments": args,
            }
            if given := [name for name, value in needless.items() if value]:
                raise UsageError(f"{', '.join(given)}: only with --compare", hint="nothing is run without it")
            return verb(script, None, context, os.environ)
        if native_venv is None:
            raise UsageError(
                "--compare needs two environments: the one without IPEX is --native-venv",
                hint="ipexctl install --track native --torch 2.13.0 --venv PATH",
            )
        found = inventory(values)
        asked = Comparison(found, migrated or script, ipex_venv, native_venv, ppn, args or ())
        return verb(script, asked, context, os.environ)

    perform(tell, values, acting=compare)
