"""MPICH from 3 on, whose launcher is Hydra. Its tree of proxies is always flat.

Measured with Debian's 4.0.2 and the wheel of 5.0.2: a label is never resolved, hosts are filled in order, and variables
of the proxy reach the ranks. Under ``-genvnone`` (as under ``-genvlist``) a rank cannot start more by MPI_Comm_spawn:
"duplicate setting: genv-prop". The wheel's library uses UCX, Debian's too."""

from collections.abc import Sequence

from ipexctl.decide.launch.dialects import base


class _Mpich(base.MpiDialect):
    def build_arguments(self, line: base.LaunchLine) -> tuple[str, ...]:
        words = ("-launcher", "ssh", "-launcher-exec", line.shim, "-rmk", "user", "-iface", line.interface)
        hosts = ("-hosts", base.format_hosts(line.counts), "-n", base.count_ranks(line.counts))
        return (*words, "-disable-auto-cleanup", *hosts, *base.RANK)

    def build_port_env(self, ports: base.PortRange) -> base.PortEnv:
        ranks = {
            "UCX_TCP_PORT_RANGE": f"{ports.low + 2}-{ports.last}",
            "MPIR_CVAR_CH3_PORT_RANGE": f"{ports.low + 2}:{ports.last}",
        }
        return base.PortEnv({"MPIEXEC_PORT_RANGE": f"{ports.low}:{ports.last}"}, {}, ranks)

    def build_interface_env(self, interface: str, rdma: bool) -> dict[str, str]:
        return {} if rdma else {"UCX_NET_DEVICES": interface}

    def write_shell_options(self, interface: str, secrets: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        passed = ("-genvlist", ",".join(secrets)) if secrets else ("-genvnone",)
        return (("-launcher", "ssh"), ("-iface", interface), passed, ("-prepend-rank",))

    def write_shell_hosts(self, hosts: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], ...]:
        return (("-hosts", base.format_hosts(hosts), "-n", base.count_ranks(hosts)),)


MPICH = _Mpich(
    name="mpich",
    title="MPICH",
    programs=("mpiexec.mpich", "mpiexec.hydra", "mpirun.mpich", "mpiexec", "mpirun"),
    directories=("/usr/lib64/mpich/bin",),
    version_pattern=r"HYDRA build details:\s*Version:\s*([\d.]+)",
    proxies=("hydra_pmi_proxy",),
    package="mpich",
    wheel="mpich",
    abi="mpich",
    linked=base.MPICH_LIBRARIES,
    library="libmpi.so.12",
    system_library="libmpich.so.12",
    single_rank=("-launcher", "fork"),
    single_rank_env={},
    rank_variable="PMI_RANK",
    rank_prefixes=("PMI", "MPI_", "HYDRA"),
    one_machine={},
    informs_oneccl=True,
    shell_variables=("MPIEXEC_PORT_RANGE",),
    command_per_host=False,
    names_providers=False,
    ipv6_options=None,  # "unable to find interface eth0" (5.0.2, measured)
)
