"""Playbooks: YAML whose steps are the tasks of the command line, with the same keys.

A playbook is data: ``${name}`` is replaced by text before anything is checked, and nothing is evaluated.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ipexctl.decide.parsing import ansible_keys, validators, yaml_nodes
from ipexctl.decide.parsing.host_entries import assemble
from ipexctl.decide.parsing.host_patterns import limit as limited
from ipexctl.decide.parsing.input_errors import InputErrors, nearest
from ipexctl.decide.parsing.yaml_inventory import read_node
from ipexctl.decide.parsing.yaml_nodes import Map, Node, Scalar, Seq
from ipexctl.model.errors import Origin, UsageError
from ipexctl.model.hosts import Inventory
from ipexctl.model.plays import TOGETHER, Play, Share, Step
from ipexctl.model.said import said
from ipexctl.model.text import printable

if TYPE_CHECKING:
    from ipexctl.model.tasks import Task

PLAY_KEYS = ("name", "hosts", "vars", "env_allow", "any_errors_fatal", "max_fail_percentage", "steps")
STEP_KEYS = (
    "name",
    "limit",
    "tags",
    "when",
    "serial",
    "ignore_errors",
    "any_errors_fatal",
    "max_fail_percentage",
)
ACTIONS = ("doctor", "install", "sync", "run", "command", "fetch", "bench")

_NONE: Mapping[str, str] = MappingProxyType({})
_PATHS = frozenset(
    {"script", "source", "requirements", "wheels", "find_links", "env_file", "recorded", "save_bundle", "into"}
    | {"accelerate_config", "plot"}
)
"""Keys whose values are paths on this machine: relative ones start at the playbook."""
_NEVER_EMPTY = _PATHS | {"workdir", "venv", "python"}
_VARIABLE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAG = re.compile(r"[A-Za-z0-9_.-]+")
_SHARE = re.compile(r"([0-9]{1,4})(?:\.0)?|([0-9]{1,3}(?:\.[0-9]+)?)\s*%")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)\s*%?")
_YES = frozenset({"yes", "true", "on", "1"})
_NO = frozenset({"no", "false", "off", "0"})


def parse(
    text: str,
    source: str,
    *,
    base: str = "",
    environ: Mapping[str, str] = _NONE,
    variables: Mapping[str, str] = _NONE,
    strict: bool = True,
) -> Play:
    """The play in ``text``; raises `UsageError` with every error in it.

    ``base`` is the directory of the playbook, where relative paths on this machine start; ``environ`` is what
    ``${env:NAME}`` may look into for the names of ``env_allow``; ``variables`` win over those of ``vars``. With
    ``strict`` those that the playbook neither sets nor uses are errors.
    """
    problems = InputErrors(source)
    root = yaml_nodes.read(text.removeprefix("\ufeff"), source, problems)
    if not isinstance(root, Map):
        if not problems:
            origin = root.origin if root else Origin(source)
            what = (
                f"playbook must be a mapping with steps, not {yaml_nodes.kind(root)}" if root else "playbook is empty"
            )
            problems.add(origin, what)
        problems.refuse()
        raise AssertionError("unreachable: a root that is no mapping is a problem")
    play = _play(root, source, base, environ, variables, problems)
    if strict:
        for name in variables.keys() - play.variables:
            what = f"the playbook has no variable '{printable(name)}'{nearest(name, play.variables)}"
            problems.add(Origin(""), what)
    problems.refuse()
    return play


def schema() -> dict[str, Any]:
    """The JSON schema of a playbook, for editors."""
    text = {"type": ["string", "number", "boolean"]}
    definitions: dict[str, Any] = {}
    actions = {}
    for action, model in _models().items():
        body = model.model_json_schema(by_alias=True)
        definitions |= body.pop("$defs", {})
        definitions[action] = _lenient(body)
        actions[action] = {"anyOf": [{"$ref": f"#/$defs/{action}"}, {"type": "null"}]}
    words = {"anyOf": [text, {"type": "array", "items": text}]}
    truth = {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": r"\$\{"}]}
    shared = {
        "any_errors_fatal": {**truth, "description": "one host that fails ends the play"},
        "max_fail_percentage": {**text, "description": "how many hosts may be lost before the play ends"},
    }
    keys = {
        "name": {**text, "description": "a title; --start-at begins there"},
        "limit": {**text, "description": "a part of the hosts, as --limit"},
        "tags": {**words, "description": "words for --tags and --skip-tags"},
        "when": {**words, "description": "only on hosts where this is true of the facts: isa_level >= AVX512_BF16"},
        "serial": {**words, "description": "hosts in batches: a number, a percentage, or a list of them"},
        "ignore_errors": {**truth, "description": "go on, with all hosts, although this fails"},
        **shared,
    }
    step = {
        "type": "object",
        "properties": {**keys, **actions},
        "additionalProperties": False,
        "oneOf": [{"required": [action]} for action in ACTIONS],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ipexctl playbook",
        "type": "object",
        "properties": {
            "name": text,
            "hosts": {
                "description": "path of a hostfile, list of host lines, or an inventory of groups",
                "type": ["string", "array", "object"],
            },
            "vars": {"type": "object", "additionalProperties": text},
            "env_allow": {"type": "array", "items": {"type": "string"}},
            **shared,
            "steps": {"type": "array", "items": step, "minItems": 1},
        },
        "required": ["steps"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _lenient(value: Any) -> Any:
    """A schema that also takes what the reader takes: any scalar for text, ``${name}`` for a number or a choice."""
    if isinstance(value, list):
        return [_lenient(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "string" and "enum" not in value:
        return {**value, "type": ["string", "number", "boolean"]}
    if value.get("type") in {"integer", "number", "boolean"} or "enum" in value:
        said = {key: value[key] for key in ("title", "description", "default") if key in value}
        rest = {key: inner for key, inner in value.items() if key not in said}
        return {"anyOf": [rest, {"type": "string", "pattern": r"\$\{"}], **said}
    return {key: _lenient(inner) for key, inner in value.items()}


def _models() -> dict[str, type[Task]]:
    from ipexctl.model import tasks

    return {
        "doctor": tasks.Doctor,
        "install": tasks.Install,
        "sync": tasks.Sync,
        "run": tasks.Run,
        "command": tasks.Execute,
        "fetch": tasks.Fetch,
        "bench": tasks.Bench,
    }


def _play(
    root: Map, source: str, base: str, environ: Mapping[str, str], given: Mapping[str, str], problems: InputErrors
) -> Play:
    _known(root, PLAY_KEYS, "a playbook", problems, ansible_keys.PLAY)
    allowed = _names(root.get("env_allow"), "env_allow", problems)
    scope = _Scope({}, environ, allowed, problems)
    scope.variables = _variables(root.get("vars"), given, scope, problems)
    hostfile, inventory = _hosts(scope.fill(root.get("hosts")), source, base, problems)
    policy = _policy(scope.fill(root), _Policy(), problems)
    steps = root.get("steps")
    read: list[Step | None] = []
    if isinstance(steps, Seq):
        for item in steps.items:
            read.append(_step(scope.fill(item), base, inventory, policy, _carried(read, base), problems))
    if steps is None or _empty(steps) or steps == Seq((), steps.origin):
        problems.add(steps.origin if steps else root.origin, "playbook has no steps")
    elif not isinstance(steps, Seq):
        problems.add(steps.origin, f"steps must be a list, not {yaml_nodes.kind(steps)}")
    return Play(
        source=source,
        steps=tuple(step for step in read if step),
        name=_text(scope.fill(root.get("name")), "name", problems),
        hostfile=hostfile,
        inventory=inventory,
        variables=frozenset(scope.known),
    )


@dataclass(frozen=True, slots=True)
class _Policy:
    """What is said of failures, for all steps or for one."""

    any_errors_fatal: bool = False
    max_fail_percentage: float | None = None


def _policy(node: Map, default: _Policy, problems: InputErrors) -> _Policy:
    fatal = _truth(node.get("any_errors_fatal"), "any_errors_fatal", problems)
    percent = _text(node.get("max_fail_percentage"), "max_fail_percentage", problems).strip()
    found = _PERCENT.fullmatch(percent)
    if percent and (found is None or float(found[1]) > 100):
        where = node.get("max_fail_percentage") or node
        problems.add(where.origin, "max_fail_percentage must be a number from 0 to 100", found=percent)
        found = None
    return _Policy(
        default.any_errors_fatal if fatal is None else fatal,
        float(found[1]) if found else default.max_fail_percentage,
    )


def _step(
    node: Node, base: str, inventory: Inventory | None, policy: _Policy, carried: str | None, problems: InputErrors
) -> Step | None:
    if not isinstance(node, Map):
        problems.add(node.origin, f"step must be a mapping such as 'doctor:', not {yaml_nodes.kind(node)}")
        return None
    unknown = _known(node, (*ACTIONS, *STEP_KEYS), "a step", problems, ansible_keys.STEP)
    actions = [(key, value) for key, value in node.pairs if key.text in ACTIONS]
    limit = _text(node.get("limit"), "limit", problems) if node.get("limit") else None
    if limit is not None and inventory is not None:
        try:
            limited(inventory, limit, "limit")
        except UsageError as refused:
            where = node.get("limit") or node
            for reason in refused.reasons or (refused.sentence.removeprefix("limit: "),):
                problems.add(where.origin, reason.removeprefix("limit: "))
    tags = _names(node.get("tags"), "tags", problems, _TAG)
    name = _text(node.get("name"), "name", problems)
    when = _when(node.get("when"), problems)
    serial = _serial(node.get("serial"), problems)
    policy = _policy(node, policy, problems)
    ignore = bool(_truth(node.get("ignore_errors"), "ignore_errors", problems))
    if len(actions) > 1:
        problems.add(actions[1][0].origin, f"step has {len(actions)} actions: {', '.join(k.text for k, _ in actions)}")
    elif not actions and not unknown:
        problems.add(node.origin, f"step has no action (one of {', '.join(ACTIONS)})")
    action = actions[0][0].text if actions else ""
    if action in TOGETHER and any(share != Share(100.0, True) for share in serial):
        what = f"serial does not fit {action}: its hosts work together, all at once"
        problems.add((node.get("serial") or node).origin, what, hint="limit: HOSTS chooses a part of them")
    tasks = [_task(key, value, base, carried, problems) for key, value in actions]
    if len(tasks) != 1 or tasks[0] is None:
        return None
    return Step(
        action,
        tasks[0],
        name,
        limit,
        tags,
        when,
        serial,
        ignore,
        policy.any_errors_fatal,
        policy.max_fail_percentage,
        node.origin,
    )


def _carried(before: Sequence[Step | None], base: str) -> str | None:
    """What the steps above have carried to the hosts last: there a fetch looks, unless it says otherwise."""
    for step in reversed(before):
        said = getattr(step and step.task, "source", None) if step and step.action == "sync" else None
        if step and step.action == "run" and getattr(step.task, "sync", False):
            said = getattr(step.task, "script", None)
        if said is not None:
            return str(said)
    return base or None


def _when(node: Node | None, problems: InputErrors) -> str:
    """One expression; of a list, all must be true."""
    if node is None:
        return ""
    from ipexctl.decide.parsing import conditions as when

    parts = node.items if isinstance(node, Seq) else (node,)
    good = []
    for part in parts:
        if not isinstance(part, Scalar):
            problems.add(part.origin, f"when must be an expression, not {yaml_nodes.kind(part)}")
        elif bad := when.refusal(part.text):
            column = part.origin.column + (bad[0] if part.plain else 0)
            problems.add(replace(part.origin, column=column), bad[1])
        else:
            good.append(part.text.strip())
    return " and ".join(f"({text})" for text in good) if len(good) > 1 else "".join(good)


def _serial(node: Node | None, problems: InputErrors) -> tuple[Share, ...]:
    """Sizes of batches: a number, a percentage, or a list of them."""
    if node is None or _empty(node):
        return ()
    shares = []
    for item in node.items if isinstance(node, Seq) else (node,):
        said = _SHARE.fullmatch(item.text.strip()) if isinstance(item, Scalar) else None
        number = float(said[1] or said[2]) if said else 0.0
        if said is None or not 0 < number <= (100 if said[2] else 9999):
            found = item.text if isinstance(item, Scalar) else yaml_nodes.kind(item)
            problems.add(item.origin, "serial must be a number of hosts, or a percentage such as 25%", found=found)
        else:
            shares.append(Share(number, percent=bool(said[2])))
    return tuple(shares)


def _truth(node: Node | None, what: str, problems: InputErrors) -> bool | None:
    if node is None:
        return None
    text = node.text.strip().lower() if isinstance(node, Scalar) else ""
    if text not in _YES | _NO:
        found = node.text if isinstance(node, Scalar) else yaml_nodes.kind(node)
        problems.add(node.origin, f"{what} must be yes or no", found=found)
    return text in _YES


def _task(action: Scalar, body: Node, base: str, carried: str | None, problems: InputErrors) -> Task | None:
    """The task of one step, checked by its schema; what the schema says is put where the text stands."""
    from pydantic import ValidationError

    model = _models()[action.text]
    if _empty(body):
        body = Map((), action.origin)
    if not isinstance(body, Map):
        problems.add(body.origin, f"{action.text} must be a mapping of its keys, not {yaml_nodes.kind(body)}")
        return None
    valid = [field.alias or name for name, field in model.model_fields.items()]
    _known(body, valid, action.text, problems)
    pairs = [
        (key, _anchored(action.text, key, value, base, problems)) for key, value in body.pairs if key.text in valid
    ]
    values = {key.text: _plain(value) for key, value in pairs}
    if "into" in valid:
        values.setdefault("into", _join(base, "fetched"))
    if "source" in valid:
        values.setdefault("source", (carried if action.text == "fetch" else base) or ".")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        for each in error.errors(include_url=False):
            node = _at(Map(tuple(pairs), action.origin), each["loc"])
            path = ".".join(str(part) for part in (action.text, *each["loc"]))
            found = node.text if isinstance(node, Scalar) and each["type"] != "missing" else None
            problems.add(node.origin, f"{path} {said(each)}", found=found)
        return None


def _at(node: Node, path: Sequence[int | str]) -> Node:
    """The node a path of the schema leads to, or the last one on the way that was written."""
    for part in path:
        inner: Node | None = None
        if isinstance(node, Map):
            inner = node.get(str(part))
        elif isinstance(node, Seq) and isinstance(part, int) and part < len(node.items):
            inner = node.items[part]
        if inner is None:
            return node
        node = inner
    return node


def _plain(node: Node) -> Any:
    """Text, lists and dicts for the schema, which converts texts to the numbers and booleans it wants."""
    if isinstance(node, Scalar):
        return None if node.is_null else node.text
    if isinstance(node, Seq):
        return [_plain(item) for item in node.items]
    return {key.text: _plain(value) for key, value in node.pairs}


def _anchored(action: str, key: Scalar, value: Node, base: str, problems: InputErrors) -> Node:
    """Relative paths on this machine start at the playbook. An empty path is an error: it would mean ``base``."""
    if isinstance(value, Seq):
        return Seq(tuple(_anchored(action, key, item, base, problems) for item in value.items), value.origin)
    if not isinstance(value, Scalar) or value.is_null or key.text not in _NEVER_EMPTY:
        return value
    if not value.text.strip():
        problems.add(value.origin, f"{action}.{key.text} is empty")
    if key.text not in _PATHS or not value.text:
        return value
    return Scalar(_join(base, value.text), value.origin, value.plain)


def _join(base: str, path: str) -> str:
    if path.startswith(("/", "~")) or re.match(r"[a-z+]+:", path):  # absolute, somebody's home, a page
        return path
    path = path.removeprefix("./") if path not in {".", "./"} else ""
    return posixpath.join(base, path) if path else base or "."


def _hosts(
    node: Node | None, source: str, base: str, problems: InputErrors
) -> tuple[str | None, Inventory | None]:  # fmt: skip
    if node is None:
        return None, None
    if isinstance(node, Scalar):
        if not node.text.strip() or node.is_null:
            problems.add(node.origin, "hosts is empty")
        return _join(base, node.text), None
    before = len(problems)
    tree = read_node(node, problems)
    if not tree.entries and len(problems) == before:
        problems.add(node.origin, "hosts names no host")
    inventory = assemble(tree, source, problems)
    return None, inventory if len(problems) == before else None


def _known(
    node: Map, valid: Iterable[str], of: str, problems: InputErrors, others: Mapping[str, str] = _NONE
) -> bool:  # fmt: skip
    """Says which keys are unknown, with what to write instead of the ``others``; whether there were any."""
    names = list(valid)
    unknown = [key for key, _ in node.pairs if key.text not in names]
    for key in unknown:
        said = printable(key.text)
        if key.text in STEP_KEYS and of in ACTIONS:
            problems.add(key.origin, f"'{said}' stands beside {of}, not below it: it is a key of the step")
        elif why := ansible_keys.instead(key.text, others, names) if others else None:
            problems.add(key.origin, f"'{said}' is left out on purpose: {why}")
        else:
            problems.add(key.origin, f"unknown key '{said}' of {of}{nearest(key.text, names)}")
    return bool(unknown)


def _variables(
    node: Node | None, given: Mapping[str, str], scope: _Scope, problems: InputErrors
) -> Mapping[str, str]:  # fmt: skip
    """The playbook's own variables, each of which may use those above it, under the ones given from outside."""
    if node is None or _empty(node):
        return dict(given)
    if not isinstance(node, Map):
        problems.add(node.origin, f"vars must be a mapping, not {yaml_nodes.kind(node)}")
        return dict(given)
    variables = dict(given)
    scope.variables = variables
    scope.known |= {key.text for key, _ in node.pairs}
    for key, value in node.pairs:
        if not _NAME.fullmatch(key.text):
            problems.add(key.origin, "name of a variable must be letters, digits and '_'", found=key.text)
        elif not isinstance(value, Scalar):
            problems.add(value.origin, f"variable {key.text} must be a single value, not {yaml_nodes.kind(value)}")
        elif key.text not in given:
            variables[key.text] = scope.text(value)
    return variables


def _names(
    node: Node | None, what: str, problems: InputErrors, allowed: re.Pattern[str] = _NAME
) -> tuple[str, ...]:  # fmt: skip
    """One word or a list of words."""
    if node is None or _empty(node):
        return ()
    items = node.items if isinstance(node, Seq) else (node,)
    names = []
    for item in items:
        if not isinstance(item, Scalar) or not allowed.fullmatch(item.text):
            found = item.text if isinstance(item, Scalar) else yaml_nodes.kind(item)
            problems.add(item.origin, f"{what} must be words of letters and digits", found=found)
        else:
            names.append(item.text)
    return tuple(names)


def _text(node: Node | None, what: str, problems: InputErrors) -> str:
    if node is None:
        return ""
    if not isinstance(node, Scalar) or node.is_null:
        problems.add(node.origin, f"{what} must be a single value, not {yaml_nodes.kind(node)}")
        return ""
    if why := validators.value(node.text):
        problems.add(node.origin, why, found=node.text)
    return node.text


def _empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_null


class _Scope:
    """What ``${name}`` and ``${env:NAME}`` stand for. Whatever is not set is an error, never an empty text."""

    def __init__(
        self, variables: Mapping[str, str], environ: Mapping[str, str], allowed: Sequence[str], problems: InputErrors
    ) -> None:
        self.variables = variables
        self.environ = environ
        self.allowed = allowed
        self.problems = problems
        self.known: set[str] = set()  # the names that the playbook sets or uses

    def fill(self, node: Any) -> Any:
        """The same node with every text replaced; keys stay as they are."""
        if isinstance(node, Scalar):
            text = self.text(node)
            return node if text == node.text else Scalar(text, node.origin, plain=False)
        if isinstance(node, Seq):
            return Seq(tuple(self.fill(item) for item in node.items), node.origin)
        if isinstance(node, Map):
            return Map(tuple((key, self.fill(value)) for key, value in node.pairs), node.origin)
        return node

    def text(self, node: Scalar) -> str:
        return _VARIABLE.sub(self._replacer(node), node.text)

    def _replacer(self, node: Scalar) -> Callable[[re.Match[str]], str]:
        def replace(found: re.Match[str]) -> str:
            if found[0] == "$${":
                return "${"
            name = found[1]
            if name is None:
                self.problems.add(node.origin, "'${' is not closed", found=node.text, hint="$${ is a literal ${")
                return found[0]
            if name.startswith("env:"):
                value = self._from_environ(name.removeprefix("env:"), node)
                return found[0] if value is None else value
            self.known.add(name)
            if name not in self.variables:
                what = f"variable '{printable(name)}' is not set{nearest(name, self.variables)}"
                hint = f"--var {name}=VALUE, or set it in vars" if _NAME.fullmatch(name) else "$${ is a literal ${"
                self.problems.add(node.origin, what, found=node.text, hint=hint)
                return found[0]
            return self.variables[name]

        return replace

    def _from_environ(self, name: str, node: Scalar) -> str | None:
        if name not in self.allowed:
            hint = f"env_allow: [{name}]" if _NAME.fullmatch(name) else None
            self.problems.add(node.origin, f"environment variable '{printable(name)}' is not in env_allow", hint=hint)
        elif name not in self.environ:
            self.problems.add(node.origin, f"environment variable '{name}' is not set")
        else:
            return self.environ[name]
        return None
