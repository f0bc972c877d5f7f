"""Facts → findings: every check in its order, hosts with the same finding together."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import get_args

from ipexctl.decide.checks import processor, software, system
from ipexctl.decide.checks.catalogue import Catalogue, CatalogueEntry
from ipexctl.decide.checks.cluster import CheckHit, Cluster
from ipexctl.decide.releases.env_health import find_repair
from ipexctl.model.errors import Hint
from ipexctl.model.facts import Facts
from ipexctl.model.reports import Finding, Level
from ipexctl.model.text import group_pairs, join_names, printable

HOST_CHECKS: tuple[Callable[[str, Facts], Iterator[CheckHit]], ...] = (  # each host by itself
    processor.check_instruction_sets,
    processor.check_usable_cpus,
    processor.check_memory,
    system.check_resource_limits,
    system.check_disks,
    system.check_virtual_interfaces,
    software.check_environment,
)
CLUSTER_CHECKS: tuple[Callable[[Cluster], Iterator[CheckHit]], ...] = (  # hosts compared with others, or with a table
    system.check_reachability,
    system.check_required_facts,
    system.check_duplicate_machines,
    system.check_own_host_name,
    system.check_name_resolution,
    system.check_network,
    system.check_public_addresses,
    system.check_clock,
    system.check_distributions,
    processor.check_architectures,
    processor.check_mixed_isa,
    processor.check_host_sizes,
    software.check_system_libraries,
    software.check_allocators,
    software.check_pythons,
    software.check_installed_stack,
    software.check_added_packages,
)
_GRAVITY = get_args(Level)
_EVIDENCE_LINES = 6  # lines shown of one finding
_EVIDENCE_WIDTH = 500  # characters of one of them


def run_checks(cluster: Cluster, catalogue: Catalogue, hits: Iterable[CheckHit] = ()) -> tuple[Finding, ...]:
    """Returns all findings, the gravest first. ``hits`` are those of checks between hosts."""
    groups: dict[tuple[str, Level, str, tuple[tuple[str, str], ...], bool], dict[str, dict[str, None]]] = {}
    hints: dict[str, Hint] = {}  # by their printable text
    of_hosts = (check(host, fact) for check in HOST_CHECKS for host, fact in cluster.facts.items())
    of_clusters = (check(cluster) for check in CLUSTER_CHECKS)
    for hit in chain(*of_hosts, *of_clusters, hits):
        entry = catalogue[hit.code]
        words = {key: printable(str(value), _EVIDENCE_WIDTH) for key, value in hit.values.items()}
        hints |= {words[key]: value for key, value in hit.values.items() if isinstance(value, Hint)}
        title = entry.title.format_map(_Placeholders(words))
        key = (hit.code, hit.level or entry.level, title, tuple(sorted(words.items())), entry.action and hit.action)
        lines = groups.setdefault(key, {}).setdefault(hit.host, {})
        lines |= dict.fromkeys(hit.evidence.splitlines())
    findings = []
    for (code, level, title, pairs, action), evidence in groups.items():
        hosts = tuple(evidence)
        entry, others = catalogue[code], cluster.facts.keys() - hosts
        entry = entry if others or not entry.fix_all else replace(entry, fix=entry.fix_all)
        fix = _make_fix(entry, {**dict(pairs), "host": hosts[0], "out": cluster.leave_out(hosts)}, hints)
        if isinstance(fix, Hint) and (repair := find_repair(cluster.facts, hosts)):
            fix = Hint(repair.hint.words, fix.advice) if entry.repairs else fix.keep_installed(repair.model)
        findings.append(Finding(code, level, hosts, title, _merge_evidence(evidence), fix, action, entry.momentary))
    return tuple(sorted(findings, key=lambda finding: (_GRAVITY.index(finding.level), finding.code)))


def _make_fix(entry: CatalogueEntry, words: Mapping[str, str], hints: Mapping[str, Hint]) -> str:
    """The fix of a finding; where the catalogue or the check advises a command of ipexctl, it ends with that."""
    if hint := next(
        (hints[word] for name, word in words.items() if entry.fix == f"{{{name}}}" and word in hints), None
    ):
        return hint
    fix = entry.fix.format_map(_Placeholders(words))
    command = shlex.split(entry.command)[1:]
    return Hint([word.format_map(_Placeholders(words)) for word in command], fix) if command else fix


class _Placeholders(dict[str, str]):
    """A word that the check did not fill stays as it is written."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


def _merge_evidence(lines_by_host: Mapping[str, Iterable[str]]) -> str:
    """Each line once, with the hosts it is true of, unless that is all of them or the line names them itself."""
    places = ((printable(line, _EVIDENCE_WIDTH), host) for host, lines in lines_by_host.items() for line in lines)
    evidence_lines = [
        line
        if len(hosts) == len(lines_by_host) or all(host in line for host in hosts)
        else f"{join_names(hosts, 3)}: {line}"
        for line, hosts in group_pairs(places).items()
    ]
    more = len(evidence_lines) - _EVIDENCE_LINES
    return "\n".join([*evidence_lines[:_EVIDENCE_LINES], f"and {more} more"] if more > 0 else evidence_lines)
