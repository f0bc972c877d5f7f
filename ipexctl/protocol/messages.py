"""What keeper, guards and clients of a run say to each other, and the agent to the controller: JSON lines."""

from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from ipexctl.protocol import rank_records as rr
from ipexctl.protocol.codec import Kinds
from ipexctl.protocol.rank_layout import RankLayout
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


class HostBusy(NamedTuple):
    """Another run holds this account's lock on the host. Also the content of the lock."""

    run: str = "?"
    owner: str = "?"
    started: float = 0.0


# Keeper to guard.
class Ping(NamedTuple):
    """``sent``: Unix seconds of the keeper, and ``steady`` its steady ones. ``heard``: up to when the guard was heard,
    by its own steady clock (0: not yet), with most of the others (`keeper_state.find_heard`)."""

    sent: float
    heard: float = 0.0
    steady: float = 0.0


StartProxy = NamedTuple("StartProxy", [("words", List[str])])  # as the launcher wants it


class RanksPort(NamedTuple):
    """Where the ranks meet, and the checkpoint that they go on from, relative as in `CheckpointPart`."""

    port: int
    resume: str = ""


Terminate = NamedTuple("Terminate", [])  # SIGTERM to the ranks, and none is to start any more
Kill = NamedTuple("Kill", [])  # SIGKILL to what is left of them
ReportLoad = NamedTuple("ReportLoad", [])  # answered by `RankLoads`
ReportStacks = NamedTuple("ReportStacks", [])  # answered by a `RankStack` each and `StacksReported`


class Finish(NamedTuple):
    """End what is left, report it (`Cleaned`) and end, or ``stay`` for another attempt."""

    stay: bool = False


Begin = NamedTuple("Begin", [("layout", RankLayout)])  # take these ranks of an attempt; answered by `Begun`
FindLeader = NamedTuple("FindLeader", [])  # go to a later host that leads by now; answered by `NoLeader` without one
Leaders = NamedTuple("Leaders", [("ports", Dict[str, int])])  # where hosts would listen that may lead
Release = NamedTuple("Release", [])  # this host could not take the head's place, and no attempt of its own has begun
# Guard to keeper; beside these those of `rank_records`, and `HostSample`.


class Begun(NamedTuple):
    """``taken``: the sign of ``--ready`` which another program on this host gives already."""

    number: int
    taken: str = ""


class Joined(NamedTuple):
    """The first word of a guard to each keeper: the number of the last attempt that it knows and the ``hosts`` that had
    ranks in it (none: all), how many seconds ago it heard the keeper on ``leader`` last ("": there was none before),
    how long ago the ranks of the first attempt were started, the port where this host would listen (0: it would not
    lead), and processes that are ``left`` of its part of the attempt before."""

    attempt: int = 0
    hosts: List[str] = []
    leader: str = ""
    away: float = 0.0
    running: float = 0.0
    port: int = 0
    left: List[Tuple[int, str]] = []


class Pong(NamedTuple):
    """``sent`` and ``asked`` are those of the `Ping` (``asked``: ``steady`` there), ``clock`` Unix seconds and
    ``steady`` the steady seconds of the guard's host."""

    sent: float
    clock: float
    steady: float = 0.0
    asked: float = 0.0


NoLeader = NamedTuple("NoLeader", [("refused", List[str])])  # later hosts that were reached: no keeper is there
RankLoads = NamedTuple("RankLoads", [("ranks", Dict[int, Tuple[float, str]])])  # CPU seconds so far, kernel state
StacksReported = NamedTuple("StacksReported", [])
ProxyEnded = NamedTuple("ProxyEnded", [("why", str)])
ProcessesKilled = NamedTuple("ProcessesKilled", [("processes", int)])
# Frames that ranks wrote, whole. No object: it travels as bytes (`rpc.Wire.send_output`).
RanksOutput = NamedTuple("RanksOutput", [("data", bytes)])


class Cleaned(NamedTuple):
    """Nothing is left on the host but the processes ``left``; ``strays`` outlived the ranks and were ended: names."""

    left: List[Tuple[int, str]]
    strays: List[str] = []


class CheckpointPart(NamedTuple):
    """What one host has of a checkpoint. Paths are relative to what the checkpoints' directory lies in; ``files`` as
    `checkpoints.Files`; ``at``: when the newest was written. ``needs``: files without which it is not whole.
    ``settled``: none of these is being written. A copy says whose part it is (``owner``), and the marks of all parts
    of its checkpoint by their hosts."""

    name: str
    mark: str
    files: Dict[str, List[int]]
    at: float
    needs: List[str] = []
    settled: bool = True
    owner: str = ""
    marks: Dict[str, str] = {}


class FindCheckpoints(NamedTuple):
    """Keeper to guard, before the ranks start: look now, and answer with this number."""

    number: int


class CheckpointsFound(NamedTuple):
    """Guard to keeper, also where they have changed (number 0). ``port`` is where its files can be had."""

    number: int
    port: int
    parts: List[CheckpointPart]


class CheckpointSource(NamedTuple):
    """Files of a part, or of a copy of ``owner``'s, on a host: where they can be had."""

    host: str
    address: str
    port: int
    files: Dict[str, List[int]]
    owner: str = ""
    mark: str = ""


class TakeCheckpoint(NamedTuple):
    """Keeper to guard: get these files. As a copy of ``part``; or, without one, into their place in this host's own
    directory, where the newer ones that nobody goes on from are put aside."""

    number: int
    name: str
    sources: List[CheckpointSource]
    part: Optional[CheckpointPart] = None
    aside: List[str] = []


class CheckpointTaken(NamedTuple):
    """``why`` not, or ""; ``size``: bytes that came from other hosts."""

    number: int
    why: str
    size: int
    seconds: float


# Guard to guard: send a file, unless its content has this hash. Its bytes follow, as they are (`FileBytes`), then its
# own hash, which proves them, and is "" where the file is another one by now.
SendFile = NamedTuple("SendFile", [("path", str), ("file", List[int]), ("owner", str), ("mark", str), ("sha256", str)])
FileBytes = NamedTuple("FileBytes", [])
FileSent = NamedTuple("FileSent", [("sha256", str)])


class HostWaits(NamedTuple):
    """Guard to keeper, of a run that waits for its hosts: another run has this one, and ``before`` it others wait. With
    neither the host is free for it, and ``taken`` once the keeper has told it to take it (`TakeHost`), which may fail;
    `LeaveHost` gives it back."""

    taken: bool
    holder: Optional[HostBusy] = None
    before: int = 0


TakeHost = NamedTuple("TakeHost", [])
LeaveHost = NamedTuple("LeaveHost", [])


# Keeper to watcher: there is more in the run's files.
FilesGrown = NamedTuple("FilesGrown", [])
# Client to keeper and back.
StopRun = NamedTuple("StopRun", [("why", str)])
KillRun = NamedTuple("KillRun", [("why", str)])
Inspect = NamedTuple("Inspect", [])
Vote = NamedTuple("Vote", [])  # half of the hosts are enough for this keeper: no other one gets a vote, ever


class RequestStacks(NamedTuple):
    """Where do the ranks stand now, and so on, so many times? Each is answered in the journal:
    `journal.StacksRequested`, stacks, `journal.InquiryEnded`."""

    request: str
    times: int = 1


class KeeperStatus(NamedTuple):
    """``state`` is the value of a `keeper_state.RunPhase`, ``restart`` the number of the attempt's restart."""

    state: str
    watchers: int
    restart: int = 0


# The agent to the controller.
KeeperListening = NamedTuple("KeeperListening", [("port", int)])
PORT_SIZE = 64  # bytes in which the controller passes it on to a guard that waits for it: the line, and spaces
GuardReady = NamedTuple("GuardReady", [])
AgentFailed = NamedTuple("AgentFailed", [("error", str)])
KeeperUnreachable = NamedTuple("KeeperUnreachable", [("error", str)])  # no packet of ours gets there
EnvironmentGone = NamedTuple("EnvironmentGone", [("path", str)])  # that an install has removed meanwhile


class RunRow(NamedTuple):
    """A run kept on its head. ``state``: starting, waiting (for hosts), running, stopping, restarting, ended, gone (its
    keeper died), or leaderless, of a host whose part of a run is at work, and which may lead it, or another one.
    ``seconds`` on the head's clock since its keeper started, of one that ended until then, 0 where that is not known;
    ``command`` is the script and its arguments, ``output`` the end of what rank 0 wrote; ``ready`` counts the processes
    that are up (-1: not known), ``restart`` the starts before this one, of ``restarts`` that it may have; ``lease`` is
    that of its hosts, in seconds, ``workdir`` where its ranks work there."""

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
    ready: int = -1
    restart: int = 0
    restarts: int = 0
    lease: float = 0.0
    workdir: str = ""


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
    nonce: str
    command: List[str] = []
    timings: Timings = Timings()
    profile: str = ""  # as in `run_spec.RunSpec`, and so are the next two
    backend: str = ""
    precision: str = ""
    leaders: Dict[str, str] = {}


ProcessRow = NamedTuple("ProcessRow", [("pid", int), ("state", str), ("command", str)])
ProcessesLeft = NamedTuple("ProcessesLeft", [("processes", List[ProcessRow])])
Message = Union[
    Challenge, Hello, Welcome, Ping, StartProxy, RanksPort, Terminate, Kill, ReportLoad, ReportStacks, Finish, Begin,
    Pong, Begun, RankLoads, StacksReported, ProxyEnded, ProcessesKilled, Cleaned, rr.RankBegun, rr.RankStarted,
    rr.RankStage, rr.RankWorld, rr.RankAlone, rr.RankRendezvous, rr.RankNote, rr.RankDropped, rr.RankEnded,
    rr.RankStack, StopRun, KillRun, Inspect, RequestStacks, KeeperStatus, KeeperListening, GuardReady, HostBusy,
    AgentFailed, KeeperUnreachable, EnvironmentGone, RunListing, RunDescription, ProcessesLeft, Tampered, HostSample,
    FilesGrown, FindCheckpoints, CheckpointsFound, TakeCheckpoint, CheckpointTaken, SendFile, FileBytes, FileSent,
    HostWaits, TakeHost, LeaveHost, Release, Joined, Leaders, Vote, FindLeader, NoLeader,
]  # fmt: skip

KINDS: "Kinds[Message]" = Kinds(Message)
