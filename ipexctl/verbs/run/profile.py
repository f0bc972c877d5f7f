"""The profile of a run: its ranks' files fetched, read and saved; and ``ipexctl profile``, which shows it again."""

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.transfer import receive
from ipexctl.act.transfer.receive import ResultsDir, UnsafePathError
from ipexctl.decide.planning import fetch as planning
from ipexctl.decide.planning.fetch import RemoteFile
from ipexctl.decide.profile import merge
from ipexctl.decide.profile.steps import RecordedSteps, parse_profile_steps, parse_recorded_steps
from ipexctl.decide.profile.traces import TraceError, parse_kernels, parse_trace
from ipexctl.model.answers.run import ProfileAnswer
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import HostFailed, Message, Started, Workflow, finish_verb
from ipexctl.model.hosts import Link
from ipexctl.model.profile import Profile, UnprofiledRank
from ipexctl.model.text import pluralize
from ipexctl.protocol import hooks
from ipexctl.store.private_files import describe_error
from ipexctl.store.record import list_saved_runs
from ipexctl.store.saved_profile import FOLDER, HOSTS, find_traces, has_profile, read_profile, save_profile
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.run.replay import find_saved_run
from ipexctl.verbs.run.watch import RunWatcher

_MANY_BYTES = 2 << 20  # packed, of all ranks: from here on it takes seconds to read them
_RECORD_LIMIT = 8  # processes of a rank that leave one
_SIZES = {hooks.TRACE: 96 << 20, hooks.KERNELS: 33 << 20, hooks.STEPS: 4 << 20}  # bytes
_FILES = re.compile(
    rf"{hooks.PROFILE}/(?P<rank>0|[1-9][0-9]{{,6}})(?:\.[0-9]{{1,10}}(?={hooks.STEPS}))?"
    rf"(?P<kind>{'|'.join(map(re.escape, _SIZES))})"
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
    into = saved / FOLDER / HOSTS
    shutil.rmtree(saved / FOLDER, ignore_errors=True)  # of an attempt before a restart
    (saved / FOLDER).mkdir(mode=0o700)

    def fetch_from_host(link: Link, _: Emit) -> str | Failure:
        name = names[link.host.name]
        return _fetch_host(link, watcher.run_dirs[name].directory, into, name, ranks[name])

    hosts = [run_dir.host for run_dir in watcher.run_dirs.values()]
    fetching = run_on_hosts(
        watcher.context, hosts, "fetch profile", fetch_from_host, outcome=lambda summary: ("ok", summary)
    )
    _, failures = yield from run_nested(fetching, lambda event: not isinstance(event, HostFailed))
    for host, failure in failures.items():
        yield Message(f"no profile from there: {failure.what}", "warning", host, "no-profile")
    return saved


def _fetch_host(link: Link, directory: str, into: Path, name: str, ranks: set[int]) -> str | Failure:
    """Returns the files of one host into ``into/name``."""
    listing = receive.list_files(link, directory, [f"./{hooks.PROFILE}"], planning.parse_listing)
    items = {item.name: item for item in select_items(listing.items, ranks)}
    plan = planning.Listing(directory, tuple(items.values()))
    if lack := receive.describe_lack(into, plan.size):
        return Failure(name, Kind.RECORD, lack, code="no-space")
    try:
        with ResultsDir(into, name) as results:
            sizes = {item.name: item.size for item in items.values()}
            for file, _, chunks in receive.receive_files(link, directory, sizes) if sizes else ():
                results.write_file(items[file].local, chunks, mtime=items[file].mtime, executable=False)
    except UnsafePathError as why:
        return Failure(name, Kind.RECORD, str(why), code="not-stored")
    return plan.summary()


def select_items(items: Iterable[RemoteFile], ranks: set[int]) -> Iterator[RemoteFile]:
    """Yields those of a host's files that are its own ranks', no larger and no more than these can be."""
    records: Counter[str] = Counter()
    for item in items:
        match = _FILES.fullmatch(item.local)
        if match is None or item.size > _SIZES[match["kind"]]:
            continue
        records[match["rank"]] += match["kind"] == hooks.STEPS
        if int(match["rank"]) in ranks and records[match["rank"]] <= _RECORD_LIMIT:
            yield item


class RankFiles:
    """What came of one rank."""

    def __init__(self, folder: Path, rank: int, host: str) -> None:
        self.base, self.rank, self.host = folder / HOSTS / host / hooks.PROFILE, rank, host

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
        records = (record for path in every if (record := parse_recorded_steps(path.read_bytes())))
        default = RecordedSteps(why="it left no trace: its script has no optimizer of torch, or did not end by itself")
        return max(
            chain([default], records), key=lambda record: (record.traced, bool(record.ends), record is not default)
        )

    def summarise(self) -> merge.RankSummary:
        """Raises `TraceError`."""
        steps = self.read_steps()
        if not steps.traced:
            raise TraceError(steps.why[:300] or "it wrote no trace")
        slices = parse_trace(self.read(hooks.TRACE))
        return merge.summarise_rank(self.rank, self.host, slices, steps, parse_kernels(self.read(hooks.KERNELS)))


def make_profile(watcher: RunWatcher, saved: Path) -> Workflow[Profile]:
    """Makes the profile of what `fetch_profile` brought and saves it; the ranks' traces stay beside it."""
    folder = saved / FOLDER
    first, last = parse_profile_steps(watcher.profile)
    summaries: list[merge.RankSummary] = []
    missing: list[UnprofiledRank] = []
    every = [RankFiles(folder, rank, host) for rank, host in enumerate(watcher.running.hosts)]
    if sum(files.measure_trace() for files in every) > _MANY_BYTES:
        yield Message(f"reading the traces of {pluralize(len(every), 'rank')}", code="profile")
    for files in every:
        try:
            summaries.append(files.summarise())
        except TraceError as error:
            missing.append(UnprofiledRank(files.rank, files.host, str(error)))
    built = merge.build_profile(watcher.running.run, summaries, missing, first, last)
    profile: Profile = watcher.context.masker.mask_value(built)
    watcher.traces = find_traces(saved)
    try:
        save_profile(saved, profile)
    except OSError as error:
        yield Message(f"the profile cannot be saved: {describe_error(error)}", "warning", code="not-stored")
    for path in folder.rglob(f"*{hooks.KERNELS}") if not missing else ():
        path.unlink(missing_ok=True)
    return profile


def show_saved_profile(word: str, context: Context) -> Workflow[None]:
    """``ipexctl profile``: the tables of a saved run; ``last`` is the newest with one. Raises `UsageError`."""
    runs = context.state / "runs"
    profiled = [path for path in list_saved_runs(runs) if has_profile(path)] if word == "last" else []
    directory = profiled[-1] if profiled else find_saved_run(runs, word, with_ranks=True)
    profile = read_profile(directory, context.masker)
    yield Started("profile", profile.run, ())
    yield from finish_verb("profile", ProfileAnswer(profile, find_traces(directory)))
