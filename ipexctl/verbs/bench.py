"""``ipexctl bench bert``: samples per second of fp32 and bf16 in stock torch, torch.compile and IPEX, on each host
alone and on all together. Each measurement is an ordinary run."""

from collections.abc import Generator, Mapping
from pathlib import Path

from ipexctl.act.bundled_files import find_bundled_file
from ipexctl.act.context import Context
from ipexctl.data import read_data
from ipexctl.decide import bench_report
from ipexctl.model.answers.bench import BENCH_MODES, BenchAnswer
from ipexctl.model.answers.plan import DryRun
from ipexctl.model.errors import Exit, Failure, Kind, UsageError
from ipexctl.model.events import Answer, Ended, Event, HostFailed, Message, Planned
from ipexctl.model.facts import Facts
from ipexctl.model.hints import advise
from ipexctl.model.hosts import Inventory
from ipexctl.model.json_values import JsonObject
from ipexctl.model.tasks import Bench, Run
from ipexctl.model.text import join_names, pluralize
from ipexctl.model.toml import parse_toml
from ipexctl.show import chart
from ipexctl.show.answers.bench import format_rows
from ipexctl.verbs.common.nested import RunMetrics, collect_metrics
from ipexctl.verbs.common.probe import probe_hosts
from ipexctl.verbs.common.select import make_started
from ipexctl.verbs.run.run import run

_IPEX = "intel-extension-for-pytorch"
_WARMUP_STEPS = 3


def bench(
    task: Bench, inventory: Inventory, context: Context, environ: Mapping[str, str], *, dry: bool = False
) -> Generator[Event, None, None]:
    """Measures each engine and yields a `BenchAnswer`. A failed run ends the measurement."""
    plot = Path(task.plot) if task.plot else None
    if plot and not plot.parent.is_dir():
        raise UsageError(f"--plot {plot}: the directory {plot.parent} does not exist")
    modes = ("train", "infer") if task.mode == "both" else (task.mode,)
    yield make_started("bench", f"BERT {task.size}", inventory, task.venv)
    results = yield from probe_hosts(inventory, context, venv=task.venv)
    facts = {host: result for host, result in results.items() if isinstance(result, Facts)}
    if len(facts) < len(inventory):
        yield Ended("bench", Exit.OK)  # the failures are events already
        return
    with_ipex = all(fact.installed and _IPEX in fact.installed.packages for fact in facts.values())
    engines = ("stock", "ipex") if with_ipex else ("stock",)
    several = len(inventory) > 1 and task.cluster and "train" in modes
    runs = [(engine, together) for engine in engines for together in ((False, True) if several else (False,))]
    plan = "\n".join(f"{engine}: {'all hosts together' if both else 'each host alone'}" for engine, both in runs)
    yield Planned("bench", plan)
    if dry:
        yield Answer(DryRun(plan))
        yield Ended("bench", Exit.OK)
        return
    alone: list[tuple[str, JsonObject]] = []
    joint: list[tuple[str, JsonObject]] = []
    missing = {} if with_ipex else {"ipex": bench_report.NO_IPEX}
    exit = Exit.OK
    for engine, together in runs:
        yield Message(f"measure {engine}, {'all hosts together' if together else 'each host alone'}")
        run_task = _make_run_task(task, engine, ("train",) if together else modes, together=together)
        metrics: RunMetrics = yield from collect_metrics(run(run_task, inventory, context, environ))
        (joint if together else alone).extend(metrics.lines)
        exit = metrics.exit
        if not metrics.good:
            missing[engine] = "not measured: the run failed"
            break
    if not alone and not joint:  # the failure says why; a table without a figure says nothing
        yield Ended("bench", exit)
        return
    ways = [("stock", "eager"), *([("stock", "compile")] if task.compile else []), ("ipex", "eager")]
    peaks = bench_report.compute_peaks(facts, bench_report.PeakTable(**parse_toml(read_data("peaks.toml"))))
    rows = bench_report.build_rows(modes, ways, alone, joint, missing, peaks)
    title, notes = _format_title(task, facts), _describe_method(task, facts, modes, together=several)
    if plot:
        groups: dict[str, list[tuple[str, float | None, str]]] = {BENCH_MODES[mode]: [] for mode in modes}
        for row in rows:
            groups[BENCH_MODES[row.mode]].append((row.name, row.host, "no result" if row.refused else row.why or ""))
        plot.write_text(chart.draw_chart(read_data("chart.j2"), title, groups, "samples/s"), encoding="utf-8")
        notes.append(f"drawn in {plot}")
    text = "\n".join(format_rows(rows, title, notes))
    yield Answer(BenchAnswer(task.model, task.size, task.batch, rows, tuple(notes), text, title))
    if refused := [row.name for row in rows if row.refused]:
        what = f"no result: {join_names(list(dict.fromkeys(refused)), 3)} (the table says why)"
        hint = advise("doctor", text="what else runs on the hosts:")
        yield HostFailed(Failure("", Kind.STEP, what, hint, "no-result"))
    yield Ended("bench", exit)


def _make_run_task(task: Bench, engine: str, modes: tuple[str, ...], *, together: bool) -> Run:
    """A run of one rank per host that train together, or of one instance per host; each uses all cores of its host."""
    words = ["--engine", engine, "--mode", ",".join(modes), "--size", task.size, "--batch", str(task.batch)]
    words += ["--steps", str(task.steps), "--warmup", str(_WARMUP_STEPS), *(["--compile"] if task.compile else [])]
    script = str(find_bundled_file("examples", "bench/bert.py"))
    return Run(
        script=script,
        args=tuple(words),
        ppn=1 if together else None,
        instances=None if together else "1",
        venv=task.venv,
        time_limit=task.time_limit,
        stall_warn=0.0,
        metrics_every=0.0,
    )


def _format_title(task: Bench, facts: Mapping[str, Facts]) -> str:
    hosts = pluralize(len(facts), "host")
    versions = {
        name: sorted({fact.installed.packages.get(name, "") for fact in facts.values() if fact.installed})
        for name in ("torch", _IPEX)
    }
    named = [f"{'IPEX' if name == _IPEX else name} {', '.join(each)}" for name, each in versions.items() if any(each)]
    return f"BERT {task.size}, {pluralize(task.batch, 'sample')} per step, {hosts}: {', '.join(named)}"


def _describe_method(task: Bench, facts: Mapping[str, Facts], modes: tuple[str, ...], *, together: bool) -> list[str]:
    """Returns lines below the table: what its figures are, and of which hosts."""
    levels = sorted({fact.isa_level or "unknown" for fact in facts.values()})
    medians = f"medians of {pluralize(task.steps, 'step')} after {_WARMUP_STEPS} warm-up steps"
    notes = [f"{medians}; samples per second; instruction sets: {', '.join(levels)}"]
    if len(facts) > 1:
        notes.append("a host: the median host; all hosts measured alone, at the same time")
        if together:
            notes.append("cluster, training: one data-parallel run, one rank per host")
        if "infer" in modes:
            notes.append("cluster, inference: the sum of the hosts, which do not communicate")
    return notes
