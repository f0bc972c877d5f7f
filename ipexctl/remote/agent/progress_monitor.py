"""Whether a run gets on: which ranks have shown no sign of progress for how long. Knows no clock and no process.

Signs are bytes written, stages reached, others' good ends. All ranks silent is a stall. One rank silent among others
that are not is one only if it also uses no processor time: many scripts let rank 0 alone print. And whether that one
is, and does not wait for what is slow, takes two looks at its stacks."""

from typing import Dict, List, Optional, Set, Union

from ipexctl.protocol import hooks
from ipexctl.protocol.journal import Resumed, Stall, Straggling
from ipexctl.protocol.timings import Timings

IDLE_SHARE = 0.02  # share of a core below which a rank does nothing
# Seconds after the request for a rank's stacks in which its output is no sign: a signal ends what waits in the kernel,
# and torch's store client writes so (TCPStore.cpp: "retrying … Interrupted system call").
ECHO_SECONDS = 1.0
LIVELY_SECONDS = 3.0  # a rank that wrote so shortly before is believed, as one of a slow run that is asked every 2 s
SECOND_LOOK = 4  # this part of `stall_warn` lies between the first two looks at ranks that are idle
MISSED_SECONDS = 3.0  # in which all ranks wait in their rendezvous, and another one has ended without having been there


class ProgressMonitor:
    """Times in seconds of one monotonic clock."""

    def __init__(self, timings: "Timings") -> None:
        self.warn = timings.stall_warn  # 0: never
        self.straggler = timings.straggler_warn  # likewise
        self.doubt = timings.doubt
        self.doubted: Optional[float] = None  # the last sign before the stall that was asked about early
        self.signs: "Dict[int, float]" = {}  # living ranks → last sign
        self.idle: "Dict[int, float]" = {}  # since when it has used no processor
        self.seconds: "Dict[int, float]" = {}
        self.asked: "Dict[int, float]" = {}
        self.states: "Dict[int, str]" = {}
        self.well: "Dict[int, float]" = {}  # ranks that ended well, and when
        self.disturbed: "Dict[int, float]" = {}  # ranks → when their stacks came
        self.waiting: "Dict[int, float]" = {}  # ranks in their rendezvous → since when
        self.met: "Set[int]" = set()  # ranks that have entered it
        self.ready: "Set[int]" = set()  # programs that are up, and need give no further sign
        self.reported: "Set[int]" = set()  # ranks of the stall that goes on
        self.grave = False  # so was it reported
        self.again = self.pause = 0.0  # when ranks that are idle among others are looked at again
        self.stragglers_reported = False

    @property
    def interval(self) -> float:
        """How often ranks' processor time is to be asked for."""
        return max(0.5, min(5.0, self.warn / 4, self.doubt / 4))

    def note_progress(self, rank: int, now: float, stage: str = "") -> None:
        if stage == hooks.RENDEZVOUS:
            self.waiting[rank] = now
            self.met.add(rank)
        elif stage:
            self.waiting.pop(rank, None)
        if stage == hooks.READY:
            self.ready.add(rank)
            self.signs.pop(rank, None)
        elif rank not in self.ready or stage == hooks.FAILED:
            self.ready.discard(rank)
            self.signs[rank] = now

    def note_end(self, rank: int, succeeded: bool, now: float) -> None:
        self.signs.pop(rank, None)
        self.idle.pop(rank, None)
        if succeeded:
            self.well[rank] = now

    def note_load(self, rank: int, seconds: float, state: str, now: float) -> None:
        before, at = self.seconds.get(rank), self.asked.get(rank, now)
        self.states[rank] = state
        waits_for_a_core = state == "R"  # others have it: that is not its fault
        if (
            before is None
            or waits_for_a_core
            or seconds - before >= IDLE_SHARE * (now - at) + 0.005
            or seconds < before
        ):
            self.idle[rank] = now
        self.seconds[rank], self.asked[rank] = seconds, now

    def note_output(self, ranks: "Set[int]", now: float) -> None:
        """These ranks wrote something."""
        for rank in ranks:
            if rank in self.signs and now - self.disturbed.get(rank, -ECHO_SECONDS) >= ECHO_SECONDS:
                self.signs[rank] = now

    def note_stack(self, rank: int, now: float) -> None:
        """The rank has been asked where it stands."""
        if now - self.signs.get(rank, 0.0) > LIVELY_SECONDS:
            self.disturbed[rank] = now

    @property
    def stalled(self) -> bool:
        return bool(self.reported) or self.doubted is not None

    def poll(self, now: float) -> "List[Union[Stall, Straggling, Resumed]]":
        """Returns what is new."""
        stalled_before = self.stalled
        stall = self.find_stall(now) or self.find_early_stall(now)
        alarms: List[Union[Stall, Straggling, Resumed]] = [Resumed()] if stalled_before and not self.stalled else []
        alarm = stall or self.find_stragglers(now)
        return [*alarms, alarm] if alarm else alarms

    def find_stall(self, now: float) -> "Optional[Stall]":
        """Returns a new stall, or None. The same ranks are reported once, until they make progress again, and once more
        where it becomes ``grave``: not only idle (as a rank that waits for another one to write a checkpoint, or for a
        slow network), but none gets on, or one is stopped or stuck in the kernel. Idle ranks are looked at again."""
        if not self.warn or not self.signs:
            return None
        last = max([*self.signs.values(), *self.well.values()])
        everyone = now - last >= self.warn
        silent = {
            rank
            for rank, at in self.signs.items()
            if now - at >= self.warn and (everyone or now - self.idle.get(rank, now) >= self.warn)
        }
        fresh = silent - self.reported
        self.reported &= silent
        self.grave = self.grave and bool(self.reported)
        states = {rank: self.states.get(rank, "?") for rank in sorted(silent)}
        grave = bool(silent) and (everyone or any(state in "TtD" for state in states.values()))
        worse = grave and not self.grave  # the others have ended since it was reported
        if not silent or not (fresh or worse or (not grave and now >= self.again)):
            return None
        self.reported, self.grave = silent, grave
        seconds = now - (last if everyone else max(self.signs[rank] for rank in silent))
        self.pause = max(self.warn / SECOND_LOOK, 4 * ECHO_SECONDS) if fresh else 2 * self.pause
        self.again = now + self.pause
        return Stall(sorted(silent), everyone, grave, seconds, states, early=not grave)

    def find_early_stall(self, now: float) -> "Optional[Stall]":
        """Returns a new stall of all ranks, or of those that wait for one that has ended, or None; whether they can
        ever go on is for their stacks to show, since who waits in MPI computes. The next one takes twice as long:
        whoever is slow again and again is not asked each time. What a rank writes in its rendezvous is no sign: torch
        says there again and again that it finds nobody."""
        signs = [self.waiting.get(rank, at) for rank, at in self.signs.items()]
        last = max([*signs, *self.well.values()] or [now])
        if self.doubted is not None and last > self.doubted:
            self.doubted = None
        patience = self.doubt
        if self.signs and self.well.keys() - self.met and self.waiting.keys() >= self.signs.keys():
            patience = min(MISSED_SECONDS, self.doubt)
        if self.stalled or not self.signs or not patience <= now - last < self.warn:
            return None
        self.doubted, self.doubt = last, 2 * self.doubt
        states = {rank: self.states.get(rank, "?") for rank in sorted(self.signs)}
        return Stall(sorted(self.signs), True, True, now - last, states, early=True)

    def find_stragglers(self, now: float) -> "Optional[Straggling]":
        """Told once: some ranks ended well a while ago, others go on."""
        if not self.straggler or self.stragglers_reported or not self.well or not self.signs:
            return None
        since = now - max(self.well.values())
        if since < self.straggler:
            return None
        self.stragglers_reported = True
        return Straggling(sorted(self.signs), len(self.well), since)
