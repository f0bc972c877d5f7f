"""Events → `RunState`: the only fold of a run's events. What a screen, a page, a report or a notification needs to know
of a run is known here once."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, isfinite, isnan

from ipexctl.decide.run.figures import LIMIT, read_figures
from ipexctl.decide.run.lines import LineSplitter, decode_line, extend_tail
from ipexctl.decide.run.series import add_lines, add_point, count_columns
from ipexctl.decide.run.slowdown import judge_pace, note_best_pace
from ipexctl.decide.run.unusual import UnusualReader
from ipexctl.model import events as e
from ipexctl.model import run_state as rs
from ipexctl.model.answers import get_answer_kind
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.launch import RANK_LIMIT
from ipexctl.model.reports import HostStep, LostLoss, StallPlace
from ipexctl.model.text import format_all_ranks, format_ranks

_TAIL_SIZE = 1 << 12  # bytes of output of each rank, and of mpirun, that are kept for last words
_LINES = 2000  # lines that are read in a second, of all ranks together; about 2 % of a core
_MIN_LINES = 4  # of one rank, however many they are
_BAR = 0.25  # seconds between two readings of a line that redraws itself
_PACE = 1.0  # seconds at least between two steps that a pace is computed from
_FIGURES = 12  # names of figures that are kept as series
_NAMES = 1000  # of figures of a rank whose last value is kept; others are none
_LOGS = 8 << 20  # bytes of output of all ranks together, with what its lines cost
_MIN_LOG_SIZE = 8 << 10  # of one rank
_ATTEMPT_RANKS = 1 << 17  # ranks of all attempts together of which is known how they ended
_STALLED_RANKS = 1 << 17  # ranks of all stalls of a run together, also those that did not stall; then the last counts
_NOTICE_LIMIT = 10_000  # failures of the hosts, warnings, and hosts of which something is noted
_NOTICES_SIZE_LIMIT = 1 << 26  # letters of failures and warnings
_SAMPLES_LIMIT = 100  # looks at where the ranks of a slow run stand
_CANDIDATES_LIMIT = 1000  # launches of a study, which are compared anew after each
_STAGES_LIMIT = 64  # of one rank in an attempt; there are eight
_SAME_CUT = 15.0  # seconds between two silences of one cause: signs of life come every few seconds
_NEVER_EXCUSED = (Kind.UNREACHABLE, Kind.RESIDUE, Kind.RECORD)
_POSITIONS = ("step", "steps")  # where a rank is, no figure by themselves
_MOMENTARY = ("memory", "swap", "celsius", "mhz", "rank memory")  # samples of one moment, not rates


class RunFold:
    """Takes events one by one; `state` is what is known after each. With ``every_line`` no line is left unread, however
    fast ranks write."""

    def __init__(self, *, every_line: bool = False) -> None:
        self.state = rs.RunState()
        self._every_line = every_line
        self._splitters: dict[tuple[int, e.Stream], LineSplitter] = {}
        self._launcher: dict[e.Stream, LineSplitter] = {}
        self._unusual = UnusualReader(self.state)
        self._title = ""  # of the next run
        self._planned: e.Planned | None = None  # likewise
        self._next_run = False  # the next start is that of another run
        self._mark: tuple[int, dict[str, int], int] = (0, {}, 0)  # failures, steps and findings before the last Started
        self._room: dict[int, tuple[int, int]] = {}  # rank → a second, and how many lines may be read in it
        self._bars: dict[tuple[int, e.Stream], tuple[float, bytes]] = {}  # what was read of a line that redraws itself
        self._steps: dict[int, int] = {}
        self._stalled_ranks = 0
        self._noticed = 0  # letters of failures and warnings
        self._judged = 0.0  # when the pace was looked at last

    def handle_event(self, stamped: e.Stamped) -> None:  # noqa: C901  # a table of cases
        """Changes the state by one event."""
        event, at, state = stamped.event, stamped.at, self.state
        state.at = max(state.at, at)
        state.lines, state.values = (), ()
        match event:
            case e.Output():
                self._add_output(event, at)
            case e.LauncherOutput(stream=stream, data=data):
                self._add_launcher_lines(stream, self._launcher.setdefault(stream, LineSplitter()).feed(data), at)
            case e.HostSample():
                self._add_sample(event, at)
            case e.Started():
                self._begin_verb(event, at)
            case e.Planned(verb="run"):
                self._planned = event
            case e.FilesLeftOut(paths=paths):
                state.left_out = paths
            case e.PhaseStarted():
                state.phase = event
            case e.StepStarted(host=host, step=step):
                self._work_on(host).at = rs.StepState(step, at)
            case e.Progress():
                self._note_progress(event, at)
            case e.StepEnded(host=host, step=step, outcome=outcome, detail=detail):
                self._end_step(self._work_on(host), HostStep(step, outcome, detail))
            case e.HostFailed():
                self._add_failure(event, at)
            case e.FactsRead(host=host, facts=facts):
                state.facts[host] = facts
            case e.FindingReported(finding=finding):
                state.findings[finding] = None
            case e.Message():
                self._add_message(event)
            case e.RunStarted():
                self._start_attempt(event, at)
            case e.RunEnded():
                self._end_run(event, at)
            case e.CleanupChecked(run=run):
                state.proofs[run] = event
            case e.FailuresIgnored():
                self._excuse_failures()
            case e.StudyStarted():
                state.study = event
            case e.CandidateTried() if state.study is not None and len(state.candidates) < _CANDIDATES_LIMIT:
                from ipexctl.decide.tune.ranking import Ranking  # no other command needs it

                state.candidates.append(event)
                state.launches = Ranking(state.study, state.candidates).list_launches()
            case e.CaughtUp():
                state.caught_up = True
            case e.Answer(value=value):
                kind = get_answer_kind(type(value))
                state.answers[kind] = (at, value)
                state.answered = True
                state.run.answer = value if kind == "run" else state.run.answer
            case e.Ended(exit=code):
                state.exit, state.finished, state.answered = code, True, True
            case _ if state.last_attempt is not None:
                self._handle_rank_event(state.last_attempt, event, at)

    def _handle_rank_event(self, attempt: rs.Attempt, event: e.Event, at: float) -> None:  # noqa: C901  # the same
        match event:
            case e.RankStage(rank=number, host=host, stage=stage):
                self._note_delay(host, at, event.at)
                if rank := self._find_rank(number):
                    rank.at = at
                    if len(rank.stages) < _STAGES_LIMIT:
                        rank.stages.append(rs.ReachedStage(event.at, at, stage))
                    _enter_stage(rank, stage, min(event.at or at, at) if attempt.late else at)
            case e.RankEnded(rank=number, host=host):
                self._note_delay(host, at, event.at)
                if rank := self._find_rank(number):
                    # What is seen first is kept, but for "end not observed", which any better knowledge replaces.
                    if rank.ended is None or (rank.ended.cause == "lost" and event.cause != "lost"):
                        rank.ended, rank.ended_at = event, at
                        rank.at, rank.line = at, event.line or rank.line
                    attempt.failed = attempt.failed or (rank if rank.result == "failed" else None)
            case e.HostSilent(host=host, seconds=seconds):
                head = attempt.started.head
                delay = 0.0 if attempt.late else self.state.run.delays.get(head, at - event.at)
                since = (min(event.at + delay, at) if event.at else at) - seconds
                attempt.silent[host] = min(attempt.silent.get(host, since), since)
                if host == head and not event.at:  # it is not the head who says so
                    attempt.unheard_since = attempt.silent[host] if seconds else None
                    attempt.cut_at = attempt.silent[host] if seconds else attempt.cut_at
                if not seconds:
                    del attempt.silent[host]
            case e.BackendChosen(backend=backend):
                attempt.backend = backend
            case e.RendezvousChanged(rank=number, number=0, inner=False) if number and self._find_rank(number):
                attempt.zeros[number] = event.line
            case e.WorldsCompared(separate=separate):
                attempt.separate = separate
            case e.Stalled(ranks=ranks, kind=kind):
                self._note_delay(attempt.started.head, at, event.at)
                self._stalled_ranks += len(attempt.ranks)
                if self._stalled_ranks > _STALLED_RANKS:
                    del attempt.stalls[-1:]
                attempt.stalls.append(rs.Stall(event, at, suspects=() if kind == "all" else ranks))
                _place_ranks(attempt, ())
            case e.RankStack() if attempt.stalls and not attempt.stalls[-1].compared:
                attempt.stalls[-1].stacks.append(event)
            case e.StallCompared(ranks=ranks, text=text, places=places) if attempt.stalls:
                stall = attempt.stalls[-1]
                stall.comparison, stall.places, stall.compared = tuple(text.splitlines()), places, True
                stall.suspects, stall.odd = ranks or stall.suspects, ranks
                _place_ranks(attempt, places)
            case e.PlacesSampled(places=places):
                named = all(place.ranks and all(map(self._find_rank, place.ranks)) for place in places)
                if attempt.slowdown and named:
                    attempt.slowdown.samples = [*attempt.slowdown.samples[-_SAMPLES_LIMIT:], places]
                self._judge_pace(at, now=True)
            case e.Resumed():
                self._note_delay(attempt.started.head, at, event.at)
                if attempt.stall is not None:
                    attempt.stall.resumed = (event.at, at)
                _place_ranks(attempt, ())

    # verbs and hosts -----------------------------------------------------------------------------------------------

    def _begin_verb(self, event: e.Started, at: float) -> None:
        state = self.state
        if state.command is None:
            state.command, state.command_at = event, at
        self._title = event.title if event.verb in ("run", "attach") or not self._title else self._title
        self._next_run = self._next_run or (event.verb == "run" and bool(state.run.attempts))
        self._mark = len(state.failures), {}, len(state.findings)
        state.verb, state.verb_at, state.finished, state.answered = event, at, False, False
        state.selection_flags = event.selection_flags or state.selection_flags
        for host in state.working.values():
            host.at, host.ended, host.failure = rs.StepState(), 0, None
            host.begins.append(len(host.steps))
        state.phase, state.attempt, state.stopping, state.working = None, None, "", {}
        state.unusual.clear()
        state.harmless.clear()
        state.uncaught = None
        state.last_words.clear()
        for name in event.hosts:
            self._work_on(name)

    def _work_on(self, name: str) -> rs.HostState:
        host = self.state.hosts.setdefault(name, rs.HostState(name))
        self.state.working[name] = host
        return host

    def _note_progress(self, event: e.Progress, at: float) -> None:
        host = self._work_on(event.host)
        if host.at.step != event.step:
            host.at = rs.StepState(event.step, at)
        step = host.at
        step.outcome = ""
        if not step.moved:
            step.moved, step.skipped = at, event.done
        step.done, step.total, step.unit, step.detail = event.done, event.total, event.unit, event.detail

    def _end_step(self, host: rs.HostState, step: HostStep) -> None:
        if step.outcome == "skipped" and self.state.answered:  # by the play itself, between two verbs
            host.begins.append(len(host.steps))
        self._mark[1].setdefault(host.name, len(host.steps))
        host.steps.append(step)
        host.at.step, host.at.outcome, host.at.detail = step.step, step.outcome, step.detail
        host.ended += 1

    def _add_failure(self, event: e.HostFailed, at: float) -> None:
        failure, attempt, failures = event.failure, self.state.last_attempt, self.state.failures
        full = not self._has_room(failure.host + failure.what) or len(failures) >= _NOTICE_LIMIT
        if full and any(each.kind is failure.kind for each in failures):
            return  # the exit code needs one of each kind
        failures.append(self._blame_head(failure) if attempt else failure)
        if failure.host:
            self._work_on(failure.host).failure = failure
        if attempt and failure.kind is Kind.LOST and failure.host in attempt.started.ranks:
            attempt.lost.setdefault(failure.host, (attempt.silent.get(failure.host, at), failure.what))

    def _has_room(self, text: str) -> bool:
        """Whether one failure or warning more may be kept: a host chooses how long each is."""
        self._noticed += len(text)
        return self._noticed <= _NOTICES_SIZE_LIMIT

    def _blame_head(self, failure: Failure) -> Failure:
        """Returns the failure as the head's own where the head lost a host in the moment in which this machine lost it:
        then it is the head's network that was away."""
        attempt = self.state.run.attempts[-1]
        silent, head = attempt.silent.get(failure.host, inf), attempt.started.head
        if failure.kind is not Kind.LOST or abs(silent - attempt.cut_at) > _SAME_CUT:
            return failure
        what = f"lost its network: neither {failure.host} nor this machine heard of it"
        attempt.cut_off = f"{head} {what}"
        return replace(failure, host=head, what=what)

    def _add_message(self, event: e.Message) -> None:
        attempt = self.state.last_attempt
        warns = event.level == "warning" and len(self.state.warnings) < _NOTICE_LIMIT
        if warns and self._has_room(event.host + event.text):
            self.state.warnings[f"{event.host}: {event.text}" if event.host else event.text] = event.code
        if event.code == "stalled" and attempt and attempt.stalls:
            attempt.stalls[-1].message = event.text
        elif event.code == "stop":
            self.state.stopping = "stopping"
        elif event.code == "kill":
            self.state.stopping = "killing"

    def _excuse_failures(self) -> None:
        """What failed since the last `Started` becomes something that was done; as Ansible counts what it ignores."""
        state, (failures, steps, findings) = self.state, self._mark
        late = state.failures[failures:]
        excused = [failure for failure in late if failure.kind not in _NEVER_EXCUSED]
        state.failures[failures:] = [failure for failure in late if failure not in excused]
        for failure in excused:
            if failure.host:
                state.hosts[failure.host].steps.append(HostStep(failure.kind.value, "ok", f"ignored: {failure.what}"))
        for name, begin in steps.items():
            done = state.hosts[name].steps
            for index, step in enumerate(done[begin:], begin):
                if step.outcome == "failed":
                    done[index] = HostStep(step.step, "ok", f"ignored: {step.detail}")
        for finding in list(state.findings)[findings:]:
            if finding.level == "error":
                del state.findings[finding]
                state.findings[replace(finding, level="warning")] = None
        state.run.excused = bool(state.run.attempts)

    # runs ----------------------------------------------------------------------------------------------------------

    def _start_attempt(self, event: e.RunStarted, at: float) -> None:
        state, before = self.state, self.state.last_attempt
        self._end_lines(at)
        if self._next_run or (before and before.over and before.over.reason == "done"):
            state.earlier += 1  # a playbook, or a benchmark, goes on to its next one
            state.run, self._next_run, self._stalled_ranks = rs.RunHistory(), False, 0
        elif before is not None:  # what it left running stays, and so does a host that is no longer there
            back = set(event.ranks)
            state.failures = [each for each in state.failures if each.kind is not Kind.LOST or each.host not in back]
        run = state.run
        run.title, run.asked, run.excused = event.title or self._title, state.verb, False
        if self._planned is not None:
            run.plan, run.launch = self._planned.text, self._planned.launch
        if event.title and not state.caught_up:
            run.watched_from = at
        ranks = [rs.RankState(rank, host, at, staged=at) for rank, host in enumerate(event.ranks[:RANK_LIMIT])]
        columns = count_columns(len(set(event.ranks)))
        state.attempt, state.launch_failed = rs.Attempt(event, at, ranks, event.backend, columns), None
        run.attempts.append(state.attempt)
        surplus = len(run.attempts) - max(_ATTEMPT_RANKS // max(len(ranks), 1), 2)
        del run.attempts[1 : max(surplus, 0) + 1]
        self._note_delay(event.head, at, event.at)

    def _end_run(self, event: e.RunEnded, at: float) -> None:
        self._end_lines(at)
        attempt = self.state.last_attempt
        if attempt is None or self._next_run:
            self.state.launch_failed = None if event.again else event
            return
        self._note_delay(attempt.started.head, at, event.at)
        if event.reason == "lost" and attempt.cut_off:
            event = replace(event, detail=attempt.cut_off)
        attempt.over, attempt.over_at = event, at

    def _find_rank(self, number: int) -> rs.RankState | None:
        """A rank of the last attempt; None of a number that it does not have."""
        attempt = self.state.last_attempt
        return attempt.ranks[number] if attempt and 0 <= number < len(attempt.ranks) else None

    def _note_delay(self, host: str, seen: float, own: float) -> None:
        """The clock of a host is known by the message that came fastest."""
        if own:
            delays = self.state.run.delays
            if host in delays or len(delays) < _NOTICE_LIMIT:
                delays[host] = min(delays.get(host, seen - own), seen - own)

    # output --------------------------------------------------------------------------------------------------------

    def _add_output(self, event: e.Output, at: float) -> None:
        key = (event.rank, event.stream)
        splitter = self._splitters.setdefault(key, LineSplitter())
        if rank := self._find_rank(event.rank):
            rank.at = at
            rank.written[event.stream] = rank.written.get(event.stream, 0) + len(event.data)
            if rank.stage in ("", "start", "python"):  # a script without torch has no further stages
                _enter_stage(rank, "running", rank.staged if self.state.run.attempts[-1].late else at)
        self._add_lines(event.rank, event.host, event.stream, splitter.feed(event.data), at)
        if current := splitter.current:
            self.state.open[key] = rs.OpenLine(event.host, current, splitter.redraws)
            self._read_bar(key, event.host, at)
        else:
            self.state.open.pop(key, None)

    def _add_launcher_lines(self, stream: e.Stream, text: bytes, at: float) -> None:
        if text:
            self.state.lines += (rs.NewLines(None, "", stream, text),)
            if attempt := self.state.last_attempt:
                attempt.launcher = (attempt.launcher + text)[-_TAIL_SIZE:]
            add_lines(self.state.run.launcher, at, stream, text)

    def _end_lines(self, at: float) -> None:
        """Lines without an end are over with their ranks."""
        for of_launcher, splitter in self._launcher.items():
            self._add_launcher_lines(of_launcher, splitter.end(), at)
        splitters, self._splitters = self._splitters, {}
        for (rank, stream), splitter in splitters.items():
            held = self.state.open.pop((rank, stream), None)
            self._add_lines(rank, held.host if held else "", stream, splitter.end(), at)

    def _add_lines(self, number: int, host: str, stream: e.Stream, text: bytes, at: float) -> None:
        if not text:
            return
        self.state.lines += (rs.NewLines(number, host, stream, text),)
        if rank := self._find_rank(number):
            rank.tail = extend_tail(rank.tail, text)[-_TAIL_SIZE:]
            ranks = len(self.state.run.attempts[-1].ranks)
            log = self.state.run.outputs.setdefault(number, rs.OutputLog(max(_LOGS // ranks, _MIN_LOG_SIZE)))
            add_lines(log, at, stream, text)
        lines = self._select_lines(number, text, at)
        bar = self._bars.pop((number, stream), (0.0, b""))[1]
        for line in lines:
            shown = decode_line(line[:LIMIT])
            figures = read_figures(shown) if line != bar else {}
            self._add_figures(number, host, stream, figures, at)
            self._unusual.read_line(number, stream, shown, at, routine=bool(figures))

    def _select_lines(self, number: int, text: bytes, at: float) -> list[bytes]:
        """The last of these lines, as many as may be read of the rank in this second: ranks that write without end cost
        no more than others."""
        if self._every_line:
            return text[:-1].split(b"\n")
        attempt = self.state.last_attempt
        second, room = self._room.get(number, (0, 0))
        if second != int(at):
            room = max(_LINES // max(len(attempt.ranks) if attempt else 1, 1), _MIN_LINES)
        if not room:
            return []
        lines = text[:-1].rsplit(b"\n", room)[-room:]
        self._room[number] = (int(at), room - len(lines))
        return lines

    def _read_bar(self, key: tuple[int, e.Stream], host: str, at: float) -> None:
        """The figures of a line that redraws itself, at most every `_BAR` seconds."""
        line = self.state.open[key]
        before, read = self._bars.get(key, (-_BAR, b""))
        if line.redraws and line.data != read and not 0 <= at - before < _BAR:
            self._bars[key] = (at, line.data)
            self._add_figures(key[0], host, key[1], read_figures(decode_line(line.data[:LIMIT])), at)

    # figures -------------------------------------------------------------------------------------------------------

    def _add_figures(self, number: int, host: str, stream: e.Stream, figures: dict[str, float], at: float) -> None:
        rank = self._find_rank(number)
        if rank and len(rank.figures) >= _NAMES:
            figures = {name: value for name, value in figures.items() if name in rank.figures}
        if not figures:
            return
        if rank and _is_inner_bar(rank.figures, figures):
            rank.moved = at
            return
        if rank and "loss" in figures:
            rank.prints_loss = True
        if "train_loss" in figures and not (rank and rank.prints_loss):
            figures = {("loss" if name == "train_loss" else name): value for name, value in figures.items()}
        if "step" in figures:
            self._steps[number] = int(figures["step"])
        step = self._steps.get(number)
        printed = [(name, value) for name, value in figures.items() if name not in _POSITIONS]
        self.state.values += tuple(rs.FigureValue(number, host, stream, name, step, value) for name, value in printed)
        if rank is None:
            return
        self._check_values(rank, printed, step, at)
        # Of lines that a command read that came later not all times are known.
        series = not self.state.run.watched_from or self.state.caught_up or at < self.state.run.watched_from
        if "step" in figures:
            moved = figures["step"] != rank.figures.get("step")
        else:
            moved = "pace" in figures
        rank.moved = at if moved else rank.moved
        pace = _measure_pace(rank, figures, at) if series or "step" not in figures else None
        rank.figures |= figures
        if pace is not None:
            rank.pace = pace
            if not rank.paces or not 0 <= at - rank.paces[-1][0] < _PACE:
                rank.paces.append((at, pace))
                note_best_pace(rank)
                self._judge_pace(at)
        elif not rank.paces:
            rank.pace = figures.get("pace", rank.pace)  # as printed, until it is measured
        if not series:
            return
        for name, value in printed:
            if name != "pace":
                self._add_to_series(name, number, at, value)
        if pace is not None:
            self._add_to_series("pace", number, at, pace)

    def _check_values(self, rank: rs.RankState, values: list[tuple[str, float]], step: int | None, at: float) -> None:
        """Notes values that are no numbers; of the loss also on which ranks, since when, and what it was before."""
        beside = dict(values)
        norm = beside.get("grad_norm", 0.0)
        hidden = beside.get("loss") == 0 and not isfinite(norm)  # logging_nan_inf_filter of Transformers: 0 for NaN
        for name, value in values:
            if name == "loss" and hidden:
                value = norm
            if isfinite(value):
                rank.loss = (step, value) if name == "loss" else rank.loss
                continue
            self.state.run.not_finite.setdefault(rank.rank, (at, name, f"{name} is {value}"))
            attempt = self.state.run.attempts[-1]
            lost = attempt.lost_loss
            if name != "loss" or (lost and rank.rank in lost.ranks):
                continue
            last_step, last = rank.loss or (None, None)
            lost = lost or LostLoss("", (), step, last, last_step)
            if lost.step is not None and (step is None or step > lost.step):
                lost = replace(lost, later=tuple(sorted((*lost.later, rank.rank))))
            else:
                shown = "NaN" if isnan(value) else str(value)
                lost = replace(lost, value=f"{shown} (printed as 0)" if hidden else shown)
            lost = replace(lost, ranks=tuple(sorted((*lost.ranks, rank.rank))))
            attempt.lost_loss = replace(lost, text=_describe_lost_loss(lost, attempt.ranks))

    def _add_to_series(self, name: str, rank: int, at: float, value: float) -> None:
        run = self.state.run
        if not isfinite(value) or (name not in run.figures and len(run.figures) >= _FIGURES):
            return
        table = run.figures.setdefault(name, {})
        if rank not in table:
            table[rank] = rs.Series(count_columns(len(run.attempts[-1].ranks)))
        add_point(table[rank], at, value)

    def _add_sample(self, sample: e.HostSample, at: float) -> None:
        attempt, run = self.state.last_attempt, self.state.run
        if attempt is None:
            return
        self._note_delay(attempt.started.head, at, sample.at)
        if sample.joules is not None:
            run.joules[sample.host] = run.joules.get(sample.host, 0.0) + sample.joules
        table, columns = run.samples.setdefault(sample.host, {}), attempt.columns
        for name, value in _list_usage(sample).items():
            _add_use(table.setdefault(name, rs.Series(columns)), sample, name, value)
        for use in sample.ranks:
            if rank := self._find_rank(use.rank):
                rank.cpu, rank.rss = use.cpu, use.rss
            for name, value in (("rank cpu", use.cpu), ("rank memory", use.rss / (1 << 30))):
                ranks = run.rank_samples.setdefault(name, {})
                series = ranks.setdefault(use.rank, rs.Series(count_columns(len(attempt.ranks))))
                _add_use(series, sample, name, value)
        self._judge_pace(at)

    def _judge_pace(self, at: float, *, now: bool = False) -> None:
        """Once a second at most: it looks at all ranks."""
        if now or not 0 <= at - self._judged < _PACE:
            self._judged = at
            judge_pace(self.state, at)


def _list_usage(sample: e.HostSample) -> dict[str, float]:
    """What a host used, by the names of its charts; what it does not tell is left out."""
    seconds = sample.seconds or 1.0
    usage = {
        "cpu": sample.cpu,
        "memory": sample.memory / (1 << 30),
        "swap": sample.swap / (1 << 30),
        "received": _sum_network(sample.received) / seconds / (1 << 20),
        "sent": _sum_network(sample.sent) / seconds / (1 << 20),
        "disk": (sample.read + sample.written) / seconds / (1 << 20),
        "waiting": 100 * max(sample.pressure.values(), default=0.0),
        "other cpu": max(0.0, sample.cpu - sum(use.cpu for use in sample.ranks)),
    }
    measured = {
        "watts": sample.joules / seconds if sample.joules is not None else None,
        "celsius": sample.celsius,
        "mhz": sample.mhz,
        "capped": 100 * sample.capped if sample.capped is not None else None,
        "resent": 100 * sample.resent if sample.resent is not None else None,
        "delay": sample.delay,
    }
    return usage | {name: value for name, value in measured.items() if value is not None}


def _add_use(series: rs.Series, sample: e.HostSample, name: str, value: float) -> None:
    """One more point; that of a rate is true of the time since the sample before it, also the first one's."""
    if not series.count and name not in _MOMENTARY:
        add_point(series, sample.at - sample.seconds, value)
    add_point(series, sample.at, value)


def _sum_network(interfaces: Mapping[str, int]) -> int:
    """Bytes of all interfaces but loopback, which is no network."""
    return sum(size for name, size in interfaces.items() if name != "lo")


def _measure_pace(rank: rs.RankState, figures: dict[str, float], at: float) -> float | None:
    """Returns the steps a second since the pace was measured last, where that is long enough ago; of a script that
    prints no steps, the pace that it prints."""
    if "step" not in figures:
        return figures.get("pace") if rank.counter is None else None
    _count_steps(rank, figures["step"], figures.get("steps", 0.0), at)
    seconds, steps = rank.seconds - rank.measured[0], rank.steps - rank.measured[1]
    if seconds < _PACE or not 0 < steps < inf:
        return None
    rank.measured = (rank.seconds, rank.steps)
    return steps / seconds


def _count_steps(rank: rs.RankState, step: float, total: float, at: float) -> None:
    """Counts the steps of a rank and their time, also those of a bar that begins anew after its end, as in the next
    epoch. What came between is left out where another counter follows, or one that was not at its end. While a longer
    counter goes on, a shorter one does not count; ``total`` is 0 where a line has none."""
    since, last, longest = rank.counter or (at, step, total)
    if total < longest and last < longest:
        return
    if total == longest and last / 2 < step < last:
        return  # an earlier step, printed once more
    if total == longest and (step >= last or last == longest):
        rank.steps += step - last if step >= last else step
        rank.seconds += max(at - since, 0.0)
    rank.counter = (at, step, total)


def _is_inner_bar(known: Mapping[str, float], figures: Mapping[str, float]) -> bool:
    """Whether this is a bar of fewer steps while a longer one goes on: of an evaluation within the training."""
    bar = "pace" in figures or figures.keys() <= {*_POSITIONS}
    trains = not figures.keys().isdisjoint(("loss", "train_loss"))
    inner = bar and not trains and figures.get("steps", inf) < known.get("steps", 0)
    return inner and known.get("step", 0) < known["steps"]


def _describe_lost_loss(lost: LostLoss, ranks: list[rs.RankState]) -> str:
    """``loss is NaN on all 8 ranks since step 30 (2.342 at step 29)``."""
    late = {*lost.later}
    first = [rank for rank in lost.ranks if rank not in late]
    where = f" on {format_ranks(first)}"
    if len(first) == 1:
        where += f" on {ranks[first[0]].host}"
    elif len(first) == len(ranks):
        where = f" on {format_all_ranks(len(ranks))}"
    later = f", later on {format_ranks(lost.later)}" if lost.later else ""
    since = "" if lost.step is None else f" since step {lost.step}"
    counted = lost.last_step is not None and (lost.step is None or lost.last_step <= lost.step)  # else anew, by epoch
    at = f" at step {lost.last_step}" if counted else ""
    before = "" if lost.last is None else f" ({lost.last:.4g}{at or ' before'})"
    return f"loss is {lost.value}{where}{since}{before}{later}"


def _enter_stage(rank: rs.RankState, stage: str, at: float) -> None:
    if stage != rank.stage:
        rank.stage, rank.staged = stage, at


def _place_ranks(attempt: rs.Attempt, places: tuple[StallPlace, ...]) -> None:
    """Where ranks stand while they stall; of the others nothing is known."""
    placed = {rank: place for place in places for rank in place.ranks}
    for rank in attempt.ranks:
        if rank.ended is None:
            place = placed.get(rank.rank, StallPlace(()))
            rank.line, rank.call = place.line, place.call
