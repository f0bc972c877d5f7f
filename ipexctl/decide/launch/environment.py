"""Build the environment of ranks on one host, each value with its source. The controller's own is not passed on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ipexctl.decide.checks.network import InterfaceChoice
from ipexctl.decide.launch import tuning
from ipexctl.decide.releases.runtime import Runtime
from ipexctl.model.facts import Facts, cpu_list
from ipexctl.model.launch import Preload, RankPlacement, Setting

_RDMA = ("ib", "opa", "hfi", "hsi", "roce")  # names Linux gives to InfiniBand and Omni-Path interfaces
_SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


def has_rdma(hosts: Iterable[Facts]) -> bool:
    """Whether every host has an active RDMA interface: libfabric's provider must be the same on all hosts, but each
    host would choose its own."""
    return all(any(card.name.startswith(_RDMA) and card.up is not False for card in host.interfaces) for host in hosts)


def build_host_env(
    facts: Facts,
    choice: InterfaceChoice,
    head: InterfaceChoice,
    runtime: Runtime,
    backend: str,
    places: Iterable[RankPlacement],
    workers: int,
    port: int | None,
    tuned: Mapping[str, Setting],
    user_env: Mapping[str, Setting],
    *,
    rdma: bool = False,
    override: bool = False,
) -> dict[str, Setting]:
    """Variables of all ranks on this host. ``tuned`` is from `tuning`; ``user_env`` overrides every other value.
    ``rdma``: `has_rdma` of all hosts of the run."""
    env: dict[str, Setting] = {}

    def put(name: str, value: str, source: str, by_user: bool = False) -> None:
        env[name] = Setting(value, source, by_user=by_user)

    put("PATH", ":".join(dict.fromkeys([*runtime.path, *_SYSTEM_PATH])), "environment")
    if runtime.library_path:
        put("LD_LIBRARY_PATH", ":".join(runtime.library_path), "environment")
    for name, value in runtime.env.items():
        put(name, value, "environment")
    put("HOME", facts.home or "/", "account")
    if facts.user:
        put("USER", facts.user, "account")
        put("LOGNAME", facts.user, "account")
    put("LANG", "C.UTF-8", "ipexctl")
    put("PYTHONUNBUFFERED", "1", "ipexctl: output as it is written")
    put("MASTER_ADDR", head.address, "the head's address on its interface")
    if port:
        put("MASTER_PORT", str(port), "--port", by_user=True)
    put("GLOO_SOCKET_IFNAME", choice.name, "interface of this host")
    put("FI_TCP_IFACE", choice.name, "interface of this host")
    if not rdma:
        put("FI_PROVIDER", "tcp", "not every host has an RDMA interface that is up")
    if runtime.dialect == "openmpi":
        put("OMPI_MCA_btl_tcp_if_include", choice.name, "interface of this host")
        if not rdma:
            put("UCX_NET_DEVICES", choice.name, "interface of this host")
    put("IPEXCTL_BACKEND", backend, "--backend", by_user=True)
    if override:
        put("IMPI_TORCH_OVERRIDE", "1", "--backend-override", by_user=True)
    if backend == "ccl":
        put("CCL_WORKER_COUNT", str(workers), "--ccl-workers", by_user=True)
        put("CCL_ATL_TRANSPORT", "ofi", "Hugging Face's guide for many CPUs")
        put("CCL_KVS_IFACE", choice.name, "interface of this host")
        if runtime.dialect == "openmpi":
            put("CCL_PROCESS_LAUNCHER", "none", "Open MPI tells oneCCL no ranks that it reads")
        bound = [str(cpu) for place in places for cpu in place.workers]
        if bound:
            put("CCL_WORKER_AFFINITY", ",".join(bound), "last cores of each rank")
    env.update(tuned)
    env.update(user_env)
    return env


def build_rank_env(
    place: RankPlacement,
    of_host: int,
    threads: int | None,
    user_env: Mapping[str, Setting],
    preload: Sequence[Preload],
    own_ranks: bool,
    backend: str = "",
) -> dict[str, str]:
    """Variables of one rank of ``of_host`` on its host: OpenMP threads (one per core), its local rank for oneCCL with
    ``own_ranks``, and for impi the cores of its communication."""
    env: dict[str, str] = {}
    count = threads or place.threads
    if threads or place.cpus:
        env["OMP_NUM_THREADS"] = str(count)
        env |= tuning.build_rank_settings(place, preload, count)
    if own_ranks:
        env |= {"CCL_LOCAL_RANK": str(place.local), "CCL_LOCAL_SIZE": str(of_host)}
    if backend == "impi" and place.workers:
        env["IMPI_TORCH_WORKER_CORES"] = cpu_list(place.workers)
    return {name: value for name, value in env.items() if name not in user_env}
