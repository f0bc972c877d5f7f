"""What of a launch can be varied, the values worth trying on these hosts, and the task that a candidate is."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ipexctl.model.errors import UsageError
from ipexctl.model.events import Value, Values
from ipexctl.model.facts import HostFacts
from ipexctl.model.launch import Launch
from ipexctl.model.run_words import list_given
from ipexctl.model.task_schemas import check_fields
from ipexctl.model.tasks import Run
from ipexctl.model.text import join_names, printable

MARK = "# Written by the command tune"  # the first line of a playbook
COMPILE = "ACCELERATE_DYNAMO_BACKEND"  # Accelerate's own variable, which the Trainer of transformers sets as well
ACCELERATED = re.compile(r"\b(accelerate|transformers|trl)\b")  # in the text of a script that reads it
_CHOICES: Mapping[str, tuple[Value, ...]] = {
    "backend": ("ccl", "impi", "gloo"),
    "ccl_workers": (1, 2, 4),
    "allocator": ("tcmalloc", "jemalloc", "default"),
    "omp": ("intel", "gnu"),
    "membind": (True,),
    "hugepages": (True,),
}
KNOBS = ("ppn", "threads", *_CHOICES, "compile")
_NEEDLESS = frozenset({"no-allocator", "no-iomp5", "no-hugepages"})  # warnings: nothing would change


def parse_knobs(vary: Iterable[str], fixed: Mapping[str, str], task: Run) -> tuple[tuple[str, ...], Run]:
    """Returns the names of the knobs to vary, and the task with the ``fixed`` ones. A knob that the user set is fixed
    as well. Raises `UsageError` for a name or a value that is none."""
    named = [name for words in vary for name in re.split(r"[,\s]+", words) if name]
    if unknown := [printable(name, 60) for name in (*named, *fixed) if name not in KNOBS]:
        what = f"{join_names(unknown, 3)} is no part of a launch that can be varied"
        raise UsageError(what, reasons=[f"these are: {', '.join(KNOBS)}"])
    words = {name: word for name, word in fixed.items() if name != "compile"}
    checked = check_fields(Run, {"script": task.script, **words})
    values = {name: getattr(checked, name) for name in words} | {"compile": fixed.get("compile") == "yes"}
    kept = {*list_given(task), *fixed} - {*named}
    return tuple(name for name in named or KNOBS if name not in kept), set_values(task, values)


def parse_arguments(given: Mapping[str, str]) -> dict[str, list[Value]]:
    """Reads ``--arg dtype=fp32,bf16``: values of an argument of the script; without a value it is given or not."""
    return {f"--{name.lstrip('-')}": [*words.split(",")] if words else [True] for name, words in given.items()}


def list_knobs(task: Run, launch: Launch, facts: HostFacts, names: Iterable[str]) -> dict[str, list[Value]]:
    """Returns values of each knob of ``names`` beside the one that the task has. ``launch`` is its launch."""
    least = min(sum(len(rank.cpus) + len(rank.workers) for rank in node.ranks) for node in launch.nodes)
    ranks = max(len(node.ranks) for node in launch.nodes)
    domains = max(len({core.numa for core in fact.cores or ()}) for fact in facts.values())
    counts = {1, ranks // 2, domains, 2 * ranks, 2 * domains, 4 * domains} - {0, ranks}
    half = min((rank.threads for rank in launch.places), default=1) // 2
    compiles = all(fact.installed and "accelerate" in fact.installed.packages for fact in facts.values())
    choices: dict[str, tuple[Value, ...]] = {
        **_CHOICES,
        "ppn": tuple(count for count in sorted(counts) if count <= least),
        "threads": (half,) if half else (),
        "compile": (True,) if compiles else (),
    }
    return {name: [each for each in choices[name] if each != getattr(task, name, None)] for name in names}


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
    name, text = re.sub(r"[-_]", "[-_]", argument.lstrip("-")), shlex.join(task.args)
    given = re.search(rf"(?<!\S)--?{name}[ =](\d+)(?!\S)", text)
    if given is None:
        what = f"--keep-batch {printable(argument, 60)}: the script's arguments do not give it a number"
        raise UsageError(what, hint="write the batch of one rank behind the script, as --batch 32")
    batch, remainder = divmod(int(given[1]) * before, size)
    if remainder or not batch:
        raise UsageError(f"{size} ranks cannot have the global batch of {before}")
    return replace(task, args=tuple(shlex.split(f"{text[: given.start(1)]}{batch}{text[given.end(1) :]}")))


def identify_launch(launch: Launch) -> str | None:
    """Returns what tells this launch from others, however it was asked for; None where a part of it has no effect."""
    bound = any(len({rank.nodes for rank in node.ranks}) > 1 for node in launch.nodes)
    if any(note.code in _NEEDLESS for note in launch.warnings) or (launch.membind and not bound):
        return None
    text = str(replace(launch, warnings=(), backend_reason="")).replace(launch.run, "")
    return re.sub(r" {4}# .*", "", text)  # why each variable is set


def write_playbook(task: Run, verdict: str) -> str:
    """Returns the text of the playbook that starts a task; nothing in it is taken for a variable."""
    import yaml

    book = {"name": f"{task.script} as tuned", "steps": [{"name": verdict[:200], "run": list_given(task)}]}
    text = yaml.safe_dump(book, sort_keys=False, allow_unicode=True, width=100)
    return f"{MARK}\n{text.replace('${', '$${')}"
