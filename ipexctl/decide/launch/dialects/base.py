"""What differs between MPIs: a `MpiDialect` says all of it that we use."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ipexctl.model.stack import Dialect, MpiWheel
from ipexctl.protocol import paths

# What the launcher starts for each rank.
RANK = ("/bin/sh", "-c", f'exec "${paths.PYTHON_ENV}" -E -s -S "${paths.AGENT_ENV}" {paths.Role.RANK}')

MPICH_LIBRARIES = ("libmpi.so.12", "libmpich.so.10", "libmpich.so.12")  # of Intel MPI, and of MPICH 3 and later


class LaunchLine(NamedTuple):
    """What a launcher's command line says: ``program`` calls ``shim`` in place of ssh for each host of ``counts``
    (label, number of ranks), in the order of ranks. Proxies call back to ``interface``, the head's."""

    program: str
    shim: str
    interface: str
    counts: Sequence[tuple[str, int]]


class ProxyHost(NamedTuple):
    """Where a proxy runs: a host of so many, as this user, with the run's directory there."""

    hosts: int
    directory: str
    user: str | None


class PortRange(NamedTuple):
    """The ports of ``--port-range`` that are the launcher's and the ranks'."""

    low: int
    last: int


class PortEnv(NamedTuple):
    """Variables for ``--port-range``: of the launcher, of its proxies and of the ranks."""

    launcher: Mapping[str, str] = {}
    proxies: Mapping[str, str] = {}
    ranks: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class MpiDialect(ABC):
    """One kind of MPI: where it is found, and how it is started. No launcher carries what ranks write, and what it does
    to its own processes of the ranks does not reach them: see `remote.agent.wrapper`. docs/launch.md lists what each
    does at an abort, at a bad end and when it is ended itself."""

    name: Dialect
    title: str  # for people
    programs: tuple[str, ...]  # its mpirun on a host, the most telling name first
    directories: tuple[str, ...]  # where a host may have these outside of PATH
    version_pattern: str  # in what ``--version`` prints; its group is the version
    proxies: tuple[str, ...]  # what it starts on each host, beside it: the first by itself, each of the others by that
    package: str  # of Debian; empty: none
    wheel: MpiWheel | None  # the package of the index with this MPI
    abi: Literal["mpich", "openmpi"]  # as mpi4py calls it
    linked: tuple[str, ...]  # the libraries of this ABI, of any release, as a program that is linked to one names it
    library: str  # that mpi4py and impi_torch load
    system_library: str  # the same where a distribution installs it
    single_rank: tuple[str, ...]  # arguments by which it starts one rank here, without another host
    single_rank_env: Mapping[str, str]
    rank_variable: str  # by which it tells a process its rank
    rank_prefixes: tuple[str, ...]  # of all variables that it sets for a rank
    one_machine: Mapping[str, str]  # variables of ranks whose hosts are one machine
    informs_oneccl: bool  # whether oneCCL reads the ranks that it tells
    shell_variables: tuple[str, ...]  # those of its environment that it needs without our keeper
    command_per_host: bool  # in a shell script, each host has a command of its own
    names_providers: bool  # whether its library must be told where libfabric's providers lie
    ipv6_options: tuple[str, ...] | None  # of its launcher, where hosts have IPv6 addresses; None: it needs IPv4

    def list_family_options(self, address: str) -> tuple[str, ...]:
        """Returns the launcher's options for hosts that are reached by an address of this family."""
        return (self.ipv6_options or ()) if ":" in address else ()

    @abstractmethod
    def build_arguments(self, line: LaunchLine) -> tuple[str, ...]:
        """Returns the words that start all ranks, in rank order, without the program."""

    def build_library_env(self, prefix: str, providers: str) -> dict[str, str]:
        """Variables by which it finds its files below ``prefix`` (empty: the system's) and libfabric's providers."""
        return {}

    def build_proxy_env(self, host: ProxyHost) -> dict[str, str]:
        """Variables of the launcher or its proxy on one host, apart from its paths."""
        return {}

    @abstractmethod
    def build_port_env(self, ports: PortRange) -> PortEnv:
        """Variables that keep it and its library within these ports, beside libfabric's."""

    def build_interface_env(self, interface: str, rdma: bool) -> dict[str, str]:
        """Variables of ranks that name their host's interface, beside libfabric's. ``rdma``: all hosts have RDMA."""
        return {}

    @abstractmethod
    def write_shell_options(self, interface: str, secrets: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Returns the options of a shell script's mpirun, which uses ssh: for each its words. ``secrets`` are variables
        of the shell that ranks have too."""

    @abstractmethod
    def write_shell_hosts(self, hosts: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], ...]:
        """Returns the words before each command of a shell script's mpirun: one for each host (address, number of
        ranks), or one for all."""


def join_segments(segments: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Returns the words of all segments of a command line, with colons between them."""
    return (*segments[0], *(word for segment in segments[1:] for word in (":", *segment)))


def format_hosts(counts: Sequence[tuple[str, int]]) -> str:
    """``a:2,b:1``."""
    return ",".join(f"{host}:{count}" for host, count in counts)


def count_ranks(counts: Sequence[tuple[str, int]]) -> str:
    """Returns how many ranks all of these hosts have, as a word."""
    return str(sum(count for _, count in counts))
