"""A launch as a script to start without ipexctl. Text only; nothing here starts anything.

Every form has the same core, `_rank_script`: what one rank does on its own host, which is the planned environment,
cores, memory and directory, and then the script. Secrets are not written: they are taken from the environment of
the user who starts it. Features of ipexctl itself are missing: tagged output, a keeper, limits and the proved end.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from ipexctl.decide.launch import pytorchjob
from ipexctl.decide.launch.uniform_env import require_equal_ppn
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.facts import cpu_list
from ipexctl.model.launch import Launch, NodePlan, RankPlacement
from ipexctl.model.tasks import Run

_RANKS = "${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-${RANK:-}}}}"
_ACCOUNT = {"HOME", "USER", "LOGNAME"}  # the login sets them
_PORT = 29500  # torch's own
_WORD = 120_000  # bytes: Linux takes no longer word than 128 KiB (MAX_ARG_STRLEN)


def check_form(task: Run, form: str) -> None:
    """Raises `UsageError` for what no form can say, and what this one cannot, of whatever hosts."""
    if task.independent:
        raise UsageError("instances cannot be written for another program", hint="--dry-run shows what each is given")
    if task.backend == "impi":
        _impi(form, Exit.INPUT)


def write_launch(launch: Launch, form: str) -> str:
    """The text of one form. Raises `UsageError` (exit 4) for a launch on these hosts that the form cannot say."""
    if launch.backend == "impi":
        _impi(form, Exit.STEP)
    return FORMS[form](launch)


def _impi(form: str, exit: Exit) -> None:
    if form in {"sbatch", "torchrun", "pytorchjob"}:
        raise UsageError(
            f"{form} starts ranks without mpirun, which the backend impi needs",
            hint="--backend gloo, or --emit sh",
            exit=exit,
        )


def _sh(launch: Launch) -> str:
    lines = [
        "#!/bin/sh",
        *_intro(launch, f"Start it on {launch.head.host}, which must reach the other hosts by SSH without a password."),
        "set -eu",
        *_require_secrets(launch),
        *_export_env(launch.head, only=("PATH", "LD_LIBRARY_PATH", "I_MPI_ROOT", "FI_PROVIDER_PATH")),
        *_launcher_settings(launch),
        *_choose_port(launch),
        *_carry_rank_script(launch),
        "exec " + " \\\n    ".join(_mpirun_words(launch)),
    ]
    return "\n".join(lines) + "\n"


def _sbatch(launch: Launch) -> str:
    names = [node.host for node in launch.nodes]
    lines = [
        "#!/bin/sh",
        f"#SBATCH --job-name={_file_name(launch.title)}",
        f"#SBATCH --nodes={len(launch.nodes)}",
        f"#SBATCH --ntasks={launch.size}",
        f"#SBATCH --nodelist={','.join(names)}",
        "#SBATCH --exclusive",
        *_intro(launch, "Submit it with sbatch. The hosts' names here must be Slurm's own."),
        "set -eu",
        *_require_secrets(launch),
        *_choose_port(launch),
        *_as_variable(_rank_script(launch)),
        "SLURM_HOSTFILE=$(mktemp)  # one line a rank, in rank order",
        "export SLURM_HOSTFILE",
        "trap 'rm -f \"$SLURM_HOSTFILE\"' EXIT",
        "cat >\"$SLURM_HOSTFILE\" <<'HOSTS'",
        *[place.host for place in launch.places],
        "HOSTS",
        'srun --distribution=arbitrary --mpi=none --cpu-bind=none --label /bin/sh -c "$each" rank "$port"',
    ]
    return "\n".join(lines) + "\n"


def _torchrun(launch: Launch) -> str:
    ranks = require_equal_ppn(launch, "torchrun")
    lines = [
        "#!/bin/sh",
        *_intro(launch, "Start it on every host at once, with the number that the host has here."),
        *[f"#   sh FILE {number}    on {node.host}" for number, node in enumerate(launch.nodes)],
        "set -eu",
        *_require_secrets(launch),
        f"port=${{MASTER_PORT:-{launch.port or _PORT}}}",
        *_as_variable(_rank_script(launch, ranks="${RANK}")),
        "case ${1:-} in",
        *[f"{number}) python={shlex.quote(node.python)} ;;" for number, node in enumerate(launch.nodes)],
        f'*) echo "usage: sh $0 0..{len(launch.nodes) - 1}" >&2; exit 2 ;;',
        "esac",
        f'exec "$python" -m torch.distributed.run --nnodes {len(launch.nodes)} --nproc-per-node {ranks} \\',
        f'    --node-rank "$1" --master-addr {shlex.quote(launch.head.address)} --master-port "$port" \\',
        '    --no-python /bin/sh -c "$each" rank "$port"',
    ]
    return "\n".join(lines) + "\n"


def _accelerate(launch: Launch) -> str:
    """``accelerate launch`` starts mpirun itself, and gives all hosts the environment of the first."""
    require_equal_ppn(launch, "accelerate")
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_CPU",
        "use_cpu": True,
        "num_machines": len(launch.nodes),
        "num_processes": launch.size,
        "machine_rank": 0,
        "main_process_ip": launch.head.address,
        "main_process_port": launch.port or _PORT,
        "mixed_precision": "no",
    }
    names = sorted({name for node in launch.nodes for name in node.env})
    differ = [name for name in names if len({_plain_value(node.env.get(name)) for node in launch.nodes}) > 1]
    lost = [f"# Not kept, as accelerate gives all hosts the first one's: {', '.join(differ)}."] if differ else []
    directory = launch.mpiexec[0].rpartition("/")[0]
    lines = [
        "#!/bin/sh",
        *_intro(launch, f"Start it on {launch.head.host}, which must reach the other hosts by SSH without a password."),
        *lost,
        "# Not kept: the ranks' cores; mpirun chooses them.",
        "set -eu",
        *_require_secrets(launch),
        *_export_env(launch.head, [name for name in names if name not in differ]),
        f'export PATH={shlex.quote(directory)}:"$PATH"  # accelerate takes the first mpirun',
        *[f"export {name}={shlex.quote(value)}" for name, value in sorted(launch.places[0].env.items())
          if name == "OMP_NUM_THREADS"],
        "directory=$(mktemp -d)",
        "trap 'rm -rf \"$directory\"' EXIT",
        "cat >\"$directory/hostfile\" <<'HOSTS'",
        *[f"{node.address} slots={len(node.ranks)}" if launch.framed else f"{node.address}:{len(node.ranks)}"
          for node in launch.nodes],
        "HOSTS",
        "cat >\"$directory/config.yaml\" <<'CONFIG'",
        *[f"{name}: {json.dumps(value)}" for name, value in config.items()],
        "CONFIG",
        f"cd {shlex.quote(launch.head.workdir)}",
        f'{shlex.quote(launch.head.python)} -m accelerate.commands.launch --config_file "$directory/config.yaml" \\',
        '    --mpirun_hostfile "$directory/hostfile" '
        + shlex.join(_script_words(launch)),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _script_words(launch: Launch) -> tuple[str, ...]:
    """The script and its arguments, as ``accelerate launch`` wants them."""
    if launch.title not in launch.argv:
        return launch.argv
    at = launch.argv.index(launch.title)
    return (*(("--module",) if launch.argv[at - 1] == "-m" else ()), *launch.argv[at:])


def _ansible(launch: Launch) -> str:
    """A playbook: what each rank does is copied to all hosts, then the first starts mpirun."""
    directory = "{{ ansible_user_dir }}/.cache/ipexctl-launch"
    file = f"{directory}/{_file_name(launch.title)}.sh"
    settings = {
        **{name: _env_value(launch.head, name) for name in ("PATH", "LD_LIBRARY_PATH") if name in launch.head.env},
        **dict(_split_exports(_launcher_settings(launch))),
        **{name: f"{{{{ lookup('env', '{name}') }}}}" for name in _list_secrets(launch)},
    }
    words = [word.replace("$port", "{{ port }}") for word in shlex.split(" ".join(_mpirun_words(launch, file)))]
    names = ":".join(node.host for node in launch.nodes)
    lines = [
        *_intro(launch, "Play it with ansible-playbook -i INVENTORY; the hosts' names must be those of the inventory."),
        "- name: what each rank does",
        f"  hosts: {json.dumps(names)}",
        "  gather_facts: true",
        "  tasks:",
        "    - ansible.builtin.file:",
        f"        path: {json.dumps(directory)}",
        "        state: directory",
        '        mode: "0700"',
        "    - ansible.builtin.copy:",
        f"        dest: {json.dumps(file)}",
        '        mode: "0600"',
        "        content: !unsafe |",
        *[f"          {line}" for text in _rank_script(launch) for line in text.split("\n")],
        f"- name: {json.dumps(launch.title)}",
        f"  hosts: {json.dumps(launch.head.host)}",
        "  gather_facts: true",
        "  vars:",
        f"    port: {launch.port or _PORT}",
        "  tasks:",
        "    - ansible.builtin.command:",
        "        argv:",
        *[f"          - {json.dumps(word)}" for word in words],
        "      environment:",
        *[f"        {name}: {json.dumps(value)}" for name, value in settings.items()],
    ]
    return "\n".join(lines) + "\n"


# --- the parts ------------------------------------------------------------------------------------------------------


def _intro(launch: Launch, how: str) -> list[str]:
    hosts = ", ".join(f"{node.host} ({len(node.ranks)})" for node in launch.nodes)
    return [
        f"# {launch.title}: {launch.size} {'rank' if launch.size == 1 else 'ranks'} on {hosts}; written by ipexctl.",
        f"# {how}",
        "# Script and environment must be on all hosts: ipexctl install, ipexctl sync.",
    ]


def _lists_hosts(launch: Launch) -> bool:
    """Whether mpirun is given the hosts one by one, each with words of its own."""
    return not launch.framed and "-hosts" not in launch.mpiexec


def _carry_rank_script(launch: Launch) -> list[str]:
    """The rank script in variables that mpirun passes to the hosts, one per host if possible. Raises `UsageError` if a
    single one is longer than an argument may be."""
    if _lists_hosts(launch):
        return [
            line
            for number, node in enumerate(launch.nodes)
            for line in _as_variable(_rank_script(launch, of=[node]), number)
        ]
    lines = _rank_script(launch)
    if sum(len(line.encode()) + 1 for line in lines) > _WORD:
        raise UsageError(
            f"{len(launch.nodes)} hosts need more than fits into one word of {launch.launcher}'s mpirun",
            hint="--emit ansible copies it as a file",
            exit=Exit.STEP,
        )
    return _as_variable(lines)


def _rank_script(launch: Launch, ranks: str = _RANKS, of: Sequence[NodePlan] = ()) -> list[str]:
    """POSIX sh: one rank, whose number gives its host (one ``of`` these, or of all). ``$1`` is the
    port."""
    lines = [f"r={ranks}", "case $r in"]
    nodes = of or launch.nodes
    for node in nodes:
        lines.append(f"{'|'.join(str(place.rank) for place in node.ranks)})  # {node.host}")
        lines += [f"    {line}" for line in _export_env(node)]
        if node.preload:
            lines.append(f"    export LD_PRELOAD={shlex.quote(':'.join(library.path for library in node.preload))}")
        lines.append(f"    export LOCAL_WORLD_SIZE={len(node.ranks)}")
        lines.append(f"    python={shlex.quote(node.python)}; cd {shlex.quote(node.workdir)} ;;")
    lines += ['*) echo "no such rank: $r" >&2; exit 1 ;;', "esac", "case $r in"]
    for place in (place for node in nodes for place in node.ranks):
        own = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(place.env.items()))
        exports = f"export LOCAL_RANK={place.local} {own}".rstrip()
        lines.append(f"{place.rank}) {exports}; {_bind_rank(place, launch)} ;;")
    lines += [
        "esac",
        f'export RANK="$r" WORLD_SIZE={launch.size} MASTER_PORT="$1"',
        'exec $bound "$python" ' + shlex.join(launch.argv[1:]),
    ]
    return lines


def _as_variable(each: list[str], number: int | None = None) -> list[str]:
    """The lines as the value of the variable ``each``, or ``each_NUMBER``, whatever they hold."""
    mark = "EACH"
    while mark in "\n".join(each).split("\n"):
        mark += "_"
    return [f"each{'' if number is None else f'_{number}'}=$(cat <<'{mark}'", *each, mark, ")"]


def _bind_rank(place: RankPlacement, launch: Launch) -> str:
    words = [f"taskset -c {cpu_list(place.cpus)}"] if place.cpus else []
    if launch.membind and place.nodes:
        words.append(f"numactl --membind={cpu_list(place.nodes)}")
    return f"bound={shlex.quote(' '.join(words))}"


def _export_env(node: NodePlan, only: Iterable[str] = ()) -> list[str]:
    names = [name for name in sorted(node.env) if not node.env[name].secret and name not in _ACCOUNT]
    chosen = [name for name in names if not only or name in only]
    return [f"export {name}={shlex.quote(_env_value(node, name))}" for name in chosen if name != "MASTER_PORT"]


def _launcher_settings(launch: Launch) -> list[str]:
    """Settings that mpirun needs without our keeper."""
    if launch.framed:
        names = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]
        return [f"export {name}={launch.mpiexec_env[name]}" for name in names if name in launch.mpiexec_env]
    return ["export I_MPI_PIN=0"] if "I_MPI_PIN" in launch.mpiexec_env else []


def _split_exports(exports: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in exports:
        name, _, value = line.removeprefix("export ").partition("=")
        yield name, value


def _mpirun_words(launch: Launch, each: str = "") -> list[str]:
    """mpirun's words, quoted, one option with its value an item. Hosts appear by their address."""
    program, interface = shlex.quote(launch.mpiexec[0]), shlex.quote(launch.head.interface)
    rank = f'/bin/sh {shlex.quote(each)} "$port"' if each else '/bin/sh -c "$each" rank "$port"'
    secrets = _list_secrets(launch)
    if launch.framed:
        words = [program, "--tag-output", "--bind-to none", f"--mca oob_tcp_if_include {interface}"]
        words += [f"-x {name}" for name in secrets]
        hosts = ",".join(f"{node.address}:{len(node.ranks)}" for node in launch.nodes)
        return [*words, f"--map-by slot --host {shlex.quote(hosts)} -np {launch.size}", rank]
    listed = f"-genvlist {','.join(secrets)}" if secrets else "-genvnone"
    if "-hosts" in launch.mpiexec:
        hosts = ",".join(f"{node.address}:{len(node.ranks)}" for node in launch.nodes)
        words = [program, "-launcher ssh", f"-iface {interface}", listed, "-prepend-rank"]
        return [*words, f"-hosts {shlex.quote(hosts)} -n {launch.size}", rank]
    words = [program, "-bootstrap ssh", f"-iface {interface}", listed, "-prepend-rank"]
    for number, node in enumerate(launch.nodes):
        colon = ": " if number else ""
        own = rank if each else rank.replace("$each", f"$each_{number}")
        words.append(f"{colon}-n {len(node.ranks)} -host {shlex.quote(node.address)} {own}")
    return words


def _choose_port(launch: Launch) -> list[str]:
    if launch.port:
        return [f"port={launch.port}"]
    program = 'import socket; s = socket.socket(); s.bind((\\"\\", 0)); print(s.getsockname()[1])'
    return [f'port=${{MASTER_PORT:-$({shlex.quote(launch.head.python)} -c "{program}")}}']


def _list_secrets(launch: Launch) -> list[str]:
    return sorted({name for node in launch.nodes for name, setting in node.env.items() if setting.secret})


def _require_secrets(launch: Launch) -> list[str]:
    names = _list_secrets(launch)
    return [f': "${{{name}:?must be set: its value is not written here}}"; export {name}' for name in names]


def _env_value(node: NodePlan, name: str) -> str:
    return node.env[name].value


def _plain_value(setting: object) -> object:
    return getattr(setting, "value", None)


def _file_name(text: str) -> str:
    """A name for jobs and files."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text) or "run"


FORMS: Mapping[str, Callable[[Launch], str]] = {
    "sh": _sh,
    "sbatch": _sbatch,
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "ansible": _ansible,
    "pytorchjob": pytorchjob.write_pytorchjob,
}
