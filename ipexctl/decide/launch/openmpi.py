"""The launcher's line, in the dialect of Open MPI 4 (its run-time system is called ORTE, its proxy ``orted``).

Measured with Debian's 4.1.4. A label with a dot is cut unless names are kept whole. ``mpirun`` by its absolute path
would change the environment of the proxies (``--noprefix``); a proxy would leave the process that the guard watches
(``orte_leave_session_attached``); proxies would start each other, which hosts without keys cannot
(``plm_rsh_no_tree_spawn``). ``--tag-output`` is text that a rank may print as well, so output is framed by the ranks'
wrappers (`remote.wrapper.Frames`). Open MPI 5 has another run-time system with other words: it is refused by name.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from ipexctl.decide.launch.hydra import RANK
from ipexctl.model.launch import NodePlan


def build_mpirun(program: str, shim: str, interface: str, nodes: Sequence[NodePlan]) -> tuple[str, ...]:
    """The words that start all ranks: one segment a host, in rank order. Proxies call back to ``interface``."""
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
    words = [program, "--noprefix"]
    for name, value in settings.items():
        words += ["--mca", name, value]
    for number, node in enumerate(nodes):
        words += [":"] if number else []
        # Binding is ours. "Oversubscribed" is how Open MPI counts slots it does not know; it then only yields.
        words += ["-np", str(len(node.ranks)), "--host", f"{node.label}:{len(node.ranks)}", "--bind-to", "none", *RANK]
    return tuple(words)


def build_environment(directory: str, user: str | None) -> Mapping[str, str]:
    """For mpirun or a proxy on one host: its files in the run's own directory, none of them mapped (it may be NFS)."""
    env = {"TMPDIR": directory, "PMIX_MCA_gds": "hash"}
    if user == "root":  # whoever logs in as root has decided that already
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env


# Ranks of two hosts that are one machine find each other's shared memory and take it for their own host's (measured:
# a segmentation fault in MPI_Init).
ONE_MACHINE: Mapping[str, str] = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"}
