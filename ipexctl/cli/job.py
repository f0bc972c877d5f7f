"""The main job: ``doctor``, ``install``, ``sync``, ``run``; and ``hosts``, which contacts nobody."""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipexctl.cli.flags import (
    Allocator,
    Backend,
    BackendFlag,
    Dialect,
    DryRun,
    Emit,
    ExtraIndexUrl,
    FindLinks,
    Hostfile,
    Hosts,
    IndexUrl,
    Ipex,
    Json,
    Launcher,
    Limit,
    Oneccl,
    OpenMP,
    Output,
    Pairwise,
    Requirements,
    Screen,
    Stall,
    Torch,
    TrackFlag,
    Transfer,
    WheelsFrom,
    With,
    confirm,
    inventory,
    on_hosts,
    pairs,
    perform,
    task,
)

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.loop import Workflow

app = typer.Typer()


@app.command()
@on_hosts
def doctor(
    files: Annotated[list[str] | None, typer.Argument(help="More saved probes, after --recorded.")] = None,
    venv: Annotated[str | None, typer.Option(help="Look into this environment on the hosts.")] = None,
    workdir: Annotated[str | None, typer.Option(help="Working directory whose disk counts.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds one host may take to answer.")] = 10.0,
    pairwise: Annotated[Pairwise, typer.Option(help="Try the network between hosts.")] = Pairwise.auto,
    recorded: Annotated[
        list[str] | None, typer.Option(metavar="FILE…", help="Judge saved probes instead of hosts.")
    ] = None,
    save_bundle: Annotated[str | None, typer.Option(help="Save what each host said in this directory.")] = None,
    explain: Annotated[str | None, typer.Option(metavar="CODE", help="Tell the whole story of a finding.")] = None,
    imports: Annotated[bool, typer.Option("--imports", help="Import the installed stack on every host.")] = False,
    bench: Annotated[bool, typer.Option("--bench", help="Measure hosts and network (about ten seconds).")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Do the safe fixes, after asking for each.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    **common: Any,
) -> None:
    """Look at every host: what it is, what is wrong, how to fix it."""
    values = locals() | common
    values["recorded"] = [*(recorded or []), *(files or [])]

    def tell(context: Context) -> Workflow:
        from ipexctl.model.errors import UsageError
        from ipexctl.model.hosts import Inventory
        from ipexctl.verbs.doctor.doctor import doctor as verb

        if files and not recorded:
            raise UsageError(
                f"doctor takes no argument {files[0]!r}", hint="hosts: -f HOSTFILE or --hosts; saved: --recorded"
            )
        hostless = explain is not None or recorded
        return verb(
            task("Doctor", values),
            Inventory(()) if hostless else inventory(values),
            context,
            ask=confirm if asking else None,
            environ=os.environ,
            alone=True,
        )

    asking = fix and not yes and sys.stdin.isatty() and sys.stderr.isatty()
    if asking and common["output"] is Screen.auto:
        values["output"] = Screen.plain  # questions and a live screen do not go together
    perform(tell, values)


@app.command()
@on_hosts
def install(
    track: TrackFlag = None,
    torch: Torch = None,
    ipex: Ipex = None,
    oneccl: Oneccl = None,
    backend: BackendFlag = Backend.auto,
    python: Annotated[str | None, typer.Option(help="Interpreter on the hosts: a path, or a version.")] = None,
    venv: Annotated[str | None, typer.Option(help="The environment: an absolute path, the same on all hosts.")] = None,
    mpi: Annotated[
        str,
        typer.Option(metavar="impi|mpich|openmpi|PATH", help="Use the hosts' own MPI (else the wheels' Intel MPI)."),
    ] = "auto",
    omp: Annotated[OpenMP, typer.Option(help="intel: put Intel's OpenMP beside (its wheel).")] = OpenMP.auto,
    wheels: Annotated[
        str | None, typer.Option(help="Use only this wheelhouse: a directory, .tar[.gz] or .zip.")
    ] = None,
    wheels_from: Annotated[WheelsFrom, typer.Option(help="Who downloads the wheels.")] = WheelsFrom.auto,
    index_url: IndexUrl = None,
    extra_index_url: ExtraIndexUrl = None,
    find_links: FindLinks = None,
    requirements: Requirements = None,
    with_: With = None,
    check: Annotated[
        bool, typer.Option("--check", help="Say what would change on which host; change nothing.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Switch the hosts that are ready, whatever others do.")
    ] = False,
    lock: Annotated[str | None, typer.Option(help="Write the exact wheels into this file.")] = None,
    locked: Annotated[bool, typer.Option("--locked", help="Install exactly what the lock file says.")] = False,
    dry_run: DryRun = False,
    **common: Any,
) -> None:
    """Put matching wheels of torch, IPEX, oneCCL, MPI on all hosts."""
    values = locals() | common
    values["check"] = check or dry_run

    def tell(context: Context) -> Workflow:
        from ipexctl.verbs.install.install import install as verb

        return verb(task("Install", values), inventory(values), context, environ=os.environ)

    perform(tell, values, acting=not values["check"])


@app.command()
@on_hosts
def sync(
    source: Annotated[str, typer.Argument(help="Directory or file here.")] = ".",
    workdir: Annotated[str | None, typer.Option(help="Destination on the hosts (else ~/ipexctl/NAME).")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Leave these out, as in .gitignore.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Also remove what is not in the source.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show how text files differ from those there.")] = False,
    transfer: Annotated[Transfer, typer.Option(help="rsync where it saves much, never, or always.")] = Transfer.auto,
    dry_run: DryRun = False,
    **common: Any,
) -> None:
    """Carry a directory to all hosts: changed files only."""
    values = locals() | common

    def tell(context: Context) -> Workflow:
        from ipexctl.verbs.files.sync import sync as verb

        return verb(task("Sync", values), inventory(values), context, dry=dry_run)

    perform(tell, values, acting=not dry_run)


@app.command(context_settings={"allow_interspersed_args": False})
@on_hosts
def run(
    ctx: typer.Context,
    script: Annotated[str, typer.Argument(help="The script, here.")],
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments; nothing after the script is ours.")] = None,
    n: Annotated[int | None, typer.Option("-n", "--n", "--np", min=1, help="Ranks in all (world size).")] = None,
    ppn: Annotated[
        int | None, typer.Option("--ppn", min=1, help="Ranks per host (else slots, else NUMA nodes).")
    ] = None,
    backend: Annotated[Backend, typer.Option(help="Collectives (auto: what is installed, else gloo).")] = Backend.auto,
    backend_override: Annotated[
        bool, typer.Option("--backend-override", help="Scripts that say gloo, or nothing, use impi.")
    ] = False,
    venv: Annotated[str | None, typer.Option(help="Environment on the hosts (else the installed one).")] = None,
    workdir: Annotated[str | None, typer.Option(help="Working directory on the hosts.")] = None,
    sync: Annotated[bool, typer.Option("--sync/--no-sync", help="Carry the script's directory over first.")] = True,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Variable for the ranks.")] = None,
    env_file: Annotated[list[str] | None, typer.Option(help="File of NAME=value lines for the ranks.")] = None,
    pass_env: Annotated[list[str] | None, typer.Option(help="Variable of this machine the ranks may see.")] = None,
    iface: Annotated[str | None, typer.Option(help="Network interface (else chosen per host).")] = None,
    port: Annotated[int | None, typer.Option(min=1024, max=65535, help="Rendezvous port (else a free one).")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="OpenMP threads per rank (else its cores).")] = None,
    ccl_workers: Annotated[int, typer.Option(min=1, help="oneCCL worker threads per rank.")] = 1,
    time_limit: Annotated[float | None, typer.Option(min=0.1, help="End the run after so many seconds.")] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds between SIGTERM and SIGKILL.")] = 10.0,
    lease: Annotated[float | None, typer.Option(min=1, help="End it after so many seconds unwatched.")] = None,
    node_lease: Annotated[float, typer.Option(min=5, help="Seconds of silence that make a host lost.")] = 30.0,
    stall_warn: Annotated[float, typer.Option(min=0, help="Seconds without progress to tell of (0: never).")] = 120.0,
    stall: Annotated[Stall, typer.Option(help="What to do then: report stacks, or also end the run.")] = Stall.report,
    stall_kill: Annotated[bool, typer.Option("--stall-kill", help="The same as --stall kill.")] = False,
    straggler_warn: Annotated[
        float, typer.Option(min=0, help="Seconds ranks outlast others to tell of (0: never).")
    ] = 60.0,
    straggler_kill: Annotated[bool, typer.Option("--straggler-kill", help="End the run then.")] = False,
    log_cap: Annotated[int, typer.Option(min=0, metavar="MB", help="Output kept on node0 (0: all of it).")] = 0,
    restarts: Annotated[int, typer.Option(min=0, help="Start again so often after a failure.")] = 0,
    min_hosts: Annotated[int | None, typer.Option(min=1, help="And without a lost host, if so many remain.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Leave the run as soon as it has started.")] = False,
    share: Annotated[bool, typer.Option("--share", help="Start although another run uses these hosts.")] = False,
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Accept entries that are one machine.")
    ] = False,
    mpi: Annotated[
        str, typer.Option(metavar="impi|mpich|openmpi|PATH", help="Whose mpirun (else the environment's).")
    ] = "auto",
    launcher: Annotated[Launcher, typer.Option(help="How Python is given the script.")] = Launcher.script,
    accelerate_config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Accelerate's default_config.yaml (--launcher accelerate).")
    ] = None,
    allocator: Annotated[Allocator, typer.Option(help="Memory allocator, where a host has it.")] = Allocator.auto,
    omp: Annotated[OpenMP, typer.Option(help="OpenMP library (auto: Intel's where a host has it).")] = OpenMP.auto,
    membind: Annotated[bool, typer.Option("--membind", help="Memory of a rank's own NUMA nodes only.")] = False,
    hugepages: Annotated[bool, typer.Option("--hugepages", help="Huge pages for large tensors.")] = False,
    isa: Annotated[
        str, typer.Option(metavar="native|common|LEVEL", help="One instruction set for all hosts: AVX2 … AMX.")
    ] = "native",
    instances: Annotated[
        str | None,
        typer.Option(metavar="N|per-node|per-core|latency", help="Processes without a rendezvous, on each host."),
    ] = None,
    cores_per_instance: Annotated[int | None, typer.Option(min=1, help="Cores of each (else equal parts).")] = None,
    within_node: Annotated[bool, typer.Option("--within-node", help="No instance over two NUMA nodes.")] = False,
    instance: Annotated[int | None, typer.Option(min=0, help="Of each host only this one, counted from 0.")] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="An instance that fails ends the others.")] = False,
    numa: Annotated[str | None, typer.Option(metavar="LIST", help="Cores of these NUMA nodes only: 0,2-3.")] = None,
    cpus: Annotated[str | None, typer.Option(metavar="LIST", help="These logical CPUs only: 0-15,32.")] = None,
    logical_cores: Annotated[bool, typer.Option("--logical-cores", help="All hardware threads of a core.")] = False,
    emit: Annotated[Emit | None, typer.Option(help="Start nothing: write the launch for another program.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Plain output: the ranks' bytes unescaped.")] = False,
    label_hosts: Annotated[
        bool, typer.Option("--label-hosts", help="Plain output: [rank host] before each line.")
    ] = False,
    dry_run: DryRun = False,
    **common: Any,
) -> None:
    """Start a script with mpirun on all hosts. Every rank's output is shown."""
    values = locals() | common
    dry = dry_run or emit is not None

    def tell(context: Context) -> Workflow:
        from ipexctl.decide.launch.emit import check
        from ipexctl.verbs.run.run import run as verb

        values["env"] = pairs("--env", env or [])
        form = emit.value if emit else None
        asked, hosts = task("Run", values), inventory(values)
        if form:
            check(asked, form)
        values["warnings"] = (*values["warnings"], *_swallowed(ctx, args or []))
        return verb(asked, hosts, context, os.environ, dry=dry, emit=form)

    values["detachable"] = not dry
    perform(tell, values, acting=not dry)


def _swallowed(ctx: typer.Context, args: list[str]) -> list[str]:
    """What to say of words behind the script that are options of this command: they may have been meant for us."""
    own = {name for param in ctx.command.params for name in (*param.opts, *param.secondary_opts) if name[:1] == "-"}
    found = list(dict.fromkeys(name for word in args if (name := word.partition("=")[0]) in own))
    goes = "goes" if len(found) == 1 else "go"
    return [f"{', '.join(found)} {goes} to the script: options of ipexctl stand before it"] if found else []


@app.command(
    "plan",
    help="Print all that `run` would do; start nothing. The same as run --dry-run: it looks at the hosts.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@wraps(run)
def plan(**values: Any) -> None:
    """Print all that `run` would do; start nothing. The same as run --dry-run: it looks at the hosts."""
    run(**(values | {"dry_run": True}))


@app.command("hosts")
def hosts_(
    hostfile: Hostfile = None,
    hosts: Hosts = None,
    limit: Limit = None,
    as_: Annotated[Dialect | None, typer.Option("--as", help="Write it in another tool's dialect.")] = None,
    json: Json = False,
    output: Output = Screen.auto,
) -> None:
    """Print the hosts as they were read: a linter and a converter. Contacts nobody."""
    values = dict(locals())

    def tell(_: Context) -> Workflow:
        from ipexctl.verbs.hosts import hosts as verb

        return verb(inventory(values), dialect=as_.value if as_ else "ipexctl")  # type: ignore[return-value]

    perform(tell, values)
