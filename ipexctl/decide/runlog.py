"""A run's files, as they grow → events: the keeper's journal, and mpirun's two outputs split into ranks."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

from ipexctl.decide.demux import Demux, Lines
from ipexctl.decide.diagnosis.stack_traces import describe_stall, format_comparison, group_stacks
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import (
    Event,
    HostFailed,
    LauncherOutput,
    Message,
    Output,
    RankEnded,
    RankStack,
    RankStage,
    RunEnded,
    RunStarted,
    Stalled,
    Stream,
)
from ipexctl.model.launch import Running
from ipexctl.model.reports import OutOfMemory
from ipexctl.protocol import frames, journal
from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.journal import Record

Events = Generator[Event, None, None]


class RunLog:
    """Takes pieces of the files in order (`read`), gives events; `end` gives what was held back."""

    def __init__(self, nonce: str, running: Running) -> None:
        self._running = running
        self._labels = {label.encode(): host.encode() for label, host in running.labels.items()}
        self._nonce = nonce
        self._demux = {stream: Demux(nonce, stream) for stream in (frames.OUT, frames.ERR)}
        self._missing_kinds = {frames.missing(stream): stream for stream in self._demux}
        self._lines: dict[tuple[int | None, str], Lines] = {}
        self._journal = b""
        self._stacks: list[RankStack] = []
        self._stall: Stalled | None = None
        self.launched = False
        self.over: RunEnded | None = None
        self.unreadable = 0  # records of the journal

    def read(self, kind: str, data: bytes) -> Events:
        if kind == frames.JOURNAL:
            *lines, self._journal = (self._journal + data).split(b"\n")
            for line in lines:
                yield from self._recorded(journal.KINDS.read(line))
        elif kind in self._missing_kinds:
            yield from self._missing(self._missing_kinds[kind], int(data))
        elif kind in self._demux:
            for rank, stream, piece in self._demux[kind].feed(data):
                yield from self._written(rank, stream, piece)

    def end(self) -> Events:
        """What was held back. How the run ended, if its final record was read, is in ``over``."""
        if self.unreadable > 1:
            yield Message(f"{self.unreadable} records of the run's journal cannot be read", "warning", code="journal")
            self.unreadable = 0
        for demux in self._demux.values():
            for rank, stream, piece in demux.end():
                yield from self._written(rank, stream, piece)
        for (rank, kind), lines in self._lines.items():
            unfinished = lines.end()
            if unfinished:
                yield self._output(rank, kind, unfinished, True)

    def _missing(self, kind: str, count: int) -> Events:
        """The oldest bytes of an output are gone; what follows begins anywhere."""
        self._demux[kind] = Demux(self._nonce, kind)
        text = (
            f"{count} bytes of {'output' if kind == frames.OUT else 'error output'} were dropped before they were read"
        )
        head = self._running.head
        yield HostFailed(Failure(head, Kind.RECORD, text, "a larger --log-cap, or nobody away for so long", "dropped"))

    def _written(self, rank: int | None, kind: str, piece: bytes) -> Events:
        lines = self._lines.setdefault((rank, kind), Lines())
        for data, partial in lines.feed(piece):
            yield self._output(rank, kind, data, partial)

    def _output(self, rank: int | None, kind: str, data: bytes, partial: bool) -> Event:
        stream: Stream = "out" if kind == frames.OUT else "err"
        if rank is None or rank >= len(self._running.hosts):
            for label, host in self._labels.items():
                data = data.replace(label, host)
            return LauncherOutput(stream, data)
        return Output(rank, self._running.hosts[rank], stream, data, partial)

    def _recorded(self, record: Record | Unreadable) -> Events:
        running = self._running
        if isinstance(record, journal.Launched):
            self.launched = True
            yield RunStarted(running.run, running.head, running.hosts, running.command, record.at, running.title)
        elif isinstance(record, journal.RankNote):
            yield Message(f"rank {record.rank}: {record.text}", "warning", record.host, "rank")
        elif isinstance(record, journal.RankStarted):
            yield RankStage(record.rank, record.host, "start", record.at)
        elif isinstance(record, journal.RankStage):
            yield RankStage(record.rank, record.host, record.stage, record.at)
        elif isinstance(record, journal.Stall):
            kind: Literal["all", "some"] = "all" if record.all else "some"
            states = {str(rank): state for rank, state in record.states.items()}
            yield from self._stalled(Stalled(tuple(record.ranks), record.seconds, kind, states, record.kill))
        elif isinstance(record, journal.Straggling):
            yield from self._stalled(Stalled(tuple(record.ranks), record.seconds, "stragglers", {}, record.kill))
        elif isinstance(record, journal.Resumed):
            yield Message("the stalled ranks make progress again", code="resumed")
        elif isinstance(record, journal.RankStack):
            stack = RankStack(record.rank, record.host, record.pid, record.state, record.wchan, record.text)
            self._stacks.append(stack)
            yield stack
        elif isinstance(record, journal.InquiryEnded):
            lines = format_comparison(group_stacks(self._stacks), len({stack.rank for stack in self._stacks}))
            going = self._stall is not None and not self._stall.ends
            yield Message(
                "\n".join([*lines, "stacks are in the record; " + ("going on" if going else "ending the run")])
            )
            self._stacks = []
        elif isinstance(record, journal.RankEnded):
            yield _ended(record)
        elif isinstance(record, journal.HostLost):
            yield HostFailed(Failure(record.host, Kind.LOST, f"lost ({record.why})", code="lost"))
        elif isinstance(record, journal.Killed):
            if record.processes:
                yield Message(f"{record.processes} processes needed SIGKILL", "warning", record.host, "killed")
        elif isinstance(record, journal.Unstored):
            text = "no space left where the run's directory is: output is lost and counted, the run goes on"
            yield Message(text, "warning", running.head, "unstored")
        elif isinstance(record, journal.Leftovers):
            pids = ", ".join(f"{pid} (state {state})" for pid, state in record.processes)
            what = f"still running, SIGKILL has no effect: process {pids}"
            hint = f"ipexctl stop --orphans {running.run} looks again, and ends what can be ended"
            yield HostFailed(Failure(record.host, Kind.RESIDUE, what, hint, "residue"))
        elif isinstance(record, journal.RunEnd):
            if record.unstored:
                text = f"{record.unstored} bytes of output were not stored: no space left for the run's directory"
                yield HostFailed(Failure(running.head, Kind.RECORD, text, code="unstored"))
            reason: Any = record.reason
            self.over = RunEnded(running.run, reason, record.detail, record.at)
        elif isinstance(record, Unreadable):
            self.unreadable += 1
            if self.unreadable == 1:
                text = f"the run's journal has a record that cannot be read ({record.why}); the run is not affected"
                yield Message(text, "warning", running.head, "journal")

    def _stalled(self, stall: Stalled) -> Events:
        self._stall, self._stacks = stall, []
        yield stall
        yield Message(describe_stall(stall, self._running.hosts), "warning", code="stalled")


def _ended(record: journal.RankEnded) -> RankEnded:
    # A wrapper that was asked to end before its rank did: by us, or by mpirun because another rank had failed.
    ended_by_others = record.by_us or (record.stopped and record.signal)
    lost = record.lost and not record.by_us
    oom = OutOfMemory(record.oom.used, record.oom.limit) if record.oom else None
    return RankEnded(
        rank=record.rank,
        host=record.host,
        status=record.status,
        signal=record.signal,
        at=record.at,
        cause="lost" if lost else "stopped" if ended_by_others and record.status != 0 else "",
        error=f"killed by the kernel: {oom}" if oom else record.error,
        traceback=record.traceback,
        kernel=record.kernel,
        oom=oom,
    )
