"""What keeper, guards and clients of a run say to each other, and the agent to the controller: JSON lines."""

from typing import Dict, List, NamedTuple, Tuple, Union

from ipexctl.protocol.codec import Kinds
from ipexctl.protocol.rank_records import (
    RankAlone,
    RankBegun,
    RankDropped,
    RankEnded,
    RankNote,
    RankRendezvous,
    RankStack,
    RankStage,
    RankStarted,
    RankWorld,
)
from ipexctl.protocol.run_spec import NodeSpec
from ipexctl.protocol.samples import HostSample
from ipexctl.protocol.timings import Timings

# The greeting of every connection to the keeper; `seal.Greeting` and `seal.compute_proof` say what is in it.
Challenge = NamedTuple("Challenge", [("challenge", str)])
# ``role`` is one of `paths.Role`; ``clock`` Unix seconds.
Hello = NamedTuple("Hello", [("nonce", str), ("role", str), ("name", str), ("clock", float), ("proof", str)])
Welcome = NamedTuple("Welcome", [("proof", str)])
# Either way, as the last word of who received a line that the other side did not seal.
Tampered = NamedTuple("Tampered", [])


# Keeper to guard.
Ping = NamedTuple("Ping", [("sent", float)])  # Unix seconds of the keeper
StartProxy = NamedTuple("StartProxy", [("words", List[str])])  # as the launcher wants it
RanksPort = NamedTuple("RanksPort", [("port", int)])  # where the ranks meet
Terminate = NamedTuple("Terminate", [])  # SIGTERM to the ranks, and none is to start any more
Kill = NamedTuple("Kill", [])  # SIGKILL to what is left of them
ReportLoad = NamedTuple("ReportLoad", [])  # answered by `RankLoads`
ReportStacks = NamedTuple("ReportStacks", [])  # answered by a `RankStack` each and `StacksReported`
Finish = NamedTuple("Finish", [])  # end what is left, report it (`Cleaned`) and end
# Guard to keeper; beside these those of `rank_records`, and `HostSample`.
Pong = NamedTuple("Pong", [("sent", float), ("clock", float)])
RankLoads = NamedTuple("RankLoads", [("ranks", Dict[int, Tuple[float, str]])])  # CPU seconds so far, kernel state
StacksReported = NamedTuple("StacksReported", [])
ProxyEnded = NamedTuple("ProxyEnded", [("at", float), ("why", str)])
ProcessesKilled = NamedTuple("ProcessesKilled", [("processes", int)])
# Frames that ranks wrote, whole. No object: it travels as bytes (`rpc.Wire.send_output`).
RanksOutput = NamedTuple("RanksOutput", [("data", bytes)])


class Cleaned(NamedTuple):
    """Nothing is left on the host but the processes ``left``; ``strays`` outlived the ranks and were ended: names."""

    left: List[Tuple[int, str]]
    strays: List[str] = []


# Keeper to watcher: there is more in the run's files.
FilesGrown = NamedTuple("FilesGrown", [])
# Client to keeper and back.
StopRun = NamedTuple("StopRun", [("why", str)])
KillRun = NamedTuple("KillRun", [("why", str)])
Inspect = NamedTuple("Inspect", [])
# Where do the ranks stand now? Answered in the journal: `journal.StacksRequested`, stacks, `journal.InquiryEnded`.
RequestStacks = NamedTuple("RequestStacks", [("request", str)])
KeeperStatus = NamedTuple("KeeperStatus", [("state", str), ("watchers", int)])  # the value of a `keeper_state.State`
# The agent to the controller.
KeeperListening = NamedTuple("KeeperListening", [("port", int)])
PORT_SIZE = 64  # bytes in which the controller passes it on to a guard that waits for it: the line, and spaces
GuardReady = NamedTuple("GuardReady", [])
AgentFailed = NamedTuple("AgentFailed", [("error", str)])
KeeperUnreachable = NamedTuple("KeeperUnreachable", [("error", str)])  # no packet of ours gets there


class HostBusy(NamedTuple):
    """Another run holds this account's lock on the host. Also the content of the lock."""

    run: str = "?"
    owner: str = "?"
    started: float = 0.0


class RunRow(NamedTuple):
    """A run kept on its head. ``state``: starting, running, stopping, ended, or gone (its keeper died). ``seconds`` on
    the head's clock since its keeper started, of one that ended until then, 0 where that is not known; ``command`` is
    the script and its arguments, ``output`` the end of what rank 0 wrote."""

    run: str
    title: str
    owner: str
    started: float
    size: int
    state: str
    hosts: List[str]
    directory: str
    watchers: int = 0
    reason: str = ""
    seconds: float = 0.0
    command: List[str] = []
    output: str = ""


# The directory of a run of which nothing lives on this host.
OrphanDirectory = NamedTuple("OrphanDirectory", [("run", str), ("directory", str)])


class RunListing(NamedTuple):
    runs: List[RunRow] = []
    orphans: List[OrphanDirectory] = []


class RunDescription(NamedTuple):
    """What a watcher must know of a run; without its token and its environment."""

    run: str
    title: str
    host: str
    hosts: Dict[str, NodeSpec]
    argv: List[str]
    nonce: str
    timings: Timings = Timings()
    profile: str = ""  # as in `run_spec.RunSpec`, and so are the next two
    backend: str = ""
    precision: str = ""


ProcessRow = NamedTuple("ProcessRow", [("pid", int), ("state", str), ("command", str)])
ProcessesLeft = NamedTuple("ProcessesLeft", [("processes", List[ProcessRow])])
Message = Union[
    Challenge, Hello, Welcome, Ping, StartProxy, RanksPort, Terminate, Kill, ReportLoad, ReportStacks, Finish, Pong,
    RankLoads, StacksReported, ProxyEnded, ProcessesKilled, Cleaned, RankBegun, RankStarted, RankStage, RankWorld,
    RankAlone, RankRendezvous, RankNote, RankDropped, RankEnded, RankStack, StopRun, KillRun, Inspect,
    RequestStacks, KeeperStatus, KeeperListening, GuardReady, HostBusy, AgentFailed, KeeperUnreachable, RunListing,
    RunDescription, ProcessesLeft, Tampered, HostSample, FilesGrown,
]  # fmt: skip

KINDS: "Kinds[Message]" = Kinds(Message)
