"""Text in, nouns out: hostfiles, inventories and playbooks, or all that is wrong with them, with file:line:column."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ipexctl.decide.parsing.host_entries import Beside, HostTree, Word, assemble_inventory
from ipexctl.decide.parsing.host_lines import parse_section, read_host_lines, read_host_list
from ipexctl.decide.parsing.host_patterns import limit_inventory
from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.parsing.schedulers import (
    SCHEDULERS,
    find_node_file,
    find_variable,
    read_lsf,
    read_node_file,
    read_slurm,
)
from ipexctl.decide.parsing.yaml_inventory import VAULT, read_variables, read_yaml, refuse_program
from ipexctl.model.errors import Origin
from ipexctl.model.hosts import Inventory
from ipexctl.model.json_values import Record

__all__ = ["SCHEDULERS", "VariableFile", "limit_inventory", "parse_allocation", "parse_inventory", "parse_list"]

_GROUP_LINE = re.compile(r"""(?:[A-Za-z_][^\s:]*|"[^"]*"|'[^']*')\s*:\s*(#.*)?""")


class VariableFile(Record):
    """A file of ``group_vars/`` or ``host_vars/`` beside an inventory: for a "group" or a "host" of this name."""

    kind: str
    name: str
    path: str
    text: str


def parse_inventory(text: str, source: str, variables: Sequence[VariableFile] = ()) -> Inventory:
    """Returns a hostfile or inventory in whatever dialect it is written, with the variables beside it, of which later
    files win; raises `UsageError` with every error in them."""
    problems = InputErrors(source)
    text = text.removeprefix("\ufeff")
    start = Origin(source, 1, 1)
    if text.startswith(("#!/", "#! /")):
        refuse_program(source, start, "this is a program: scripts that make an inventory are not run", problems)
    elif source.lower().endswith(".toml"):
        refuse_program(source, start, "inventories in TOML are not read", problems)
    elif text.startswith(VAULT):
        refuse_program(source, start, "this file is encrypted with ansible-vault, and cannot be read", problems)
    problems.raise_if_any()
    reader = read_yaml if _is_yaml(text, source) else read_host_lines
    tree = reader(text, source, problems)
    beside: dict[tuple[str, str], dict[str, Word]] = {}
    for file in variables:
        beside.setdefault((file.kind, file.name), {}).update(read_variables(file.text, file.path, problems))
    return _assemble_or_raise(tree, source, beside)


def parse_list(text: str, source: str = "--hosts") -> Inventory:
    """Hosts between commas: ``a,b:4``, ``alice@node[01-16]``. Raises `UsageError`."""
    return _assemble_or_raise(read_host_list(text, source, InputErrors(source)), source)


def parse_allocation(scheduler: str, environ: Mapping[str, str], nodefile: str = "") -> Inventory:
    """Returns the hosts of the batch job that ``environ`` describes; ``nodefile`` is the text of what `find_node_file`
    names. ``scheduler`` is one of `SCHEDULERS`. Raises `UsageError`."""
    if scheduler == "pbs":
        find_variable(scheduler, environ, "PBS_NODEFILE")
    if file := find_node_file(scheduler, environ):
        return _assemble_or_raise(read_node_file(nodefile, file, InputErrors(file)), scheduler)
    if scheduler == "lsf":
        return _assemble_or_raise(read_lsf(environ, InputErrors("LSB_MCPU_HOSTS")), scheduler)
    return _assemble_or_raise(read_slurm(environ, InputErrors("SLURM_JOB_NODELIST")), scheduler)


def _assemble_or_raise(tree: HostTree, source: str, beside: Beside = MappingProxyType({})) -> Inventory:
    inventory = assemble_inventory(tree, source, beside)
    tree.problems.raise_if_any()
    return inventory


def _is_yaml(text: str, source: str) -> bool:
    """By the file's name, or by its first lines: ``---``, ``{``, or ``group:`` with something indented below it. A lone
    ``node1:`` is a host line whose slots were forgotten, not YAML; nor is what has lines below ``[group]``."""
    lines = [line.rstrip() for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    if source.lower().endswith((".yml", ".yaml", ".json")):
        return not (len(lines) > 1 and parse_section(lines[0]))
    if not lines:
        return False
    if lines[0] == "---" or lines[0].startswith("{") or re.match(r"[A-Za-z_]\w*:\s+\{", lines[0]):
        return True
    return bool(_GROUP_LINE.fullmatch(lines[0])) and len(lines) > 1 and lines[1][0] in " \t"
