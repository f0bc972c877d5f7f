"""Whether a run gets on: which ranks have shown no sign of progress for how long. Knows no clock and no process.

Signs are bytes written, stages reached, others' good ends. All ranks silent is a stall. One rank silent among others
that are not is one only if it also uses no processor time: many scripts let rank 0 alone print."""

from typing import Dict, List, Optional, Set, Union

from ipexctl.protocol import frames
from ipexctl.protocol.journal import Resumed, Stall, Straggling

BUDGET = 1 << 20  # bytes of output a second that are looked at for everyone; beyond it only for those in doubt
IDLE = 0.02  # share of a core below which a rank does nothing


class ProgressMonitor:
    """Times in seconds of one monotonic clock. ``warn`` and ``straggler`` 0: never."""

    def __init__(self, nonce: str, warn: float, straggler: float) -> None:
        self.warn = warn
        self.straggler = straggler
        self.nonce = nonce
        self.tag = frames.compile_rank_pattern(nonce)
        self.signs: "Dict[int, float]" = {}  # living ranks → last sign
        self.idle: "Dict[int, float]" = {}  # since when it has used no processor
        self.seconds: "Dict[int, float]" = {}
        self.asked: "Dict[int, float]" = {}
        self.states: "Dict[int, str]" = {}
        self.well: "Dict[int, float]" = {}  # ranks that ended well, and when
        self.reported: "Set[int]" = set()  # ranks of the stall that goes on
        self.stragglers_reported = False
        self.second, self.budget = 0.0, BUDGET
        self.tails: "Dict[int, bytes]" = {}

    @property
    def interval(self) -> float:
        """How often ranks' processor time is to be asked for."""
        return max(0.5, min(5.0, self.warn / 4))

    def note_progress(self, rank: int, now: float) -> None:
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
        if before is None or waits_for_a_core or seconds - before >= IDLE * (now - at) + 0.005 or seconds < before:
            self.idle[rank] = now
        self.seconds[rank], self.asked[rank] = seconds, now

    def note_output(self, fd: int, piece: bytes, now: float) -> None:
        """A piece of one of mpirun's outputs, in order."""
        if not self.warn:
            return
        if now - self.second >= 1.0:
            self.second, self.budget = now, BUDGET
        before = self.tails.get(fd, b"")
        self.tails[fd] = piece[-64:]  # a tag may be cut in two
        if self.budget > 0:
            self.budget -= len(piece)
            for rank in set(self.tag.findall(before + piece)):
                if int(rank) in self.signs:
                    self.signs[int(rank)] = now
            return
        doubtful = [r for r, at in self.signs.items() if now - at > self.warn / 2 and now - self.idle.get(r, now) > 0]
        looked = before + piece if doubtful else b""  # a copy of all that ranks write otherwise
        for rank in doubtful:
            if frames.build_tag(self.nonce, rank) in looked or frames.build_frame_head(self.nonce, rank) in looked:
                self.signs[rank] = now

    def poll(self, now: float) -> "List[Union[Stall, Straggling, Resumed]]":
        """What is new."""
        stalled_before = bool(self.reported)
        stall = self.find_stall(now)
        alarms: List[Union[Stall, Straggling, Resumed]] = [Resumed()] if stalled_before and not self.reported else []
        alarm = stall or self.find_stragglers(now)
        return [*alarms, alarm] if alarm else alarms

    def find_stall(self, now: float) -> "Optional[Stall]":
        """A new stall, or None. The same ranks are reported once, until they make progress again.

        ``grave``: not only idle (as a rank that waits for another one to write a checkpoint), but no one gets on, or a
        rank is stopped or stuck in the kernel."""
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
        if not fresh:
            return None
        self.reported = silent
        states = {rank: self.states.get(rank, "?") for rank in sorted(silent)}
        grave = everyone or any(state in "TtD" for state in states.values())
        seconds = now - (last if everyone else max(self.signs[rank] for rank in silent))
        return Stall(sorted(silent), everyone, grave, seconds, states)

    def find_stragglers(self, now: float) -> "Optional[Straggling]":
        """Told once: some ranks ended well a while ago, others go on."""
        if not self.straggler or self.stragglers_reported or not self.well or not self.signs:
            return None
        since = now - max(self.well.values())
        if since < self.straggler:
            return None
        self.stragglers_reported = True
        return Straggling(sorted(self.signs), len(self.well), since)
