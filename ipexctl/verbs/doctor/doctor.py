"""``ipexctl doctor``: look at every host, say what is wrong, on which host, and how to fix it.

Changes nothing, unless it is asked to (``--fix``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.act.context import Context
from ipexctl.data import read_data
from ipexctl.decide.checks.benchmarks import judge_speeds
from ipexctl.decide.checks.catalogue import Catalogue, explain_finding, parse_catalogue
from ipexctl.decide.checks.cluster import Cluster
from ipexctl.decide.checks.connectivity import ConnectivityReport, check_connectivity
from ipexctl.decide.checks.network import choose_interfaces, is_one_machine
from ipexctl.decide.checks.processor import find_common_level, recommend_settings
from ipexctl.decide.checks.run_checks import run_checks
from ipexctl.decide.checks.software import check_imports
from ipexctl.decide.checks.system import LOOKED_UP
from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.facts.probe_output import ProbeOutput, parse_bundle
from ipexctl.decide.releases import ReleaseTable, parse_table
from ipexctl.model.answers import (
    AppliedFix,
    ChosenInterface,
    DoctorAnswer,
    DoctorHost,
    ExplainAnswer,
    HostFailure,
    SpeedCheck,
)
from ipexctl.model.errors import Exit, Failure, Kind, UsageError, worst
from ipexctl.model.events import Answer, Ended, Event, FactsRead, FindingReported, Message, Started
from ipexctl.model.facts import Facts
from ipexctl.model.findings import Finding
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.tasks import Doctor
from ipexctl.model.text import pluralize, printable
from ipexctl.verbs.common.probe import load_uarchs, probe_hosts
from ipexctl.verbs.doctor.import_check import try_imports
from ipexctl.verbs.doctor.network_check import check_network

if TYPE_CHECKING:  # most looks neither fix nor measure, and both know much
    from ipexctl.verbs.doctor.fix import Ask

_LIMIT = 16 << 20  # bytes of one saved probe


def doctor(
    task: Doctor,
    inventory: Inventory,
    context: Context,
    *,
    ask: Ask | None = None,
    environ: Mapping[str, str] | None = None,
    alone: bool = False,
) -> Generator[Event, None, None]:
    """The story of one look. Without hosts: ``task.recorded`` judges saved probes, ``task.explain`` tells of a code.

    ``ask`` puts a question to the user, for ``task.fix``. ``environ`` is this machine's, for an install. ``alone`` says
    that the links serve nobody after this look.
    Ends 0 if the hosts are fit, 4 with a finding of level error, 3 if a host could not be reached or trusted.
    """
    if task.explain is not None:
        yield from explain(task.explain)
        return
    if task.recorded:
        paths = _named(task.recorded)
        yield from recorded({name: _recording(path) for name, path in paths.items()}, paths)
        return
    allowed = _asking(task, ask)
    yield Started("doctor", pluralize(len(inventory), "host"), inventory.names)
    once = alone and task.pairwise == "off" and not (task.fix or task.bench or task.imports)
    bundles: dict[str, ProbeOutput] = {}
    seen = yield from _seen(task, inventory, context, bundles, once=once)
    if task.save_bundle is not None:
        yield Message(_save(Path(task.save_bundle), bundles))
    cluster = _cluster(inventory, seen)
    known = catalogue()
    fixed: list[AppliedFix] = []
    failed: list[Failure] = []
    if allowed is not None and cluster.facts:
        first = run_checks(cluster, known)
        from ipexctl.verbs.doctor.fix import fix

        fixed, failed = yield from fix(
            first, known, inventory, cluster.facts, context, ask=allowed, venv=task.venv, environ=environ or {}
        )
        if fixed:  # findings of before the fixes are out of date
            there = Inventory(tuple(host for host in inventory if host.name in cluster.facts), inventory.source)
            seen |= yield from _seen(task, there, context, {})
            cluster = _cluster(inventory, seen)
    problems = yield from try_imports(inventory, cluster.facts, context, everywhere=task.imports)
    meeting, measured = ConnectivityReport(), None
    if task.pairwise != "off" and (task.pairwise == "all" or not is_one_machine(cluster.facts)):
        meeting = yield from check_network(inventory, cluster.facts, context, everyone=task.pairwise == "all")
    if task.bench:
        from ipexctl.verbs.doctor.host_bench import measure_host_speeds

        measured = yield from measure_host_speeds(inventory, cluster.facts, meeting, context)
    hits = [
        *check_connectivity(cluster, meeting),
        *check_imports(cluster, problems),
        *judge_speeds(measured or SpeedCheck()),
    ]
    answer = replace(
        _answer(cluster, run_checks(cluster, known, hits), meeting),
        imports=problems or None,
        speed=measured,
        fixed=tuple(fixed) if allowed else None,
    )
    yield from _report(cluster, answer, failed)


def _asking(task: Doctor, ask: Ask | None) -> Ask | None:
    """Who says yes to a fix; None where none is wished. Raises `UsageError` where nobody can."""
    if not task.fix:
        return None
    if task.yes:
        return lambda _: True
    if ask is None:
        raise UsageError(
            "doctor --fix asks before each fix, and nobody can answer here", hint="ipexctl doctor --fix --yes"
        )
    return ask


def _seen(
    task: Doctor, inventory: Inventory, context: Context, bundles: dict[str, ProbeOutput], *, once: bool = False
) -> Generator[Event, None, dict[str, Facts | Failure]]:
    names = [host.address for host in inventory][: len(inventory) if len(inventory) <= LOOKED_UP else 1]
    return (
        yield from probe_hosts(
            inventory,
            context,
            venv=task.venv,
            workdir=task.workdir,
            timeout=task.timeout,
            names=_lookups(names),
            bundles=None if task.save_bundle is None else bundles,
            once=once,
        )
    )


def _cluster(inventory: Inventory, seen: Mapping[str, Facts | Failure]) -> Cluster:
    facts = {host: found for host, found in seen.items() if isinstance(found, Facts)}
    failures = {host: found for host, found in seen.items() if isinstance(found, Failure)}
    return Cluster(inventory, facts, failures, versions())


def recorded(texts: Mapping[str, str], paths: Mapping[str, Path] | None = None) -> Generator[Event, None, None]:
    """Judges saved probes, name → text of the file, without any host; a refusal names it by its path. Raises
    `UsageError`."""
    bundles = {name: parse_bundle(text, str((paths or {}).get(name, name))) for name, text in texts.items()}
    inventory = Inventory(tuple(Host(name, name) for name in bundles), "--recorded")
    yield Started("doctor", f"{pluralize(len(inventory), 'host')}, recorded", inventory.names)
    uarchs = load_uarchs()
    facts = {name: parse_facts(bundle, uarchs) for name, bundle in bundles.items()}
    for name, fact in facts.items():
        yield FactsRead(name, fact)
    cluster = Cluster(inventory, facts, {}, versions(), live=False)
    yield from _report(cluster, _answer(cluster, run_checks(cluster, catalogue()), ConnectivityReport()))


def explain(code: str) -> Generator[Event, None, None]:
    """The whole story of one code. Raises `UsageError` for one that does not exist."""
    text = explain_finding(code, catalogue())
    yield Started("doctor", f"explain {code}", ())
    yield Answer(ExplainAnswer(code.upper(), text))
    yield Ended("doctor", Exit.OK)


def catalogue() -> Catalogue:
    """The findings that come with ipexctl."""
    return parse_catalogue(read_data("findings.toml"))


def versions() -> ReleaseTable:
    """The version table that comes with ipexctl."""
    return parse_table(read_data("stacks.toml"))


def _report(cluster: Cluster, answer: DoctorAnswer, failed: Sequence[Failure] = ()) -> Generator[Event, None, None]:
    """Findings, the answer, and the end. ``failed`` are fixes that did not work."""
    grave = False
    for finding in answer.findings:
        # A host that could not be reached has its own failure (HostFailed), with an exit code of its own.
        if not set(finding.hosts) <= cluster.failures.keys():
            grave |= finding.level == "error"
            yield FindingReported(finding)
    yield Answer(answer)
    causes = [failure.kind.exit for failure in (*cluster.failures.values(), *failed)]
    yield Ended("doctor", worst([*causes, *([Kind.STEP.exit] if grave else [])]))


def _answer(cluster: Cluster, findings: tuple[Finding, ...], meeting: ConnectivityReport) -> DoctorAnswer:
    chosen = choose_interfaces(cluster.facts)

    def entry(host: str) -> DoctorHost:
        choice, failure = chosen.get(host), cluster.failures.get(host)
        return DoctorHost(
            host,
            cluster.facts.get(host),
            ChosenInterface(choice.name, choice.address, choice.reason.text) if choice else None,
            HostFailure(failure.kind, failure.what, failure.code) if failure else None,
        )

    hosts = tuple(entry(host) for host in cluster.inventory.names)
    return DoctorAnswer(
        hosts, findings, find_common_level(cluster), tuple(recommend_settings(cluster)), meeting.summary
    )


def _lookups(names: list[str]) -> list[str]:
    """Names that a host could resolve: not addresses, and not more than once."""
    return [name for name in dict.fromkeys(names) if not name.replace(".", "").isdigit() and ":" not in name]


def _named(paths: tuple[str, ...]) -> dict[str, Path]:
    """Saved probes by host: the file's name, or its path where two files have the same name. Raises `UsageError`."""
    stems = [Path(path).stem for path in paths]
    named = {stem if stems.count(stem) == 1 else path: Path(path) for stem, path in zip(stems, paths, strict=True)}
    if len(named) < len(paths):
        twice = sorted({printable(path) for path in paths if paths.count(path) > 1})
        raise UsageError(f"a saved probe is given twice: {', '.join(twice)}")
    return named


def _recording(path: Path) -> str:
    """The text of a saved probe. Raises `UsageError`."""
    shown = printable(str(path), 300)
    try:
        if not path.is_file():
            raise UsageError(f"{shown} {'is not a regular file' if path.exists() else 'does not exist'}")
        if path.stat().st_size > _LIMIT:
            raise UsageError(f"{shown} is larger than {_LIMIT >> 20} MiB")
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{shown} is not a saved probe", reasons=["it is not UTF-8"]) from None
    except OSError as error:
        raise UsageError(f"{shown} cannot be read", reasons=[error.strerror or str(error)]) from None


def _save(directory: Path, bundles: Mapping[str, ProbeOutput]) -> str:
    """Readable for this user only; what identifies machines or sessions is replaced. Raises `UsageError`."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for host, bundle in bundles.items():
            descriptor = os.open(
                directory / f"{host}.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600
            )
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(bundle.public(), file, indent=1)
    except OSError as error:
        raise UsageError(f"cannot save bundles in {directory}", reasons=[str(error)], exit=Exit.RECORD) from None
    return f"saved {pluralize(len(bundles), 'host')} in {directory}"
