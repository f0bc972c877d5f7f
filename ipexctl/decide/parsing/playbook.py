"""Playbooks: YAML whose steps are the tasks of the command line, with the same keys.

A playbook is data: ``${name}`` is replaced by text before anything is checked, and nothing is evaluated."""

import difflib
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ipexctl.decide.launch.programs import is_program_name
from ipexctl.decide.parsing import conditions, validators
from ipexctl.decide.parsing.host_entries import assemble_inventory
from ipexctl.decide.parsing.host_patterns import limit_inventory
from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.parsing.yaml_inventory import read_node
from ipexctl.decide.parsing.yaml_nodes import Map, Node, Scalar, Seq, is_null, name_kind, read_yaml_node
from ipexctl.model import tasks
from ipexctl.model.errors import Origin, UsageError
from ipexctl.model.hosts import Inventory
from ipexctl.model.hub import is_of_hub
from ipexctl.model.plays import TOGETHER, FailurePolicy, LocalUse, Play, PlayKeys, Share, Step, StepKeys
from ipexctl.model.schema_errors import describe_error
from ipexctl.model.task_schemas import make_schema
from ipexctl.model.text import printable
from ipexctl.model.toml import parse_toml

Model = TypeVar("Model", bound=BaseModel)

MODELS: Mapping[str, type[tasks.Task]] = {
    "doctor": tasks.Doctor, "install": tasks.Install, "sync": tasks.Sync, "run": tasks.Run, "command": tasks.Execute,
    "fetch": tasks.Fetch, "bench": tasks.Bench, "tune": tasks.Tune,
}  # fmt: skip
ACTIONS = tuple(MODELS)
PLAY_KEYS = (*PlayKeys.model_fields, "hosts", "vars", "steps")
STEP_KEYS = tuple(StepKeys.model_fields)

_NONE: Mapping[str, str] = {}
_PATHS = tasks.LOCAL_PATHS - {"lock", "stdin", "directory"}
"""Keys whose values are paths on this machine of which relative ones start at the playbook."""
_LINKS = frozenset({"find_links", "index_url", "extra_index_url"})
"""Keys whose values are URLs, or paths on this machine."""
_PAGE = re.compile(r"[A-Za-z][A-Za-z+.-]*:")
_LOCAL = ("/", ".", "~")
_NEVER_EMPTY = _PATHS | {"workdir", "venv", "python"}
_VARIABLE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PASSED_ON = frozenset({"args", "argv", "env"})
"""Keys whose values are for other programs, of which some have templates of their own."""
_SHAPES = {"run": ", {script: FILE, args: [WORD, WORD]}", "command": ", {argv: [WORD, WORD]}"}
_OF_JINJA = re.compile(r"\{\{-?\s*(?!end\b|else\b)[A-Za-z_]\w*(?:\s*|[.\[(][^{}]*|\s*[|*+/%~-][^{}]*)\}\}")
"""A template that begins with a name, as Ansible has them: Go's begin with a dot or a word before one."""
_REPLACED_LIMIT = 4 << 20  # characters that variables stand for in a playbook; each may stand for others ten times
_STEPS_LIMIT = 1000
_LIMITS_LENGTH = 100_000  # characters of the limits of all steps, each of which is looked up among all hosts
_ENVIRONMENT = re.compile(r"lookup\(\s*['\"]env['\"]\s*,\s*['\"](\w+)['\"]")


def parse_playbook(
    text: str,
    source: str,
    *,
    base: str = "",
    environ: Mapping[str, str] = _NONE,
    variables: Mapping[str, str] = _NONE,
    strict: bool = True,
    ansible: str = "",
) -> Play:
    """Returns the play in ``text``; raises `UsageError` with every error in it. ``base`` is the directory of the
    playbook, where relative paths on this machine start; ``environ`` is what ``${env:NAME}`` may look into for the
    names of ``env_allow``; ``variables`` win over those of ``vars``. With ``strict`` those that the playbook neither
    sets nor uses are errors. ``ansible`` is the text of ``ansible.toml``: what to write instead of words of Ansible."""
    problems = InputErrors(source)
    root = read_yaml_node(text.removeprefix("\ufeff"), source, problems)
    parser = _Parser(problems, base, environ, variables, _parse_ansible_words(ansible))
    play = parser.parse_play(root) if isinstance(root, Map) else None
    if play is None and not problems:
        what = f"playbook must be a mapping with steps, not {name_kind(root)}" if root else "playbook is empty"
        hint = "it is one play: name, hosts, vars and steps stand at the top of the file" if root else None
        problems.add(root.origin if root else Origin(source), what, hint=hint)
    known = play.variables.keys() if play and strict else variables.keys()
    for name in variables.keys() - known:
        problems.add(Origin(""), f"the playbook has no variable '{printable(name)}'", near=(name, known))
    problems.raise_if_any()
    assert play is not None  # or there was an error
    return play


def _parse_ansible_words(text: str) -> Mapping[str, Mapping[str, str]]:
    """Returns what to write instead of each word of Ansible, by where it stands: in a play, in a step, as hosts."""
    advice = {
        place: {word: instead for words, instead in entries for word in words.split()}
        for place, entries in parse_toml(text).items()
    }
    both = advice.get("both", {})
    return {**advice, "play": both | advice.get("play", {}), "step": both | advice.get("step", {})}


@dataclass
class _Parser:
    """Reads one playbook. Knows where its paths start, and what ``${name}`` and ``${env:NAME}`` stand for: whatever is
    not set is an error, never an empty text."""

    problems: InputErrors
    base: str
    environ: Mapping[str, str]
    given: Mapping[str, str]  # variables from outside
    ansible: Mapping[str, Mapping[str, str]]
    variables: Mapping[str, str] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    known: set[str] = field(default_factory=set)  # the names that the playbook sets or uses
    uses: list[LocalUse] = field(default_factory=list)
    words: dict[Origin, tuple[str, ...]] = field(default_factory=dict)  # what came from outside, by the text it is in
    words_in: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the same, by the variable it is in
    replaced: int = 0  # characters of variables
    limits: int = 0  # characters of the steps' limits

    def parse_play(self, root: Map) -> Play:
        self._check_keys(root, PLAY_KEYS, "a playbook", self.ansible.get("play", _NONE))
        # Allowed names are read before anything is replaced: they say what may be.
        self.allowed = (self._validate(PlayKeys, _select_keys(root, ("env_allow",))) or PlayKeys()).env_allow
        env_node = root.get("env_allow") or root
        self.uses += [LocalUse("env", "env_allow", name, env_node.origin) for name in self.allowed]
        self.variables = self._parse_variables(root.get("vars"))
        hostfile, inventory = self._parse_hosts(self._replace_variables(root.get("hosts")))
        plain = _select_keys(self._replace_variables(root), PlayKeys.model_fields.keys() - {"env_allow"})
        keys = self._validate(PlayKeys, plain) or PlayKeys()
        node, hosts_node = root.get("steps"), root.get("hosts")
        steps: list[Step] = []
        if isinstance(node, Seq) and len(node.items) > _STEPS_LIMIT:
            self.problems.add(node.origin, f"playbook has more than {_STEPS_LIMIT:,} steps")
        for item in node.items[:_STEPS_LIMIT] if isinstance(node, Seq) else ():
            if step := self._parse_step(self._replace_variables(item), inventory, keys, steps):
                steps.append(step)
        if node is None or is_null(node) or node == Seq((), node.origin):
            self.problems.add(node.origin if node else root.origin, "playbook has no steps")
        elif not isinstance(node, Seq):
            self.problems.add(node.origin, f"steps must be a list, not {name_kind(node)}")
        return Play(
            source=self.problems.source,
            steps=tuple(steps),
            name=keys.name,
            hostfile=hostfile,
            hosts_origin=hosts_node.origin if hosts_node else None,
            inventory=inventory,
            variables={name: self.variables.get(name, "") for name in self.known},
            uses=tuple(self.uses),
        )

    def _parse_variables(self, node: Node | None) -> Mapping[str, str]:
        """The playbook's own variables, each of which may use those above it, under the ones given from outside."""
        self.variables = variables = dict(self.given)
        if node is not None and not is_null(node) and not isinstance(node, Map):
            self.problems.add(node.origin, f"vars must be a mapping, not {name_kind(node)}")
        for key, value in node.pairs if isinstance(node, Map) else ():
            self.known.add(key.text)
            if not _NAME.fullmatch(key.text):
                self.problems.add(key.origin, "name of a variable must be letters, digits and '_'", value=key.text)
            elif not isinstance(value, Scalar):
                self.problems.add(value.origin, f"variable {key.text} must be a single value, not {name_kind(value)}")
            elif key.text not in self.given:
                variables[key.text] = self._replace_in_text(value)
                self.words_in[key.text] = self.words.get(value.origin, ())
        return variables

    def _parse_hosts(self, node: Node | None) -> tuple[str | None, Inventory | None]:
        if node is None:
            return None, None
        if isinstance(node, Scalar):
            if not node.text.strip() or node.is_null:
                self.problems.add(node.origin, "hosts is empty")
            if why := self.ansible.get("hosts", _NONE).get(node.text):
                self.problems.add(node.origin, f"hosts: {why}", value=node.text)
            return _join_base(self.base, node.text), None  # it is only read, and as nothing but a hostfile
        before = len(self.problems)
        tree = read_node(node, self.problems)
        if not tree.entries and len(self.problems) == before:
            self.problems.add(node.origin, "hosts names no host")
        inventory = assemble_inventory(tree, self.problems.source)
        return None, inventory if len(self.problems) == before else None

    def _parse_step(self, node: Node, hosts: Inventory | None, play: PlayKeys, above: Sequence[Step]) -> Step | None:
        if not isinstance(node, Map):
            self.problems.add(node.origin, f"step must be a mapping such as 'doctor:', not {name_kind(node)}")
            return None
        unknown = self._check_keys(node, (*ACTIONS, *STEP_KEYS), "a step", self.ansible.get("step", _NONE))
        actions = [(key, value) for key, value in node.pairs if key.text in ACTIONS]
        keys = self._validate(StepKeys, _select_keys(node, StepKeys.model_fields.keys() - {"when"})) or StepKeys()
        self.limits += len(keys.limit or "")
        if self.limits > _LIMITS_LENGTH:
            self.problems.add(node.origin, f"the steps have limits of more than {_LIMITS_LENGTH:,} characters in all")
        elif keys.limit is not None and hosts is not None:
            try:
                limit_inventory(hosts, keys.limit, "limit")
            except UsageError as error:
                for reason in error.reasons or (error.sentence,):
                    self.problems.add((node.get("limit") or node).origin, reason.removeprefix("limit: "))
        if len(actions) > 1:
            what = f"step has {len(actions)} actions: {', '.join(key.text for key, _ in actions)}"
            self.problems.add(actions[1][0].origin, what)
        elif not actions and not unknown:
            self.problems.add(node.origin, f"step has no action (one of {', '.join(ACTIONS)})")
        action = actions[0][0].text if actions else ""
        if action in TOGETHER and any(share != Share(100.0, True) for share in keys.serial):
            what = f"serial does not fit {action}: its hosts work together, all at once"
            self.problems.add((node.get("serial") or node).origin, what, hint="limit: HOSTS chooses a part of them")
        when = self._parse_when(node.get("when"))
        step_tasks = [self._parse_task(key, value, above) for key, value in actions]
        if len(step_tasks) != 1 or step_tasks[0] is None:
            return None
        inherited = FailurePolicy.model_fields.keys() - keys.model_fields_set
        given = dict(keys) | {name: getattr(play, name) for name in inherited} | {"when": when}
        body = actions[0][1]
        places = {key.text: value.origin for key, value in (body.pairs if isinstance(body, Map) else ())}
        return Step(action=action, task=step_tasks[0], origin=node.origin, places=places, **given)

    def _parse_when(self, node: Node | None) -> str:
        """Returns one expression; of a list, all must be true."""
        good = []
        parts: tuple[Node, ...] = ()
        if node:
            parts = node.items if isinstance(node, Seq) else (node,)
        for part in parts:
            if not isinstance(part, Scalar):
                self.problems.add(part.origin, f"when must be an expression, not {name_kind(part)}")
            elif validators.TEMPLATE.search(part.text):
                continue  # that is an error already
            elif error := conditions.find_condition_error(part.text):
                column = part.origin.column + (error[0] if part.plain else 0)
                self.problems.add(replace(part.origin, column=column), error[1])
            else:
                good.append(part.text.strip())
        if len(good) < 2:
            return "".join(good)
        whole = " and ".join(f"({text})" for text in good)
        if node and (error := conditions.find_condition_error(whole)):  # as of a part that ends in a comment
            self.problems.add(node.origin, error[1])
        return whole

    def _parse_task(self, action: Scalar, body: Node, above: Sequence[Step]) -> tasks.Task | None:
        model = MODELS[action.text]
        body = Map((), action.origin) if is_null(body) else body
        if not isinstance(body, Map):
            shape = _SHAPES.get(action.text, "")
            self.problems.add(body.origin, f"{action.text} must be a mapping of its keys{shape}, not {name_kind(body)}")
            return None
        schema, valid = make_schema(model), _list_keys(action.text)  # type: ignore[arg-type]  # types are hashable
        self._check_keys(body, valid, action.text)
        unanchored = {"script"} if action.text == "run" and _starts_program(body) else set[str]()
        pairs = [
            (key, value if key.text in unanchored else self._anchor_paths(action.text, key, value))
            for key, value in _select_keys(body, valid).pairs
        ]
        roles = body.get("role")
        if action.text == "run" and body.get("script") is None and not (isinstance(roles, Seq) and roles.items[1:]):
            self.problems.add(action.origin, "run.script is missing")
        sent = _find_last_sync(above) if action.text == "fetch" and body.get("source") is None else {}
        defaults = {"into": _join_base(self.base, "fetched"), "source": self.base or ".", **sent}
        pairs += [
            (Scalar(name, action.origin), Scalar(value, action.origin, plain=False))
            for name, value in defaults.items()
            if name in valid and body.get(name) is None
        ]
        for key, value in pairs:
            if key.text not in unanchored:
                self._note_uses(action.text, key.text, value)
        read = self._validate(schema, Map(tuple(pairs), action.origin), action.text)
        return model(**dict(read)) if read else None

    def _anchor_paths(self, action: str, key: Scalar, value: Node) -> Node:
        """Relative paths on this machine start at the playbook. An empty path is an error: it would mean ``base``."""
        if isinstance(value, Seq):
            return Seq(tuple(self._anchor_paths(action, key, item) for item in value.items), value.origin)
        if not isinstance(value, Scalar) or value.is_null or key.text not in _NEVER_EMPTY:
            return value
        if not value.text.strip():
            self.problems.add(value.origin, f"{action}.{key.text} is empty")
        is_elsewhere = (key.text in _LINKS and _PAGE.match(value.text)) or is_of_hub(key.text, value.text)
        is_path = key.text in _PATHS and value.text and not is_elsewhere
        return replace(value, text=_join_base(self.base, value.text)) if is_path else value

    def _note_uses(self, action: str, key: str, value: Node) -> None:
        """Notes the files of this machine and the variables that one key of a task names."""
        if isinstance(value, Seq):
            for item in value.items:
                self._note_uses(action, key, item)
        if not isinstance(value, Scalar) or value.is_null:
            return
        given = self.words.get(value.origin, ())
        if key == "pass_env":
            self.uses.append(LocalUse("env", f"{action}.{key}", value.text, value.origin, given))
        elif (path := _find_local_path(key, value.text)) and (action, key) != ("fetch", "source"):
            self.uses.append(LocalUse("path", f"{action}.{key}", path, value.origin, given))

    def _check_keys(self, node: Map, valid: Iterable[str], of: str, others: Mapping[str, str] = _NONE) -> bool:
        """Adds an error for each unknown key, with what to write instead of the ``others``; whether there were any."""
        names = list(valid)
        unknown = [key for key, _ in node.pairs if key.text not in names]
        beside = [key for key, _ in node.pairs if key.text in ACTIONS and of not in ACTIONS]
        for key in unknown:
            key_text, near = printable(key.text), None
            if key.text in STEP_KEYS and of in ACTIONS:
                what = f"'{key_text}' stands beside {of}, not below it: it is a key of the step"
            elif action := next((each.text for each in beside if key.text in _list_keys(each.text)), None):
                what = f"'{key_text}' is a key of {action}: it stands below it, indented further than it"
            elif why := _suggest_replacement(key.text, others, names):
                what = f"'{key_text}' is left out on purpose: {why}"
            else:
                what, near = f"unknown key '{key_text}' of {of}", (key.text, names)
            self.problems.add(key.origin, what, near=near)
        return bool(unknown)

    def _validate(self, model: type[Model], node: Map, action: str = "") -> Model | None:
        """The model of a mapping; each error of the schema is added with the place of its value. None if there are any.
        ``action`` is the step's for the keys of its task; the keys of a play or a step themselves have none."""
        before = len(self.problems)
        for _, value in node.pairs if not action else ():
            if isinstance(value, Scalar) and (why := validators.value(value.text)):
                self.problems.add(value.origin, why, value=value.text)
        try:
            read = model.model_validate({key.text: _to_plain(value) for key, value in node.pairs})
        except ValidationError as error:
            for fault in error.errors(include_url=False):
                wrong = _find_node(node, fault["loc"])
                text: str | None
                if action:
                    path, text = ".".join(str(part) for part in (action, *fault["loc"])), None
                else:
                    path, text = str(fault["loc"][0]), name_kind(wrong)
                if isinstance(wrong, Scalar):
                    text = wrong.text
                    if validators.TEMPLATE.search(text):
                        continue  # that is an error already
                if fault["type"] == "string_too_short" and fault["loc"][-1] in _NEVER_EMPTY:
                    continue  # so is that
                hint = None
                if fault["type"] == "tuple_type" and isinstance(wrong, Scalar):
                    hint = _write_list(fault["loc"][-1], wrong.text)
                shown = None if fault["type"] == "missing" else text
                self.problems.add(wrong.origin, f"{path} {describe_error(fault)}", value=shown, hint=hint)
            return None
        return read if len(self.problems) == before else None

    def _replace_variables(self, node: Any, passed_on: bool = False) -> Any:
        """The same node with every text replaced; keys stay as they are. ``passed_on``: it is for other programs."""
        if isinstance(node, Scalar):
            text = self._replace_in_text(node, passed_on)
            return node if text == node.text else Scalar(text, node.origin, plain=False)
        if isinstance(node, Seq):
            return Seq(tuple(self._replace_variables(item, passed_on) for item in node.items), node.origin)
        if isinstance(node, Map):
            passed = ((key, value, passed_on or key.text in _PASSED_ON) for key, value in node.pairs)
            pairs = ((key, self._replace_variables(value, is_passed)) for key, value, is_passed in passed)
            return Map(tuple(pairs), node.origin)
        return node

    def _replace_in_text(self, node: Scalar, passed_on: bool = False) -> str:
        text, pattern = node.text, _OF_JINJA if passed_on else validators.TEMPLATE
        if pattern.search(text) and not (passed_on and "{%" in text):  # a whole template is one of the program's own
            self.problems.add(node.origin, "templates are not evaluated", value=text, hint=_suggest_variable(text))
        return _VARIABLE.sub(lambda match: self._get_replacement(match, node), node.text)

    def _get_replacement(self, match: re.Match[str], node: Scalar) -> str:
        """Returns what stands for one reference; the reference itself where that is an error."""
        name, literal = match[1], "$${ is a literal ${"
        if match[0] == "$${":
            return "${"
        if name is None:
            self.problems.add(node.origin, "'${' is not closed", value=node.text, hint=literal)
        elif (variable := name.removeprefix("env:")) != name:
            if variable in self.allowed and variable in self.environ:
                return self.environ[variable]
            hint = None
            if variable not in self.allowed and _NAME.fullmatch(variable):
                hint = f"env_allow: [{variable}]"
            why = "not set" if variable in self.allowed else "not in env_allow"
            self.problems.add(node.origin, f"environment variable '{printable(variable)}' is {why}", hint=hint)
        else:
            self.known.add(name)
            self.replaced += len(self.variables.get(name, ""))
            if self.replaced > _REPLACED_LIMIT:
                self.problems.add(node.origin, f"variables stand for more than {_REPLACED_LIMIT >> 20} MiB in all")
            elif name in self.variables:
                given = (self.given[name],) if name in self.given else self.words_in.get(name, ())
                self.words[node.origin] = tuple(dict.fromkeys((*self.words.get(node.origin, ()), *given)))
                return self.variables[name]
            else:
                what = f"variable '{printable(name)}' is not set"
                hint = f"--var {name}=VALUE, or set it in vars" if _NAME.fullmatch(name) else literal
                self.problems.add(node.origin, what, value=node.text, hint=hint, near=(name, self.variables))
        return match[0]


def _suggest_variable(text: str) -> str:
    if match := _ENVIRONMENT.search(text):
        return f"write ${{env:{match[1]}}}, and env_allow: [{match[1]}] at the top of the playbook"
    name = re.search(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}", text)
    return f"write ${{{name[1]}}}" if name else "write ${NAME}, with NAME below vars or from --var"


def _suggest_replacement(word: str, of: Mapping[str, str], valid: Sequence[str]) -> str | None:
    """Returns what to write instead of a word of Ansible; None where it is none, or rather a slip of one of ours."""
    if not of:
        return None
    if word.startswith("with_") and not difflib.get_close_matches(word, valid, n=1, cutoff=0.8):
        return of.get(word, of.get("loop"))
    if re.fullmatch(r"\w+\.\w+\.\w+", word):  # collection and module
        other = _suggest_replacement(word.rpartition(".")[2], of, valid)
        return of.get(word, other or "modules of Ansible are not used: see docs/playbook.md")
    return of.get(word)


def _find_last_sync(steps: Sequence[Step]) -> dict[str, str]:
    """Returns what these steps have sent to the hosts last: there a fetch looks, unless it says otherwise."""
    for step in reversed(steps):
        match step.task:
            case tasks.Run(script=name) as run if run.module or run.program or not name or is_program_name(name):
                continue
            case tasks.Sync(source=source) if is_of_hub("source", source):
                continue
            case tasks.Sync(source=source, project=root) | tasks.Run(sync=True, script=source, project=root):
                return {"source": str(source), **({"project": root} if root else {})}
    return {}


def _starts_program(body: Map) -> bool:
    """Returns whether the key ``script`` of a run names no file of this machine."""
    what = body.get("script")
    named = isinstance(what, Scalar) and is_program_name(what.text)
    kinds = (body.get("module"), body.get("program"))
    return named or any(isinstance(kind, Scalar) and kind.text.lower() == "true" for kind in kinds)


def _find_local_path(key: str, text: str) -> str | None:
    if key == "with":  # a requirement: NAME @ file:///PATH, or a path
        text = text.rpartition("@")[2].strip() if not text.startswith(_LOCAL) else text
        return _remove_scheme(text) if text.lower().startswith(("file:", *_LOCAL)) else None
    if key in _LINKS:
        is_local = text.lower().startswith("file:") or not _PAGE.match(text)
        is_local = is_local and (key == "find_links" or text.lower().startswith(("file:", *_LOCAL)))
        return _remove_scheme(text) if is_local else None
    is_path = key in tasks.LOCAL_PATHS and (key, text) != ("stdin", "-") and not is_of_hub(key, text)
    return text if is_path else None


def _remove_scheme(text: str) -> str:
    return re.sub(r"^file:(?://(?:localhost)?)?", "", text, flags=re.IGNORECASE)


def _list_keys(action: str) -> list[str]:
    fields = make_schema(MODELS[action]).model_fields  # type: ignore[arg-type]  # types are hashable
    return [field.alias or name for name, field in fields.items()]


def _select_keys(node: Map, keys: Collection[str]) -> Map:
    return Map(tuple((key, value) for key, value in node.pairs if key.text in keys), node.origin)


def _find_node(node: Node, path: Sequence[int | str]) -> Node:
    """Returns the node a path of the schema leads to, or the last one on the way that was written."""
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


def _write_list(key: object, text: str) -> str | None:
    """Returns the key with a list of the words of a text; None where quotes, or their number, leave them in doubt."""
    import yaml

    words = [word.rstrip(",") for word in text.split()]
    if not words or len(text) > 200 or set(text) & set("'\"\\"):
        return None
    return f"{key}: {yaml.safe_dump(words, default_flow_style=True, width=1000).strip()}"


def _to_plain(node: Node) -> Any:
    """Text, lists and dicts for the schema, which converts texts to the numbers and booleans it wants."""
    if isinstance(node, Scalar):
        return None if node.is_null else node.text
    if isinstance(node, Seq):
        return [_to_plain(item) for item in node.items]
    return {key.text: _to_plain(value) for key, value in node.pairs} if isinstance(node, Map) else None


def _join_base(base: str, path: str) -> str:
    """``path`` as seen from the playbook, if it is neither absolute nor in somebody's home."""
    if path.startswith(("/", "~")):
        return path
    path = path.removeprefix("./") if path not in {".", "./"} else ""
    return posixpath.join(base, path) if path else base or "."
