"""What keeper, guards, shims and clients of a run say to each other, and the agent to the controller: JSON lines."""

from typing import Dict, List, NamedTuple, Tuple, Union

from ipexctl.protocol.codec import Kinds
from ipexctl.protocol.journal import RankEnded, RankNote, RankStack, RankStage, RankStarted
from ipexctl.protocol.run_spec import NodeSpec
from ipexctl.protocol.timings import Timings

# The greeting of every connection to the keeper.


class Challenge(NamedTuple):
    challenge: str


class Hello(NamedTuple):
    """``role`` is one of `paths.Role`; ``proof`` an HMAC of the challenge; ``clock`` Unix seconds."""

    role: str
    name: str
    proof: str
    clock: float = 0.0


Welcome = NamedTuple("Welcome", [])


# Keeper to guard.


class Ping(NamedTuple):
    sent: float  # Unix seconds of the keeper


class StartProxy(NamedTuple):
    """Also shim to keeper: the launcher wants its proxy on the host, started with these words."""

    words: "List[str]"


class RanksPort(NamedTuple):
    """Where the ranks meet."""

    port: int


Terminate = NamedTuple("Terminate", [])  # SIGTERM to the ranks, and none is to start any more
Kill = NamedTuple("Kill", [])  # SIGKILL to what is left of them
ReportLoad = NamedTuple("ReportLoad", [])  # answered by `RankLoads`
ReportStacks = NamedTuple("ReportStacks", [])  # answered by a `RankStack` each and `StacksReported`
Finish = NamedTuple("Finish", [])  # end what is left, report it (`Cleaned`) and end
# Guard to keeper; beside these `RankStarted`, `RankStage`, `RankNote`, `RankEnded` and `RankStack`.


class Pong(NamedTuple):
    sent: float
    clock: float


class RankLoads(NamedTuple):
    """Rank → CPU seconds so far, kernel state."""

    ranks: "Dict[int, Tuple[float, str]]"


StacksReported = NamedTuple("StacksReported", [])


class ProxyEnded(NamedTuple):
    at: float


class ProcessesKilled(NamedTuple):
    processes: int


class Cleaned(NamedTuple):
    """Nothing of the run is left on the host but these processes."""

    left: "List[Tuple[int, str]]"


class RankBegun(NamedTuple):
    """Wrapper to guard, as a file: the first record, so that a killed wrapper is missed."""

    rank: int
    pid: int


# Keeper to shim, and client to keeper and back.


ShimEnd = NamedTuple("ShimEnd", [])  # the proxy has ended: so may its shim


class StopRun(NamedTuple):
    why: str


class KillRun(NamedTuple):
    why: str


Inspect = NamedTuple("Inspect", [])


class KeeperStatus(NamedTuple):
    """``state`` is the value of a `keeper_state.State`."""

    state: str
    watchers: int


# The agent to the controller.


class KeeperListening(NamedTuple):
    port: int


GuardReady = NamedTuple("GuardReady", [])


class HostBusy(NamedTuple):
    """Another run holds this account's lock on the host. Also the content of the lock."""

    run: str = "?"
    owner: str = "?"
    started: float = 0.0


class AgentFailed(NamedTuple):
    error: str


class RunRow(NamedTuple):
    """A run kept on its head. ``state``: starting, running, stopping, ended, or gone (its keeper died)."""

    run: str
    title: str
    owner: str
    started: float
    size: int
    state: str
    hosts: "List[str]"
    directory: str
    watchers: int = 0
    reason: str = ""


class OrphanDirectory(NamedTuple):
    """The directory of a run of which nothing lives on this host."""

    run: str
    directory: str


class RunListing(NamedTuple):
    runs: "List[RunRow]" = []
    orphans: "List[OrphanDirectory]" = []


class RunDescription(NamedTuple):
    """What a watcher must know of a run; without its token and its environment."""

    run: str
    title: str
    host: str
    hosts: "Dict[str, NodeSpec]"
    argv: "List[str]"
    nonce: str
    timings: "Timings" = Timings()


class ProcessRow(NamedTuple):
    pid: int
    state: str
    command: str


class ProcessesLeft(NamedTuple):
    processes: "List[ProcessRow]"


RankRecord = Union[RankBegun, RankStarted, RankStage, RankNote, RankEnded]  # what a wrapper leaves for its guard
Message = Union[
    Challenge, Hello, Welcome, Ping, StartProxy, RanksPort, Terminate, Kill, ReportLoad, ReportStacks, Finish, Pong,
    RankLoads, StacksReported, ProxyEnded, ProcessesKilled, Cleaned, RankBegun, RankStarted, RankStage, RankNote,
    RankEnded, RankStack, ShimEnd, StopRun, KillRun, Inspect, KeeperStatus, KeeperListening, GuardReady, HostBusy,
    AgentFailed, RunListing, RunDescription, ProcessesLeft,
]  # fmt: skip

KINDS: "Kinds[Message]" = Kinds(Message)
