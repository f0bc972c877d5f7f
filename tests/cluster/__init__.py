"""Separate hosts on one machine: own network, mounts, processes, names and IPC, an sshd each. Needs root.

with Cluster("node0", "node1") as cluster:
    cluster.run(["ssh", "-F", cluster.ssh_config, "node1", "hostname"])   # as the controller
    cluster.exec("node0", ["ip", "route"])                                # in the host, without ssh
    with cluster.cut("node1"):
        ...
"""

from tests.cluster.bench import Bench
from tests.cluster.cluster import Cluster, Process, Spec, missing

__all__ = ["Bench", "Cluster", "Process", "Spec", "missing"]
