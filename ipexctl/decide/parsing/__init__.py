"""Text in, nouns out: hostfiles, inventories and playbooks, or all that is wrong with them, with file:line:column."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ipexctl.decide.parsing.host_entries import Tree, assemble_inventory
from ipexctl.decide.parsing.host_lines import read_lines, read_list
from ipexctl.decide.parsing.host_patterns import limit_inventory
from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.parsing.slurm import read_slurm
from ipexctl.decide.parsing.yaml_inventory import read_yaml
from ipexctl.model.hosts import Inventory

__all__ = ["limit_inventory", "parse", "parse_list", "parse_slurm"]

_GROUP_LINE = re.compile(r"""(?:[A-Za-z_][^\s:]*|"[^"]*"|'[^']*')\s*:\s*(#.*)?""")


def parse(text: str, source: str) -> Inventory:
    """A hostfile or inventory in whatever dialect it is written; raises `UsageError` with every error in it."""
    problems = InputErrors(source)
    text = text.removeprefix("\ufeff")
    reader = read_yaml if _is_yaml(text, source) else read_lines
    return _finish(reader(text, source, problems), source, problems)


def parse_list(text: str, source: str = "--hosts") -> Inventory:
    """Hosts between commas: ``a,b:4``, ``alice@node[01-16]``. Raises `UsageError`."""
    problems = InputErrors(source)
    return _finish(read_list(text, source, problems), source, problems)


def parse_slurm(environ: Mapping[str, str]) -> Inventory:
    """The hosts of the Slurm allocation that ``environ`` describes. Raises `UsageError`."""
    problems = InputErrors("SLURM_JOB_NODELIST")
    return _finish(read_slurm(environ, problems), "slurm", problems)


def _finish(tree: Tree, source: str, problems: InputErrors) -> Inventory:
    inventory = assemble_inventory(tree, source, problems)
    problems.raise_if_any()
    return inventory


def _is_yaml(text: str, source: str) -> bool:
    """By the file's name, or by its first lines: ``---``, ``{``, or ``group:`` with something indented below it.

    A lone ``node1:`` is a host line whose slots were forgotten, not YAML.
    """
    if source.lower().endswith((".yml", ".yaml", ".json")):
        return True
    lines = [line.rstrip() for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        return False
    if lines[0] == "---" or lines[0].startswith("{") or re.match(r"[A-Za-z_]\w*:\s+\{", lines[0]):
        return True
    return bool(_GROUP_LINE.fullmatch(lines[0])) and len(lines) > 1 and lines[1][0] in " \t"
