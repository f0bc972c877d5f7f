"""Options of commands that are no keys of a task: which hosts, how to connect, what to print, and a command's own.

Read only when the options of a command are built (`cli.command`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ipexctl.model.flags import Flag
from ipexctl.model.tasks import Backend, VersionFields

Screen = Literal["auto", "live", "plain", "json"]
Dialect = Literal["mpi", "openmpi", "deepspeed", "ansible", "accelerate"]
Emit = Literal["sh", "sbatch", "torchrun", "accelerate", "ansible", "pytorchjob"]
Raw = Annotated[bool, Flag("Output", help="Print the ranks' bytes unescaped, in plain output.")]
Venv = Annotated[str | None, Flag(metavar="PATH", help="Environment on the hosts (default: the installed one).")]
Force = Annotated[bool, Flag(help="Overwrite existing files.")]


@dataclass(frozen=True, kw_only=True)
class HostFlags:
    """Which hosts."""

    hostfile: Annotated[
        str | None,
        Flag("Hosts", "PATH", "Hostfile or inventory (default: $IPEXCTL_HOSTFILE, else ./hostfile).", names=("-f",)),
    ] = None
    hosts: Annotated[
        str | None, Flag("Hosts", "LIST", "Host names such as a,b,node[01-16], or slurm for this allocation.")
    ] = None
    limit: Annotated[
        str | None,
        Flag(
            "Hosts", "LIST", "Hosts to use: names, groups, globs, ranges, !exclusions, @failed (default: all).", ("-l",)
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """What is printed."""

    json: Annotated[bool, Flag("Output", help="Print only the answer, as one JSON document.")] = False
    output: Annotated[
        Screen,
        Flag(
            "Output", help="Format: live (a terminal's default), plain, or json, one object per event.", names=("-o",)
        ),
    ] = "auto"
    verbose: Annotated[
        int,
        Flag(
            "Output",
            help="Print each command executed on a host to standard error; -vv: all of debug.log (default: warnings).",
            names=("-v",),
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class ConnectionFlags:
    """How to connect."""

    accept_new_host_keys: Annotated[
        bool, Flag("Connection", help="Record the keys of hosts that are not in known_hosts.")
    ] = False
    connect_timeout: Annotated[float, Flag("Connection", help="Seconds to connect and log in.", low=0.1)] = 10.0
    forks: Annotated[int, Flag("Connection", help="Hosts to work on at once.", low=1)] = 32
    ask_pass: Annotated[bool, Flag("Connection", help="Ask for the passphrase of an identity file.")] = False


@dataclass(frozen=True, kw_only=True)
class DryRunFlags:
    """Of a command that acts."""

    dry_run: Annotated[bool, Flag(help="Print exactly what would be done; do nothing.")] = False


@dataclass(frozen=True, kw_only=True)
class DoctorFlags:
    """Of ``doctor``."""

    files: Annotated[tuple[str, ...], Flag(argument=True, help="More saved probes, after --recorded.")] = ()
    verify: Annotated[
        bool, Flag("Checks", help="Check only that each environment is still what install made; takes under a second.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class RunFlags(DryRunFlags):
    """Of ``run``."""

    emit: Annotated[Emit | None, Flag(help="Print the launch for another program; start nothing.")] = None
    raw: Raw = False
    label_hosts: Annotated[bool, Flag("Output", help="Print [rank host] before each line, in plain output.")] = False


@dataclass(frozen=True, kw_only=True)
class HostsFlags:
    """Of ``hosts``."""

    as_: Annotated[Dialect | None, Flag("Output", help="Dialect to print the hosts in (default: that of ipexctl).")] = (
        None
    )


@dataclass(frozen=True, kw_only=True)
class PlayFlags:
    """Of ``play``."""

    files: Annotated[tuple[str, ...], Flag(metavar="FILE | lint FILE...", argument=True, help="Playbook (YAML).")]
    tags: Annotated[
        tuple[str, ...], Flag("Steps", "TAG", "Play only steps with one of these tags; repeatable.", names=("-t",))
    ] = ()
    skip_tags: Annotated[tuple[str, ...], Flag("Steps", "TAG", "Skip steps with one of these tags; repeatable.")] = ()
    start_at: Annotated[str | None, Flag("Steps", "NAME", "Step to begin at (default: the first).")] = None
    var: Annotated[dict[str, str], Flag("Steps", "NAME=VALUE", "Variable of the playbook; repeatable.")] = field(
        default_factory=dict
    )
    diff: Annotated[bool, Flag(help="Show how text files differ that sync copies.")] = False
    list_steps: Annotated[bool, Flag(help="List the steps; contact no host.")] = False
    schema: Annotated[bool, Flag(help="Print a JSON schema of playbooks for editors.")] = False
    dry_run: Annotated[bool, Flag(help="Print what each step would change; change nothing.", names=("--check",))] = (
        False
    )


@dataclass(frozen=True, kw_only=True)
class InitFlags:
    """Of ``init``."""

    script: Annotated[str | None, Flag(argument=True, help="Script to train with (default: asked for).")] = None
    args: Annotated[tuple[str, ...], Flag(argument=True, help="Arguments of the script.")] = ()
    from_: Annotated[
        str | None, Flag(metavar="FILE", help="Accelerate's configuration or a hostfile to start from.")
    ] = None
    ppn: Annotated[int | None, Flag("Playbook", help="Ranks per host (default: asked for).", low=1)] = None
    backend: Annotated[Backend | None, Flag("Playbook", help="Collectives backend (default: asked for).")] = None
    ipex: Annotated[bool | None, Flag("Playbook", help="Use IPEX, or stock torch (default: asked for).")] = None
    torch: Annotated[str | None, Flag("Playbook", "VERSION", "Exact version of torch.")] = None
    precision: Annotated[
        Literal["bf16", "no"] | None, Flag("Playbook", help="Mixed precision (default: asked for).")
    ] = None
    port: Annotated[
        int | None, Flag("Playbook", "PORT", "Rendezvous port on node0 (default: a free one).", low=1024, high=65535)
    ] = None
    playbook: Annotated[str, Flag(metavar="PATH", help="Playbook to write.")] = "playbook.yaml"
    yes: Annotated[bool, Flag(help="Ask nothing and use what the hosts report.", names=("-y",))] = False
    force: Force = False


@dataclass(frozen=True, kw_only=True)
class RunIdFlags:
    """Of commands for runs that were started."""

    run: Annotated[
        str | None, Flag(argument=True, help="Id of the run, or the beginning of it (default: the only run).")
    ] = None


@dataclass(frozen=True, kw_only=True)
class AttachFlags(RunIdFlags):
    """Of ``attach``."""

    raw: Raw = False


@dataclass(frozen=True, kw_only=True)
class StopFlags(RunIdFlags):
    """Of ``stop``."""

    kill: Annotated[bool, Flag(help="Send SIGKILL at once.")] = False
    orphans: Annotated[
        bool, Flag(help="End the processes that ended runs left behind and remove their files on the hosts.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class LogsFlags(RunIdFlags):
    """Of ``logs``."""

    rank: Annotated[
        str | None,
        Flag(
            "Output", "LIST", "Ranks to print, such as 3,5-7; one rank alone is printed byte for byte (default: all)."
        ),
    ] = None
    follow: Annotated[bool, Flag("Output", help="Follow the output to the end of the run.", names=("-F",))] = False
    output: Annotated[
        Screen, Flag("Output", help="Format: live, plain, or json, one object per event.", names=("-o",))
    ] = "plain"


@dataclass(frozen=True, kw_only=True)
class ReplayFlags:
    """Of ``replay``."""

    run: Annotated[str, Flag(argument=True, help="Saved run: last, an id, or a path.")] = "last"
    raw: Raw = False


@dataclass(frozen=True, kw_only=True)
class LabFlags:
    """Of ``lab up``."""

    hosts: Annotated[int, Flag(help="Hosts to start.", low=1, high=64)] = 2


@dataclass(frozen=True, kw_only=True)
class DemoFlags:
    """Of ``lab demo``."""

    hosts: Annotated[int, Flag(help="Lab hosts to start.", low=1, high=16)] = 2
    keep: Annotated[bool, Flag(help="Leave the lab up afterwards.")] = False


@dataclass(frozen=True, kw_only=True)
class StacksFlags:
    """Of ``stacks``."""

    for_torch: Annotated[str | None, Flag(metavar="VERSION", help="List only the releases of this torch version.")] = (
        None
    )
    for_hosts: Annotated[bool, Flag(help="Check which releases fit these hosts.")] = False


class WhyFlags(VersionFields):
    """Of ``stacks why``."""

    python: Annotated[str | None, Flag("Versions", "VERSION", "Python version, such as 3.11.")] = None


@dataclass(frozen=True, kw_only=True)
class MigrateFlags:
    """Of ``migrate``."""

    script: Annotated[str, Flag(argument=True, help="Local script, shell file or configuration; it is only read.")]
    args: Annotated[tuple[str, ...], Flag(argument=True, help="Arguments of the script, with --compare.")] = ()
    compare: Annotated[bool, Flag("Comparison", help="Run the script with and without IPEX on the first host.")] = False
    migrated: Annotated[str | None, Flag("Comparison", "PATH", "Script without IPEX (default: the same script).")] = (
        None
    )
    ipex_venv: Annotated[
        str | None, Flag("Comparison", "PATH", "Environment with IPEX on the host (default: the installed one).")
    ] = None
    native_venv: Annotated[str | None, Flag("Comparison", "PATH", "Environment without IPEX on the host.")] = None
    ppn: Annotated[int, Flag("Comparison", help="Ranks on the host.", low=1)] = 1


@dataclass(frozen=True, kw_only=True)
class AccelerateFlags:
    """Of ``accelerate config``."""

    n: Annotated[
        int | None,
        Flag(
            "Placement",
            help="Ranks in total, the world size (default: ranks per host times hosts).",
            names=("-n", "--np"),
            low=1,
        ),
    ] = None
    ppn: Annotated[
        int | None, Flag("Placement", help="Ranks per host (default: the host's slots, else its NUMA nodes).", low=1)
    ] = None
    precision: Annotated[Literal["no", "fp16", "bf16"], Flag(help="Mixed precision.")] = "bf16"
    no_ipex: Annotated[bool, Flag(help="Use stock torch also where IPEX is installed.")] = False
    port: Annotated[int, Flag(metavar="PORT", help="Rendezvous port on node0.", low=1024, high=65535)] = 29500
    mpirun_hostfile: Annotated[
        str | None, Flag(metavar="PATH", help="Let Accelerate start mpirun, with this hostfile on node0.")
    ] = None
    ccl_workers: Annotated[int, Flag(help="oneCCL worker threads per rank, with mpirun.", low=1)] = 1
    accelerate_version: Annotated[
        str | None,
        Flag(
            metavar="VERSION", help="Version of Accelerate to write for; contact no host (default: the installed one)."
        ),
    ] = None
    venv: Venv = None
    file: Annotated[str | None, Flag("Output", "PATH", "Local file to write (default: standard output).")] = None
