"""A launch as a script to start without ipexctl. Text only; nothing here starts anything.

The forms are macros of ``data/emit.j2``. Each has the same core, ``rank_script``: what one rank does on its own host,
which is the planned environment, cores, memory and directory, and then the script. Secrets are not written: they are
taken from the environment of the user who starts it. Features of ipexctl itself are missing: tagged output, a keeper,
limits and the proved end."""

import re
import shlex
from collections.abc import Sequence
from functools import partial

from ipexctl.decide.launch.dialects import get_dialect
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.launch import Launch, NodePlan
from ipexctl.model.tasks import Run
from ipexctl.model.text import format_cpus, pluralize, printable

_NOT_WRITTEN = {"HOME", "USER", "LOGNAME", "MASTER_PORT"}  # the login sets them; the port is the script's own
_PORT = 29500  # torch's own
_ELASTIC = ("TORCHELASTIC_", "GROUP_", "ROLE_", "NODE_RANK")  # what torchrun sets by itself
_WORD = 120_000  # bytes: Linux takes no longer word than 128 KiB (MAX_ARG_STRLEN)


def check_form(task: Run, form: str) -> None:
    """Raises `UsageError` for what no form can say, and what this one cannot, of whatever hosts."""
    if task.independent:
        raise UsageError("instances cannot be written for another program", hint="--dry-run shows what each is given")
    if task.backend == "impi":
        _refuse_impi_form(form, Exit.INPUT)


def write_launch(launch: Launch, form: str, template: str) -> str:
    """Returns the text of one form; ``template`` is that of ``data/emit.j2``. Raises `UsageError` (exit 4) for a launch
    on these hosts that the form cannot say."""
    import jinja2

    if launch.backend == "impi":
        _refuse_impi_form(form, Exit.STEP)
    if launch.fills:
        hint = "--dry-run shows the command line of each host"
        raise UsageError("only a Python file, one process for each rank, can be written for another program", hint=hint)
    if form == "torchrun" and len({len(node.ranks) for node in launch.nodes}) > 1:
        what = "torchrun requires the same number of ranks on every host"
        reasons = [f"{node.host}: {len(node.ranks)}" for node in launch.nodes]
        raise UsageError(what, reasons=reasons, hint="give --ppn, or use --emit sh", exit=Exit.STEP)
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "quote": shlex.quote,
        "cpu_list": format_cpus,
        "words": shlex.join,
        "file_name": lambda text: re.sub(r"[^\w.-]", "-", text) or "run",
        "printable": printable,
        "limit_word": partial(_limit_length, launch),
    }
    secrets = sorted({name for node in launch.nodes for name, setting in node.env.items() if setting.secret})
    dialect = get_dialect(launch.dialect, launch.mpi_version)
    family = dialect.list_family_options(launch.head.address)
    options = [*([family] if family else []), *dialect.write_shell_options(launch.head.interface, secrets)]
    module = environment.from_string(template).make_module(
        {
            "launch": launch,
            "hosts": ", ".join(f"{node.host} ({len(node.ranks)})" for node in launch.nodes),
            "port": launch.port or _PORT,
            "secrets": secrets,
            "launcher_settings": {
                name: launch.mpiexec_env[name] for name in dialect.shell_variables if name in launch.mpiexec_env
            },
            "rank_variable": dialect.rank_variable,
            "per_host": dialect.command_per_host,
            "mpirun_options": options,
            "mpirun_hosts": dialect.write_shell_hosts([(node.address, len(node.ranks)) for node in launch.nodes]),
            "settings": partial(_list_env_settings, elastic=form != "torchrun"),
        }
    )
    return str(getattr(module, form)())


def _refuse_impi_form(form: str, exit: Exit) -> None:
    if form in {"sbatch", "torchrun"}:
        what = f"{form} starts ranks without mpirun, which the backend impi needs"
        raise UsageError(what, hint="--backend gloo, or --emit sh", exit=exit)


def _limit_length(launch: Launch, script: str) -> str:
    """Returns the script of all ranks, if it fits into one word of a command line. Raises `UsageError` otherwise."""
    if len(script.encode()) > _WORD:
        hosts = pluralize(len(launch.nodes), "host")
        what = f"the script for {hosts} does not fit into one word of {launch.launcher}'s mpirun"
        hint = "--mpi impi, whose mpirun takes a word for each host, or --emit sbatch"
        raise UsageError(what, hint=hint, exit=Exit.STEP)
    return script


def _list_env_settings(node: NodePlan, only: Sequence[str] = (), *, elastic: bool = True) -> list[tuple[str, str]]:
    """Returns the variables of a host with their values; ``only`` these, or all. Neither secrets nor what the login
    sets, and without ``elastic`` not what we set as torchrun does."""
    return [
        (name, setting.value)
        for name, setting in sorted(node.env.items())
        if not setting.secret and name not in _NOT_WRITTEN and (not only or name in only)
        if elastic or setting.by_user or not name.startswith(_ELASTIC)
    ]
