"""Two hosts of different shapes, as the launch sees them."""

from collections.abc import Mapping
from typing import Any

from ipexctl.decide.checks.network import InterfaceChoice
from ipexctl.decide.launch import mpi_launchers
from ipexctl.decide.launch.build import build_launch
from ipexctl.decide.launch.environment import HostRuntime
from ipexctl.decide.releases.runtime import Runtime
from ipexctl.model.errors import Note
from ipexctl.model.facts import Core, Facts, Installed, Interface
from ipexctl.model.hosts import Host
from ipexctl.model.launch import Launch, Setting
from ipexctl.model.stack import MpiLauncher
from ipexctl.model.tasks import Run

NONCE = "5ca1ab1e"
ENGINES = {
    "mpich": MpiLauncher("mpich", "MPICH", "/usr/bin/mpiexec.mpich", "4.0.2"),
    "openmpi": MpiLauncher("openmpi", "Open MPI", "/usr/bin/mpirun.openmpi", "4.1.4"),
    "openmpi-5": MpiLauncher("openmpi", "Open MPI", "/opt/ompi/bin/mpirun", "5.0.11"),
}


def runtime(engine: str = "impi", module: str = "", impi: bool = False) -> Runtime:
    own = Runtime(
        "/opt/ai/bin/python",
        "/opt/ai/bin/mpiexec.hydra",
        ("/opt/ai/bin",),
        ("/opt/ai/lib",),
        {"I_MPI_ROOT": "/opt/ai", "VIRTUAL_ENV": "/opt/ai"},
        "impi",
        "2021.18.1",
        module,
        impi,
    )
    return own if engine == "impi" else mpi_launchers.switch_launcher(own, ENGINES[engine], ccl=bool(module))


def facts(nodes: int, cores: int, **more: Any) -> Facts:
    """``nodes`` NUMA nodes of ``cores`` cores with two hardware threads each."""
    total = nodes * cores
    topology = tuple(Core((core, core + total), core // cores, core // cores) for core in range(total))
    return Facts(
        **{
            "cpus_online": tuple(range(2 * total)),
            "cores": topology,
            "home": "/home/alice",
            "user": "alice",
            "machine_id": f"{nodes}x{cores}",
            "isa_level": "AMX",
            "interfaces": (Interface("eth0", ("192.0.2.10/24",)),),
            "installed": Installed("/opt/ai", True, "3.11", {"torch": "2.8.0", "intel-extension-for-pytorch": "2.8.0"}),
            **more,
        }
    )


def launch(
    task: Run | None = None,
    asked: Mapping[str, Setting] | None = None,
    *,
    engine: str = "impi",
    module: str = "",
    impi: bool = False,
    first: Mapping[str, Any] | None = None,
    second: Mapping[str, Any] | None = None,
    modules: tuple[str, ...] = (),
    address: str = "192.0.2.10",
) -> Launch:
    """node0 with two NUMA nodes of four cores, node1 with one of six; ``first`` and ``second`` are further facts."""
    hosts = (Host("node0", "192.0.2.10"), Host("node1", "192.0.2.11"))
    ready = runtime(engine, module, impi)
    stations = {
        "node0": HostRuntime(
            facts(2, 4, **(first or {})),
            InterfaceChoice("eth0", address, Note("shared-subnet", "192.0.2.0/24")),
            ready,
            "/home/alice/.local/state/ipexctl/runs/r1",
            "/home/alice/ipexctl/job",
        ),
        "node1": HostRuntime(
            facts(1, 6, **(second or {})),
            InterfaceChoice("ens3", "192.0.2.11", Note("shared-subnet", "192.0.2.0/24")),
            ready,
            "/home/alice/.local/state/ipexctl/runs/r1",
            "/scratch/job",
            modules,
        ),
    }
    task = task or Run(script="train.py", args=("--epochs", "3"))
    return build_launch(task, "r1", hosts, stations, task.script, asked or {})
