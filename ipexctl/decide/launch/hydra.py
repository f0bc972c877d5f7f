"""The launcher's line, in the dialects of Hydra: Intel MPI's and MPICH's.

Hosts appear under labels that never name the local machine, so that Hydra asks our shim for every one of them, node0
included; the shim asks the guard of that host. Intel's tree is kept flat for the same reason (MPICH's always is).
Measured with Intel MPI 2021.18.1 and MPICH 4.0.2: a label is never resolved, variables of the proxy reach the ranks
under ``-genvnone``, and the pattern of ``-prepend-pattern`` stands before every line and before every piece of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipexctl.model.launch import NodePlan
from ipexctl.protocol import paths
from ipexctl.protocol.frames import launcher_pattern

RANK = ("/bin/sh", "-c", f'exec "${paths.PYTHON_ENV}" -E -s -S "${paths.AGENT_ENV}" {paths.Role.RANK}')


def build_intel_mpiexec(
    program: str, shim: str, interface: str, nonce: str, nodes: Sequence[NodePlan]
) -> tuple[str, ...]:
    """The words that start all ranks: one segment a host, in rank order. Proxies call back to ``interface``."""
    words = [program, "-bootstrap", "ssh", "-bootstrap-exec", shim, "-iface", interface]
    words += ["-genvnone", "-disable-auto-cleanup", "-prepend-pattern", launcher_pattern(nonce)]
    for number, node in enumerate(nodes):
        words += [":"] if number else []
        words += ["-n", str(len(node.ranks)), "-host", node.label, *RANK]
    return tuple(words)


def build_mpich_mpiexec(
    program: str, shim: str, interface: str, nonce: str, nodes: Sequence[NodePlan]
) -> tuple[str, ...]:
    """The same for MPICH, which takes its hosts once, and fills them in order."""
    hosts = ",".join(f"{node.label}:{len(node.ranks)}" for node in nodes)
    words = [program, "-launcher", "ssh", "-launcher-exec", shim, "-rmk", "user", "-iface", interface]
    words += ["-genvnone", "-disable-auto-cleanup", "-prepend-pattern", launcher_pattern(nonce)]
    return (*words, "-hosts", hosts, "-n", str(sum(len(node.ranks) for node in nodes)), *RANK)


def build_environment(hosts: int) -> Mapping[str, str]:
    """For Intel's mpiexec and its proxies: a flat tree, and no pinning but our own."""
    return {"I_MPI_HYDRA_BRANCH_COUNT": str(max(2, hosts)), "I_MPI_PIN": "0"}
