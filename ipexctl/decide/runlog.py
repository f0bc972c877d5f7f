"""A run's files, as they grow → events: the keeper's journal, and mpirun's two outputs split into ranks."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any

from ipexctl.decide.demux import Demux, Lines
from ipexctl.decide.diagnosis.stack_traces import alarm, comparison, groups
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

Events = Generator[Event, None, None]


class RunLog:
    """Takes pieces of the files in order (`read`), gives events; `end` gives what was held back."""

    def __init__(self, nonce: str, running: Running) -> None:
        self._running = running
        self._labels = {label.encode(): host.encode() for label, host in running.labels.items()}
        self._nonce = nonce
        self._demux = {stream: Demux(nonce, stream) for stream in "oe"}
        self._lines: dict[tuple[int | None, str], Lines] = {}
        self._journal = b""
        self._stacks: list[RankStack] = []
        self._stall: Stalled | None = None
        self.launched = False
        self.over: RunEnded | None = None

    def read(self, kind: str, data: bytes) -> Events:
        if kind == "j":
            *lines, self._journal = (self._journal + data).split(b"\n")
            for line in lines:
                yield from self._noted(json.loads(line))
        elif kind.startswith("missing-"):
            yield from self._missing(kind[-1], int(data))
        else:
            for rank, stream, piece in self._demux[kind].feed(data):
                yield from self._written(rank, stream, piece)

    def end(self) -> Events:
        """What was held back. How the run ended, if its final record was read, is in ``over``."""
        for demux in self._demux.values():
            for rank, stream, piece in demux.end():
                yield from self._written(rank, stream, piece)
        for (rank, kind), lines in self._lines.items():
            rest = lines.end()
            if rest:
                yield self._output(rank, kind, rest, True)

    def _missing(self, kind: str, count: int) -> Events:
        """The oldest bytes of an output are gone; what follows begins anywhere."""
        self._demux[kind] = Demux(self._nonce, kind)
        text = f"{count} bytes of {'output' if kind == 'o' else 'error output'} were dropped before they were read"
        head = self._running.head
        yield HostFailed(Failure(head, Kind.RECORD, text, "a larger --log-cap, or nobody away for so long", "dropped"))

    def _written(self, rank: int | None, kind: str, piece: bytes) -> Events:
        lines = self._lines.setdefault((rank, kind), Lines())
        for data, partial in lines.feed(piece):
            yield self._output(rank, kind, data, partial)

    def _output(self, rank: int | None, kind: str, data: bytes, partial: bool) -> Event:
        stream: Stream = "out" if kind == "o" else "err"
        if rank is None or rank >= len(self._running.hosts):
            for label, host in self._labels.items():
                data = data.replace(label, host)
            return LauncherOutput(stream, data)
        return Output(rank, self._running.hosts[rank], stream, data, partial)

    def _noted(self, record: Mapping[str, Any]) -> Events:
        what = record.get("what")
        running = self._running
        if what == "launched":
            self.launched = True
            at = float(record.get("at") or 0.0)
            yield RunStarted(running.run, running.head, running.hosts, running.command, at, running.title)
        elif what == "stage" and str(record["stage"]).startswith("note"):
            yield Message(f"rank {record['rank']}: {record['text']}", "warning", str(record["host"]))
        elif what in {"start", "stage"}:
            stage = str(record.get("stage", "start"))
            yield RankStage(int(record["rank"]), str(record["host"]), stage, float(record["at"]))
        elif what in {"stall", "straggling"}:
            yield from self._stalled(record)
        elif what == "resumed":
            yield Message("the ranks get on again")
        elif what == "stacks":
            stack = _stack(record)
            self._stacks.append(stack)
            yield stack
        elif what == "asked":
            lines = comparison(groups(self._stacks), len({stack.rank for stack in self._stacks}))
            going = self._stall is not None and not self._stall.ends
            yield Message(
                "\n".join([*lines, "stacks are in the record; " + ("going on" if going else "ending the run")])
            )
            self._stacks = []
        elif what == "rank":
            yield _ended(record)
        elif what == "lost":
            yield HostFailed(Failure(str(record["host"]), Kind.LOST, f"lost ({record['why']})", code="lost"))
        elif what == "killed":
            if record["count"]:
                yield Message(f"{record['count']} processes needed SIGKILL", "warning", str(record["host"]))
        elif what == "unstored":
            text = "no space left where the run's directory is: output is lost and counted, the run goes on"
            yield Message(text, "warning", running.head)
        elif what == "left":
            pids = ", ".join(f"{pid} (state {state})" for pid, state in record["left"])
            what = f"still running, SIGKILL has no effect: process {pids}"
            hint = f"ipexctl stop --orphans {running.run} looks again, and ends what can be ended"
            yield HostFailed(Failure(str(record["host"]), Kind.RESIDUE, what, hint, "residue"))
        elif what == "end":
            if record.get("unstored"):
                text = f"{record['unstored']} bytes of output were not stored: no space left for the run's directory"
                yield HostFailed(Failure(running.head, Kind.RECORD, text, code="unstored"))
            at = float(record.get("at") or 0.0)
            self.over = RunEnded(running.run, record["reason"], str(record.get("detail") or ""), at)

    def _stalled(self, record: Mapping[str, Any]) -> Events:
        kind: Any = "stragglers" if record["what"] == "straggling" else "all" if record["all"] else "some"
        states = {str(rank): str(state) for rank, state in record.get("states", {}).items()}
        ranks = tuple(int(rank) for rank in record["ranks"])
        self._stall = Stalled(ranks, float(record["seconds"]), kind, states, bool(record["kill"]))
        self._stacks = []
        yield self._stall
        yield Message(alarm(self._stall, self._running.hosts), "warning")


def _stack(record: Mapping[str, Any]) -> RankStack:
    return RankStack(
        int(record["rank"]),
        str(record["host"]),
        int(record["pid"]),
        str(record["state"]),
        str(record["wchan"]),
        str(record["text"]),
    )


def _ended(record: Mapping[str, Any]) -> RankEnded:
    # A wrapper that was told to end before its rank did: by us, or by mpirun because another rank had failed.
    ended_by_others = record.get("by_us") or (record.get("stopped") and record.get("signal"))
    lost = record.get("lost") and not record.get("by_us")
    cause: Any = "lost" if lost else "stopped" if ended_by_others and record.get("status") != 0 else ""
    error = str(record.get("error", ""))
    if oom := record.get("oom"):
        error = "killed by the kernel: out of memory"
        if "used" in oom and "limit" in oom:
            error += f": {oom['used']} of {oom['limit']} bytes of its control group"
    return RankEnded(
        rank=int(record["rank"]),
        host=str(record["host"]),
        status=record.get("status"),
        signal=int(record.get("signal") or 0),
        at=float(record.get("at") or 0.0),
        cause=cause,
        error=error,
        traceback=str(record.get("traceback", "")),
        kernel=str(record.get("kernel", "")),
    )
