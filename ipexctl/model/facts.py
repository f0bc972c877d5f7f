"""The facts of a host, parsed from its probe. ``None`` and empty mean unknown; never a guess."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from ipexctl.model.errors import Note
from ipexctl.model.json_values import UNWRITTEN, JsonForm, Record, field
from ipexctl.model.stack import InstallMarker
from ipexctl.model.text import format_cpus

# How the names of types begin of file systems that other hosts may see, too.
NETWORK_FILE_SYSTEMS = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "fuse", "9p", "virtiofs")
OLDEST_PYTHON = "3.6"  # on hosts: what `remote` and `protocol` are written for; a test runs them with it


def _parse_cpu_list(text: str) -> tuple[int, ...]:
    if not re.fullmatch("[0-9,-]*", text):  # int() takes blanks, signs and digits of other scripts, too
        raise ValueError("it is no list of CPUs")
    spans = [part.partition("-") for part in text.split(",") if part]
    return tuple(cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1))


if TYPE_CHECKING:
    Cpus = tuple[int, ...]
    Words = frozenset[str]
    Reason = Note
else:
    Cpus = JsonForm("Cpus", (tuple,), _parse_cpu_list, format_cpus)
    Words = JsonForm("Words", (frozenset,), lambda text: frozenset(text.split()), lambda words: " ".join(sorted(words)))
    Reason = JsonForm("Reason", (Note,), lambda text: Note("", text), lambda note: note.text)


class NumaNode(Record):
    """``cpus`` as the machine prints them: logical CPU numbers, perhaps with off-line ones, perhaps none."""

    id: int
    cpus: Cpus
    mem_total_kb: int | None = None


class Core(Record):
    """One physical core: its on-line logical CPUs, lowest first."""

    cpus: tuple[int, ...]
    socket: int
    numa: int | None = None


class Interface(Record):
    """A network interface. ``addresses`` are ``address/prefix`` words, IPv4 and IPv6; speed in Mbit/s."""

    name: str
    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    speed: int | None = None
    up: bool | None = None
    default_route: bool = False
    virtual: bool = False  # bridges, docker0, veth of containers …


class Python(Record):
    """An interpreter found on a host. ``version`` "3.11.2"; ``usable`` False with the reason in ``why``."""

    path: str
    version: str | None = None
    usable: bool = True
    why: str = ""


class Installed(Record):
    """What the environment at ``venv`` holds. ``python`` is its version ("3.11.2", or "3.11"); ``packages`` maps
    normalised distribution names to versions; ``marker`` is what install wrote last. ``beside``: the directories in
    its store, the active one's among them. ``fault``: why nothing there is executed. ``locked``: by an install."""

    venv: str
    exists: bool = False
    python: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    marker: InstallMarker | None = None
    beside: tuple[str, ...] = ()
    fault: str = ""
    locked: bool = False


class Disk(Record):
    """Space where a path would be created: bytes free for this user, and the mount it is on."""

    path: str
    free: int | None = None
    mount: str = ""
    filesystem: str = ""  # its type: ext4, tmpfs, nfs4 …
    size: int | None = None
    writable: bool | None = None
    executable: bool | None = None  # false where it is mounted noexec


class Facts(Record):
    """One host. The first block is the public contract of ``doctor --json``; the sense of each key is that of the
    recorded machines' truth files (CPU lists as numbers here, in the kernel's form in JSON)."""

    arch: str | None = None
    vendor: str | None = None
    model_name: str | None = None
    uarch: str | None = None
    isa_level: str | None = None
    sockets: int | None = None
    cores_per_socket: int | None = None
    threads_per_core: int | None = None
    physical_cores: int | None = None
    logical_online: int | None = None
    cpus_online: Cpus | None = None
    cpus_offline: Cpus | None = None
    numa: tuple[NumaNode, ...] | None = None
    hybrid: Mapping[str, Cpus] | None = None  # {"p_cpus": …, "e_cpus": …}
    is_vm: bool | None = None
    mem_total_kb: int | None = None
    cgroup_cpus: float | None = None  # CPU quota in CPUs, None without one

    flags: Words = frozenset()
    vector_bits: int | None = None  # of SVE, as a new process gets it
    isa_refused: Mapping[str, Reason] = field(default_factory=dict)  # level → why the host does not have it
    cores: Annotated[tuple[Core, ...], UNWRITTEN] = ()  # most of the text on a big machine; the counts say the same
    cpus_allowed: Cpus | None = None  # what this login may use: affinity and cpuset
    hypervisor: str | None = None
    mem_available_kb: int | None = None
    mem_limit_kb: int | None = None  # what the control group allows, None without a limit
    shm_free: int | None = None  # bytes

    hostname: str | None = None
    self_addresses: tuple[str, ...] = ()  # what the host's own name resolves to, there
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # asked name → addresses, none found ()
    interfaces: tuple[Interface, ...] = ()
    ssh_address: str | None = None  # the host's address on the connection we came in by

    user: str | None = None
    home: str | None = None
    shell: str | None = None
    machine_id: str | None = None  # equal only for one booted system with one network; a hash, never the id itself
    boot_id: str | None = None
    kernel: str | None = None
    distribution: str | None = None
    glibc: str | None = None
    glibcxx: str | None = None  # highest GLIBCXX_ symbol version
    libraries: tuple[str, ...] = ()  # sonames that some rows need: libzstd.so.1, libz.so.1, libgomp.so.1
    limits: Mapping[str, int | None] = field(default_factory=dict)  # nofile nofile_hard nproc memlock; None unlimited
    clock: float | None = None  # the host's Unix time when it answered
    clock_offset: float | None = None  # seconds it is ahead of the controller, within `clock_error`
    clock_error: float | None = None
    load: float | None = None
    governor: str | None = None
    thp: str | None = None
    hugepages: Mapping[str, int] = field(default_factory=dict)  # reserved ones: total free size_kb
    busy: tuple[str, ...] = ()  # other users' heavy processes

    pythons: tuple[Python, ...] = ()
    installed: Installed | None = None
    mpi: tuple[str, ...] = ()  # "path: first line of its version" of every mpirun on PATH
    allocators: Mapping[str, str] = field(default_factory=dict)  # tcmalloc jemalloc iomp5 → path
    tools: Mapping[str, str] = field(default_factory=dict)  # tar python3 … → path
    scheduler: str | None = None
    accelerators: tuple[str, ...] = ()  # device files through which torch reaches one
    disks: tuple[Disk, ...] = ()
    hub: str | None = None  # cache of the Hugging Face hub with what `sync hf:` has sent
    silicon: str | None = None  # the ISA level of the microarchitecture, whatever hides it
    container: str | None = None  # "docker", "lxc" … where the traces say so
    numa_balancing: bool | None = None
    ports: tuple[int, int] | None = None  # the kernel's range of ephemeral ports
    path: str | None = None  # PATH of a command over this link, which is not that of an interactive login
    open_directories: tuple[str, ...] = ()  # of PATH, or above what runs use: anybody may change what is in them
    socket_cpus: Mapping[str, Cpus] = field(default_factory=dict)  # socket → its on-line CPUs; empty: not known
    ignored_settings: tuple[str, ...] = ()  # of pip and uv in this login: names of variables, paths of files
    unread: Mapping[str, str] = field(default_factory=dict)  # item → why it could not be read


HostFacts = Mapping[str, Facts]  # by the names of hosts
