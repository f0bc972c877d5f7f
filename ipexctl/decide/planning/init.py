"""A first playbook: the questions, their defaults from the hosts' facts, and the text of the playbook."""

import ast
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from ipexctl.decide.facts.isa import LEVELS, has_bf16
from ipexctl.decide.launch.accelerate import AccelerateConfig
from ipexctl.decide.launch.placement import find_usable_cores
from ipexctl.decide.parsing.dialects import write_inventory
from ipexctl.decide.parsing.yaml_nodes import quote_yaml
from ipexctl.decide.script_imports import ImportTable, list_module_names, parse_script
from ipexctl.model.facts import HostFacts
from ipexctl.model.hosts import Inventory
from ipexctl.model.json_values import Record
from ipexctl.model.stack import Stack
from ipexctl.model.text import fold_names, format_size, join_names, pluralize, printable

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*")
_TRAINS = re.compile(r"\.backward\(|Trainer\(|\.fit\(")

Precision = Literal["bf16", "no"]


class Answers(Record):
    """What the playbook is made of; None: not answered yet. ``port`` 0 is a free one."""

    script: str | None = None
    args: tuple[str, ...] = ()
    ppn: int | None = None
    ipex: bool | None = None
    backend: str | None = None
    torch: str | None = None  # this version, else the newest row
    precision: Precision | None = None
    port: int | None = None


class Question(Record):
    """``default`` is what an empty answer means, ``why`` where it comes from; ``choices`` are all there are, if few."""

    key: str
    text: str
    default: str
    why: str
    choices: tuple[str, ...] = ()


class Script(Record):
    """Results of parsing a script: packages to install, unknown imports, whether Accelerate reads our variables."""

    packages: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    accelerate: bool = False


def read_script(text: str, table: ImportTable, neighbours: Collection[str] = ()) -> Script:
    """``neighbours`` are the modules beside it. Empty for a script that cannot be parsed."""
    imports: dict[str, None] = {}
    nodes_to_visit: list[ast.AST] = [parse_script(text)]
    while nodes_to_visit:  # but for functions: what they import may never be needed
        node = nodes_to_visit.pop()
        imports |= dict.fromkeys(list_module_names(node))
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes_to_visit += ast.iter_child_nodes(node)
    foreign = [name for name in imports if name not in {*sys.stdlib_module_names, *neighbours, *table.options}]
    return Script(
        tuple(sorted(table.distributions[name] for name in foreign if name in table.distributions)),
        tuple(sorted(name for name in foreign if name not in table.distributions)),
        bool({"accelerate", "transformers", "trl", "peft"} & {*foreign}),
    )


def list_questions(
    answers: Answers, inventory: Inventory, facts: HostFacts, config: AccelerateConfig | None, script: Script
) -> Iterator[Question]:
    """What is open and does not depend on other answers, with what the facts say. Hosts and script come before."""
    if answers.ppn is None:
        count, why = _suggest_ranks(inventory, facts, config)
        yield Question("ppn", "How many ranks on each host?", str(count), why)
    if answers.ipex is None:
        wish, why = _suggest_ipex(facts, config)
        yield Question("ipex", "Use Intel Extension for PyTorch (IPEX)?", "yes" if wish else "no", why, ("yes", "no"))
    if answers.precision is None and script.accelerate:  # others do not read it
        precision, why = _suggest_precision(facts, config)
        yield Question("precision", "Mixed precision?", precision, why, ("bf16", "no"))
    if answers.port is None:
        port = config.port if config and config.port else 0
        why = "main_process_port of the configuration" if port else "a free one is taken"
        yield Question("port", "Which port on node0 for the rendezvous?", str(port or "auto"), why)


def is_training(text: str) -> bool:
    """Returns whether a script looks like one that trains."""
    return _TRAINS.search(text) is not None


def suggest_script(scripts: Mapping[str, bool]) -> tuple[str, str]:
    """Returns the only script, or the only one that trains, and why; "" where there is no such one. ``scripts`` are
    those beside the playbook, and whether they train."""
    training = [name for name, trains in scripts.items() if trains]
    if len(scripts) == 1:
        return next(iter(scripts)), "the only script here"
    if len(training) == 1:
        return training[0], "the only script here that trains"
    return "", f"one of {join_names(training or [*scripts], 5)}" if scripts else ""


def make_backend_question(stack: Stack) -> Question:
    """After `questions`, because the rows of the table hang on IPEX."""
    why = f"{stack.name}; gloo and impi: newer rows" if stack.backend == "ccl" else stack.name
    return Question("backend", "Which collectives?", stack.backend, why, ("ccl", "impi", "gloo"))


def apply_answer(answers: Answers, key: str, text: str) -> Answers | str:
    """Returns the answers with one more, or what is wrong with it."""
    parse, complaint = _PARSERS[key]
    value = parse(text.strip() if key == "script" else text.strip().lower())
    return complaint if value is None else replace(answers, **{key: value})


def _parse_number(text: str, low: int, high: int) -> int | None:
    return int(text) if text.isdecimal() and low <= int(text) <= high else None


# What an answer stands for, None if it is not valid; and what it must be.
_PARSERS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "script": (lambda text: text or None, "a script is needed"),
    "ppn": (lambda text: _parse_number(text, 1, 1024), "a number from 1 to 1024, please"),
    "ipex": ({**dict.fromkeys(("y", "yes", "true"), True), **dict.fromkeys(("n", "no", "false"), False)}.get,
             "yes or no, please"),
    "precision": ({"bf16": "bf16", "no": "no", "none": "no", "fp32": "no"}.get, "bf16 or no, please"),
    "backend": ({word: word for word in ("auto", "ccl", "impi", "gloo")}.get, "ccl, impi or gloo, please"),
    "port": (lambda text: 0 if text in {"auto", "0"} else _parse_number(text, 1024, 65535),
             "auto, or a number from 1024 to 65535, please"),
}  # fmt: skip


def _suggest_ranks(inventory: Inventory, facts: HostFacts, config: AccelerateConfig | None) -> tuple[int, str]:
    if config and config.ranks > 1 and config.ranks % len(inventory) == 0:
        return config.ranks // len(inventory), f"num_processes {config.ranks} of the configuration"
    slots = {host.slots for host in inventory}
    if len(slots) == 1 and (only := next(iter(slots))):
        return only, "the slots of the hosts"
    nodes = [cores.nodes for fact in facts.values() if (cores := find_usable_cores(fact)).cpus]
    least = min(nodes, default=1)
    return max(1, least), f"one per NUMA node: every host has {least}" if len({*nodes}) == 1 else "NUMA nodes, at least"


def _suggest_ipex(facts: HostFacts, config: AccelerateConfig | None) -> tuple[bool, str]:
    if config:
        return config.ipex, "ipex_config of the configuration"
    if host := next((host for host, fact in facts.items() if fact.isa_level not in LEVELS), None):
        return False, f"{host} has no AVX2, which IPEX needs"
    if version := find_stock_torch(facts):
        return False, f"torch {version} is installed on every host, without it"
    return True, "its last version is 2.8.0; stock torch goes on"


def find_stock_torch(facts: HostFacts) -> str | None:
    """Returns the version of torch that every host has installed, without IPEX."""
    packages = [fact.installed.packages if fact.installed else {} for fact in facts.values()]
    versions = {each.get("torch", "").partition("+")[0] for each in packages}
    with_ipex = any("intel-extension-for-pytorch" in each for each in packages)
    return versions.pop() or None if len(versions) == 1 and not with_ipex else None


def _suggest_precision(facts: HostFacts, config: AccelerateConfig | None) -> tuple[Precision, str]:
    if host := next((host for host, fact in facts.items() if not has_bf16(fact.isa_level)), None):
        return "no", f"bf16 would be emulated on {host} ({facts[host].isa_level or 'unknown'})"
    if config and config.precision == "no":
        return "no", "mixed_precision of the configuration; every host computes bf16 in hardware"
    return "bf16", "every host computes it in hardware"


# ----------------------------------------------------------------------------------------------------- what is written


def format_hostfile(inventory: Inventory, facts: HostFacts, when: str) -> str:
    """Returns a hostfile in our own dialect, with the facts of each host as comments."""
    lines = [
        f"# Hosts, written by ipexctl init {when}. The first is node0, where mpirun starts.",
        "# Keys: address= user= port= slots= key= venv= workdir= iface=; groups stand in [brackets]",
        *(f"#   {line}" for line in describe_hosts(inventory, facts)),
    ]
    return "\n".join([*lines, write_inventory(inventory)])


def describe_hosts(inventory: Inventory, facts: HostFacts) -> list[str]:
    """Returns a line for a comment of each host, one of equal ones."""
    described: dict[str, list[str]] = {}
    for host in inventory:
        parts = ["did not answer"]
        if fact := facts.get(host.name):
            cores = pluralize(fact.physical_cores, "core") if fact.physical_cores else ""
            memory = format_size(fact.mem_total_kb * 1024) if fact.mem_total_kb else ""
            parts = [fact.model_name or fact.vendor or "", fact.isa_level or "", cores, memory]
        line = " · ".join(printable(part) for part in parts if part)
        described.setdefault(line, []).append(host.name)
    folded = {fold_names(names): line for line, names in described.items()}
    return [f"{names:<{max(map(len, folded))}}  {line}" for names, line in folded.items()]


def format_playbook(
    template: str,
    answers: Answers,
    script: Script,
    table: ImportTable,
    stack: Stack,
    inventory: Inventory,
    facts: HostFacts,
    *,
    hosts: str,
    name: str,
    when: str,
    whys: Mapping[str, str],
) -> str:
    """Returns the commented playbook; ``template`` is the text of ``data/playbook.j2``. ``hosts`` is the hostfile's
    path as the playbook names it, ``name`` its own file."""
    import jinja2

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    environment.filters |= {
        "note": lambda key: f"  # {printable(whys[key], 120)}" if whys.get(key) else "",
        "printable": printable,
        "word": _format_scalar,
        "item": lambda word: _quote_scalar(word) if "," in word else _format_scalar(word),
        "json": _quote_scalar,
    }
    ipex = bool(stack.release.ipex)
    return environment.from_string(template).render(
        answers=answers,
        script=script,
        stack=stack,
        release=stack.release,
        # The packages that know IPEX, where there is one.
        packages=tuple(table.with_ipex.get(package, package) if ipex else package for package in script.packages),
        described=describe_hosts(inventory, facts),
        title=f"train {printable(answers.script or '', 100)} on {pluralize(len(inventory), 'host')}",
        hosts=hosts,
        name=name,
        width=len(name) + 8,
        when=when,
    )


def _format_scalar(text: str) -> str:
    """Returns a scalar as YAML and our variables read it back."""
    if _PLAIN.fullmatch(text) and text.lower() not in {"null", "~", ""}:
        return text
    return _quote_scalar(text)


def _quote_scalar(text: str) -> str:
    return quote_yaml(text.replace("${", "$${"))
