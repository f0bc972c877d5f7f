"""``ipexctl bench bert``: samples a second of fp32 and bf16 in stock torch, torch.compile and IPEX, side by side, on
each host alone and on all together. Each measurement is a run as any other: checked, watched, ended and proved."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path

from ipexctl.act.bundled_files import find_example
from ipexctl.act.context import Context
from ipexctl.decide import bench_report
from ipexctl.model.answers import BenchAnswer, DryRun
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Answer, Ended, Event, Message, Planned, Started
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Inventory
from ipexctl.model.json_values import JsonObject
from ipexctl.model.tasks import Bench, Run
from ipexctl.show import chart
from ipexctl.verbs.common.probe import probe_hosts
from ipexctl.verbs.run.metrics import RunMetrics, collect_metrics
from ipexctl.verbs.run.run import run

_IPEX = "intel-extension-for-pytorch"
_STEPS = 3  # before a run is measured


def bench(
    task: Bench, inventory: Inventory, context: Context, environ: Mapping[str, str], *, dry: bool = False
) -> Generator[Event, None, None]:
    """The answer has ``rows``, ``notes`` and ``text``. A measurement that fails ends the rest of its engine."""
    plot = Path(task.plot) if task.plot else None
    if plot and not plot.parent.is_dir():
        raise UsageError(f"--plot {plot}: there is no directory {plot.parent}")
    modes = ("train", "infer") if task.mode == "both" else (task.mode,)
    yield Started("bench", f"BERT {task.size}", inventory.names)
    seen = yield from probe_hosts(inventory, context, venv=task.venv)
    facts = {host: found for host, found in seen.items() if isinstance(found, Facts)}
    if len(facts) < len(inventory):
        yield Ended("bench", Exit.OK)  # the failures were told
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
        asked = _run(task, engine, ("train",) if together else modes, together=together)
        found: RunMetrics = yield from collect_metrics(run(asked, inventory, context, environ))
        (joint if together else alone).extend(found.lines)
        exit = found.exit
        if not found.good:
            missing[engine] = "not measured: the run failed"
            break  # the report is of this run
    ways = [("stock", "eager"), *([("stock", "compile")] if task.compile else []), ("ipex", "eager")]
    made = bench_report.build_rows(modes, ways, alone, joint, missing)
    title, notes = _title(task, facts), _notes(task, facts, modes, several=several)
    if plot:
        groups = {
            bench_report.MODES[mode]: [(row.name, row.host, row.why or "") for row in made if row.mode == mode]
            for mode in modes
        }
        chart.save(plot, chart.draw(title, groups, "samples/s"))
        notes.append(f"drawn in {plot}")
    text = bench_report.format_rows(made, title, notes)
    yield Answer(BenchAnswer(task.model, task.size, task.batch, made, tuple(notes), text))
    yield Ended("bench", exit)


def _run(task: Bench, engine: str, modes: tuple[str, ...], *, together: bool) -> Run:
    """Ranks that train together, one a host, or an instance on each host; either has all cores of its host."""
    words = ["--engine", engine, "--mode", ",".join(modes), "--size", task.size, "--batch", str(task.batch)]
    words += ["--steps", str(task.steps), "--warmup", str(_STEPS), *(["--compile"] if task.compile else [])]
    script = str(find_example("bench/bert.py"))
    return Run(
        script=script,
        args=tuple(words),
        ppn=1 if together else None,
        instances=None if together else "1",
        venv=task.venv,
        time_limit=task.time_limit,
        stall_warn=0.0,
    )


def _title(task: Bench, facts: Mapping[str, Facts]) -> str:
    hosts = "1 host" if len(facts) == 1 else f"{len(facts)} hosts"
    versions = {
        name: sorted({fact.installed.packages.get(name, "") for fact in facts.values() if fact.installed})
        for name in ("torch", _IPEX)
    }
    told = [f"{'IPEX' if name == _IPEX else name} {', '.join(found)}" for name, found in versions.items() if any(found)]
    return f"BERT {task.size}, {task.batch} samples a step, {hosts}: {', '.join(told)}"


def _notes(task: Bench, facts: Mapping[str, Facts], modes: tuple[str, ...], *, several: bool) -> list[str]:
    levels = sorted({fact.isa_level or "unknown" for fact in facts.values()})
    notes = [f"medians of {task.steps} steps after {_STEPS}; samples a second; instruction sets: {', '.join(levels)}"]
    if len(facts) > 1:
        notes.append("a host: the one in the middle, all of them measured alone and at the same time")
        if several:
            notes.append("cluster, training: all hosts as one data-parallel run, a rank on each")
        if "infer" in modes:
            notes.append("cluster, inference: the sum of the hosts, which do not talk to each other")
    return notes
