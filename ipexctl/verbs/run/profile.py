"""The profile of a run: its ranks' files fetched, merged and saved; and ``ipexctl profile``, which shows it again."""

import gc
import logging
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.transfer import receive
from ipexctl.act.transfer.receive import ResultsDir, UnsafePathError
from ipexctl.decide.planning import fetch as planning
from ipexctl.decide.planning.fetch import RemoteFile
from ipexctl.decide.planning.ignore import compile_ignore
from ipexctl.decide.profile import merge
from ipexctl.decide.profile.steps import RecordedSteps, parse_profile_steps, parse_recorded_steps
from ipexctl.decide.profile.traces import KernelReport, RankTrace, TraceError, parse_kernels, parse_trace
from ipexctl.model.answers.run import ProfileAnswer
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import HostFailed, Message, Started, Workflow, finish_verb
from ipexctl.model.hosts import Link
from ipexctl.model.json_values import parse_json
from ipexctl.model.profile import Profile, UnprofiledRank
from ipexctl.model.text import format_size, pluralize
from ipexctl.protocol import hooks, paths
from ipexctl.store.private_files import describe_error
from ipexctl.store.record import list_saved_runs
from ipexctl.store.saved_profile import FOLDER, get_trace_path, has_profile, read_profile, save_profile, save_trace
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.run.replay import find_saved_run
from ipexctl.verbs.run.watch import RunWatcher

_log = logging.getLogger(__name__)
_HOSTS = "hosts"  # in the saved profile: what came from each host, until it was merged
_MANY_BYTES = 2 << 20  # packed, of all ranks: from here on it takes seconds to merge them
_RECORD_LIMIT = 8  # processes of a rank that leave one
_SIZES = {hooks.TRACE: 96 << 20, hooks.KERNELS: 33 << 20, hooks.STEPS: 4 << 20, paths.CLOCKS: 1 << 20}  # bytes
_FILES = re.compile(
    rf"{hooks.PROFILE}/(?:(?P<rank>0|[1-9][0-9]{{,6}})(?:\.[0-9]{{1,10}}(?={hooks.STEPS}))?"
    rf"(?P<kind>{'|'.join(map(re.escape, list(_SIZES)[:3]))})|(?P<clocks>{paths.CLOCKS}))"
)


def fetch_profile(watcher: RunWatcher) -> Workflow[Path | None]:
    """Brings what the ranks wrote into the saved run; its directory, None where nothing can be saved. A host that does
    not answer costs the run nothing but its traces."""
    saved = watcher.context.saved.directory
    if not watcher.profile or saved is None:
        return None
    names = {run_dir.host.name: name for name, run_dir in watcher.run_dirs.items()}
    every = [*enumerate(watcher.running.hosts)]
    ranks = {name: {rank for rank, host in every if host == name} for name in watcher.run_dirs}
    into = saved / FOLDER / _HOSTS
    shutil.rmtree(saved / FOLDER, ignore_errors=True)  # of an attempt before a restart
    (saved / FOLDER).mkdir(mode=0o700)

    def fetch_from_host(link: Link, _: Emit) -> str | Failure:
        name = names[link.host.name]
        return _fetch_host(link, watcher.run_dirs[name].directory, into, name, ranks[name])

    hosts = [run_dir.host for run_dir in watcher.run_dirs.values()]
    fetching = run_on_hosts(
        watcher.context, hosts, "fetch profile", fetch_from_host, outcome=lambda summary: ("ok", summary)
    )
    results = yield from run_nested(fetching, lambda event: not isinstance(event, HostFailed))
    for host, result in results.items():
        if isinstance(result, Failure):
            yield Message(f"no profile from there: {result.what}", "warning", host, "no-profile")
    return saved


def _fetch_host(link: Link, directory: str, into: Path, name: str, ranks: set[int]) -> str | Failure:
    """Returns the files of one host into ``into/name``."""
    try:
        listing = planning.parse_listing(
            receive.list_files(link, directory, [f"./{hooks.PROFILE}"]), compile_ignore(())
        )
    except ValueError:
        return Failure(name, Kind.STEP, "malformed file list from the host", code="malformed")
    items = {item.name: item for item in select_items(listing.items, ranks)}
    plan = planning.FetchPlan(directory, tuple(items.values()))
    if plan.size > (free := receive.measure_free_space(into)):
        what = f"no space left on this machine: need {format_size(plan.size)}, {format_size(free)} free in {into}"
        return Failure(name, Kind.RECORD, what, code="no-space")
    try:
        with ResultsDir(into, name) as results:
            sizes = {item.name: item.size for item in items.values()}
            for file, _, chunks in receive.receive_files(link, directory, sizes) if sizes else ():
                local = items[file].local
                results.write_file(local, chunks, mtime=items[file].mtime, executable=False)
    except UnsafePathError as why:
        return Failure(name, Kind.RECORD, str(why), code="not-stored")
    return plan.summary()


def select_items(items: Iterable[RemoteFile], ranks: set[int]) -> Iterator[RemoteFile]:
    """Yields those of a host's files that are its own ranks', no larger and no more than these can be."""
    records: Counter[str] = Counter()
    for item in items:
        match = _FILES.fullmatch(item.local)
        if match is None or item.size > _SIZES[match["clocks"] or match["kind"]]:
            continue
        records[match["rank"]] += match["kind"] == hooks.STEPS
        if match["rank"] is None or (int(match["rank"]) in ranks and records[match["rank"]] <= _RECORD_LIMIT):
            yield item


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """For a trace, which is a million objects without cycles: searching them for cycles doubles the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class RankFiles:
    """What came of one rank."""

    def __init__(self, folder: Path, rank: int, host: str) -> None:
        self.base, self.rank, self.host = folder / _HOSTS / host / hooks.PROFILE, rank, host

    def read(self, kind: str) -> bytes:
        """Empty where there is no such file."""
        try:
            return (self.base / f"{self.rank}{kind}").read_bytes()
        except OSError:
            return b""

    def measure_trace(self) -> int:
        """Returns its bytes, packed."""
        path = self.base / f"{self.rank}{hooks.TRACE}"
        return path.stat().st_size if path.is_file() else 0

    def read_steps(self) -> RecordedSteps:
        """Of the process that was profiled, else of any."""
        every = sorted(self.base.glob(f"{self.rank}.*{hooks.STEPS}"))[:_RECORD_LIMIT]
        records = [record for path in every if (record := parse_recorded_steps(path.read_bytes()))]
        default = RecordedSteps(why="it left no trace: its script has no optimizer of torch, or did not end by itself")
        return max([default, *records], key=lambda record: (record.traced, bool(record.ends), record is not default))

    def read_trace(self) -> RankTrace:
        """Raises `TraceError`."""
        return parse_trace(self.read(hooks.TRACE), self.rank, self.host)

    def read_kernels(self) -> KernelReport:
        return parse_kernels(self.read(hooks.KERNELS))


def merge_profile(watcher: RunWatcher, saved: Path) -> Workflow[Profile | None]:
    """Merges what `fetch_profile` brought and saves it; None where nothing could be saved."""
    folder = saved / FOLDER
    first, last = parse_profile_steps(watcher.profile)
    summaries: list[merge.RankSummary] = []
    missing: list[UnprofiledRank] = []
    every = [RankFiles(folder, rank, host) for rank, host in enumerate(watcher.running.hosts)]
    if sum(files.measure_trace() for files in every) > _MANY_BYTES:
        yield Message(f"merging the traces of {pluralize(len(every), 'rank')}", code="merge")
    for files in every:
        steps = files.read_steps()
        try:
            if not steps.traced:
                raise TraceError(steps.why or "it wrote no trace")
            with pause_garbage_collection():
                summaries.append(merge.summarise_rank(files.read_trace(), steps, files.read_kernels()))
        except TraceError as error:
            missing.append(UnprofiledRank(files.rank, files.host, str(error)))
    if not summaries:
        profile = Profile(watcher.running.run, first, last, "same", (), tuple(missing))
    else:
        clocks = _read_clocks(folder, watcher.running.head)
        merging = merge.merge_ranks(summaries, clocks)
        _log.debug("clocks that the run measured: %s; of the profile: %s %s", clocks, merging.clock, merging.offsets)
        profile = merge.build_profile(watcher.running.run, merging, missing, first, last)
        merged = {summary.rank for summary in summaries}
        try:
            with pause_garbage_collection():
                save_trace(
                    saved, merge.format_trace(merging, (files.read_trace() for files in every if files.rank in merged))
                )
            watcher.trace = str(get_trace_path(saved))
        except OSError as error:
            what = f"the merged trace cannot be saved: {describe_error(error)}"
            yield Message(what, "warning", code="not-stored")
    try:
        save_profile(saved, profile)
    except OSError as error:
        yield Message(f"the profile cannot be saved: {describe_error(error)}", "warning", code="not-stored")
    if not missing:
        shutil.rmtree(folder / _HOSTS, ignore_errors=True)
    return profile


def _read_clocks(folder: Path, head: str) -> Mapping[str, merge.ClockOffset]:
    """Returns what the run's keeper measured of the hosts' clocks; empty where that cannot be read."""
    try:
        data = (folder / _HOSTS / head / hooks.PROFILE / paths.CLOCKS).read_bytes()
        return parse_json(merge.HostClocks, data).hosts
    except (OSError, ValueError, RecursionError):
        return {}


def show_saved_profile(word: str, context: Context) -> Workflow[None]:
    """``ipexctl profile``: the tables of a saved run again; ``last`` is the newest one with a profile. Raises
    `UsageError`."""
    runs = context.state / "runs"
    profiled = [path for path in list_saved_runs(runs) if has_profile(path)] if word == "last" else []
    directory = profiled[-1] if profiled else find_saved_run(runs, word, with_ranks=True)
    profile = read_profile(directory)
    yield Started("profile", profile.run, ())
    trace = get_trace_path(directory)
    yield from finish_verb("profile", ProfileAnswer(profile, str(trace) if trace.is_file() else None))
