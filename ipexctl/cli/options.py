"""Options of commands that are no keys of a task: which hosts, how to connect, what to print, and those of one
command, by whose name they are called (`PlayFlags`).

Read only when the options of a command are built (`cli.command`)."""

from typing import Literal

from ipexctl.model.saved_runs import ExportFormat, RunResult
from ipexctl.model.tasks import (
    Backend,
    Fields,
    VersionFields,
    advanced_flag,
    flag,
    make_ppn_flag,
    make_ranks_flag,
    make_venv_flag,
)

Screen = Literal["auto", "live", "plain", "json"]
Emit = Literal["sh", "sbatch", "torchrun"]


class HostFlags(Fields):
    hostfile: str | None = flag(
        None, "Hostfile or inventory (default: $IPEXCTL_HOSTFILE, else ./hostfile).", "Hosts", "PATH", names=("-f",)
    )
    hosts: str | None = flag(
        None, "Names (a,b,node[01-16]) without a hostfile, or slurm, pbs, lsf for a job's hosts.", "Hosts", "LIST"
    )
    limit: str | None = flag(
        None, "Hosts by name, group, glob, range, !exclusion or @failed (default: all).", "Hosts", "LIST", names=("-l",)
    )


class OutputFlags(Fields):
    json_: bool = flag(False, "Print only the answer, as one JSON document.", "Output", alias="json")
    output: Screen = advanced_flag(
        "auto", "Format: live (a terminal's default), plain, or json, one object per event.", "Output", names=("-o",)
    )
    verbose: int = advanced_flag(
        0, "Print each host's commands to stderr; -vv: all of debug.log (default: warnings).", "Output", names=("-v",)
    )


class ConnectionFlags(Fields):
    accept_new_host_keys: bool = advanced_flag(False, "Record keys of hosts that are not in known_hosts.", "Connection")
    connect_timeout: float = advanced_flag(10.0, "Seconds to connect and log in.", "Connection", ge=0.1)
    forks: int = advanced_flag(32, "Hosts to work on at once.", "Connection", ge=1)
    ask_pass: bool = advanced_flag(False, "Ask for the passphrase of an identity file.", "Connection")


class DryRunFlags(Fields):
    """Of a command that acts."""

    dry_run: bool = flag(False, "Print exactly what would be done; do nothing.")


class DoctorFlags(Fields):
    files: tuple[str, ...] = flag((), "More saved probes, after --recorded.", argument=True)
    verify: bool = flag(False, "Check only that environments are what install made; takes under a second.", "Checks")


class RawFlags(Fields):
    """Of commands that print the output of ranks."""

    raw: bool = advanced_flag(False, "Print the ranks' bytes unescaped, in plain output.", "Output")


class PageFlags(Fields):
    """Of commands that leave the page of a run in its record."""

    report: bool = advanced_flag(True, "Write the run's page, report.html, into its record (default: yes).", "Output")


class NotifyFlags(Fields):
    """Of commands that take long."""

    notify: tuple[str, ...] = advanced_flag(
        (), "Command that gets JSON on stdin at start, stall, failure and end; repeatable.", "Notifications", "COMMAND"
    )


class RunFlags(NotifyFlags, RawFlags, DryRunFlags, PageFlags):
    emit: Emit | None = advanced_flag(
        None, "Print the launch for another program, start nothing: sh, sbatch, torchrun.", metavar="PROGRAM"
    )
    from_mpirun: str | None = advanced_flag(
        None, "Launch line for options and script: mpirun, torchrun, accelerate, srun, sbatch and more.", metavar="LINE"
    )
    label_hosts: bool = advanced_flag(False, "Print [rank host] before each line, in plain output.", "Output")


class TuneFlags(DryRunFlags, PageFlags):
    resume: str | None = flag(None, "Study to resume (default: last).", "Measurement", "STUDY")


class HostsFlags(Fields):
    as_: Literal["mpi"] | None = flag(None, "Print a machine file for Intel MPI or MPICH.", "Output", alias="as")


class UsageFlags(Fields):
    prune: bool = flag(False, "Remove old projects on hosts, old wheels here; without --yes only list them.", "Removal")
    older_than: str | None = flag(None, "Those of which no file is newer than this, such as 30d.", "Removal", "TIME")
    yes: bool = flag(False, "Remove them.", "Removal", names=("-y",))


class ExampleFlags(Fields):
    name: str = flag(..., "Playbook or example, by its name.", argument=True, example="train_ddp.py")


class CopyFlags(ExampleFlags):
    directory: str = flag(".", "Local directory to copy it into.", argument=True)
    force: bool = flag(False, "Overwrite existing files.")


class PlayFlags(NotifyFlags, PageFlags):
    files: tuple[str, ...] = flag(
        (), "Playbook (YAML), or the name of a bundled one.", metavar="FILE | NAME | lint FILE...", argument=True
    )
    tags: tuple[str, ...] = flag((), "Play only steps with one of the tags; repeatable.", "Steps", "TAG", names=("-t",))
    skip_tags: tuple[str, ...] = flag((), "Skip steps with this tag; repeatable.", "Steps", "TAG")
    start_at: str | None = flag(None, "Step to begin at (default: the first).", "Steps", "NAME")
    var: dict[str, str] = flag({}, "Variable of the playbook; repeatable.", "Steps", "NAME=VALUE")
    allow_path: tuple[str, ...] = flag(
        (), "Directory beside its own and the current one that the playbook may use; repeatable.", "Steps", "PATH"
    )
    allow_env: tuple[str, ...] = flag((), "Local variable that the playbook may use; repeatable.", "Steps", "NAME")
    diff: bool = flag(False, "Show how text files differ that sync copies.")
    list_steps: bool = flag(False, "List the steps; contact no host.")
    list_: bool = flag(False, "List the bundled playbooks.", alias="list")
    dry_run: bool = flag(False, "Print what each step would change; change nothing.", names=("--check",))


class InitFlags(Fields):
    script: str | None = flag(None, "Script to train with (default: asked for).", argument=True)
    args: tuple[str, ...] = flag((), "Arguments of the script.", argument=True)
    from_: str | None = flag(None, "Accelerate configuration or hostfile to start from.", metavar="FILE", alias="from")
    ppn: int | None = flag(None, "Ranks per host (default: asked for).", "Playbook", ge=1)
    backend: Backend | None = flag(None, "Collectives backend (default: asked for).", "Playbook")
    ipex: bool | None = flag(None, "Use IPEX, or stock torch (default: asked for).", "Playbook")
    torch: str | None = flag(None, "Version of torch: 2.7.0, 2.7, '>=2.6,<2.8' or latest.", "Playbook", "VERSION")
    precision: Literal["bf16", "no"] | None = advanced_flag(None, "Mixed precision (default: asked for).", "Playbook")
    port: int | None = advanced_flag(
        None, "Rendezvous port on node0 (default: a free one).", "Playbook", "PORT", ge=1024, le=65535
    )
    playbook: str = flag("playbook.yaml", "Playbook to write.", metavar="PATH")
    yes: bool = flag(False, "Ask nothing and use what the hosts report.", names=("-y",))
    force: bool = flag(False, "Overwrite existing files.")


class RunIdFlags(Fields):
    """Of commands for runs that were started."""

    run: str | None = flag(None, "Run: last, a name or its beginning (default: the only run).", argument=True)


class AttachFlags(NotifyFlags, RawFlags, RunIdFlags, PageFlags):
    pass


class StopFlags(RunIdFlags):
    kill: bool = flag(False, "Send SIGKILL at once.")
    orphans: bool = flag(
        False, "End what ended runs left behind; remove files of runs without a keeper, or all of RUN."
    )


class LogsFlags(RunIdFlags):
    rank: str | None = flag(
        None, "Ranks to print, such as 3,5-7; one rank alone is printed byte for byte (default: all).", "Output", "LIST"
    )
    stacks: bool = flag(False, "Print where the ranks stand now instead, as after a stall; the run goes on.", "Output")
    follow: bool = flag(False, "Follow the output to the end of the run; also -f.", "Output", names=("-F",))
    output: Screen = advanced_flag("plain", "Format: live, plain, json (an object per event).", "Output", names=("-o",))


class ProfileFlags(Fields):
    """Of commands that read one saved run."""

    run: str = flag("last", "Saved run: last, a name, or a path.", argument=True)


class ReplayFlags(RawFlags, ProfileFlags):
    speed: float | None = flag(
        None, "Playback speed, such as 1 or 10 times that of the run (default: all at once).", "Replay", "N", ge=0.01
    )
    at: str | None = flag(
        None, "Time of the run to start playback at, such as 00:12:30; all before is shown at once.", "Replay", "TIME"
    )


class OneHostFlags(Fields):
    host: str = flag(..., "Host of the hostfile, or one that ssh knows.", argument=True, example="node0")


class ShellFlags(OneHostFlags):
    command: tuple[str, ...] = flag((), "Command to run in place of a login shell.", argument=True)


class ForwardFlags(OneHostFlags):
    ports: str = flag(
        ..., "Port here, and the host's where it is another.", metavar="PORT[:REMOTE]", argument=True, example="6006"
    )


class SavedRunFlags(Fields):
    names: tuple[str, ...] = flag((), "Saved runs: last, names, paths (default: all).", argument=True, metavar="RUN...")
    verb: str | None = flag(None, "Runs of this command only, such as run or install.", "Selection", "NAME")
    result: RunResult | None = flag(None, "Runs that ended like this only.", "Selection")


class RunsFlags(SavedRunFlags):
    prune: bool = flag(False, "Remove saved runs; only list them without --yes.", "Removal")
    older_than: str | None = flag(None, "Remove runs that ended longer ago than this, such as 30d.", "Removal", "TIME")
    keep: int | None = flag(None, "Keep the newest N runs; without another rule, remove all others.", "Removal", ge=0)
    yes: bool = flag(False, "Remove them.", "Removal", names=("-y",))
    export: str | None = flag(None, "File for the runs' figures and samples: .csv or .json.", "Export", "PATH")
    format: ExportFormat | None = advanced_flag(None, "Format of that file (default: by its name).", "Export")


class WatchFlags(RunIdFlags):
    serve: str = flag("127.0.0.1:0", "Loopback address and port of the page; 0: a free one.", metavar="ADDRESS:PORT")
    open_: bool = flag(False, "Open the page in a browser.", alias="open")


class ReportFlags(Fields):
    runs: tuple[str, ...] = flag((), "Saved run: last, a name or a path (default: last).", argument=True, metavar="RUN")
    page: str | None = flag(
        None, "File (default: the run's report.html; of many: none).", "Output", "FILE", names=("-o",), alias="output"
    )
    open_: bool = flag(False, "Open the page in a browser.", "Output", alias="open")


class SupportFlags(DryRunFlags, ProfileFlags):
    file: str | None = flag(
        None, "Archive (default: one named as the run, here).", "Output", "FILE.tar.gz", names=("-o",), alias="output"
    )
    with_output: bool = flag(False, "Include what the ranks printed.")
    yes: bool = flag(False, "Do not ask before the archive is written.", names=("-y",))


class LabFlags(Fields):
    hosts: int = flag(2, "Hosts to start.", ge=1, le=64)


class DemoFlags(Fields):
    hosts: int = flag(2, "Lab hosts to start.", ge=1, le=16)
    stack: Literal["native", "ipex"] = flag(
        "native", "What to install: plain torch (0.3 GiB of wheels) or torch with IPEX (3.8 GiB) (default: native)."
    )
    keep: bool = flag(False, "Leave the lab up afterwards.")


class StacksFlags(Fields):
    for_torch: str | None = flag(None, "List only the releases of this torch version.", metavar="VERSION")
    for_hosts: bool = flag(False, "Check which releases fit these hosts.")


class WhyFlags(VersionFields):
    python: str | None = flag(None, "Python version, such as 3.11.", "Versions", "VERSION")


class MigrateFlags(Fields):
    script: str = flag(..., "Local script, shell file or configuration, only read.", argument=True, example="train.py")


class AccelerateFlags(Fields):
    n: int | None = make_ranks_flag()
    ppn: int | None = make_ppn_flag()
    precision: Literal["no", "fp16", "bf16"] = flag("bf16", "Mixed precision.")
    no_ipex: bool = flag(False, "Use stock torch also where IPEX is installed.")
    port: int = flag(29500, "Rendezvous port on node0.", metavar="PORT", ge=1024, le=65535)
    mpirun_hostfile: str | None = advanced_flag(
        None, "Let Accelerate start mpirun with this hostfile on node0.", metavar="PATH"
    )
    ccl_workers: int = advanced_flag(1, "oneCCL worker threads per rank, with mpirun.", ge=1)
    accelerate_version: str | None = flag(
        None, "Version of Accelerate to write for; contact no host (default: the installed one).", metavar="VERSION"
    )
    venv: str | None = make_venv_flag()
    file: str | None = flag(None, "Local file to write (default: standard output).", "Output", "PATH")
