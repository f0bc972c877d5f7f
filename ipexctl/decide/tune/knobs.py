"""What of a launch can be varied, the values worth trying on these hosts, and the task that a candidate is."""

import ast
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from pydantic import ValidationError

from ipexctl.decide.script_imports import list_module_names, parse_script
from ipexctl.model.errors import UsageError
from ipexctl.model.events import Value, Values
from ipexctl.model.facts import Facts
from ipexctl.model.launch import Launch
from ipexctl.model.schema_errors import describe_error
from ipexctl.model.secrets import looks_secret
from ipexctl.model.task_schemas import make_schema
from ipexctl.model.tasks import Flag, Run
from ipexctl.model.text import join_names, printable

COMPILE = "ACCELERATE_DYNAMO_BACKEND"  # Accelerate's own variable, which the Trainer of transformers sets as well
_ACCELERATED = frozenset({"accelerate", "transformers", "trl"})  # modules that read it
_CHOICES: Mapping[str, tuple[Value, ...]] = {
    "backend": ("ccl", "impi", "gloo"),
    "ccl_workers": (1, 2, 4),
    "allocator": ("tcmalloc", "jemalloc", "default"),
    "omp": ("intel", "gnu"),
    "membind": (True,),
    "hugepages": (True,),
    "compile": (True,),
}
KNOBS = ("ppn", "threads", *_CHOICES)
_NEEDLESS = frozenset({"no-allocator", "no-iomp5", "no-hugepages", "shared-cores"})  # warnings: nothing would change


def parse_knobs(vary: Iterable[str], fixed: Mapping[str, str], task: Run) -> tuple[tuple[str, ...], Run]:
    """Returns the names of the knobs to vary, and the task with the ``fixed`` ones. A knob that the user set is fixed
    as well. Raises `UsageError` for a name or a value that is none."""
    named = [name for words in vary for name in re.split(r"[,\s]+", words) if name]
    if unknown := [printable(name, 60) for name in (*named, *fixed) if name not in KNOBS]:
        what = f"{join_names(unknown, 3)} is no part of a launch that can be varied"
        raise UsageError(what, reasons=[f"these are: {', '.join(KNOBS)}"])
    defaults = {each.name: each.default for each in fields(Run)}
    set_ones = {name for name in KNOBS if getattr(task, name, None) != defaults.get(name)}
    words = {name: word for name, word in fixed.items() if name != "compile"}
    try:
        checked = make_schema(Run).model_validate({"script": task.script, **words})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, word = first["loc"][0], printable(str(first["input"]), 60)
        raise UsageError(f"--fixed {name} {describe_error(first)}, not {word!r}") from None
    values = {name: getattr(checked, name) for name in words}
    if "compile" in fixed:
        values["compile"] = fixed["compile"] == "yes"
    kept = {*set_ones, *fixed} - {*named}
    return tuple(name for name in named or KNOBS if name not in kept), set_values(task, values)


def parse_arguments(given: Mapping[str, str]) -> dict[str, list[Value]]:
    """Reads ``--arg dtype=fp32,bf16``: values of an argument of the script; without a value it is given or not."""
    values = {f"--{name.lstrip('-')}": words.split(",") if words else [True] for name, words in given.items()}
    return {name: [*each] for name, each in values.items()}


def list_knobs(task: Run, launch: Launch, facts: Mapping[str, Facts], names: Sequence[str]) -> dict[str, list[Value]]:
    """Returns values of each knob of ``names`` beside the one that the task has. ``launch`` is its launch."""
    least = min(sum(len(rank.cpus) + len(rank.workers) for rank in node.ranks) for node in launch.nodes)
    ranks = max(len(node.ranks) for node in launch.nodes)
    domains = max(len({core.numa for core in fact.cores or ()}) for fact in facts.values())
    counts = {1, ranks // 2, domains, 2 * ranks, 2 * domains, 4 * domains} - {0, ranks}
    half = min((rank.threads for rank in launch.places), default=1) // 2
    values: dict[str, list[Value]] = {name: list(_CHOICES.get(name, ())) for name in names}
    if "ppn" in values:
        values["ppn"] = [count for count in sorted(counts) if count <= least]
    if "threads" in values and half:
        values["threads"] = [half]
    if not all(fact.installed and "accelerate" in fact.installed.packages for fact in facts.values()):
        values.pop("compile", None)
    return {name: [value for value in of if value != getattr(task, name, None)] for name, of in values.items()}


def imports_accelerate(text: str) -> bool:
    """Returns whether a script imports, wherever it does so, a module that `COMPILE` has an effect in."""
    return any(not _ACCELERATED.isdisjoint(list_module_names(node)) for node in ast.walk(parse_script(text)))


def set_values(task: Run, values: Values) -> Run:
    """Returns the task with these values of knobs and of arguments of the script, the last of which count."""
    own: Any = {name: value for name, value in values.items() if name in KNOBS and name != "compile"}
    args: list[str] = []
    for name, value in values.items():
        if name.startswith("--"):
            args += [name] if value is True else [name, str(value)]
    env = {**task.env, COMPILE: "inductor"} if values.get("compile") else task.env
    return replace(task, args=(*task.args, *args), env=env, **own)


def keep_batch(task: Run, argument: str, before: int, size: int) -> Run:
    """Returns the task with the batch of a rank that leaves the global one as it was with ``before`` ranks. Raises
    `UsageError` where no whole number does, or the script is not given the argument with a number."""
    name = re.sub(r"[-_]", "[-_]", argument.lstrip("-"))
    words = shlex.split(re.sub(rf"(^|\s)(--?{name})=", r"\1\2 ", shlex.join(task.args)))
    at = next((at for at, word in enumerate(words[:-1]) if re.fullmatch(rf"--?{name}", word)), None)
    if at is None or not words[at + 1].isdecimal():
        what = f"--keep-batch {printable(argument, 60)}: the script's arguments do not give it a number"
        raise UsageError(what, hint="write the batch of one rank behind the script, as --batch 32")
    batch, remainder = divmod(int(words[at + 1]) * before, size)
    if remainder or not batch:
        raise UsageError(f"{size} ranks cannot have the global batch of {before}")
    words[at + 1] = str(batch)
    return replace(task, args=tuple(words))


def identify_launch(launch: Launch) -> str | None:
    """Returns what tells this launch from others, however it was asked for; None where a part of it has no effect."""
    bound = any(len({rank.nodes for rank in node.ranks}) > 1 for node in launch.nodes)
    if any(note.code in _NEEDLESS for note in launch.warnings) or (launch.membind and not bound):
        return None
    text = str(replace(launch, warnings=(), backend_reason="")).replace(launch.run, "")
    return re.sub(r" {4}# .*", "", text)  # why each variable is set


def list_run_words(task: Run) -> list[str]:
    """Returns the command that starts a task, without ``ipexctl``; secrets among its variables are not in it."""
    words = ["run"]
    for name, value in list_given(task).items():
        flag: Flag = Run.__dataclass_fields__[name].metadata["flag"]
        option = next((each for each in flag.names if each.startswith("-")), f"--{name.replace('_', '-')}")
        if isinstance(value, dict):
            words += [word for key, each in value.items() for word in (option, f"{key}={each}")]
        elif isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        elif name not in {"script", "args"}:
            words += [word for each in (value if isinstance(value, list) else [value]) for word in (option, str(each))]
    return [*words, task.script, *task.args]


def list_given(task: Run) -> dict[str, object]:
    """Returns what of a task is not as usual, as a playbook has it; secrets are taken from the user's environment."""
    given: dict[str, object] = {}
    for each in fields(task):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        value = getattr(task, each.name)
        if value != default:
            given[each.name] = list(value) if isinstance(value, tuple) else value
    if hidden := [name for name in task.env if looks_secret(name)]:
        given["env"] = {name: value for name, value in task.env.items() if name not in hidden}
        given["pass_env"] = [*task.pass_env, *hidden]
    return given
