"""``spec.json``: what the controller tells each host of a run; keeper, guard, wrapper and client read it."""

import json
from typing import Dict, List, NamedTuple, Optional

from ipexctl.protocol.codec import encode
from ipexctl.protocol.timings import Timings

# A library to preload.
Library = NamedTuple("Library", [("name", str), ("path", str)])


class RankSpec(NamedTuple):
    """``cpus`` are CPU numbers, ``membind`` NUMA nodes, ``values`` those of placeholders, but for the port."""

    local: int
    cpus: List[int] = []
    membind: List[int] = []
    env: Dict[str, str] = {}
    values: Dict[str, str] = {}


class NodeSpec(NamedTuple):
    """A host as the keeper knows it. The label is its name for the MPI launcher, ``isa`` the level of its CPU."""

    label: str
    ranks: List[int]
    directory: str
    python: str
    isa: str = ""


class HeadSpec(NamedTuple):
    """What only the head receives: how to start the launcher and when to end the run."""

    address: str
    hosts: Dict[str, NodeSpec]
    mpiexec: List[str]
    mpiexec_env: Dict[str, str]
    workdir: str = "/"  # of the launcher, and so of processes that ranks spawn by MPI: one that all hosts have
    port: int = 0  # where the ranks meet; 0: the keeper chooses a free one
    ports: List[int] = [0, 0]  # the first and last of those that may be chosen; 0: any
    stall_kill: bool = False  # end the run when a stall is grave
    stall_restart: bool = False  # and start it again
    straggler_kill: bool = False
    min_hosts: int = 0  # with which the run may be started again; 0: with `used`
    # With --on-split wait: how many are enough where the command that started the run votes for this host. 0: as many.
    split_hosts: int = 0
    used: int = 0  # hosts that have ranks at once, the others are spares; 0: all
    notify: List[str] = []  # a command that is called at certain events; or none
    secrets: List[str] = []  # what is masked in what it gets


class KeepSpec(NamedTuple):
    """The checkpoints of the script: ``path`` is their directory here, or the one file. ``fresh``: this attempt goes on
    from none, and what is there is not the run's; ``adopt``: on a host that has no record, it is. Words that make the
    script resume have ``{checkpoint}`` in them. Copies travel from ``address``, one of its ``ports``."""

    path: str
    copies: int
    fresh: bool
    adopt: bool
    words: List[str]
    addresses: Dict[str, str]  # of all hosts
    ports: List[int]


class RunSpec(NamedTuple):
    """One host's part of a run. ``nonce`` marks the frames of output, ``token`` proves who belongs to the run."""

    run: str
    title: str
    owner: str
    started: float  # Unix seconds
    nonce: str
    token: str
    host: str
    label: str
    size: int  # ranks of the first attempt, or of this one
    argv: List[str]  # of a Python file the interpreter first
    workdir: str
    env: Dict[str, str]
    ranks: Dict[int, RankSpec]
    proxy_env: Dict[str, str]
    proxies: List[str]  # the launcher's programs here: the first is started for it, the others by that
    rank_variable: str  # by which the launcher tells a process its rank
    rank_prefixes: List[str]  # of all variables that it sets for a rank
    head: Optional[HeadSpec] = None
    command: List[str] = []  # as the user wrote it
    preload: List[Library] = []
    alone: bool = False  # one rank under Accelerate
    independent: bool = False  # instances that do not know of each other
    per_host: bool = False  # one process on each host, which may start ranks of its own
    meeting: bool = True  # the processes are to work together
    fills: bool = False  # placeholders in the arguments, and in these variables, are replaced
    filled: List[str] = []
    stages: bool = True  # the rank is Python, which tells its stages
    ready: str = ""  # the sign that it is up
    fail_fast: bool = False
    wait: bool = False  # for a host that another run holds
    share: bool = False  # start although another run holds the host
    profile: str = ""  # as `hooks.PROFILE_ENV`; then this directory outlives the run until its files were fetched
    environment: str = ""  # the one that install made, with `paths.MARKER` in it
    nofile: bool = True  # raise the limit on open files
    backend: str = ""  # and ``precision``: as in `model.launch.Launch`
    precision: str = ""
    keep: Optional[KeepSpec] = None
    timings: Timings = Timings()
    restarts: int = 0  # how often the hosts may start the run again
    varying: Dict[str, str] = {}  # variables of ``env`` that another attempt changes → what they hold (`world`)
    leaders: Dict[str, str] = {}  # the head and the hosts that may take its place, in order → their addresses
    reserve: Optional[HeadSpec] = None  # of a host that may take the head's place: what it is then

    @property
    def head_spec(self) -> "HeadSpec":
        """What the head received. Raises `ValueError` on another host."""
        if self.head is None:
            raise ValueError("%s is not the head of run %s" % (self.host, self.run))
        return self.head


def encode_spec(spec: "RunSpec") -> bytes:
    return json.dumps(encode(spec)).encode()
