"""What the keeper knows of a run, what can happen to it, and what is to be done then: no clock, no files, no
connections. `keeper_steps.next_step` is the state machine, which `keeper.Keeper` feeds, and tests with histories."""

import enum
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Set, Tuple, Union

from ipexctl.protocol import journal, messages
from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.journal import Record
from ipexctl.protocol.messages import Message
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import keeping, meeting


class RunPhase(enum.Enum):
    """Where a run is. `TRANSITIONS` says where it may go from there."""

    # From the keeper's start. Guards join; when all have, the first attempt begins. Ends at the time for that, too.
    GATHERING = "gathering"
    # An attempt begins: the guards get their ranks. Ends at the time for that, too.
    PLACING = "placing"
    # All guards have their ranks, which may go on from a checkpoint: hosts without it get it.
    RESUMING = "resuming"
    # The keeper is starting the launcher, and reports at once whether it could.
    LAUNCHING = "launching"
    # The launcher was started. Ranks start and end; whatever ends the run stops it, or all ranks end by themselves.
    RUNNING = "running"
    # Something ended the run before its ranks: they got SIGTERM and have the grace time. The first reason stays.
    STOPPING = "stopping"
    # The grace time is over, or the user lost patience: SIGKILL.
    KILLING = "killing"
    # Ranks and launcher have ended, or are waited for no longer: the guards end what is left and report it.
    FINISHING = "finishing"
    # An attempt has ended and another one follows: once the pause is over, each lost host has certainly ended its part,
    # and enough hosts are there. A host that takes the head's place begins here.
    RESTING = "resting"
    # The guards have reported, or their time is over. The final record is written; nothing happens any more.
    DONE = "done"


TRANSITIONS: "Dict[RunPhase, FrozenSet[RunPhase]]" = {
    RunPhase.GATHERING: frozenset({RunPhase.PLACING, RunPhase.STOPPING}),
    RunPhase.PLACING: frozenset({RunPhase.RESUMING, RunPhase.LAUNCHING, RunPhase.STOPPING, RunPhase.RESTING}),
    RunPhase.RESUMING: frozenset({RunPhase.LAUNCHING, RunPhase.STOPPING, RunPhase.RESTING}),
    RunPhase.LAUNCHING: frozenset({RunPhase.RUNNING, RunPhase.STOPPING}),
    RunPhase.RUNNING: frozenset({RunPhase.STOPPING, RunPhase.FINISHING}),
    RunPhase.STOPPING: frozenset({RunPhase.KILLING, RunPhase.FINISHING}),
    RunPhase.KILLING: frozenset({RunPhase.FINISHING}),
    RunPhase.FINISHING: frozenset({RunPhase.FINISHING, RunPhase.RESTING, RunPhase.DONE}),
    RunPhase.RESTING: frozenset({RunPhase.PLACING, RunPhase.FINISHING, RunPhase.DONE}),
    RunPhase.DONE: frozenset(),
}
BEFORE_THE_END = (RunPhase.GATHERING, RunPhase.PLACING, RunPhase.RESUMING, RunPhase.LAUNCHING, RunPhase.RUNNING)


# ``steady`` is the monotonic clock, by which times are kept; ``clock`` Unix seconds, for records.
Moment = NamedTuple("Moment", [("steady", float), ("clock", float)])

# What can happen. Also the messages of guards (`FromGuard`) and of the user (`StopRun`, `KillRun`), and what the
# progress monitor finds (`Stall`, `Straggling`, `Resumed`).
GuardConnected = NamedTuple("GuardConnected", [("host", str), ("clock", float)])  # its host's clock, Unix seconds


class GuardLost(NamedTuple):
    """``tampered``: a line arrived that the other side had not written. ``silent``: seconds since it was heard."""

    host: str
    why: str
    tampered: bool = False
    silent: float = 0.0


GuardSilent = NamedTuple("GuardSilent", [("host", str), ("seconds", float)])  # since it was heard last
FromGuard = NamedTuple("FromGuard", [("host", str), ("message", Union[Message, Unreadable])])


class LauncherStarted(NamedTuple):
    """``out``: the offset in the ranks' output at which that of this attempt begins."""

    pid: int
    port: int
    out: int = 0


LauncherFailed = NamedTuple("LauncherFailed", [("why", str)])
LauncherEnded = NamedTuple("LauncherEnded", [("status", int)])
# The launcher has written that a rank ended the whole job.
RankAborted = NamedTuple("RankAborted", [("rank", int), ("code", int)])
Tick = NamedTuple("Tick", [("watched", bool)])  # time has passed; whether somebody watches the run
Input = Union[
    GuardConnected, GuardSilent, GuardLost, FromGuard, LauncherStarted, LauncherFailed, LauncherEnded, RankAborted,
    Tick, messages.StopRun, messages.KillRun, messages.RequestStacks, messages.Vote,
    journal.Stall, journal.Straggling, journal.Resumed,
]  # fmt: skip


# What the keeper has to do.
Send = NamedTuple("Send", [("host", str), ("message", Message)])  # to the guard of a host; to all guards for ""
Note = NamedTuple("Note", [("record", Record)])  # write it to the journal
StartLauncher = NamedTuple("StartLauncher", [])  # and report it (`LauncherStarted`, `LauncherFailed`)
Disconnect = NamedTuple("Disconnect", [("host", str)])  # close the connection to the guard of the host
ReleaseShims = NamedTuple("ReleaseShims", [("host", str)])  # the launcher's proxy there has ended: so do its shims
# End the launcher, store the rest of its output and write this as the final record.
Close = NamedTuple("Close", [("end", journal.RunEnd)])
EndAttempt = NamedTuple("EndAttempt", [("record", journal.AttemptEnded)])  # the same where another attempt follows
Dissolve = NamedTuple("Dissolve", [])  # end without a record: others lead
Action = Union[Send, Note, StartLauncher, Disconnect, ReleaseShims, Close, EndAttempt, Dissolve]


# Parts of the launcher end: perhaps because of a rank whose own end is still to be reported. Until ``until`` (steady)
# that would explain it; then the run is stopped for ``reason``, unless the ``ranks`` it is about have all ended.
Doubt = NamedTuple("Doubt", [("reason", str), ("detail", str), ("until", float), ("ranks", Set[int])])


class Inquiry(NamedTuple):
    """Guards were asked for the stacks of their ranks: ``hosts`` have still to report, until ``until`` (steady).
    ``requested``: by the user, while nothing was wrong."""

    hosts: "Set[str]"
    until: float
    requested: bool


class HostClock(NamedTuple):
    """A host's clock minus ours, and how far that may be off: the round trip it was measured by. In seconds."""

    offset: float
    within: "Optional[float]" = None


class RankFailure(NamedTuple):
    """Why a rank failed first in an attempt: its ``status``, where, with the exception ("" where not known), and the
    checkpoint that the attempt had gone on from."""

    status: "Optional[int]" = None
    where: str = ""
    resumed: str = ""


class Takeover:
    """What the guards report to a host that takes the head's place."""

    def __init__(self) -> None:
        self.heard: "Dict[str, float]" = {}  # host → when it heard a keeper last
        self.former = ""  # the host that led
        self.ranked: "Set[str]" = set()  # hosts that may still have ranks of the attempt before


class KeeperRun:
    """All that the keeper knows of a run. Times are steady. Steps change it."""

    def __init__(self, spec: "RunSpec", now: "Moment", takes_over: bool = False) -> None:
        self.now = now
        self.actions: "List[Action]" = []  # of this step
        self.base = spec  # the specification of the first attempt, by which others are made
        self.present: "Set[str]" = set()  # hosts with a connected guard and nothing left of an earlier part
        self.silent: "Set[str]" = set()  # of these, those without a sign of life
        self.lost: "Set[str]" = set()
        self.fences: "Dict[str, float]" = {}  # lost host → when it has certainly ended its part
        self.unguarded: "Set[str]" = set()  # lost hosts that were reached, and have no guard
        self.clocks: "Dict[str, HostClock]" = {}
        self.watched = now.steady  # when somebody last watched
        self.limited = 0.0  # the first start, from which the time limit counts
        self.restart = 0  # attempts before this one
        self.halted = False  # by the user: no other one follows
        self.failure = self.failure_before = RankFailure()  # in this attempt, and in the one before
        self.ports: "Dict[str, int]" = {}  # of hosts that may take the head's place
        self.voted = False  # for this host, by the command that started the run
        self.waits: "Dict[str, messages.HostWaits]" = {}  # of hosts that are not taken, if the run waits for them
        self.waiting = journal.Waiting({})  # as it was noted last
        self.taking = False  # all were free, and the order to take them was sent
        self.takeover = Takeover() if takes_over else None  # until it has succeeded
        self.state = RunPhase.GATHERING
        self.begin_attempt(spec)
        if takes_over:  # it is between two attempts, and nobody is there yet
            self.state, self.deadline, self.again = RunPhase.RESTING, now.steady, True
            self.lost = set(spec.head_spec.hosts)

    def begin_attempt(self, spec: "RunSpec") -> None:
        """Forgets all that was known of the attempt before."""
        self.spec = spec
        self.since = self.now.steady  # its beginning, then the launcher's start
        self.deadline = self.now.steady + spec.timings.ready_timeout  # of the state
        self.begun: "Set[str]" = set()  # hosts whose guards have their ranks
        self.kept = keeping.Keeping()
        self.launched = False
        self.launcher_ended: "Optional[float]" = None
        self.launcher_status: "Optional[int]" = None
        self.started: "Set[int]" = set()
        self.ended: "Dict[int, float]" = {}  # rank → when its end was reported
        self.aborted: "Dict[int, int]" = {}  # rank → the code with which it ended the whole job, as the launcher says
        self.doubt: "Optional[Doubt]" = None
        self.inquiry: "Optional[Inquiry]" = None
        self.requests: "List[str]" = []  # for stacks, that wait for the end of another inquiry
        self.verdict = ""  # why the run is to be stopped once the inquiry is over
        self.meetings: "meeting.Meetings" = {}
        self.working = 0  # the first rank that neither works yet, as `meetings` has it, nor has ended
        self.worlds: "Dict[int, int]" = {}  # of `journal.SeparateWorlds`, as it was noted last
        self.reason = self.detail = ""
        self.stopped_at: "Optional[float]" = None  # the head's clock at the polite stop
        self.cleaned: "Dict[str, List[Tuple[int, str]]]" = {}  # host → processes left there
        self.again = False  # it has ended, and another one follows
        self.asked: "Optional[float]" = None  # when guards last looked for another leader, as too few hosts are here

    def list_ranks(self) -> "Dict[str, List[int]]":
        """Returns the ranks of each host that has any, in the order of the hosts."""
        return {host: node.ranks for host, node in self.spec.head_spec.hosts.items() if node.ranks}

    def enter(self, state: "RunPhase", patience: float = 0.0) -> None:
        """``patience``: seconds until the state's deadline."""
        assert state in TRANSITIONS[self.state], "%s → %s" % (self.state, state)
        self.state, self.deadline = state, self.now.steady + patience

    def is_late(self) -> bool:
        """Returns whether the state's deadline is over."""
        return self.now.steady > self.deadline

    def send(self, message: "Message", host: str = "") -> None:
        self.actions.append(Send(host, message))

    def note(self, record: "Record") -> None:
        self.actions.append(Note(record))

    def stop(self, reason: str, detail: str) -> None:
        """Ends the ranks, unless something has ended them before."""
        if self.state not in BEFORE_THE_END:
            return
        self.reason, self.detail, self.stopped_at = reason, detail, self.now.clock
        self.enter(RunPhase.STOPPING, self.spec.timings.grace)
        self.send(messages.Terminate())

    def kill(self) -> None:
        self.enter(RunPhase.KILLING, self.spec.timings.kill)
        self.send(messages.Kill())

    def is_waiting(self) -> bool:
        """Returns whether hosts that another run has, or had, are not taken yet."""
        taken = {host for host, waits in self.waits.items() if waits.taken}
        return self.spec.wait and self.state is RunPhase.GATHERING and taken != set(self.spec.head_spec.hosts)

    def is_steady(self, now: "Moment") -> bool:
        """All ranks have been running for a moment, and no end is awaited: who looks after them may do so rarely."""
        running = self.state is RunPhase.RUNNING and len(self.started) == self.spec.size and not self.ended
        awaited = self.doubt or self.inquiry or self.launcher_ended is not None
        return running and not awaited and now.steady > self.since + self.spec.timings.early

    def convert_to_head_time(self, host: str, at: float) -> float:
        """Returns Unix seconds of a connected host's clock in those of the head's."""
        return at - self.clocks[host].offset


class LastPong(NamedTuple):
    """The last `Pong` of a guard: when the ping was sent that it answers, when the guard sent it, by its own clock, and
    when it arrived."""

    asked: float
    ponged: float
    arrived: float


def count_quorum(run: "KeeperRun") -> int:
    """Returns how many hosts a keeper must hear for ranks to go on: most of them where another host may lead, which
    then cannot hear as many; half of them with the vote, which no other keeper has."""
    head = run.base.head_spec
    if len(run.base.leaders) < 2:
        return 1
    return head.split_hosts if run.voted else len(head.hosts) // 2 + 1


def find_heard(run: "KeeperRun", answers: "Dict[str, LastPong]") -> "Dict[str, float]":
    """Returns up to when the guard of each host was heard, by its own clock, from which its lease counts: while as many
    hosts were heard as the keeper needs. So ranks that are cut off with the head end within a lease, whatever becomes
    of the keeper. Before an attempt, hosts may wait for each other for longer."""
    if run.state in (RunPhase.GATHERING, RunPhase.RESTING):
        return {host: own.ponged for host, own in answers.items()}
    asked = sorted((answer.asked for answer in answers.values()), reverse=True)
    enough = asked[count_quorum(run) - 1 :][:1]  # when the last of so many was
    return {host: own.ponged - max(0.0, own.arrived - last) for last in enough for host, own in answers.items()}
