"""``doctor --fix``: what can be put right without harm, after asking for each. The rest stays a command to type."""

from collections.abc import Callable, Sequence
from functools import partial

from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.decide.checks.catalogue import Catalogue
from ipexctl.decide.parsing import limit_inventory
from ipexctl.decide.releases.env_health import find_repair
from ipexctl.model.answers.doctor import AppliedFix
from ipexctl.model.errors import Failure, Kind, advise, complete_hint
from ipexctl.model.events import Workflow
from ipexctl.model.facts import HostFacts
from ipexctl.model.hosts import Command, Inventory, Link
from ipexctl.model.reports import Finding
from ipexctl.model.tasks import Install
from ipexctl.model.text import group_pairs, join_names
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.common.select import list_flags
from ipexctl.verbs.install.install import install
from ipexctl.verbs.run.manage import reap
from ipexctl.verbs.run.run_discovery import find_runs

Ask = Callable[[str], bool]


def apply_fixes(
    findings: Sequence[Finding],
    catalogue: Catalogue,
    inventory: Inventory,
    facts: HostFacts,
    context: Context,
    *,
    ask: Ask,
    venv: str | None,
) -> Workflow[tuple[list[AppliedFix], list[Failure]]]:
    """Returns what was done, and what failed. Only hosts with ``facts`` are touched. ``ask`` is given a question and
    says whether it is to be done."""
    fixed: list[AppliedFix] = []
    failed: list[Failure] = []
    for finding in findings:
        entry = catalogue[finding.code]
        hosts = [host for host in finding.hosts if host in facts and (not entry.do or facts[host].user == "root")]
        if entry.safe != "root" or not hosts or not ask(_format_question(finding, hosts, entry.do)):
            continue
        work = partial(_run_fix, entry.do)
        good, bad = yield from run_on_hosts(
            context, [inventory[host] for host in hosts], f"fix {finding.code}", work, outcome=lambda _: ("changed", "")
        )
        failed += bad.values()
        if good:
            fixed.append(AppliedFix(finding.code, tuple(good), entry.do))
    reached = Inventory(tuple(host for host in inventory if host.name in facts), inventory.source)
    removed, kept = yield from _remove_orphans(reached, context, ask)
    fixed += removed
    failed += kept
    missing = [finding for finding in findings if catalogue[finding.code].safe == "install"]
    hosts = list(dict.fromkeys(host for finding in missing for host in finding.hosts if host in facts))
    if not hosts:
        return fixed, failed
    repair = find_repair(facts, hosts)
    command = complete_hint(repair.hint if repair else advise("install"), list_flags(inventory, venv))
    installed = facts[repair.model].installed if repair else None
    if repair and repair.hosts:
        reached = limit_inventory(reached, ",".join(repair.hosts))
    if ask(_format_question(missing[0], hosts, command)):
        task = Install(venv=venv, like=repair.model if repair else None)
        outcome = yield from run_nested(install(task, reached, context, model=installed.marker if installed else None))
        if outcome.changed:
            fixed.append(AppliedFix(missing[0].code, outcome.changed, command))
        if outcome.venv is None or outcome.failed:
            failed.append(Failure("", Kind.STEP, "the install did not succeed everywhere", command))
    return fixed, failed


def _run_fix(text: str, link: Link, emit: Emit) -> str | Failure:
    done = link.run(Command(("sh", "-c", text), timeout=30.0))
    if done.ok:
        return text
    return Failure(link.host.name, Kind.STEP, f"could not be fixed: {done.get_tail(1)}", code="fix")


def _remove_orphans(
    inventory: Inventory, context: Context, ask: Ask
) -> Workflow[tuple[list[AppliedFix], list[Failure]]]:
    """Directories of runs that nobody knows any more: no keeper, no process, no log that is not elsewhere."""
    survey = yield from find_runs(inventory, context)
    known = {run.row.run for run in survey.runs}
    orphans = group_pairs((orphan.run, orphan.host) for orphan in survey.orphans if orphan.run not in known)
    fixed: list[AppliedFix] = []
    failed: list[Failure] = []
    for run, hosts in orphans.items():
        command = advise("stop", "--orphans", run)
        if ask(f"{join_names(hosts, 4)}: remove what run {run} left ({command}) ?"):
            done = yield from run_nested(reap(run, inventory, context))
            if run in done.removed and not (done.orphans or done.unchecked):
                fixed.append(AppliedFix("", tuple(hosts), command))
            else:
                failed.append(Failure("", Kind.RESIDUE, f"what run {run} left was not removed everywhere", command))
    return fixed, failed


def _format_question(finding: Finding, hosts: Sequence[str], what: str) -> str:
    return f"{finding.code} {join_names(hosts, 4)}: {finding.title}\n  {what} ?"
