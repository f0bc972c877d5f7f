"""What is recorded of single ranks: a wrapper leaves it for its guard as files, the keeper writes it into the journal.

A module of its own: each rank's wrapper needs none of the other messages and records, and a type takes time to make."""

from typing import List, NamedTuple, Optional, Tuple, Union

from ipexctl.protocol.codec import Kinds

# The first record, so that a killed wrapper is missed. ``stub`` is what the launcher takes for the rank.
RankBegun = NamedTuple("RankBegun", [("rank", int), ("pid", int), ("stub", int)])


class RankStarted(NamedTuple):
    """``pid`` is the wrapper, ``child`` the script, ``cpus`` are those it may use."""

    rank: int
    host: str
    pid: int
    child: int
    cpus: List[int]
    at: float = 0.0


class RankStage(NamedTuple):
    """``stage`` is one of `hooks.STAGES`."""

    rank: int
    host: str
    stage: str
    at: float = 0.0


class RankWorld(NamedTuple):
    """A process of the rank is the ``member`` of this number of a world of ``size`` processes, two or more. ``via`` is
    "torch", "rpc", "mpi" or "horovod"; ``exchanged``: the world was used, by more than a barrier. ``collectives``: of
    torch's world of all ranks, as it was left, how many it took part in; None: not left, or not counted."""

    rank: int
    host: str
    via: str
    size: int
    member: int
    exchanged: bool
    at: float = 0.0
    collectives: Optional[int] = None


class RankAlone(NamedTuple):
    """A process of the rank has made so many optimizer ``steps``, or (0) has ended with torch, and has exchanged
    nothing with another. ``causes``: what may be why: kind, line of the script, value."""

    rank: int
    host: str
    steps: int
    causes: List[Tuple[str, str, str]] = []
    at: float = 0.0


class RankRendezvous(NamedTuple):
    """The rank's script looks for the others, ``size`` processes in all (0: not known), elsewhere than was ``planned``:
    at another address, or at another port of that; ``line`` ("path:number") says so, "" where that is not known.
    ``inner``: it is not the rank itself, but a process that it has started by `multiprocessing`. ``fault``: of a file
    (``file://``) the type of its file system and its directory there; of a name why its host has no address for it;
    `hooks.STORE` of a loopback address that the script gives a store of its own. ``number``: the script calls itself
    this rank, which it is not (-1: it does not). At the
    ``planned`` address, ``size`` may be another one than the run's."""

    rank: int
    host: str
    planned: str
    address: str
    port: str
    size: int = 0
    line: str = ""
    at: float = 0.0
    inner: bool = False
    fault: str = ""
    number: int = -1


class RankNote(NamedTuple):
    """Something the user should know of a rank and no output of it tells; ``info``: nothing is wrong. ``backend``: what
    its script uses in place of the planned one."""

    rank: int
    host: str
    text: str
    at: float = 0.0
    info: bool = False
    backend: str = ""


class RankDropped(NamedTuple):
    """The launcher has ended its part of a rank (MPI_Abort makes it do so), or that part has died: its script goes on,
    until it ends by itself or the run is stopped."""

    rank: int
    host: str
    at: float = 0.0


class Memory(NamedTuple):
    """Of a control group: processes killed for lack of it, most bytes used, limit in bytes; None where not known."""

    kills: Optional[int] = None
    used: Optional[int] = None
    limit: Optional[int] = None


class RankEnded(NamedTuple):
    """How a rank ended. ``status`` is None where it died by ``signal``, called MPI_Abort with the code ``abort``, or
    its end was not observed (``lost``)."""

    rank: int
    host: str
    status: Optional[int] = None
    signal: int = 0
    stopped: bool = False  # its wrapper had been asked to end
    lost: bool = False  # its wrapper was killed
    ending: bool = False  # its guard had begun to end the ranks of its host before, by that host's own clock
    by_us: bool = False  # the keeper's verdict: it ended because the run was being ended
    abort: Optional[int] = None
    exited: bool = False  # the script itself asked for `status`, whatever then ended its process
    oom: Optional[Memory] = None  # the kernel killed it for lack of memory
    error: str = ""
    traceback: str = ""
    kernel: str = ""  # what the kernel's log says of its death
    libraries: List[Tuple[str, str, str]] = []  # that should be loaded once: kind, path, version
    at: float = 0.0
    raised: float = 0.0  # when its script did by which it failed, by its host's clock: MPI may delay the end. 0: never
    stacks: str = ""  # of its threads shortly before it was killed, when its memory was about to run out
    lingered: float = 0.0  # seconds that its process went on after `raised`, until it was ended
    room: Optional[Tuple[str, int]] = None  # of the full disk that its exception met: a directory, free bytes
    observed: Optional[Tuple[str, str]] = None  # by its own Python as it failed: a known error, a value
    kills: Optional[int] = None  # processes of its control group that were killed for lack of memory meanwhile
    exit_line: str = ""  # where its script called sys.exit: "path:number"


class RankStack(NamedTuple):
    """Where a process of a rank stands; ``text`` is "" if it did not answer, ``wchan`` the kernel function it is in."""

    rank: int
    host: str
    pid: int
    state: str
    wchan: str
    text: str
    at: float = 0.0


# What a rank's wrapper and its script's own Python leave for its guard.
RankRecord = Union[RankBegun, RankStarted, RankWorld, RankAlone, RankRendezvous, RankNote, RankDropped, RankEnded]

KINDS: "Kinds[RankRecord]" = Kinds(RankRecord)
