"""``ipexctl doctor``: look at every host, say what is wrong, and how to fix it. Only ``--fix`` changes anything."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.act.context import Context
from ipexctl.act.inputs import expand_home, read_input
from ipexctl.data import read_data
from ipexctl.decide.checks.benchmarks import judge_speeds
from ipexctl.decide.checks.catalogue import Catalogue, explain_finding, parse_catalogue
from ipexctl.decide.checks.cluster import Cluster
from ipexctl.decide.checks.connectivity import ConnectivityReport, check_connectivity
from ipexctl.decide.checks.network import is_one_machine, select_interfaces
from ipexctl.decide.checks.processor import find_common_level, recommend_settings
from ipexctl.decide.checks.run_checks import run_checks
from ipexctl.decide.checks.software import check_imports
from ipexctl.decide.checks.system import LOOKED_UP
from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.facts.probe_output import ProbeOutput, parse_bundle
from ipexctl.decide.launch.tuning import name_wins
from ipexctl.model.answers import doctor as answers
from ipexctl.model.errors import Exit, Failure, Kind, UsageError, advise, choose_exit, complete_hint
from ipexctl.model.events import FactsRead, FindingReported, HostFailed, Message, Started, Workflow, finish_verb
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.reports import Finding
from ipexctl.model.tasks import Doctor, Run
from ipexctl.model.text import pluralize, printable
from ipexctl.store.private_files import refuse_os_errors, write_private_file
from ipexctl.verbs.common.pages import save_doctor_record
from ipexctl.verbs.common.probe import load_releases, load_uarchs, probe_hosts
from ipexctl.verbs.common.select import list_flags, make_started
from ipexctl.verbs.doctor.host_bench import measure_host_speeds
from ipexctl.verbs.doctor.import_check import try_imports
from ipexctl.verbs.doctor.network_check import check_network

if TYPE_CHECKING:  # most looks neither fix nor measure, and both know much
    from ipexctl.verbs.doctor.fix import Ask


_PROBE_LIMIT, _PROBES_LIMIT = 16 << 20, 512 << 20  # bytes of one saved probe, characters of several


def doctor(
    task: Doctor, inventory: Inventory, context: Context, *, ask: "Ask | None" = None, alone: bool = False
) -> Workflow[None]:
    """Probes and checks the hosts. Without hosts: ``task.recorded`` checks saved probes, ``task.explain`` a code.
    ``ask`` puts a question to the user, for ``task.fix``. ``alone`` says that nobody uses the links after this command.
    Ends 0 if the hosts are fit, 4 with a finding of level error, 3 if a host could not be reached or trusted."""
    if task.explain is not None:
        text = explain_finding(task.explain, load_catalogue())
        yield Started("doctor", f"explain {task.explain}", ())
        yield from finish_verb("doctor", answers.ExplainAnswer(task.explain.upper(), text))
        return
    if task.recorded:
        paths = _name_saved_probes(task.recorded)
        yield from check_recorded(paths)
        return
    confirm: Ask | None = (lambda _: True) if task.yes else ask
    if task.fix and confirm is None:
        hint = complete_hint(advise("doctor", "--fix", "--yes"), list_flags(inventory, task.venv))
        raise UsageError("doctor --fix asks before each fix, which needs a terminal", hint=hint)
    directory = expand_home(task.save_bundle) if task.save_bundle is not None else None
    if directory is not None and directory.exists() and not directory.is_dir():
        raise UsageError(f"{printable(str(directory), 300)} is no directory", hint="name another with --save-bundle")
    yield make_started("doctor", pluralize(len(inventory), "host"), inventory, task.venv)
    close_links = alone and task.pairwise == "off" and not (task.fix or task.bench or task.imports)
    bundles: dict[str, ProbeOutput] = {}
    facts, failures = yield from _probe_for_checks(task, inventory, context, bundles, close_links=close_links)
    if directory is not None:
        yield Message(_save_bundles(directory, bundles))
    cluster, catalogue = Cluster(inventory, facts, failures, load_releases()), load_catalogue()
    fixed: list[answers.AppliedFix] = []
    failed: list[Failure] = []
    if task.fix and confirm and cluster.facts:
        from ipexctl.verbs.doctor.fix import apply_fixes

        findings = run_checks(cluster, catalogue)
        hosts = Inventory(tuple(host for host in inventory if host.name in cluster.facts), inventory.source)
        flow = apply_fixes(findings, catalogue, hosts, cluster.facts, context, ask=confirm, venv=task.venv)
        fixed, failed = yield from flow
        if fixed:  # findings of before the fixes are out of date
            facts, lost = yield from _probe_for_checks(task, hosts, context, {})
            failures = {name: (failures | lost)[name] for name in inventory.names if name not in facts}
            cluster = replace(cluster, facts=facts, failures=failures)
    problems = yield from try_imports(inventory, cluster.facts, context, everywhere=task.imports)
    network, speeds = ConnectivityReport(), None
    if task.pairwise == "all" or (task.pairwise == "auto" and not is_one_machine(cluster.facts)):
        network = yield from check_network(inventory, cluster.facts, context, everyone=task.pairwise == "all")
    if task.bench:
        speeds = yield from measure_host_speeds(inventory, cluster.facts, network, context)
    hits = [*check_connectivity(cluster, network), *check_imports(cluster, problems)]
    hits += judge_speeds(speeds or answers.SpeedCheck())
    place = list_flags(inventory, task.venv)
    findings = tuple(replace(each, fix=complete_hint(each.fix, place)) for each in run_checks(cluster, catalogue, hits))
    answer = _make_answer(cluster, findings, network)
    answer = replace(answer, imports=problems or None, speed=speeds, fixed=tuple(fixed) if task.fix else None)
    save_doctor_record(context.state, answer, context.clock(), context.masker)
    if alone and any(fact.installed for fact in cluster.facts.values()):
        yield from name_wins(read_data("tuning.toml"), cluster.facts, Run(script=""))
    yield from _report(cluster, answer, failed)


def _probe_for_checks(
    task: Doctor, inventory: Inventory, context: Context, bundles: dict[str, ProbeOutput], *, close_links: bool = False
) -> Workflow[tuple[dict[str, Facts], dict[str, Failure]]]:
    hosts = inventory.hosts if len(inventory) <= LOOKED_UP else inventory.hosts[:1]
    addresses = dict.fromkeys(host.address for host in hosts)
    return (
        yield from probe_hosts(
            inventory,
            context,
            venv=task.venv,
            workdir=task.workdir,
            timeout=task.timeout,
            resolve_names=[name for name in addresses if not (name.replace(".", "").isdigit() or ":" in name)],
            bundles=None if task.save_bundle is None else bundles,
            close_links=close_links,
        )
    )


def check_recorded(probes: Mapping[str, str | Path]) -> Workflow[None]:
    """Checks saved probes, name → file, or its text, without any host. A text that is no probe is a failure of its
    host; if all are, `UsageError` is raised, which names the first one by its path. Of files one at a time is here."""
    uarchs = load_uarchs()
    facts: dict[str, Facts] = {}
    failures: dict[str, Failure] = {}
    refusals: list[UsageError] = []
    size = 0
    for name, probe in probes.items():
        text, place = (read_input(probe, limit=_PROBE_LIMIT).text, probe) if isinstance(probe, Path) else (probe, name)
        size += len(text)
        if size > _PROBES_LIMIT:
            raise UsageError(f"the saved probes are larger than {_PROBES_LIMIT >> 20} MiB")
        try:
            facts[name] = parse_facts(parse_bundle(text, str(place)), uarchs)
        except UsageError as error:
            refusals.append(error)
            what = ": ".join([error.sentence, *error.reasons])
            failures[name] = Failure(name, Kind.STEP, what, error.hint, "no-probe")
    if len(refusals) == len(probes):
        raise refusals[0]
    inventory = Inventory(tuple(Host(name, name) for name in probes), "--recorded")
    yield Started("doctor", f"{pluralize(len(inventory), 'host')}, recorded", inventory.names)
    for name in probes:
        yield FactsRead(name, facts[name]) if name in facts else HostFailed(failures[name])
    cluster = Cluster(inventory, facts, failures, load_releases(), live=False)
    findings = run_checks(cluster, load_catalogue())
    yield from _report(cluster, _make_answer(cluster, findings, ConnectivityReport()))


def load_catalogue() -> Catalogue:
    """Returns the findings that come with ipexctl."""
    return parse_catalogue(read_data("findings.toml"))


def _report(cluster: Cluster, answer: answers.DoctorAnswer, failed: Sequence[Failure] = ()) -> Workflow[None]:
    """Findings, the answer, and the end. ``failed`` are fixes that did not work."""
    # A host that could not be reached has its own failure (HostFailed), with an exit code of its own.
    findings = [finding for finding in answer.findings if not set(finding.hosts) <= cluster.failures.keys()]
    for finding in findings:
        yield FindingReported(finding)
    errors = [Exit.STEP for finding in findings if finding.level == "error"]
    yield from finish_verb("doctor", answer, choose_exit([*cluster.failures.values(), *failed, *errors]))


def _make_answer(cluster: Cluster, findings: tuple[Finding, ...], network: ConnectivityReport) -> answers.DoctorAnswer:
    hosts: list[answers.DoctorHost] = []
    choices, _ = select_interfaces(cluster.inventory, cluster.facts)
    for host in cluster.inventory.names:
        choice, failure = choices.get(host), cluster.failures.get(host)
        interface = answers.ChosenInterface(choice.name, choice.address, choice.reason.text) if choice else None
        problem = answers.HostFailure(failure.kind, failure.what, failure.code) if failure else None
        hosts.append(answers.DoctorHost(host, cluster.facts.get(host), interface, problem))
    common, advice = find_common_level(cluster), recommend_settings(cluster)
    return answers.DoctorAnswer(tuple(hosts), findings, common, advice, network.summary)


def _name_saved_probes(paths: tuple[str, ...]) -> dict[str, Path]:
    """Saved probes by host, of files and directories: the file's name, or its path where two files have the same name.
    Raises `UsageError`."""
    paths = tuple(str(file) for path in paths for file in sorted(Path(path).glob("*.json")) or [Path(path)])
    stems = [Path(path).stem for path in paths]
    counts = Counter(stems)  # of perhaps very many
    named = {stem if counts[stem] == 1 else path: Path(path) for stem, path in zip(stems, paths, strict=True)}
    if len(named) < len(paths):
        twice = sorted(printable(path) for path, count in Counter(paths).items() if count > 1)
        raise UsageError(f"a saved probe is given twice: {', '.join(twice)}")
    return named


def _save_bundles(directory: Path, bundles: Mapping[str, ProbeOutput]) -> str:
    """Readable for this user only; what identifies machines or sessions is replaced. Raises `UsageError`."""
    for host, bundle in bundles.items():
        path = directory / f"{host}.json"
        with refuse_os_errors(path, "cannot be written", Exit.RECORD):
            write_private_file(path, json.dumps(bundle.public(), indent=1).encode())
    return f"saved {pluralize(len(bundles), 'host')} in {directory}"
