"""``ipexctl init``: a first playbook and hostfile, from a few questions that the hosts have mostly answered already."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.act.inputs import read_input
from ipexctl.decide import parsing
from ipexctl.decide.launch import accelerate
from ipexctl.decide.launch.accelerate import AccelerateConfig
from ipexctl.decide.parsing import yaml_nodes
from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.planning import init as planning
from ipexctl.decide.planning.init import Answers, Question
from ipexctl.decide.releases import resolve
from ipexctl.model.answers import InitAnswer
from ipexctl.model.errors import Exit, Failure, UsageError, worst
from ipexctl.model.events import Answer, Ended, Event, Message, Started
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Inventory
from ipexctl.model.stack import Stack, StackRequest
from ipexctl.model.text import printable
from ipexctl.verbs.common.probe import probe_hosts
from ipexctl.verbs.common.select import read_hostfile
from ipexctl.verbs.doctor.doctor import versions

Ask = Callable[[Question], str]


@dataclass(frozen=True, slots=True)
class Source:
    """What an existing file says: hosts, or Accelerate's configuration, or (through its hostfile) both."""

    inventory: Inventory | None = None
    config: AccelerateConfig | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Where to write: ``playbook`` and ``hostfile`` here; ``hosts`` is a hostfile that stays as it is, or None."""

    playbook: Path
    hostfile: Path
    hosts: str | None = None
    force: bool = False


def read_source(path: str, *, cwd: Path) -> Source:
    """An Accelerate ``default_config.yaml``, or hosts in any dialect: DeepSpeed, Ansible, MPI. Raises `UsageError`."""
    given = read_input(path, cwd=cwd)
    root = (
        yaml_nodes.read_yaml_node(given.text, path, InputErrors(path))
        if path.lower().endswith((".yaml", ".yml", ".json"))
        else None
    )
    keys = {"compute_environment", "distributed_type", "mpirun_config", "num_machines"}
    if not isinstance(root, yaml_nodes.Map) or not any(root.get(key) for key in keys):
        return Source(read_hostfile(path, cwd=cwd))
    config = accelerate.read_config(given.text, path)
    if not config.hostfile:
        return Source(None, config)
    place = Path(config.hostfile).expanduser()
    beside = place if place.is_absolute() else given.path.parent / place
    hint = f"mpirun_hostfile of {printable(path)} names it; give the hosts themselves with -f or --hosts"
    return Source(read_hostfile(str(beside), cwd=cwd, hint=hint), config)


def init(
    answers: Answers,
    inventory: Inventory,
    config: AccelerateConfig | None,
    target: Target,
    context: Context,
    ask: Ask | None,
) -> Generator[Event, None, None]:
    """Looks at the hosts, asks what is not answered (``ask`` None: takes the defaults), and writes both files.

    Raises `UsageError` before anything is contacted where a file is in the way or the script is not there.
    """
    scripts = _find_scripts(target.playbook.parent)
    _check_answers(answers, target, scripts, ask)
    yield Started("init", f"looking at {len(inventory)} host{'' if len(inventory) == 1 else 's'}", inventory.names)
    seen = yield from probe_hosts(inventory, context)
    facts = {host: found for host, found in seen.items() if isinstance(found, Facts)}
    failures = [found for found in seen.values() if isinstance(found, Failure)]
    if not facts:
        yield Message("nothing was written: no host answered, so nothing is known", "warning", code="not-written")
        yield Ended("init", worst([failure.kind.exit for failure in failures]))
        return
    whys: dict[str, str] = {}
    for question in planning.list_questions(answers, inventory, facts, config, scripts):
        answers = _ask_question(answers, question, ask, whys)
    stack = _choose_stack(answers, facts)
    if answers.backend is None:
        answers = _ask_question(answers, planning.backend_question(stack), ask, whys)
    stack = _choose_stack(answers, facts)
    name = answers.script or ""
    script = planning.read_script(*_text(Path(target.playbook.parent, name)))
    hosts = target.hosts or target.hostfile.name
    when = time.strftime("%Y-%m-%d", time.localtime(context.clock()))
    text = planning.format_playbook(
        answers, script, stack, inventory, facts, hosts=hosts, name=target.playbook.name, when=when, whys=whys
    )
    written = {target.playbook: text}
    if target.hosts is None:
        written[target.hostfile] = planning.format_hostfile(inventory, facts, when)
    for path, body in written.items():
        _write_new_file(path, body)
    for failure in failures:
        yield Message(f"{failure.host} is in the hostfile although it did not answer", "warning", code="unreachable")
    play = f"ipexctl play {printable(str(_relative_path(target.playbook)), 300)}"
    yield Answer(
        InitAnswer(
            playbook=str(target.playbook),
            hostfile=target.hosts or str(target.hostfile),
            stack=stack.name,
            ranks=f"{answers.ppn} on each of {len(inventory)}",
            precision=answers.precision if answers.precision == "bf16" else "fp32",
            next=f"{play} --check",
            then=play,
        )
    )
    yield Ended("init", worst([failure.kind.exit for failure in failures]) if failures else Exit.OK)


def _check_answers(answers: Answers, target: Target, scripts: list[str], ask: Ask | None) -> None:
    """What can be known to be wrong before any host is asked. Raises `UsageError`."""
    there = [path for path in (target.playbook, *([] if target.hosts else [target.hostfile])) if os.path.lexists(path)]
    if there and not target.force:
        question = Question(
            "force", f"Overwrite {' and '.join(str(_relative_path(path)) for path in there)}?", "no", "", _YES
        )
        if ask is None or ask(question).strip().lower() not in {"y", "yes"}:
            names = " and ".join(printable(str(_relative_path(path))) for path in there)
            raise UsageError(f"{names} {'is' if len(there) == 1 else 'are'} there already", hint="ipexctl init --force")
    if answers.script is not None and not (path := target.playbook.parent / answers.script).is_file():
        shown = printable(answers.script, 300)
        raise UsageError(f"{shown} is a directory" if path.is_dir() else f"the script {shown} does not exist")
    if answers.script is None and ask is None and len(scripts) != 1:
        reasons = [f"there are several here: {', '.join(scripts[:5])}"] if scripts else []
        raise UsageError("init needs a script to start", reasons=reasons, hint="ipexctl init --yes train.py")


_YES = ("yes", "no")


def _ask_question(answers: Answers, question: Question, ask: Ask | None, whys: dict[str, str]) -> Answers:
    """One answer more; asks again until it can be one."""
    told = question.default if ask is None else ask(question).strip() or question.default
    found = planning.apply_answer(answers, question.key, told)
    while isinstance(found, str):
        if ask is None:
            raise UsageError(f"{question.text} {found}")
        told = ask(replace(question, why=found)).strip() or question.default
        found = planning.apply_answer(answers, question.key, told)
    if told == question.default:
        whys[question.key] = question.why
    return found


def _choose_stack(answers: Answers, facts: Mapping[str, Facts]) -> Stack:
    """The row that install will take. Raises `UsageError` where the hosts cannot hold what was answered."""
    backend = answers.backend or "auto"
    wish = StackRequest(track="ipex" if answers.ipex else "native", torch=answers.torch, backend=backend)  # type: ignore[arg-type]
    return resolve(wish, facts, versions())


def _find_scripts(directory: Path) -> list[str]:
    """Python files here that could be meant."""
    found = [path.name for path in sorted(directory.glob("*.py")) if path.is_file()]
    return [name for name in found if name not in {"setup.py", "conftest.py"} and not name.startswith(("test_", "_"))]


def _text(path: Path) -> tuple[str, set[str]]:
    """A script's text, and the modules beside it."""
    try:
        beside = {found.stem for found in path.parent.iterdir() if found.suffix == ".py" or found.is_dir()}
        return path.read_text("utf-8", "replace"), beside
    except OSError:
        return "", set()


def _relative_path(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def _write_new_file(path: Path, text: str) -> None:
    """Whole or not at all, and written by nobody else. Raises `UsageError`."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            os.fchmod(number, 0o644)
            file.write(text)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(
            f"{printable(str(path), 300)} cannot be written: {(error.strerror or str(error)).lower()}", exit=Exit.RECORD
        ) from None


def parse_written_hosts(hosts: str) -> Inventory:
    """Hosts as somebody typed them: names between commas. Raises `UsageError`."""
    return parsing.parse_list(hosts, "hosts")
