"""The launcher's line in each dialect: Intel MPI's and MPICH's (both Hydra), and Open MPI 4's.

Hosts appear under labels that never name the local machine, so that the launcher asks our shim for every one of them,
node0 included; the shim asks the guard of that host. Intel's tree is kept flat for the same reason (MPICH's always is).
Measured with Intel MPI 2021.18.1 and MPICH 4.0.2: a label is never resolved, variables of the proxy reach the ranks
under ``-genvnone``, and the pattern of ``-prepend-pattern`` stands before every line and before every piece of one.

Open MPI's run-time system is called ORTE, its proxy ``orted``. Measured with Debian's 4.1.4: a label with a dot is cut
unless names are kept whole. ``mpirun`` by its absolute path would change the environment of the proxies
(``--noprefix``); a proxy would leave the process that the guard watches (``orte_leave_session_attached``); proxies
would start each other, which hosts without keys cannot (``plm_rsh_no_tree_spawn``). ``--tag-output`` is text that a
rank may print as well, so output is framed by the ranks' wrappers (`remote.wrapper.Frames`). Open MPI 5 has another
run-time system with other words: it is refused by name.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from ipexctl.model.launch import NodePlan
from ipexctl.model.stack import Dialect
from ipexctl.protocol import paths
from ipexctl.protocol.frames import launcher_pattern

RANK = ("/bin/sh", "-c", f'exec "${paths.PYTHON_ENV}" -E -s -S "${paths.AGENT_ENV}" {paths.Role.RANK}')

# Ranks of two hosts that are one machine find each other's shared memory and take it for their own host's (measured:
# a segmentation fault in MPI_Init).
OPENMPI_ONE_MACHINE: Mapping[str, str] = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"}


def build_mpiexec(
    dialect: Dialect, program: str, shim: str, interface: str, nonce: str, nodes: Sequence[NodePlan]
) -> tuple[str, ...]:
    """The words that start all ranks, in rank order: one segment a host, but for MPICH, which takes its hosts once and
    fills them in order. Proxies call back to ``interface``."""
    tagged = ["-genvnone", "-disable-auto-cleanup", "-prepend-pattern", launcher_pattern(nonce)]
    counts = [(node.label, str(len(node.ranks))) for node in nodes]
    if dialect == "mpich":
        words = [program, "-launcher", "ssh", "-launcher-exec", shim, "-rmk", "user", "-iface", interface, *tagged]
        hosts = ",".join(":".join(count) for count in counts)
        return (*words, "-hosts", hosts, "-n", str(sum(len(node.ranks) for node in nodes)), *RANK)
    if dialect == "impi":
        words = [program, "-bootstrap", "ssh", "-bootstrap-exec", shim, "-iface", interface, *tagged]
        segments = [["-n", ranks, "-host", label, *RANK] for label, ranks in counts]
    else:
        words = [program, "--noprefix", *_openmpi_settings(program, shim, interface)]
        # Binding is ours. "Oversubscribed" is how Open MPI counts slots it does not know; it then only yields.
        segments = [["-np", n, "--host", f"{label}:{n}", "--bind-to", "none", *RANK] for label, n in counts]
    return (*words, *segments[0], *(word for segment in segments[1:] for word in (":", *segment)))


def _openmpi_settings(program: str, shim: str, interface: str) -> list[str]:
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


def build_environment(dialect: Dialect, hosts: int, directory: str, user: str | None) -> Mapping[str, str]:
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
