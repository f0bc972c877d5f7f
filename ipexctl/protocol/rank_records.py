"""What is recorded of single ranks: a wrapper leaves it for its guard as files, the keeper writes it into the journal.

A module of its own: each rank's wrapper needs none of the other messages and records, and a type takes time to make."""

from typing import List, NamedTuple, Optional, Tuple, Union

from ipexctl.protocol.codec import Kinds

# The first record, so that a killed wrapper is missed.
RankBegun = NamedTuple("RankBegun", [("rank", int), ("pid", int)])


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


class RankNote(NamedTuple):
    """Something the user should know of a rank and no output of it tells."""

    rank: int
    host: str
    text: str
    at: float = 0.0


class Memory(NamedTuple):
    """Of a control group: processes killed for lack of it, most bytes used, limit in bytes; None where not known."""

    kills: Optional[int] = None
    used: Optional[int] = None
    limit: Optional[int] = None


class RankEnded(NamedTuple):
    """How a rank ended. ``status`` is None where it died by ``signal``, or nobody saw its end (``lost``)."""

    rank: int
    host: str
    status: Optional[int] = None
    signal: int = 0
    stopped: bool = False  # its wrapper had been asked to end
    lost: bool = False
    unheard: bool = False  # the launcher's part on its host had ended before
    ending: bool = False  # its guard had begun to end the ranks of its host before, by that host's own clock
    by_us: bool = False  # the keeper's verdict: it ended because the run was being ended
    oom: Optional[Memory] = None  # the kernel killed it for lack of memory
    error: str = ""
    traceback: str = ""
    kernel: str = ""  # what the kernel's log says of its death
    libraries: List[Tuple[str, str, str]] = []  # that should be loaded once: kind, path, version
    at: float = 0.0
    stacks: str = ""  # of its threads shortly before it was killed, when its memory was about to run out


class RankStack(NamedTuple):
    """Where a process of a rank stands; ``text`` is "" if it did not answer, ``wchan`` the kernel function it is in."""

    rank: int
    host: str
    pid: int
    state: str
    wchan: str
    text: str
    at: float = 0.0


RankRecord = Union[RankBegun, RankStarted, RankNote, RankEnded]  # what a wrapper leaves for its guard

KINDS: "Kinds[RankRecord]" = Kinds(RankRecord)
