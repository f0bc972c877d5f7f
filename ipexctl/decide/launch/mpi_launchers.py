"""The mpirun that starts the ranks: that of the environment, or a host's own one named by ``--mpi``; and its command
line in each dialect: Intel MPI's and MPICH's (both Hydra), and Open MPI 4's.

Hosts appear under labels that never name the local machine, so that the launcher asks our shim for every one of them,
node0 included; the shim asks the guard of that host. Intel's tree is kept flat for the same reason (MPICH's always is).
Measured with Intel MPI 2021.18.1 and MPICH 4.0.2: a label is never resolved, variables of the proxy reach the ranks
under ``-genvnone``, and the pattern of ``-prepend-pattern`` stands before every line and before every piece of one.

Open MPI's run-time system is called ORTE, its proxy ``orted``. Measured with Debian's 4.1.4: a label with a dot is cut
unless names are kept whole. ``mpirun`` by its absolute path would change the environment of the proxies
(``--noprefix``); a proxy would leave the process that the guard watches (``orte_leave_session_attached``); proxies
would start each other, which hosts without keys cannot (``plm_rsh_no_tree_spawn``). ``--tag-output`` is text that a
rank may print as well, so output is framed by the ranks' wrappers (`remote.wrapper.Frames`). Open MPI 5 has another
run-time system with other words: it is refused by name."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ipexctl.decide.releases.runtime import Runtime
from ipexctl.decide.releases.table import parse_version
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.launch import NodePlan
from ipexctl.model.stack import Dialect, MpiLauncher
from ipexctl.model.tasks import Run
from ipexctl.model.text import pluralize
from ipexctl.protocol import paths
from ipexctl.protocol.frames import build_hydra_pattern

RANK = ("/bin/sh", "-c", f'exec "${paths.PYTHON_ENV}" -E -s -S "${paths.AGENT_ENV}" {paths.Role.RANK}')

# Ranks of two hosts that are one machine find each other's shared memory and take it for their own host's (measured:
# a segmentation fault in MPI_Init).
OPENMPI_ONE_MACHINE: Mapping[str, str] = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"}

PROXIES: Mapping[Dialect, str] = {"impi": "hydra_bstrap_proxy", "mpich": "hydra_pmi_proxy", "openmpi": "orted"}
_ABI: Mapping[Dialect, str] = {"impi": "mpich", "mpich": "mpich", "openmpi": "openmpi"}  # as mpi4py calls them
_CANDIDATES: Mapping[str, tuple[str, ...]] = {
    "impi": ("mpiexec.hydra", "mpirun", "mpiexec"),
    "mpich": ("mpiexec.mpich", "mpiexec.hydra", "mpirun.mpich", "mpiexec", "mpirun"),
    "openmpi": ("mpirun.openmpi", "mpirun", "mpiexec"),
}
_VERSIONS: Mapping[Dialect, str] = {  # what ``--version`` prints
    "impi": r"Intel\(R\) MPI Library.*?(?:Version|version) ([\d.]+)",
    "openmpi": r"\((?:OpenRTE|Open MPI|PRRTE)\) ([\d.]+)",
    "mpich": r"HYDRA build details:\s*Version:\s*([\d.]+)",
}


def build_launcher_query(name: str, script: str) -> tuple[str, ...]:
    """The command that looks on a host for ``name`` ("impi", "mpich", "openmpi" or a path).
    See `parse_launcher_answer`. ``script`` is ``data/find_mpi.sh``."""
    return ("/bin/sh", "-c", script, "sh", *((name,) if "/" in name else _CANDIDATES[name]))


def parse_launcher_answer(name: str, text: str) -> MpiLauncher | str:
    """The launcher that a host has under ``name``, or why it has none, from the output of `build_launcher_query`."""
    reason = f"there is no {name}" if "/" in name else f"{name} was not found on its PATH"
    for line in text.splitlines():
        program, _, fields = line.partition("\t")
        output, _, helpers = fields.partition("\t")
        found = ((dialect, re.search(pattern, output)) for dialect, pattern in _VERSIONS.items())
        launcher = next(
            (MpiLauncher(dialect, program, match[1].rstrip(".")) for dialect, match in found if match), None
        )
        if launcher is None:
            reason = f"{program} is not a known MPI: {output[:80].strip() or 'no output'}" if "/" in name else reason
        elif "/" not in name and launcher.dialect != name:
            continue
        elif launcher.dialect == "openmpi" and parse_version(launcher.version).major >= 5:
            reason = f"{program} is Open MPI {launcher.version}; ipexctl supports Open MPI 4"
        elif PROXIES[launcher.dialect] not in helpers.split():
            reason = f"there is no {PROXIES[launcher.dialect]} beside {program}"
        else:
            providers = next((word for word in helpers.split() if word.startswith("/")), "")
            return replace(launcher, providers=providers if launcher.dialect == "impi" else "")
    return reason


def suggest_mpi_install(name: str) -> str:
    """Advice for a host without that MPI."""
    packages = {"mpich": "mpich", "openmpi": "openmpi-bin"}
    package = f"install it there (Debian: apt install {packages[name]}), or " if name in packages else ""
    return f"{package}run without --mpi"


def choose_common_launcher(name: str, launchers: Mapping[str, MpiLauncher]) -> MpiLauncher:
    """The launcher that all hosts share, at one path. Raises `UsageError` (exit 4) listing that of each host."""
    if len(set(launchers.values())) > 1:
        what = f"--mpi {name} needs the same MPI at the same path on all hosts"
        reasons = [f"{host}: {launcher} at {launcher.program}" for host, launcher in launchers.items()]
        raise UsageError(what, reasons=reasons, exit=Exit.STEP)
    return next(iter(launchers.values()))


def switch_launcher(runtime: Runtime, launcher: MpiLauncher, ccl: bool) -> Runtime:
    """The same runtime with ranks started by ``launcher``. The environment's own MPI libraries are removed from the
    search path unless oneCCL (``ccl``) needs them."""
    directory = posixpath.dirname(launcher.program)
    prefix = posixpath.dirname(directory)
    own = () if prefix in {"/usr", "/usr/local", "/", ""} else (f"{prefix}/lib",)
    intel = {"I_MPI_ROOT": prefix} if launcher.dialect == "impi" else {}
    if launcher.providers:
        intel["FI_PROVIDER_PATH"] = launcher.providers
        own = (*own, posixpath.dirname(launcher.providers))
    return replace(
        runtime,
        mpiexec=launcher.program,
        path=(runtime.path[0], directory),
        library_path=(*own, *(runtime.library_path if ccl else ())),
        env={
            **{n: value for n, value in runtime.env.items() if ccl or n not in {"I_MPI_ROOT", "FI_PROVIDER_PATH"}},
            **intel,
            **({"MPI4PY_MPIABI": _ABI[launcher.dialect]} if runtime.impi else {}),
        },
        dialect=launcher.dialect,
        version=launcher.version,
        # mpi4py asks for MPICH's library by its own name, libmpi.so.12; Debian gives it another.
        impi=runtime.impi and (launcher.dialect != "mpich" or bool(own)),
    )


def build_mpiexec(
    dialect: Dialect, program: str, shim: str, interface: str, nonce: str, nodes: Sequence[NodePlan]
) -> tuple[str, ...]:
    """The words that start all ranks, in rank order: one segment a host, but for MPICH, which takes its hosts once and
    fills them in order. Proxies call back to ``interface``."""
    tagged = ["-genvnone", "-disable-auto-cleanup", "-prepend-pattern", build_hydra_pattern(nonce)]
    counts = [(node.label, str(len(node.ranks))) for node in nodes]
    if dialect == "mpich":
        words = [program, "-launcher", "ssh", "-launcher-exec", shim, "-rmk", "user", "-iface", interface, *tagged]
        hosts = ",".join(":".join(count) for count in counts)
        return (*words, "-hosts", hosts, "-n", str(sum(len(node.ranks) for node in nodes)), *RANK)
    if dialect == "impi":
        words = [program, "-bootstrap", "ssh", "-bootstrap-exec", shim, "-iface", interface, *tagged]
        segments = [["-n", ranks, "-host", label, *RANK] for label, ranks in counts]
    else:
        words = [program, "--noprefix", *_list_openmpi_settings(program, shim, interface)]
        # Binding is ours. "Oversubscribed" is how Open MPI counts slots it does not know; it then only yields.
        segments = [["-np", n, "--host", f"{label}:{n}", "--bind-to", "none", *RANK] for label, n in counts]
    return (*words, *segments[0], *(word for segment in segments[1:] for word in (":", *segment)))


def _list_openmpi_settings(program: str, shim: str, interface: str) -> list[str]:
    settings = {
        "plm": "rsh",
        # Open MPI hands this on to its proxies, which refuse to start where its first word is not a program on their
        # own host: the head's directory need not exist there, a shell does.
        "plm_rsh_agent": f"/bin/sh {shim}",
        "plm_rsh_no_tree_spawn": "1",
        "orte_launch_agent": posixpath.join(posixpath.dirname(program), "orted"),
        "orte_leave_session_attached": "1",
        "orte_keep_fqdn_hostnames": "1",
        "routed": "direct",
        "oob_tcp_if_include": interface,
    }
    return [word for name, value in settings.items() for word in ("--mca", name, value)]


def parse_ports(text: str | None) -> tuple[int, int]:
    """The first and last port of ``--port-range``; (0, 0) without one. Raises `UsageError`."""
    low, high = map(int, (text or "0-0").split("-"))
    if text and not 1024 <= low <= high <= 65535:
        raise UsageError(
            f"--port-range {text} is not a range of ports from 1024 to 65535", hint="--port-range 40000-40099"
        )
    return low, high


class PortEnv(NamedTuple):
    """Variables for ``--port-range``: of the launcher, of its proxies and of the ranks."""

    launcher: Mapping[str, str] = {}
    proxies: Mapping[str, str] = {}
    ranks: Mapping[str, str] = {}


def build_port_env(dialect: Dialect, task: Run, most: int) -> PortEnv:
    """The last two ports are left to the keeper and the rendezvous. Raises `UsageError` for
    a range that ``most`` ranks of one host cannot share.

    Open MPI 4.1.4 (measured): ``mpirun`` and each ``orted`` listen on *every* port that they are given, and in both
    address families."""
    low, high = parse_ports(task.port_range)
    if not low:
        return PortEnv()
    needed = most + len(("launcher", "proxy", "keeper", "rendezvous"))
    if high - low + 1 < needed:
        what = f"--port-range {task.port_range} has too few ports"
        raise UsageError(what, reasons=[f"a host with {pluralize(most, 'rank')} needs {needed}"])
    first, last = low + 2, high - 2
    ranks = {"FI_TCP_PORT_LOW_RANGE": str(first), "FI_TCP_PORT_HIGH_RANGE": str(last)}
    if dialect == "impi":
        return PortEnv({"I_MPI_PORT_RANGE": f"{low}:{last}"}, {}, ranks)
    ranks["UCX_TCP_PORT_RANGE"] = f"{first}-{last}"
    if dialect == "mpich":
        ranks["MPIR_CVAR_CH3_PORT_RANGE"] = f"{first}:{last}"
        return PortEnv({"MPIEXEC_PORT_RANGE": f"{low}:{last}"}, {}, ranks)
    launcher = {"OMPI_MCA_plm_rsh_pass_environ_mca_params": "0"}  # the proxies' port is another
    proxies = {}
    for family in ("v4", "v6"):
        launcher[f"OMPI_MCA_oob_tcp_dynamic_ip{family}_ports"] = str(low)
        proxies[f"OMPI_MCA_oob_tcp_dynamic_ip{family}_ports"] = str(low + 1)
        ranks[f"OMPI_MCA_btl_tcp_port_min_{family}"] = str(first)
        ranks[f"OMPI_MCA_btl_tcp_port_range_{family}"] = str(last - first + 1)
    return PortEnv(launcher, proxies, ranks)


def build_environment(dialect: Dialect, hosts: int, directory: str, user: str | None) -> dict[str, str]:
    """Variables of the launcher or its proxy on one host, apart from its paths. Intel MPI: a flat tree, and no pinning
    but ours. Open MPI: its files in the run's ``directory``, none of them mapped (it may be NFS)."""
    if dialect == "impi":
        return {"I_MPI_HYDRA_BRANCH_COUNT": str(max(2, hosts)), "I_MPI_PIN": "0"}
    if dialect == "mpich":
        return {}
    env = {"TMPDIR": directory, "PMIX_MCA_gds": "hash"}
    if user == "root":  # whoever logs in as root has decided that already
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env
