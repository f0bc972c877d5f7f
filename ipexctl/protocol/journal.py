"""The keeper's journal: what happened in a run, one record a line. Times are Unix seconds of the head's clock."""

from typing import Dict, List, NamedTuple, Tuple, Union

from ipexctl.protocol.codec import Kinds
from ipexctl.protocol.rank_records import RankEnded, RankNote, RankRendezvous, RankStack, RankStage, RankStarted


class Launched(NamedTuple):
    """The launcher was started; the ranks meet at ``port`` of the head. ``placed`` are those of each host; what they
    write begins at the offset ``out`` of the output. ``restart`` counts the attempts before this one."""

    pid: int
    port: int
    at: float = 0.0
    placed: Dict[str, List[int]] = {}
    out: int = 0
    restart: int = 0


class AttemptEnded(NamedTuple):
    """The run is to be started again, for the time number ``restart`` of ``restarts``; ``awaited`` are lost hosts
    without which it cannot be."""

    reason: str
    detail: str
    restart: int
    restarts: int
    awaited: List[str] = []
    at: float = 0.0


class HostBack(NamedTuple):
    """A host that was lost can take part in the next attempt."""

    host: str
    at: float = 0.0


class SeparateWorlds(NamedTuple):
    """Ranks work in several worlds that do not know of each other: size → how many (those of one rank included); empty
    where they have met after all. Found after so many optimizer ``steps``, or (0) at the end. ``joined`` is the size of
    the largest process group that was made, used or not; ``causes`` as in `RankAlone`."""

    worlds: Dict[int, int]
    steps: int = 0
    joined: int = 0
    causes: List[Tuple[str, str, str]] = []
    at: float = 0.0


class Stall(NamedTuple):
    """Ranks without progress. ``grave``: none makes progress, or one is stopped or stuck; ``kill``: it ends the run;
    ``early``: it is one only if the stacks, which follow, show ranks that can never go on; ``limit``: after so many
    seconds it ends the run (0: it does not)."""

    ranks: List[int]
    all: bool
    grave: bool
    seconds: float
    states: Dict[int, str]
    kill: bool = False
    at: float = 0.0
    early: bool = False
    limit: float = 0.0


class Straggling(NamedTuple):
    """``ranks`` go on although ``done`` others ended well ``seconds`` ago."""

    ranks: List[int]
    done: int
    seconds: float
    kill: bool = False
    at: float = 0.0


class Resumed(NamedTuple):
    """The ranks of the last stall make progress again."""

    at: float = 0.0


class StacksRequested(NamedTuple):
    """The stacks of all ranks were requested; ``request`` is an id, or `PACE`. Stacks follow, up to `InquiryEnded`."""

    request: str
    at: float = 0.0


PACE = "pace"  # requests stacks because the run has become slow


class InquiryEnded(NamedTuple):
    """All stacks that will come have come; ``missing`` hosts did not report."""

    missing: List[str] = []
    at: float = 0.0


class Killed(NamedTuple):
    """So many processes did not end by themselves."""

    host: str
    processes: int
    at: float = 0.0


class HostSilent(NamedTuple):
    """The keeper has had no sign of life of the host for so many ``seconds``; 0: it answers again."""

    host: str
    seconds: float
    at: float = 0.0


class HostLost(NamedTuple):
    """``tampered``: because of a line that is not authentic; ``silent``: seconds since its last sign of life."""

    host: str
    why: str
    tampered: bool = False
    at: float = 0.0
    silent: float = 0.0


class Unstored(NamedTuple):
    """From now on output is lost: no space in ``directory``. ``need`` and ``free`` are bytes."""

    directory: str = ""
    need: int = 0
    free: int = 0
    at: float = 0.0


class Leftovers(NamedTuple):
    """Processes that SIGKILL does not end: id and kernel state."""

    host: str
    processes: List[Tuple[int, str]]
    at: float = 0.0


class Strays(NamedTuple):
    """Processes that outlived the ranks and were ended: their names."""

    host: str
    names: List[str]
    at: float = 0.0


class MessageIgnored(NamedTuple):
    """A message of a host that this version cannot read, or does not expect of it."""

    host: str
    message: str  # its kind
    why: str
    at: float = 0.0


class Waiting(NamedTuple):
    """The run waits for hosts: each with the run that has it, or is before this one, its owner and its start; so many
    others wait ``before`` it. Empty: all are free."""

    hosts: Dict[str, Tuple[str, str, float]]
    before: int = 0
    at: float = 0.0


class CheckpointKept(NamedTuple):
    """``host`` has got a copy of ``owner``'s part of a checkpoint."""

    name: str
    host: str
    owner: str
    size: int
    seconds: float
    at: float = 0.0


class CheckpointMissed(NamedTuple):
    """``host`` could not get a checkpoint, as a copy or (``needed``) to go on from it."""

    name: str
    host: str
    why: str
    needed: bool = False
    at: float = 0.0


class ResumeChosen(NamedTuple):
    """The ranks go on from this checkpoint, which was ``written`` then; "" where there is none, and the newest one is
    ``incomplete`` on these hosts. ``size`` bytes went to hosts that lacked them, from ``sources``."""

    name: str
    written: float = 0.0
    size: int = 0
    seconds: float = 0.0
    sources: List[str] = []
    incomplete: str = ""
    at: float = 0.0


class NoticeFailed(NamedTuple):
    """The command that is called on the head at certain events failed, for the first time."""

    host: str
    why: str
    at: float = 0.0


class RunEnd(NamedTuple):
    """The final record. ``reason`` is one of `Reason`, ``unstored`` bytes of output."""

    run: str
    reason: str
    detail: str = ""
    unstored: int = 0
    at: float = 0.0
    restart: int = 0


class Reason:
    """Why a run ended."""

    DONE = "done"  # all ranks ended well
    RANK = "rank"  # a rank failed
    STOPPED = "stopped"  # on request
    LOST = "lost"  # a host or the launcher died
    LIMIT = "limit"  # a policy of the user's
    LAUNCH = "launch"  # the ranks did not start


Record = Union[
    Launched, AttemptEnded, HostBack, RankStarted, RankStage, RankRendezvous, RankNote, RankEnded, RankStack,
    SeparateWorlds, Stall, Straggling, Resumed, StacksRequested, InquiryEnded, Killed, HostSilent, HostLost, Unstored,
    Leftovers, Strays, MessageIgnored, CheckpointKept, CheckpointMissed, ResumeChosen, Waiting, NoticeFailed,
    RunEnd,
]  # fmt: skip

KINDS: "Kinds[Record]" = Kinds(Record)


def encode_record(record: "Record") -> bytes:
    """Returns one line."""
    return KINDS.write(record) + b"\n"
