"""Whether a run gets on: which ranks have shown no sign of progress for how long. Knows no clock and no process.

Signs are bytes written, stages reached, others' good ends. All ranks silent is a stall. One rank silent among others
that are not is one only if it also uses no processor time: many scripts let rank 0 alone print.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Set

BUDGET = 1 << 20  # bytes of output a second that are looked at for everyone; beyond it only for those in doubt
IDLE = 0.02  # share of a core below which a rank does nothing


class ProgressMonitor:
    """Times in seconds of one monotonic clock. ``warn`` and ``straggler`` 0: never."""

    def __init__(self, nonce: str, warn: float, straggler: float) -> None:
        self.warn = warn
        self.straggler = straggler
        self.opening = b"\x01" + nonce.encode()  # as in decide.ranklog: tags and frames
        self.tag = re.compile(re.escape(self.opening) + rb"[:=](\d+)[\x02oe]")
        self.signs: Dict[int, float] = {}  # living ranks → last sign
        self.idle: Dict[int, float] = {}  # since when it has used no processor
        self.seconds: Dict[int, float] = {}
        self.asked: Dict[int, float] = {}
        self.states: Dict[int, str] = {}
        self.well: Dict[int, float] = {}  # ranks that ended well, and when
        self.told: Set[int] = set()  # ranks of the stall that goes on
        self.told_stragglers = False
        self.second, self.budget = 0.0, BUDGET
        self.rest: Dict[int, bytes] = {}

    @property
    def interval(self) -> float:
        """How often ranks' processor time is to be asked for."""
        return max(0.5, min(5.0, self.warn / 4))

    def sign(self, rank: int, now: float) -> None:
        self.signs[rank] = now

    def ended(self, rank: int, well: bool, now: float) -> None:
        self.signs.pop(rank, None)
        self.idle.pop(rank, None)
        if well:
            self.well[rank] = now

    def load(self, rank: int, seconds: float, state: str, now: float) -> None:
        before, at = self.seconds.get(rank), self.asked.get(rank, now)
        self.states[rank] = state
        waits_for_a_core = state == "R"  # others have it: that is not its fault
        if before is None or waits_for_a_core or seconds - before >= IDLE * (now - at) + 0.005 or seconds < before:
            self.idle[rank] = now
        self.seconds[rank], self.asked[rank] = seconds, now

    def wrote(self, fd: int, piece: bytes, now: float) -> None:
        """A piece of one of mpirun's outputs, in order."""
        if not self.warn:
            return
        if now - self.second >= 1.0:
            self.second, self.budget = now, BUDGET
        looked = self.rest.get(fd, b"") + piece
        self.rest[fd] = piece[-64:]  # a tag may be cut in two
        if self.budget > 0:
            self.budget -= len(piece)
            for rank in set(self.tag.findall(looked)):
                if int(rank) in self.signs:
                    self.signs[int(rank)] = now
            return
        for rank in self._doubtful(now):
            if self.opening + b":%d\x02" % rank in looked or self.opening + b"=%d" % rank in looked:
                self.signs[rank] = now

    def _doubtful(self, now: float) -> List[int]:
        return [r for r, at in self.signs.items() if now - at > self.warn / 2 and now - self.idle.get(r, now) > 0]

    def stalled(self, now: float) -> Optional[Dict[str, Any]]:
        """A new stall, or None. The same ranks are told once, until they have got on.

        ``grave``: not only idle (as a rank that waits for another one to write a checkpoint), but no one gets on, or a
        rank is stopped or stuck in the kernel.
        """
        if not self.warn or not self.signs:
            return None
        last = max([*self.signs.values(), *self.well.values()])
        everyone = now - last >= self.warn
        silent = {
            rank
            for rank, at in self.signs.items()
            if now - at >= self.warn and (everyone or now - self.idle.get(rank, now) >= self.warn)
        }
        fresh = silent - self.told
        self.told &= silent
        if not fresh:
            return None
        self.told = silent
        return {
            "ranks": sorted(silent),
            "all": everyone,
            "grave": everyone or any(self.states.get(rank, "?") in "TtD" for rank in silent),
            "seconds": now - (last if everyone else max(self.signs[rank] for rank in silent)),
            "states": {str(rank): self.states.get(rank, "?") for rank in sorted(silent)},
        }

    def straggling(self, now: float) -> Optional[Dict[str, Any]]:
        """Told once: some ranks ended well a while ago, others go on."""
        if not self.straggler or self.told_stragglers or not self.well or not self.signs:
            return None
        since = now - max(self.well.values())
        if since < self.straggler:
            return None
        self.told_stragglers = True
        return {"ranks": sorted(self.signs), "done": len(self.well), "seconds": since}
