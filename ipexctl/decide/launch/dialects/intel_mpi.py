"""Intel MPI, whose launcher is its own Hydra.

Measured with 2021.18.1: a label is never resolved, and variables of the proxy reach the ranks under ``-genvnone``. The
tree of proxies is kept flat, so that only mpirun itself asks for them."""

from collections.abc import Sequence

from ipexctl.decide.launch.dialects import base


class _IntelMpi(base.MpiDialect):
    def build_arguments(self, line: base.LaunchLine) -> tuple[str, ...]:
        words = ("-bootstrap", "ssh", "-bootstrap-exec", line.shim, "-iface", line.interface)
        segments = [("-n", str(count), "-host", label, *base.RANK) for label, count in line.counts]
        return (*words, "-genvnone", "-disable-auto-cleanup", *base.join_segments(segments))

    def build_library_env(self, prefix: str, providers: str) -> dict[str, str]:
        return {"I_MPI_ROOT": prefix or "/usr", **({"FI_PROVIDER_PATH": providers} if providers else {})}

    def build_proxy_env(self, host: base.ProxyHost) -> dict[str, str]:
        # No pinning but ours.
        return {"I_MPI_HYDRA_BRANCH_COUNT": str(max(2, host.hosts)), "I_MPI_PIN": "0"}

    def build_port_env(self, ports: base.PortRange) -> base.PortEnv:
        return base.PortEnv({"I_MPI_PORT_RANGE": f"{ports.low}:{ports.last}"})

    def write_shell_options(self, interface: str, secrets: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        passed = ("-genvlist", ",".join(secrets)) if secrets else ("-genvnone",)
        return (("-bootstrap", "ssh"), ("-iface", interface), passed, ("-prepend-rank",))

    def write_shell_hosts(self, hosts: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], ...]:
        return tuple(("-n", str(count), "-host", address) for address, count in hosts)


INTEL_MPI = _IntelMpi(
    name="impi",
    title="Intel MPI",
    programs=("mpiexec.hydra", "mpirun", "mpiexec"),
    directories=("/opt/intel/oneapi/mpi/latest/bin",),
    version_pattern=r"Intel\(R\) MPI Library.*?(?:Version|version) ([\d.]+)",
    proxies=("hydra_bstrap_proxy", "hydra_pmi_proxy"),
    package="",
    wheel="impi-rt",
    abi="mpich",
    linked=base.MPICH_LIBRARIES,
    library="libmpi.so.12",
    system_library="libmpi.so.12",
    single_rank=("-launcher", "fork"),
    single_rank_env={"I_MPI_FABRICS": "shm"},
    rank_variable="PMI_RANK",
    rank_prefixes=("PMI", "MPI_", "I_MPI", "HYDRA"),
    one_machine={},
    informs_oneccl=True,
    shell_variables=("I_MPI_PIN", "I_MPI_PORT_RANGE"),
    command_per_host=True,
    names_providers=True,
    ipv6_options=("-v6",),
)
