"""A launch as a script to start without ipexctl. Text only; nothing here starts anything.

The forms are macros of ``data/emit.j2``. Each has the same core, ``rank_script``: what one rank does on its own host,
which is the planned environment, cores, memory and directory, and then the script. Secrets are not written: they are
taken from the environment of the user who starts it. Features of ipexctl itself are missing: tagged output, a keeper,
limits and the proved end."""

import json
import re
import shlex
from collections.abc import Sequence
from functools import partial

from ipexctl.decide.launch.placement import require_equal_ppn
from ipexctl.decide.parsing.yaml_nodes import quote_yaml
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.facts import format_cpus
from ipexctl.model.launch import Launch, NodePlan, Setting
from ipexctl.model.tasks import Run
from ipexctl.model.text import pluralize

FORMS = ("sh", "sbatch", "torchrun", "accelerate", "ansible", "pytorchjob")
_NOT_WRITTEN = {"HOME", "USER", "LOGNAME", "MASTER_PORT"}  # the login sets them; the port is the script's own
_PORT = 29500  # torch's own
# Of the variables that nobody asked for, those that hold in any pod; and those that torchrun sets in it.
_ANYWHERE = {"LANG", "PYTHONUNBUFFERED", "CCL_ATL_TRANSPORT", "KMP_BLOCKTIME", "ACCELERATE_TORCH_DEVICE"}
_TORCHRUN = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
_WORD = 120_000  # bytes: Linux takes no longer word than 128 KiB (MAX_ARG_STRLEN)


def check_form(task: Run, form: str) -> None:
    """Raises `UsageError` for what no form can say, and what this one cannot, of whatever hosts."""
    if task.independent:
        raise UsageError("instances cannot be written for another program", hint="--dry-run shows what each is given")
    if task.backend == "impi":
        _refuse_impi_form(form, Exit.INPUT)


def write_launch(launch: Launch, form: str, template: str, config: str = "") -> str:
    """The text of one form; ``template`` is that of ``data/emit.j2``, ``config`` Accelerate's configuration. Raises
    `UsageError` (exit 4) for a launch on these hosts that the form cannot say."""
    import jinja2

    if launch.backend == "impi":
        _refuse_impi_form(form, Exit.STEP)
    if form in {"torchrun", "accelerate", "pytorchjob"}:
        sentence = f"{form} requires the same number of ranks on every host"
        require_equal_ppn(launch, sentence, "give --ppn, or use --emit sh")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "quote": shlex.quote, "cpu_list": format_cpus, "words": shlex.join, "split_words": shlex.split,
        "json": json.dumps, "file_name": lambda text: re.sub(r"[^\w.-]", "-", text) or "run",
        # Kubernetes puts variables in place of $(NAME); $$ is a dollar before a parenthesis.
        "pod_word": lambda text: quote_yaml(text.replace("$(", "$$(")), "limit_word": partial(_limit_length, launch),
    }  # fmt: skip
    secrets = sorted({name for node in launch.nodes for name, setting in node.env.items() if setting.secret})
    names = sorted({name for node in launch.nodes for name in node.env})
    values = {name: {node.env[name].value if name in node.env else None for node in launch.nodes} for name in names}
    cpus = [sum(rank.threads + len({*rank.workers} - {*rank.cpus}) for rank in node.ranks) for node in launch.nodes]
    # What mpirun needs without our keeper.
    hydra = ("I_MPI_PIN", "I_MPI_PORT_RANGE", "MPIEXEC_PORT_RANGE")
    launcher_names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") if launch.framed else hydra
    module = environment.from_string(template).make_module(
        {
            "launch": launch,
            "hosts": ", ".join(f"{node.host} ({len(node.ranks)})" for node in launch.nodes),
            "port": launch.port or _PORT,
            "config": config,
            "secrets": secrets,
            "different": [name for name in names if len(values[name]) > 1],
            "launcher_settings": {n: launch.mpiexec_env[n] for n in launcher_names if n in launch.mpiexec_env},
            "per_host": not launch.framed and "-hosts" not in launch.mpiexec,
            "mpi_directory": launch.mpiexec[0].rpartition("/")[0],
            "script_words": _list_script_words(launch),
            "settings": _list_env_settings,
            "job_name": make_job_name(launch.title),
            "pod_settings": _list_pod_settings(launch),
            # Logical CPUs of the ranks of the smallest host: all pods are alike.
            "pod_cpus": min(cpus),
            "preloaded": sorted({library.path for node in launch.nodes for library in node.preload}),
        }
    )
    return str(getattr(module, form)())


def _refuse_impi_form(form: str, exit: Exit) -> None:
    if form in {"sbatch", "torchrun", "pytorchjob"}:
        what = f"{form} starts ranks without mpirun, which the backend impi needs"
        raise UsageError(what, hint="--backend gloo, or --emit sh", exit=exit)


def _list_script_words(launch: Launch) -> tuple[str, ...]:
    """The script and its arguments, as ``accelerate launch`` wants them."""
    names = (launch.title, f"./{launch.title}")  # the latter where it looks like an option
    at = next(at for at, word in enumerate(launch.argv) if word in names)
    return (*(("--module",) if launch.argv[at - 1] == "-m" else ()), *launch.argv[at:])


def _limit_length(launch: Launch, script: str) -> str:
    """The script of all ranks, if it fits into one word of a command line. Raises `UsageError` otherwise."""
    if len(script.encode()) > _WORD:
        hosts = pluralize(len(launch.nodes), "host")
        what = f"the script for {hosts} does not fit into one word of {launch.launcher}'s mpirun"
        raise UsageError(what, hint="--emit ansible copies it as a file", exit=Exit.STEP)
    return script


def _list_env_settings(node: NodePlan, only: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The variables of a host with their values; ``only`` these, or all. Neither secrets nor what the login sets."""
    return [
        (name, setting.value)
        for name, setting in sorted(node.env.items())
        if not setting.secret and name not in _NOT_WRITTEN and (not only or name in only)
    ]


def make_job_name(title: str) -> str:
    """A name for a job's pods and services (RFC 1035): short, in small letters, begun by one."""
    stem = title.rpartition("/")[2].removesuffix(".py").lower()
    word = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:40].strip("-")
    return word if word[:1].isalpha() else f"job-{word}".strip("-")


def _list_pod_settings(launch: Launch) -> list[tuple[str, Setting]]:
    """What the user has asked for, and what holds anywhere: paths, addresses, interfaces and cores of our hosts are not
    a pod's. Of hosts that differ, what they share."""
    head, *others = [node.env for node in launch.nodes]
    threads = min(int(place.env.get("OMP_NUM_THREADS") or place.threads) for place in launch.places)
    settings = {"OMP_NUM_THREADS": Setting(str(threads), "of the smallest host")}
    for name, setting in head.items():
        same = all(other.get(name) == setting for other in others)
        if same and name not in _TORCHRUN and (name in _ANYWHERE or setting.by_user):
            settings[name] = setting
    return sorted(settings.items())
