"""A run's files, as they grow → events: the keeper's journal, the ranks' output, the launcher's, and samples."""

import re
from collections import deque
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from ipexctl.decide.diagnosis import collectives, stack_traces, worlds
from ipexctl.decide.run.lines import Demux, LineHolder, Piece, RecordLines
from ipexctl.model import events as e
from ipexctl.model.errors import Failure, Kind, advise
from ipexctl.model.json_values import select_attributes
from ipexctl.model.launch import RANK_LIMIT, Running
from ipexctl.model.reports import LoadedLibrary, OutOfMemory, StallPlace
from ipexctl.model.text import format_size, format_time, group_pairs, join_names, pluralize, printable
from ipexctl.protocol import frames, hooks, journal, paths, rank_records, samples
from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.journal import Record

Events = Generator[e.Event, None, None]
_REASONS = {reason for name, reason in vars(journal.Reason).items() if name.isupper()}
_TIME_STEP = 1.0  # seconds at least between two times of earlier output: a run of weeks has samples by the million
_TIME_STEPS = 12  # of these between two samples, at most
_TIMES_LIMIT = 1 << 19  # of these in all
# Ranks for which records of few bytes make work: those of all stalls and samples of the pace, eight times those of all
# starts; and those that all looks at where ranks meet go through.
_WORK_LIMIT, _LOOK_LIMIT = 1 << 24, 1 << 26
_LABEL = re.compile(rb"h\d{1,6}\.ipexctl")  # of a host, for the launcher
_TEXT_LIMIT = 1 << 16  # letters of a rank's last words, of which its host keeps 20,000
_WAITING_LIMIT, _WAITING_SIZE_LIMIT = 1 << 20, 1 << 26  # records that wait for earlier output, and bytes of them
_STACKS_SIZE_LIMIT, _RANK_STACKS_SIZE_LIMIT = 1 << 26, 1 << 16  # bytes of stacks that are compared; more for each rank


class JournalReader:
    """Takes pieces of the files in order (`read`), gives events; `end` gives what was held back."""

    def __init__(self, nonce: str, running: Running) -> None:
        self._running, self._host_ranks = running, _group_ranks(running.hosts)
        self._hosts = {*running.hosts, *running.labels.values(), running.head, *running.leaders}
        self._demux = Demux(nonce)
        self._journal, self._samples = RecordLines(), RecordLines()
        self._work = self._looked = 0  # ranks, so far
        self._forget_attempt()
        self._restarts, self._resumed = 0, cast(e.ResumedFrom | None, None)  # of the next attempt
        self.launched = self.waiting = False
        self.too_few = False  # hosts for the next attempt
        self.over: e.RunEnded | None = None
        self.unreadable = 0  # records of the journal
        self._waiting: deque[Record | Unreadable] = deque()  # not before the output of the attempt before has been read
        self._waiting_size = 0  # bytes that came since the first of them
        self._read_output = 0  # bytes, those that are gone among them
        self._times: deque[tuple[int, float]] = deque()  # how much of the output had been written, and when
        self._written = 0.0  # when what is read now was; 0: not known
        self._late = bool(running.title)  # it reads what was written before the command came
        self.shift = 0.0  # seconds to add to the head's time to get the controller's

    def _forget_attempt(self) -> None:
        """Nothing that is known of the ranks of one attempt is true of those of the next."""
        self._lines: dict[tuple[int | None, str], LineHolder] = {}
        self._stacks: list[e.RankStack] = []
        self._stacks_size = 0  # bytes of these, and more that were too many
        self._stall: e.Stalled | None = None
        self._early: e.Stalled | None = None  # which its stacks have to show
        self._compared: list[str] = []  # what was last reported of the stall
        self._failures: dict[int, str] = {}  # ranks that failed by themselves in this attempt, and how
        self._positions: dict[int, frozenset[tuple[str, int, bool]]] = {}  # of ranks, at the last look
        self._absent: tuple[int, ...] = ()  # ranks that have ended and are waited for, as the last alarm names them
        self._requested = self._alarmed = False  # why the inquiry under way was begun
        self._sampling = False  # it is for a run that has become slow, and nothing else
        self._rendezvous: dict[int, rank_records.RankRendezvous] = {}  # of ranks that meet elsewhere than was planned
        self._hopeless = False  # one to which others cannot come was reported
        self._met: set[int] = set()  # ranks that have entered their rendezvous
        self._connected: set[int] = set()  # ranks that are past it
        self._well: set[int] = set()  # ranks that have ended with 0
        self.ready: set[int] = set()  # ranks that have given the sign of --ready

    def read(self, kind: str, data: bytes) -> Events:
        if kind == frames.JOURNAL:
            self._waiting_size = self._waiting_size + len(data) if self._waiting else 0
            self._waiting.extend(journal.KINDS.read(line) for line in self._journal.feed(data))
            # A head may say that any amount of output comes first.
            full = len(self._waiting) > _WAITING_LIMIT or self._waiting_size > _WAITING_SIZE_LIMIT
            yield from self._read_waiting(ended=full)
        elif kind == frames.SAMPLES:
            for line in self._samples.feed(data):
                yield from self._read_sample(samples.KINDS.read(line))
        elif kind == frames.CAUGHT_UP and self._late:
            self._late, self._written = False, 0.0
            self._times.clear()
            yield e.CaughtUp()
        elif kind == frames.OUT:
            at = 0
            while at < len(data):
                begin = self._waiting[0].out if self._waiting and isinstance(self._waiting[0], journal.Launched) else 0
                self._find_time()
                until = (begin, self._times[0][0] if self._times else 0)
                size = min((end - self._read_output for end in until if end > self._read_output), default=len(data))
                piece = data[at : at + size]  # what one attempt wrote, in a time
                at += size
                self._read_output += len(piece)
                yield from self._split_lines(self._demux.feed(piece))
                yield from self._read_waiting()
        elif kind == frames.ERR:
            yield from self._split_lines([(None, kind, data)])

    def _note_time(self, sample: samples.HostSample) -> None:
        """Notes how much of the earlier output was written when; between two samples as if it were written evenly."""
        end, last = self._times[-1] if self._times else (self._read_output, 0.0)
        if not self._late or sample.output <= end or sample.at < last + _TIME_STEP:
            return
        steps = min(int((sample.at - last) / _TIME_STEP), _TIME_STEPS) if last else 1
        for step in range(1, steps + 1):
            share = step / steps
            self._times.append((end + int(share * (sample.output - end)), last + share * (sample.at - last)))
        if len(self._times) > _TIMES_LIMIT:  # of two neighbours the later one stays
            self._times = deque([*self._times][::-2][::-1])

    def _find_time(self) -> None:
        """Notes when what is read next was written: before the next sample of a host."""
        while self._times and self._times[0][0] <= self._read_output:
            self._times.popleft()
        self._written = self._times[0][1] + self.shift if self._times else 0.0

    def end(self) -> Events:
        """What was held back. How the run ended, if its final record was read, is in ``over``."""
        yield from self._read_waiting(ended=True)
        if self.unreadable:
            text = f"{pluralize(self.unreadable, 'record')} of the run's journal cannot be read"
            yield e.HostFailed(Failure(self._running.head, Kind.RECORD, text, code="journal"))
            self.unreadable = 0
        yield from self._split_lines(self._demux.end())
        yield from self.release_lines(ended=True)

    def _read_waiting(self, *, ended: bool = False) -> Events:
        """Reads records of the journal up to the start of an attempt of which earlier output has still to be read."""
        while self._waiting:
            record = self._waiting[0]
            if isinstance(record, journal.Launched) and record.out > self._read_output and not ended:
                break
            yield from self._read_record(self._check_record(self._waiting.popleft()))

    def release_lines(self, ended: bool = False) -> Events:
        """Lines without an end that have not grown since the last call (to be called about once a second), or all."""
        for (rank, kind), lines in self._lines.items():
            if unfinished := lines.end() if ended else lines.release():
                yield self._make_output(rank, kind, unfinished)

    def _split_lines(self, pieces: Iterable[Piece]) -> Events:
        for number, kind, piece in pieces:
            rank = number if number is not None and number < len(self._running.hosts) else None
            if data := self._lines.setdefault((rank, kind), LineHolder()).feed(piece):
                yield self._make_output(rank, kind, data)

    def _make_output(self, rank: int | None, kind: str, data: bytes) -> e.Event:
        stream: e.Stream = "out" if kind == frames.OUT else "err"
        if rank is None or rank >= len(self._running.hosts):  # which an attempt before had
            return e.LauncherOutput(stream, _LABEL.sub(self._name_host, data))
        return e.Output(rank, self._running.hosts[rank], stream, data, not data.endswith(b"\n"), self._written)

    def _name_host(self, label: re.Match[bytes]) -> bytes:
        name = label[0].decode()
        return self._running.labels.get(name, name).encode()

    def _check_record(self, record: Record | Unreadable) -> Record | Unreadable:
        """A record of a rank or a host that the run does not have is none, nor is an end for a reason, or a
        stage, that is not known."""
        ranks, host = getattr(record, "ranks", [getattr(record, "rank", 0)]), getattr(record, "host", paths.CONTROLLER)
        known = all(0 <= rank < len(self._running.hosts) for rank in ranks)
        if isinstance(record, journal.RunEnd | journal.AttemptEnded) and record.reason not in _REASONS:
            return Unreadable(type(record).__name__, "of an unknown reason")
        if isinstance(record, rank_records.RankStage) and record.stage not in hooks.STAGES:
            return Unreadable(type(record).__name__, "of an unknown stage")
        if isinstance(record, journal.Launched):
            placed = sum(map(len, record.placed.values()))
            if not self._has_room(8) or placed > RANK_LIMIT:
                return Unreadable(type(record).__name__, "a start of too many ranks")
        if host not in self._hosts and host != paths.CONTROLLER:
            return Unreadable(type(record).__name__, f"of host {printable(host, 80)}")
        return record if known else Unreadable(type(record).__name__, f"of rank {printable(str(ranks), 80)}")

    def _has_room(self, turns: int = 1) -> bool:
        """Whether there may be so much more work for all ranks."""
        self._work += turns * len(self._running.hosts)
        return self._work <= _WORK_LIMIT

    def _may_look(self) -> bool:
        """Whether there may be one look more at where all ranks meet."""
        self._looked += (len(self._running.hosts) + len(self._met)) // 8 + len(self._rendezvous)
        return self._looked <= _LOOK_LIMIT

    def _begin_attempt(self, launched: journal.Launched) -> Events:
        """What was known of the ranks of the attempt before is over; others may be left."""
        yield from self.release_lines(ended=True)
        self._forget_attempt()
        by_rank = {rank: host for host, ranks in launched.placed.items() for rank in ranks if host in self._hosts}
        hosts = tuple(by_rank[rank] for rank in sorted(by_rank)) or self._running.hosts
        left_out = [host for host in self._running.hosts_used if host not in hosts]
        self._running, self._host_ranks = replace(self._running, hosts=hosts), _group_ranks(hosts)
        if left_out and launched.restart:
            yield e.Message(f"going on without {join_names(left_out, 5)}", "warning", code="hosts-left-out")

    def _read_record(self, record: Record | Unreadable) -> Events:  # noqa: C901  # a table of cases
        if isinstance(record, journal.Launched):
            yield from self._begin_attempt(record)
        running = self._running
        match record:
            case journal.Launched(at=at, restart=restart):
                self.launched, self.too_few, resumed, self._resumed = True, False, self._resumed, None
                begun = make_run_started(running, at)
                yield replace(begun, restart=restart, restarts=self._restarts, resumed=resumed)
            case rank_records.RankNote(rank=rank, text=text):
                level: Literal["info", "warning"] = "info" if record.info else "warning"
                yield e.Message(f"rank {rank}: {text}", level, record.host, "rank")
                if record.backend:
                    yield e.BackendChosen(record.backend)
            case rank_records.RankRendezvous():
                yield from self._note_rendezvous(record)
            case journal.SeparateWorlds(at=at):
                separate = worlds.describe_worlds(record)
                yield e.WorldsCompared(separate, at)
                if separate is None:
                    yield e.Message("the ranks have met after all", code="met")
                else:
                    yield e.Message("\n".join([separate.text, *separate.causes]), "warning", code=separate.code)
            case rank_records.RankStarted() | rank_records.RankStage():
                stage = record.stage if isinstance(record, rank_records.RankStage) else "start"
                reached = {hooks.RENDEZVOUS: self._met, hooks.CONNECTED: self._connected, hooks.READY: self.ready}
                reached.get(stage, set()).add(record.rank)
                yield e.RankStage(record.rank, record.host, stage, record.at)
            case journal.Stall():
                kind: Literal["all", "some"] = "all" if record.all else "some"
                states = {str(rank): state for rank, state in record.states.items()}
                stall = e.Stalled(
                    tuple(record.ranks), record.seconds, kind, states, record.kill, record.at, record.limit
                )
                if record.early:
                    self._early, self._stacks = stall, self._stacks if self._requested else []
                else:
                    yield from self._report_stall(stall)
            case journal.Straggling(ranks=ranks, seconds=seconds, kill=kill, at=at):
                yield from self._report_stall(e.Stalled(tuple(ranks), seconds, "stragglers", {}, kill, at))
            case journal.Resumed(at=at) if self._stall is not None:
                self._stall, self._compared = None, []
                yield e.Resumed(at)
                yield e.Message("the stalled ranks make progress again", code="resumed")
            case rank_records.RankStack():
                stack = e.RankStack(record.rank, record.host, record.pid, record.state, record.wchan, record.text)
                self._stacks_size = (self._stacks_size if self._stacks else 0) + len(record.text) + 500
                if self._stacks_size < _STACKS_SIZE_LIMIT + len(running.hosts) * _RANK_STACKS_SIZE_LIMIT:
                    self._stacks.append(stack)
                if self._early is None and not self._sampling:
                    yield stack
            case journal.StacksRequested(request=request):
                self._sampling = request == journal.PACE and (self._sampling or not self._requested)
                self._requested, self._stacks = True, []
            case journal.InquiryEnded():
                yield from self._compare_stacks()
            case rank_records.RankEnded():
                texts = {name: getattr(record, name)[-_TEXT_LIMIT:] for name in ("error", "traceback", "kernel")}
                record = record._replace(**texts)
                if record.status == 0:
                    self._well.add(record.rank)
                elif not record.by_us:
                    self._failures[record.rank] = _name_failure(record)
                yield _make_rank_end(record)
            case journal.HostSilent(host=host, seconds=seconds, at=at):
                text = f"no sign of life for {seconds:.0f} s" if seconds else "answers again"
                yield e.HostSilent(host, seconds, at)
                yield e.Message(text, host=host, code="silent")
            case journal.HostLost(host=host, why=why, tampered=tampered):
                code = "tampered" if tampered else "lost"
                if record.silent:
                    yield e.HostSilent(host, record.silent, record.at)
                yield e.HostFailed(Failure(host, Kind.LOST, f"lost ({why})", code=code))
            case journal.Killed(host=host, processes=count) if count:
                yield e.Message(f"{pluralize(count, 'process')} needed SIGKILL", "warning", host, "killed")
            case journal.Unstored(directory=directory, need=need, free=free):
                room = f" (need {format_size(need)}, {format_size(free)} free)" if need else ""
                where = printable(directory, 300) or "the run's directory"
                text = f"no space left in {where}{room}: output is lost and counted, the run goes on"
                yield e.Message(text, "warning", running.head, "unstored")
            case journal.Strays(host=host, names=names):
                text = f"ended what the script left running: {join_names([printable(name) for name in names], 5)}"
                yield e.Message(text, "warning", host, "strays")
            case journal.Leftovers(host=host, processes=processes):
                pids = ", ".join(f"{pid} (state {state})" for pid, state in processes)
                hint = advise("stop", "--orphans", running.run, text="this looks again, and ends what can be ended:")
                what = f"still running, SIGKILL has no effect: process {pids}"
                yield e.HostFailed(Failure(host, Kind.RESIDUE, what, hint, "residue"))
            case journal.Waiting(hosts=hosts, before=before):
                self.waiting = True
                yield e.Message(_describe_waiting(hosts, before), code="waiting")
            case journal.CheckpointKept():
                text = f"has a copy of {record.owner}'s part of {printable(record.name, 200)}"
                taken = f" ({format_size(record.size)} in {record.seconds:.0f} s)" if record.size else ""
                yield e.Message(text + taken, host=record.host, code="checkpoint")
            case journal.CheckpointMissed():
                what = "the checkpoint" if record.needed else "a copy of"
                text = f"could not get {what} {printable(record.name, 200)}: {printable(record.why, 300)}"
                yield e.Message(text, "warning", record.host, "checkpoint-missed")
            case journal.ResumeChosen():
                sources = tuple(record.sources)
                self._resumed = e.ResumedFrom(printable(record.name, 200), record.size, record.seconds, sources)
                yield e.Message(_describe_resume(record), "warning" if record.incomplete else "info", code="resume")
            case journal.NoticeFailed(host=host, why=why):
                text = f"the command of --host-notify failed: {printable(why, 200)}; the run goes on"
                yield e.Message(text, "warning", host, "notify")
            case journal.AttemptEnded(detail=detail, restart=restart, restarts=restarts, awaited=awaited, at=at):
                self._restarts, self.too_few = restarts, bool(awaited)
                if record.reason == journal.Reason.RANK and self._failures:
                    # Of several, the first may only have missed another.
                    several = [f"rank {rank}: {how}" for rank, how in self._failures.items()]
                    [how, *others] = self._failures.values()
                    detail = f"{detail} ({join_names(several, 3) if others else how})"
                yield e.RunEnded(running.run, cast(Any, record.reason), detail, at, again=True)
                again = f"starting again ({restart} of {restarts})"
                if awaited:
                    again = f"restart {restart} of {restarts} waits for {join_names(awaited, 5)}"
                yield e.Message(f"{detail or 'the run failed'}: {again}", "warning", code="restart")
            case journal.HostBack(host=host):
                yield e.Message("is back, and can take part in the next restart", host=host, code="host-back")
            case journal.RunEnd():
                if record.unstored:
                    size = pluralize(record.unstored, "byte")
                    text = f"not stored, no space left for the run's directory: {size} of output"
                    yield e.HostFailed(Failure(running.head, Kind.RECORD, text, code="unstored"))
                self.over = e.RunEnded(running.run, cast(Any, record.reason), record.detail, record.at)
            case journal.MessageIgnored(host=host, message=message, why=why):
                yield e.Message(f"a message of its guard was ignored: {message}, {why}", "warning", host, "ignored")
            case Unreadable(why=why):
                self.unreadable += 1
                if self.unreadable == 1:
                    text = f"the run's journal has a record that cannot be read ({why}); the run is not affected"
                    yield e.Message(text, "warning", running.head, "journal")

    def _compare_stacks(self) -> Events:
        """Yields where the ranks stood whose stacks have come: at a stall, on request, or as a sample of their pace."""
        stacks, groups = self._stacks, stack_traces.group_stacks(self._stacks)
        early, self._early = self._early, None
        stands = stack_traces.show_stall(groups, stacks) or stack_traces.have_raised(stacks)
        shown = stands or collectives.have_mismatch(stacks) or self._requested
        if early and early.kind == "some":  # others get on: one is shown that has not since the last such look
            before, self._positions = self._positions, collectives.list_positions(stacks)
            same = {rank for rank, position in before.items() if self._positions.get(rank) == position}
            shown = self._stall is None and not same.isdisjoint(early.ranks)
        if early and not shown and self._may_look():
            shown = bool(self._find_missing(early.ranks) or self._find_hopeless(self._rendezvous, early.ranks))
        if early and shown:
            yield from self._report_stall(early)
            yield from stacks
            self._stacks = stacks
        elif early and self._requested:
            yield from stacks
        elif early:
            self._stacks = []
            return
        places = tuple(StallPlace(group.ranks, group.line, group.function if group.waits else "") for group in groups)
        if self._sampling and not self._alarmed:
            self._stacks, self._requested, self._sampling = [], False, False
            if self._has_room():
                yield e.PlacesSampled(places)
            return
        stalled = {stack.rank for stack in self._stacks}
        named = self._alarmed and self._find_missing(stalled) == self._absent
        lines = [] if named else [*filter(None, [self._describe_missing(stalled)])]
        lines += stack_traces.format_comparison(groups, len(stalled))
        lines += stack_traces.describe_errors(self._stacks)
        moves = self._requested and self._stall is None
        lines += collectives.describe_collectives(self._stacks, stalled=not moves)
        lines += worlds.describe_rendezvous(self._rendezvous, stalled - self._connected, self._running.hosts)
        if self._alarmed or not self._requested:
            odd = self._find_missing(stalled) or stack_traces.find_odd_ranks(groups)
            yield e.StallCompared(odd, "\n".join(lines), places)
            outlook = "going on"
            if self._stall is not None and self._stall.ends:
                outlook = "ending the run"
            elif self._stall is not None and self._stall.limit:
                outlook = f"the run is ended after {self._stall.limit:.0f} s without progress"
            news = ["the ranks stand where they stood"] if lines == self._compared else lines
            self._compared = lines
            yield e.Message("\n".join([*news, f"the stacks are saved; {outlook}"]))
        else:
            yield e.Message("\n".join([*lines, "the stacks are saved, on request"]), code="stacks")
        self._stacks, self._requested, self._alarmed, self._sampling = [], False, False, False

    def _note_rendezvous(self, record: rank_records.RankRendezvous) -> Events:
        yield e.RendezvousChanged(*record)
        self._rendezvous[record.rank] = record
        if self._hopeless or record.address == record.planned or not self._may_look():
            return
        alike = {rank: each for rank, each in self._rendezvous.items() if each.address == record.address}
        if text := self._find_hopeless(alike, alike):
            self._hopeless = True
            yield e.Message(text, "warning", code="master-addr")

    def _read_sample(self, sample: samples.HostSample | Unreadable) -> Events:
        """What cannot be read, or is of no host of the run, is a gap in a curve."""
        if isinstance(sample, Unreadable) or sample.host not in self._host_ranks:
            return
        self._note_time(sample)
        ranks = self._host_ranks[sample.host]
        uses = tuple(e.RankSample(*use) for use in sample.ranks if use.rank in ranks)
        fields = {name: value for name, value in sample._asdict().items() if name != "output"}
        yield e.HostSample(**{**fields, "ranks": uses})

    def _report_stall(self, stall: e.Stalled) -> Events:
        if not self._has_room():
            yield from self._read_record(Unreadable(type(stall).__name__, "after too many"))
            return
        hosts, hopeless = self._running.hosts, self._find_hopeless(self._rendezvous, stall.ranks)
        text = stack_traces.describe_stall(stall, hosts, hopeless=bool(hopeless), ended=sorted(self._well))
        text = self._describe_missing(stall.ranks) or text
        self._absent = self._find_missing(stall.ranks)
        self._stall, self._alarmed = stall, True
        self._stacks = self._stacks if self._requested else []
        yield stall
        yield e.Message(text, "warning", code="stalled")

    def _find_hopeless(self, records: Mapping[int, rank_records.RankRendezvous], stalled: Collection[int]) -> str:
        """Returns what is wrong where some of these ranks wait in a rendezvous to which others cannot come; else ""."""
        groups = worlds.group_rendezvous(records, {*stalled} - self._connected)
        texts = (worlds.find_hopeless_rendezvous(group, self._running.hosts) for group in groups)
        return next(filter(None, texts), "")

    def _describe_missing(self, stalled: Collection[int]) -> str:
        missing, joined = self._find_missing(stalled), self._connected
        return stack_traces.describe_missing(missing, sorted(stalled), self._running.hosts, joined.issuperset(missing))

    def _find_missing(self, stalled: Collection[int]) -> tuple[int, ...]:
        """The ranks that have ended with 0 and for which others wait: in a rendezvous in which they never were, or in a
        collective."""
        waiting = self._met - self._connected - self._well
        if waiting and waiting.issuperset(stalled):
            return tuple(sorted(self._well - self._met))
        return tuple(sorted(self._well & collectives.find_awaited(self._stacks)))


def _group_ranks(hosts: Sequence[str]) -> Mapping[str, Collection[int]]:
    by_host = group_pairs((host, rank) for rank, host in enumerate(hosts))
    return {host: frozenset(ranks) for host, ranks in by_host.items()}


def make_run_started(running: Running, at: float) -> e.RunStarted:
    """Returns the first start of a run."""
    names = ("run", "head", "command", "title", "backend", "precision", "isas")
    return e.RunStarted(**select_attributes(running, *names), ranks=running.hosts, at=at)


def _describe_waiting(hosts: Mapping[str, tuple[str, str, float]], before: int) -> str:
    if not hosts:
        return "the hosts are free"
    by_run = group_pairs((holder, host) for host, holder in hosts.items())
    runs = [
        f"run {run} of {printable(owner, 100)} on {join_names(names, 3)}, since {format_time(since)}"
        for (run, owner, since), names in by_run.items()
    ]
    ahead = f" ({pluralize(before, 'run')} before this one)" if before else ""
    return f"waiting for {join_names(runs, 3)}{ahead}"


def _describe_resume(record: journal.ResumeChosen) -> str:
    if record.incomplete:
        name = printable(record.incomplete, 200)
        why = f"{name} was not written to its end, or lacks parts of hosts that are gone"
        return f"no whole checkpoint, the script starts from its beginning: {why}"
    if not record.name:
        return "no whole checkpoint of this run yet: the script starts from its beginning"
    text = f"the ranks get {printable(record.name, 200)} to go on from"
    if record.written:
        text += f", written {format_time(record.written)}"
    if record.size:
        text += f" ({format_size(record.size)} from {join_names(record.sources, 3)} in {record.seconds:.0f} s)"
    return text


def _name_failure(record: rank_records.RankEnded) -> str:
    if record.error:
        return printable(record.error.splitlines()[0], 200)
    if record.abort is not None:
        return f"MPI_Abort({record.abort})"
    return f"signal {record.signal}" if record.signal else f"exit code {record.status}"


def _make_rank_end(record: rank_records.RankEnded) -> e.RankEnded:
    cause: Literal["", "stopped", "lost"] = ""
    if record.by_us:
        cause = "stopped" if record.status != 0 else ""
    elif record.lost:
        cause = "lost"
    oom = OutOfMemory(record.oom.used, record.oom.limit) if record.oom else None
    names = ("rank", "host", "status", "signal", "at", "traceback", "kernel", "abort", "room", "kills", "lingered")
    return e.RankEnded(
        **select_attributes(record, *names),
        observed=record.observed,
        cause=cause,
        error=f"killed by the kernel: {oom}" if oom else record.error,
        oom=oom,
        where=stack_traces.describe_position(stack_traces.parse_main_thread(record.stacks)),
        line=stack_traces.find_script_line(record.traceback, record.stacks),
        libraries=tuple(LoadedLibrary(*library) for library in record.libraries),
        exit_line=printable(record.exit_line.rpartition("/")[2], 200),
    )
