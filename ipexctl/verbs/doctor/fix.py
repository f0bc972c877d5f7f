"""``doctor --fix``: what can be put right without harm, after asking for each. The rest stays a command to type."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

from ipexctl.act.context import Context
from ipexctl.act.fanout import run_on_hosts
from ipexctl.decide.checks.catalogue import Catalogue
from ipexctl.model.answers import AppliedFix
from ipexctl.model.commands import Command
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import Event
from ipexctl.model.facts import Facts
from ipexctl.model.findings import Finding
from ipexctl.model.hosts import Inventory
from ipexctl.model.links import Link
from ipexctl.model.tasks import Install
from ipexctl.model.text import join_names
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.install.install import install
from ipexctl.verbs.run.manage import reap
from ipexctl.verbs.run.run_discovery import find_runs

Ask = Callable[[str], bool]


def fix(
    findings: Sequence[Finding],
    catalogue: Catalogue,
    inventory: Inventory,
    facts: Mapping[str, Facts],
    context: Context,
    *,
    ask: Ask,
    venv: str | None,
    environ: Mapping[str, str],
) -> Generator[Event, None, tuple[list[AppliedFix], list[Failure]]]:
    """What was done, and what failed. Only hosts with ``facts`` are touched.

    ``ask`` is given a question and says whether it is to be done. ``environ`` is the controller's, for install.
    """
    fixed: list[AppliedFix] = []
    failed: list[Failure] = []
    for finding in findings:
        entry = catalogue[finding.code]
        hosts = [host for host in finding.hosts if host in facts and (not entry.do or facts[host].user == "root")]
        if entry.safe != "root" or not hosts or not ask(_question(finding, hosts, entry.do)):
            continue
        done = yield from run_on_hosts(
            context,
            [inventory[host] for host in hosts],
            f"fix {finding.code}",
            lambda link, _, text=entry.do: _shell(link, text),  # type: ignore[misc]  # bound now, not later
            outcome=lambda _: ("changed", ""),
        )
        failed += [found for found in done.values() if isinstance(found, Failure)]
        good = [host for host, found in done.items() if not isinstance(found, Failure)]
        fixed += [AppliedFix(finding.code, tuple(good), entry.do)] if good else []
    fixed += yield from _runs(inventory, facts, context, ask)
    missing = [finding for finding in findings if catalogue[finding.code].safe == "install"]
    hosts = list(dict.fromkeys(host for finding in missing for host in finding.hosts if host in facts))
    words = f"ipexctl install{f' --venv {venv}' if venv else ''}   (on all hosts)"
    if hosts and ask(_question(missing[0], hosts, words)):
        everybody = Inventory(tuple(host for host in inventory if host.name in facts), inventory.source)
        done_ = yield from run_nested(install(Install(venv=venv), everybody, context, environ=environ))
        fixed += [AppliedFix(missing[0].code, done_.changed, "ipexctl install")] if done_.changed else []
        if done_.venv is None or done_.failed:
            failed.append(Failure("", Kind.STEP, "the install did not succeed everywhere", "ipexctl install"))
    return fixed, failed


def _shell(link: Link, text: str) -> str | Failure:
    done = link.run(Command(("sh", "-c", text), timeout=30.0))
    if done.ok:
        return text
    return Failure(link.host.name, Kind.STEP, f"could not be fixed: {done.last_words(1)}", code="fix")


def _runs(
    inventory: Inventory, facts: Mapping[str, Facts], context: Context, ask: Ask
) -> Generator[Event, None, list[AppliedFix]]:
    """Directories of runs that nobody knows any more: no keeper, no process, no log that is not elsewhere."""
    answering = Inventory(tuple(host for host in inventory if host.name in facts), inventory.source)
    seen = yield from find_runs(answering, context)
    known = {one.row.run for one in seen.runs}
    stray: dict[str, list[str]] = {}
    for orphan in seen.orphans:
        if orphan.run not in known:
            stray.setdefault(orphan.run, []).append(orphan.host)
    fixed: list[AppliedFix] = []
    for run, hosts in stray.items():
        if ask(f"{join_names(hosts, 4)}: remove what run {run} left (ipexctl stop --orphans {run}) ?"):
            yield from run_nested(reap(run, answering, context))
            fixed.append(AppliedFix("", tuple(hosts), f"ipexctl stop --orphans {run}"))
    return fixed


def _question(finding: Finding, hosts: Sequence[str], what: str) -> str:
    """What is wrong, and what would be done about it."""
    return f"{finding.code} {join_names(hosts, 4)}: {finding.title}\n  {what} ?"
