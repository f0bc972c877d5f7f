"""Playbooks: YAML whose steps are the tasks of the command line, with the same keys.

A playbook is data: ``${name}`` is replaced by text before anything is checked, and nothing is evaluated.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ipexctl.decide.parsing import ansible_keys, validators, yaml_nodes
from ipexctl.decide.parsing.host_entries import assemble_inventory
from ipexctl.decide.parsing.host_patterns import limit_inventory as limited
from ipexctl.decide.parsing.input_errors import InputErrors, suggest_nearest
from ipexctl.decide.parsing.yaml_inventory import read_node
from ipexctl.decide.parsing.yaml_nodes import Map, Node, Scalar, Seq
from ipexctl.model.errors import Origin, UsageError
from ipexctl.model.hosts import Inventory
from ipexctl.model.plays import TOGETHER, FailurePolicy, Play, PlayKeys, Share, Step, StepKeys
from ipexctl.model.schema_errors import describe_error
from ipexctl.model.text import printable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ipexctl.model.tasks import Task

Model = TypeVar("Model", bound="BaseModel")

PLAY_KEYS = ("name", "hosts", "vars", "env_allow", "any_errors_fatal", "max_fail_percentage", "steps")
STEP_KEYS = ("name", "limit", "tags", "when", "serial", "ignore_errors", "any_errors_fatal", "max_fail_percentage")
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
    root = yaml_nodes.read_yaml_node(text.removeprefix("\ufeff"), source, problems)
    if not isinstance(root, Map):
        if not problems:
            origin = root.origin if root else Origin(source)
            what = (
                f"playbook must be a mapping with steps, not {yaml_nodes.kind(root)}" if root else "playbook is empty"
            )
            problems.add(origin, what)
        problems.raise_if_any()
        raise AssertionError("unreachable: a root that is no mapping is a problem")
    play = _parse_play(root, source, base, environ, variables, problems)
    if strict:
        for name in variables.keys() - play.variables:
            what = f"the playbook has no variable '{printable(name)}'{suggest_nearest(name, play.variables)}"
            problems.add(Origin(""), what)
    problems.raise_if_any()
    return play


def playbook_schema() -> dict[str, Any]:
    """The JSON schema of a playbook, for editors."""
    text = {"type": ["string", "number", "boolean"]}
    definitions: dict[str, Any] = {}
    actions = {}
    for action, model in _task_models().items():
        body = model.model_json_schema(by_alias=True)
        definitions |= body.pop("$defs", {})
        definitions[action] = _allow_text(body)
        actions[action] = {"anyOf": [{"$ref": f"#/$defs/{action}"}, {"type": "null"}]}
    words = {"anyOf": [text, {"type": "array", "items": text}]}
    truth = {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": r"\$\{"}]}
    shapes: dict[str, Any] = {
        "tags": words,
        "when": words,
        "serial": words,
        "ignore_errors": truth,
        "any_errors_fatal": truth,
    }
    keys = {
        name: {**shapes.get(name, text), "description": field.description}
        for name, field in StepKeys.model_fields.items()
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
            **{name: keys[name] for name in FailurePolicy.model_fields},
            "steps": {"type": "array", "items": step, "minItems": 1},
        },
        "required": ["steps"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _allow_text(value: Any) -> Any:
    """A schema that also takes what the reader takes: any scalar for text, ``${name}`` for a number or a choice."""
    if isinstance(value, list):
        return [_allow_text(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "string" and "enum" not in value:
        return {**value, "type": ["string", "number", "boolean"]}
    if value.get("type") in {"integer", "number", "boolean"} or "enum" in value:
        annotations = {key: value[key] for key in ("title", "description", "default") if key in value}
        schema = {key: inner for key, inner in value.items() if key not in annotations}
        return {"anyOf": [schema, {"type": "string", "pattern": r"\$\{"}], **annotations}
    return {key: _allow_text(inner) for key, inner in value.items()}


def _task_models() -> dict[str, type[Task]]:
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


def _parse_play(
    root: Map, source: str, base: str, environ: Mapping[str, str], given: Mapping[str, str], problems: InputErrors
) -> Play:
    _check_keys(root, PLAY_KEYS, "a playbook", problems, ansible_keys.PLAY)
    # Allowed names are read before anything is replaced: they say what may be.
    allowed = _validate_keys(PlayKeys, _select_keys(root, ("env_allow",)), problems) or PlayKeys()
    scope = _Scope({}, environ, allowed.env_allow, problems)
    scope.variables = _parse_variables(root.get("vars"), given, scope, problems)
    hostfile, inventory = _parse_hosts(scope.fill(root.get("hosts")), source, base, problems)
    plain = _select_keys(scope.fill(root), PlayKeys.model_fields.keys() - {"env_allow"})
    keys = _validate_keys(PlayKeys, plain, problems) or PlayKeys()
    steps = root.get("steps")
    read: list[Step | None] = []
    if isinstance(steps, Seq):
        for item in steps.items:
            read.append(_parse_step(scope.fill(item), base, inventory, keys, _last_source(read, base), problems))
    if steps is None or _is_empty(steps) or steps == Seq((), steps.origin):
        problems.add(steps.origin if steps else root.origin, "playbook has no steps")
    elif not isinstance(steps, Seq):
        problems.add(steps.origin, f"steps must be a list, not {yaml_nodes.kind(steps)}")
    return Play(
        source=source,
        steps=tuple(step for step in read if step),
        name=keys.name,
        hostfile=hostfile,
        inventory=inventory,
        variables=frozenset(scope.known),
    )


def _parse_step(
    node: Node, base: str, inventory: Inventory | None, play: PlayKeys, source: str | None, problems: InputErrors
) -> Step | None:
    """``source`` is where a fetch looks by default."""
    if not isinstance(node, Map):
        problems.add(node.origin, f"step must be a mapping such as 'doctor:', not {yaml_nodes.kind(node)}")
        return None
    unknown = _check_keys(node, (*ACTIONS, *STEP_KEYS), "a step", problems, ansible_keys.STEP)
    actions = [(key, value) for key, value in node.pairs if key.text in ACTIONS]
    keys = _validate_keys(StepKeys, _select_keys(node, StepKeys.model_fields.keys() - {"when"}), problems) or StepKeys()
    if keys.limit is not None and inventory is not None:
        try:
            limited(inventory, keys.limit, "limit")
        except UsageError as refused:
            where = node.get("limit") or node
            for reason in refused.reasons or (refused.sentence.removeprefix("limit: "),):
                problems.add(where.origin, reason.removeprefix("limit: "))
    if len(actions) > 1:
        problems.add(actions[1][0].origin, f"step has {len(actions)} actions: {', '.join(k.text for k, _ in actions)}")
    elif not actions and not unknown:
        problems.add(node.origin, f"step has no action (one of {', '.join(ACTIONS)})")
    action = actions[0][0].text if actions else ""
    if action in TOGETHER and any(share != Share(100.0, True) for share in keys.serial):
        what = f"serial does not fit {action}: its hosts work together, all at once"
        problems.add((node.get("serial") or node).origin, what, hint="limit: HOSTS chooses a part of them")
    when = _parse_when(node.get("when"), problems)
    tasks = [_parse_task(key, value, base, source, problems) for key, value in actions]
    if len(tasks) != 1 or tasks[0] is None:
        return None
    inherited = {name: getattr(play, name) for name in FailurePolicy.model_fields if name not in keys.model_fields_set}
    given = dict(keys) | inherited | {"when": when}
    return Step(action=action, task=tasks[0], origin=node.origin, **given)


def _last_source(before: Sequence[Step | None], base: str) -> str | None:
    """What the steps above have sent to the hosts last: there a fetch looks, unless it says otherwise."""
    for step in reversed(before):
        source = getattr(step and step.task, "source", None) if step and step.action == "sync" else None
        if step and step.action == "run" and getattr(step.task, "sync", False):
            source = getattr(step.task, "script", None)
        if source is not None:
            return str(source)
    return base or None


def _parse_when(node: Node | None, problems: InputErrors) -> str:
    """One expression; of a list, all must be true."""
    if node is None:
        return ""
    from ipexctl.decide.parsing import conditions as when

    parts = node.items if isinstance(node, Seq) else (node,)
    good = []
    for part in parts:
        if not isinstance(part, Scalar):
            problems.add(part.origin, f"when must be an expression, not {yaml_nodes.kind(part)}")
        elif bad := when.find_error(part.text):
            column = part.origin.column + (bad[0] if part.plain else 0)
            problems.add(replace(part.origin, column=column), bad[1])
        else:
            good.append(part.text.strip())
    return " and ".join(f"({text})" for text in good) if len(good) > 1 else "".join(good)


def _select_keys(node: Map, keys: Collection[str]) -> Map:
    return Map(tuple((key, value) for key, value in node.pairs if key.text in keys), node.origin)


def _validate_keys(model: type[Model], node: Map, problems: InputErrors, action: str = "") -> Model | None:
    """The model of a mapping; each error of the schema is added with the place of its value. None if there are any.

    ``action`` is the step's for the keys of its task; the keys of a play or a step themselves have none.
    """
    from pydantic import ValidationError

    before = len(problems)
    if not action:
        for _, value in node.pairs:
            if isinstance(value, Scalar) and (why := validators.value(value.text)):
                problems.add(value.origin, why, value=value.text)
    try:
        read = model.model_validate({key.text: _to_plain(value) for key, value in node.pairs})
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            wrong = _find_node(node, fault["loc"])
            path = ".".join(str(part) for part in (action, *fault["loc"])) if action else str(fault["loc"][0])
            text = wrong.text if isinstance(wrong, Scalar) else None if action else yaml_nodes.kind(wrong)
            reason = f"{path} {describe_error(fault)}"
            problems.add(wrong.origin, reason, value=None if fault["type"] == "missing" else text)
        return None
    return read if len(problems) == before else None


def _parse_task(action: Scalar, body: Node, base: str, source: str | None, problems: InputErrors) -> Task | None:
    """The task of one step, checked by its schema."""
    model = _task_models()[action.text]
    if _is_empty(body):
        body = Map((), action.origin)
    if not isinstance(body, Map):
        problems.add(body.origin, f"{action.text} must be a mapping of its keys, not {yaml_nodes.kind(body)}")
        return None
    valid = [field.alias or name for name, field in model.model_fields.items()]
    _check_keys(body, valid, action.text, problems)
    pairs = [
        (key, _anchor_paths(action.text, key, value, base, problems)) for key, value in _select_keys(body, valid).pairs
    ]
    defaults = {"into": _join_base(base, "fetched"), "source": (source if action.text == "fetch" else base) or "."}
    pairs += [
        (Scalar(name, action.origin, plain=True), Scalar(value, action.origin, plain=False))
        for name, value in defaults.items()
        if name in valid and body.get(name) is None
    ]
    return _validate_keys(model, Map(tuple(pairs), action.origin), problems, action.text)


def _find_node(node: Node, path: Sequence[int | str]) -> Node:
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


def _to_plain(node: Node) -> Any:
    """Text, lists and dicts for the schema, which converts texts to the numbers and booleans it wants."""
    if isinstance(node, Scalar):
        return None if node.is_null else node.text
    if isinstance(node, Seq):
        return [_to_plain(item) for item in node.items]
    return {key.text: _to_plain(value) for key, value in node.pairs}


def _anchor_paths(action: str, key: Scalar, value: Node, base: str, problems: InputErrors) -> Node:
    """Relative paths on this machine start at the playbook. An empty path is an error: it would mean ``base``."""
    if isinstance(value, Seq):
        return Seq(tuple(_anchor_paths(action, key, item, base, problems) for item in value.items), value.origin)
    if not isinstance(value, Scalar) or value.is_null or key.text not in _NEVER_EMPTY:
        return value
    if not value.text.strip():
        problems.add(value.origin, f"{action}.{key.text} is empty")
    if key.text not in _PATHS or not value.text:
        return value
    return Scalar(_join_base(base, value.text), value.origin, value.plain)


def _join_base(base: str, path: str) -> str:
    if path.startswith(("/", "~")) or re.match(r"[a-z+]+:", path):  # absolute, somebody's home, a page
        return path
    path = path.removeprefix("./") if path not in {".", "./"} else ""
    return posixpath.join(base, path) if path else base or "."


def _parse_hosts(
    node: Node | None, source: str, base: str, problems: InputErrors
) -> tuple[str | None, Inventory | None]:  # fmt: skip
    if node is None:
        return None, None
    if isinstance(node, Scalar):
        if not node.text.strip() or node.is_null:
            problems.add(node.origin, "hosts is empty")
        return _join_base(base, node.text), None
    before = len(problems)
    tree = read_node(node, problems)
    if not tree.entries and len(problems) == before:
        problems.add(node.origin, "hosts names no host")
    inventory = assemble_inventory(tree, source, problems)
    return None, inventory if len(problems) == before else None


def _check_keys(
    node: Map, valid: Iterable[str], of: str, problems: InputErrors, others: Mapping[str, str] = _NONE
) -> bool:  # fmt: skip
    """Says which keys are unknown, with what to write instead of the ``others``; whether there were any."""
    names = list(valid)
    unknown = [key for key, _ in node.pairs if key.text not in names]
    for key in unknown:
        key_text = printable(key.text)
        if key.text in STEP_KEYS and of in ACTIONS:
            problems.add(key.origin, f"'{key_text}' stands beside {of}, not below it: it is a key of the step")
        elif why := ansible_keys.suggest_replacement(key.text, others, names) if others else None:
            problems.add(key.origin, f"'{key_text}' is left out on purpose: {why}")
        else:
            problems.add(key.origin, f"unknown key '{key_text}' of {of}{suggest_nearest(key.text, names)}")
    return bool(unknown)


def _parse_variables(
    node: Node | None, given: Mapping[str, str], scope: _Scope, problems: InputErrors
) -> Mapping[str, str]:  # fmt: skip
    """The playbook's own variables, each of which may use those above it, under the ones given from outside."""
    if node is None or _is_empty(node):
        return dict(given)
    if not isinstance(node, Map):
        problems.add(node.origin, f"vars must be a mapping, not {yaml_nodes.kind(node)}")
        return dict(given)
    variables = dict(given)
    scope.variables = variables
    scope.known |= {key.text for key, _ in node.pairs}
    for key, value in node.pairs:
        if not _NAME.fullmatch(key.text):
            problems.add(key.origin, "name of a variable must be letters, digits and '_'", value=key.text)
        elif not isinstance(value, Scalar):
            problems.add(value.origin, f"variable {key.text} must be a single value, not {yaml_nodes.kind(value)}")
        elif key.text not in given:
            variables[key.text] = scope.text(value)
    return variables


def _is_empty(node: Node) -> bool:
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
        def replace(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name = match[1]
            if name is None:
                self.problems.add(node.origin, "'${' is not closed", value=node.text, hint="$${ is a literal ${")
                return match[0]
            if name.startswith("env:"):
                value = self._from_environ(name.removeprefix("env:"), node)
                return match[0] if value is None else value
            self.known.add(name)
            if name not in self.variables:
                what = f"variable '{printable(name)}' is not set{suggest_nearest(name, self.variables)}"
                hint = f"--var {name}=VALUE, or set it in vars" if _NAME.fullmatch(name) else "$${ is a literal ${"
                self.problems.add(node.origin, what, value=node.text, hint=hint)
                return match[0]
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
