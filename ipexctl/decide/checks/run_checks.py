"""Facts → findings: every check in its order, hosts with the same finding together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ipexctl.decide.checks import processor, software, system
from ipexctl.decide.checks.catalogue import Catalogue
from ipexctl.decide.checks.cluster import Check, CheckHit, Cluster
from ipexctl.model.findings import Finding, Level
from ipexctl.model.text import printable

CHECKS: tuple[Check, ...] = (
    system.check_reachability,
    system.check_unread_facts,
    system.check_required_facts,
    system.check_duplicates,
    processor.check_architecture,
    processor.check_minimum_isa,
    processor.check_mixed_isa,
    processor.check_hidden_isa,
    processor.check_amx_permission,
    processor.check_allowed_cpus,
    processor.check_cpu_quota,
    processor.check_governor,
    processor.check_offline_cpus,
    processor.check_hybrid_cores,
    processor.check_numa_nodes,
    processor.check_load,
    processor.check_host_sizes,
    processor.check_memory_limit,
    processor.check_free_memory,
    processor.check_huge_pages,
    processor.check_shared_memory,
    system.check_limits,
    system.check_disks,
    system.check_own_name,
    system.check_name_resolution,
    system.check_virtual_interfaces,
    system.check_network,
    system.check_clock,
    system.check_distributions,
    system.check_scheduler,
    software.check_glibc,
    software.check_glibcxx,
    software.check_libraries,
    software.check_pythons,
    software.check_installed_stack,
    software.check_stack_drift,
    software.check_other_mpi,
    software.check_end_of_life,
    software.check_compiler,
)
_GRAVITY: dict[Level, int] = {"error": 0, "warning": 1, "info": 2}
_EVIDENCE = 6  # lines shown of one finding
_LONGEST = 500  # characters of one of them


def run_checks(cluster: Cluster, catalogue: Catalogue, hits: Iterable[CheckHit] = ()) -> tuple[Finding, ...]:
    """All findings, the gravest first. ``hits`` are those of checks between hosts."""
    groups: dict[tuple[Any, ...], _Group] = {}
    for hit in [*(hit for check in CHECKS for hit in check(cluster)), *hits]:
        entry = catalogue[hit.code]
        level = hit.level or entry.level
        words = {key: printable(str(value), _LONGEST) for key, value in hit.values.items()}
        title = entry.title.format_map(_Placeholders(words))
        key = (hit.code, level, title, tuple(sorted(words.items())))
        group = groups.setdefault(key, _Group(hit.code, level, title, entry.fix, words, entry.action and hit.action))
        lines = group.evidence.setdefault(hit.host, [])
        lines += [line for line in hit.evidence.splitlines() if line not in lines]
    ordered = sorted(groups.values(), key=lambda group: (_GRAVITY[group.level], group.code))
    return tuple(group.finding() for group in ordered)


class _Placeholders(dict[str, str]):
    """A word that the check did not fill stays as it is written."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


@dataclass(slots=True)
class _Group:
    code: str
    level: Level
    title: str
    fix: str
    words: Mapping[str, str]
    action: bool
    evidence: dict[str, list[str]] = field(default_factory=dict)  # host → its evidence, in lines

    def finding(self) -> Finding:
        hosts = tuple(self.evidence)
        out = ",".join(f"!{host}" for host in hosts) if len(hosts) <= 8 else "!HOST,…"
        fix = self.fix.format_map(_Placeholders({**self.words, "host": hosts[0] if hosts else "HOST", "out": out}))
        return Finding(self.code, self.level, hosts, self.title, self._merge_evidence(), fix, self.action)

    def _merge_evidence(self) -> str:
        """Each line once, with the hosts it is true of, unless that is all of them or the line names them itself."""
        hosts_of: dict[str, list[str]] = {}
        for host, lines in self.evidence.items():
            for line in lines:
                hosts_of.setdefault(printable(line, _LONGEST), []).append(host)
        evidence_lines = [
            line
            if len(hosts) == len(self.evidence) or all(host in line for host in hosts)
            else f"{_shorten_hosts(hosts)}: {line}"
            for line, hosts in hosts_of.items()
        ]
        more = len(evidence_lines) - _EVIDENCE
        return "\n".join([*evidence_lines[:_EVIDENCE], f"and {more} more"] if more > 0 else evidence_lines)


def _shorten_hosts(hosts: list[str]) -> str:
    return ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
