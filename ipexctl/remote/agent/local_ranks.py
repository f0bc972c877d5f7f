"""The ranks of an attempt on this host, by what their wrappers and their own Pythons leave in files."""

import os
import time
from typing import Callable, Dict, List, Optional, Set, Union

from ipexctl.protocol import hooks, paths, rank_records
from ipexctl.protocol.codec import Unreadable
from ipexctl.remote.agent import files, procs

Record = Union[rank_records.RankRecord, rank_records.RankStage]
_KINDS = (files.BEGIN, files.START, *hooks.STAGES)  # then notes and END


class LocalRanks:
    """``host`` is the host's name in the run."""

    def __init__(self, directory: str, host: str, find_process: "Callable[[int], Optional[procs.Process]]") -> None:
        self.directory, self.host, self.find_process = directory, host, find_process
        self.passed_on: "Set[str]" = set()  # record files
        self.alive: "Dict[int, procs.Process]" = {}  # rank → its wrapper
        self.ended: "Set[int]" = set()
        self.wrappers: "Set[int]" = set()  # of all ranks, with their stubs, also of those that have ended
        self.scripts: "Dict[int, int]" = {}  # rank → its script's process
        self.shared_memory: "Set[str]" = set()  # files of it that MPI leaves where ranks do not finalise it
        self.begun = 0.0  # when the last one began, by the guard's steady clock
        self.ending_since: Optional[float] = None  # when this host began to end them, by its clock

    def take_records(self, now: float) -> "List[Record]":
        """Returns what is new, with the ends of those whose wrappers died without a record."""
        records: "List[Record]" = []
        try:
            names = sorted(os.listdir(os.path.join(self.directory, paths.RANKS)), key=_get_record_order)
        except OSError:
            return records
        for name in names:
            record = self._read_record(name) if name.endswith(paths.RECORD) and name not in self.passed_on else None
            if record is not None:
                self.passed_on.add(name)
                records += self._note_record(record, now)
        for rank, process in list(self.alive.items()):
            living = self.find_process(process.pid)
            end = os.path.join(self.directory, files.build_record_path(rank, files.END))
            if (not living or living.start != process.start) and not os.path.exists(end):
                records.append(self.end_unseen(rank))
        return records

    def _note_record(self, record: "Union[Record, Unreadable]", now: float) -> "List[Record]":
        """Takes note of one; what of it is passed on."""
        if isinstance(record, Unreadable):
            return []
        if isinstance(record, rank_records.RankBegun):
            # One that has died already is missed later, unless it left a record of its end.
            gone = procs.Process(record.pid, -1, os.getpid(), "X")
            self.wrappers.update((record.pid, record.stub))
            self.alive[record.rank] = self.find_process(record.pid) or gone
            self.begun = now
            return []
        if isinstance(record, rank_records.RankStarted):
            self.scripts[record.rank] = record.child
        if isinstance(record, (rank_records.RankWorld, rank_records.RankStage, rank_records.RankDropped)):
            self.shared_memory |= procs.list_shared_memory(self.scripts.get(record.rank, 0))
        if isinstance(record, rank_records.RankEnded):
            self.alive.pop(record.rank, None)
            self.ended.add(record.rank)
            failed = record.raised or record.at
            record = record._replace(ending=self.ending_since is not None and failed >= self.ending_since)
        return [record]

    def end_unseen(self, rank: int) -> "rank_records.RankEnded":
        """Its wrapper was killed, and what it still held of the rank's output is lost."""
        self.alive.pop(rank, None)
        self.ended.add(rank)
        return rank_records.RankEnded(rank, self.host, lost=True, at=time.time())

    def _read_record(self, name: str) -> "Union[Record, Unreadable, None]":
        """Returns the record in a rank's file; None while it cannot be read. Stages come from the script's Python."""
        rank, _, kind = name[: -len(paths.RECORD)].partition(".")
        try:
            value = files.read_json(self.directory, os.path.join(paths.RANKS, name), files.RANK_LIMIT)
        except (OSError, ValueError):
            return None
        if kind in hooks.STAGES and rank.isdecimal():
            at = value.get("at")
            return rank_records.RankStage(int(rank), self.host, kind, at if isinstance(at, float) else time.time())
        return rank_records.KINDS.from_object(value)


def _get_record_order(name: str) -> int:
    """Returns a rank's records in the order they happened, whatever the directory's."""
    kind = name.split(".")[1] if "." in name else ""
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS) + (kind == files.END)
