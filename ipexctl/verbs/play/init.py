"""``ipexctl init``: writes a first playbook and hostfile, from the facts of the hosts and a few questions."""

import os
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.act.inputs import expand_home, read_input, read_script, read_script_text
from ipexctl.data import read_data
from ipexctl.decide.launch import accelerate
from ipexctl.decide.launch.accelerate import AccelerateConfig
from ipexctl.decide.parsing import yaml_nodes
from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.planning import init as planning
from ipexctl.decide.planning.init import Answers, Question
from ipexctl.decide.script_imports import parse_import_table
from ipexctl.model.answers.play import InitAnswer
from ipexctl.model.errors import Exit, UsageError, advise, choose_exit
from ipexctl.model.events import Answer, Ended, Message, Workflow
from ipexctl.model.facts import HostFacts
from ipexctl.model.hosts import Inventory
from ipexctl.model.json_values import Record
from ipexctl.model.stack import Stack, StackRequest
from ipexctl.model.tasks import Install
from ipexctl.model.text import pluralize, printable
from ipexctl.store.private_files import refuse_os_errors, write_private_file
from ipexctl.verbs.common.probe import load_releases, probe_hosts
from ipexctl.verbs.common.select import make_started, read_hostfile
from ipexctl.verbs.files.project import find_project
from ipexctl.verbs.install.lock import resolve_available

Ask = Callable[[Question], str]
_SCRIPTS_READ = 1000  # of a directory
_COPY_SCRIPT = advise("examples", "copy", "train_ddp.py", text="name yours; this copies one to begin with:")


class Target(Record):
    """The files to write; ``hosts`` is an existing hostfile to use instead of writing one, or None."""

    playbook: Path
    hostfile: Path
    hosts: str | None = None
    force: bool = False


def read_source(path: str, *, cwd: Path, hosts: bool = True) -> tuple[Inventory | None, AccelerateConfig | None]:
    """Reads an Accelerate ``default_config.yaml`` (and the ``hosts`` it names), or a hostfile. Raises `UsageError`."""
    source = read_input(path, cwd=cwd)
    is_yaml = path.lower().endswith((".yaml", ".yml", ".json"))
    root = yaml_nodes.read_yaml_node(source.text, path, InputErrors(path)) if is_yaml else None
    keys = {"compute_environment", "distributed_type", "mpirun_config", "num_machines"}
    if not isinstance(root, yaml_nodes.Map) or not any(root.get(key) for key in keys):
        return read_hostfile(path, cwd=cwd), None
    config = accelerate.read_config(source.text, path)
    if not (config.hostfile and hosts):
        return None, config
    hostfile = source.path.parent / expand_home(config.hostfile)
    hint = f"mpirun_hostfile of {printable(path)} names it; give the hosts themselves with -f or --hosts"
    return read_hostfile(str(hostfile), cwd=cwd, hint=hint), config


def init(
    answers: Answers,
    inventory: Inventory,
    config: AccelerateConfig | None,
    target: Target,
    context: Context,
    ask: Ask | None,
) -> Workflow[None]:
    """Probes the hosts, asks the open questions (``ask`` None: takes the defaults), and writes both files. Raises
    `UsageError` before any host is contacted if a file exists already or the script does not exist."""
    scripts = list_scripts(target.playbook.parent)
    _check_answers(answers, target, scripts, ask)
    yield make_started("init", pluralize(len(inventory), "host"), inventory)
    facts, failures = yield from probe_hosts(inventory, context)
    end = Ended("init", choose_exit(failures.values()))
    if not facts:
        yield Message("no file was written: no host could be probed", "warning", code="not-written")
        yield end
        return
    whys: dict[str, str] = {}
    if answers.script is None:
        question = Question("script", "Which script shall be started?", *planning.suggest_script(scripts))
        answers = _ask_question(answers, question, ask, whys, target.playbook.parent)
    path = Path(target.playbook.parent, answers.script or "")
    project = find_project(path, None)
    source, modules = read_script(path, *(project.root / name for name in project.list_import_paths()))
    table = parse_import_table(read_data("imports.toml"))
    script = planning.read_script(source, table, modules)
    for question in planning.list_questions(answers, inventory, facts, config, script):
        answers = _ask_question(answers, question, ask, whys, target.playbook.parent)
    if answers.torch is None and not answers.ipex:
        answers = replace(answers, torch=planning.find_stock_torch(facts))
    yield Message("looking up which wheels can be had", code="lookup")
    stack = yield from _choose_stack(answers, facts, context)
    if answers.backend is None:
        answers = _ask_question(answers, planning.make_backend_question(stack), ask, whys, target.playbook.parent)
        stack = yield from _choose_stack(answers, facts, context)
    when = time.strftime("%Y-%m-%d", time.localtime(context.clock()))
    named = {"hosts": target.hosts or target.hostfile.name, "name": target.playbook.name, "when": when}
    template = read_data("playbook.j2")
    text = planning.format_playbook(template, answers, script, table, stack, inventory, facts, whys=whys, **named)
    written = {target.playbook: text}
    if target.hosts is None:
        written[target.hostfile] = planning.format_hostfile(inventory, facts, when)
    for path, body in written.items():
        with refuse_os_errors(path, "cannot be written", Exit.RECORD):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_private_file(path, body.encode(), 0o644)
    for host in failures:
        yield Message(f"{host} is in the hostfile although it could not be probed", "warning", code="unreachable")
    shown = _shorten_path(target.playbook)
    check, play = advise("play", shown, "--check"), advise("play", shown)
    ranks = f"{answers.ppn} on each of {pluralize(len(inventory), 'host')}"
    precision = {"bf16": "bf16", "no": "fp32"}.get(answers.precision or "", "the script's own")
    files = (str(target.playbook), target.hosts or str(target.hostfile))
    yield Answer(InitAnswer(*files, stack.name, ranks, precision, next=check, then=play))
    yield end


def list_scripts(directory: Path) -> dict[str, bool]:
    """Returns the scripts of a directory, and whether they train; of very many none is read, and
    none suggested."""
    left_out = re.compile(r"(setup|conftest|test_.*|_.*)\.py")  # no scripts of a training
    every = [path for path in sorted(directory.glob("*.py")) if path.is_file() and not left_out.fullmatch(path.name)]
    few = len(every) <= _SCRIPTS_READ
    return {path.name: few and planning.is_training(read_script_text(path)) for path in every}


def _check_answers(answers: Answers, target: Target, scripts: Mapping[str, bool], ask: Ask | None) -> None:
    """Raises `UsageError` for existing files without ``--force`` and for a missing script."""
    paths = (target.playbook,) if target.hosts else (target.playbook, target.hostfile)
    existing = [path for path in paths if os.path.lexists(path)]
    if existing and not target.force:
        names = " and ".join(map(_shorten_path, existing))
        question = Question("force", f"Overwrite {names}?", "no", "", ("yes", "no"))
        if ask is None or ask(question).strip().lower() not in {"y", "yes"}:
            one = len(existing) == 1
            what = f"{names} already exist{'s' if one else ''}"
            raise UsageError(what, hint=f"--force overwrites {'it' if one else 'them'}")
    if not (parent := target.playbook.parent).is_dir():
        shown = _shorten_path(parent)
        raise UsageError(f"{shown} is no directory", hint=shlex.join(["mkdir", "-p", "--", str(parent)]))
    if answers.script is not None and not (path := target.playbook.parent / answers.script).is_file():
        shown = printable(answers.script, 300)
        raise UsageError(f"{shown} is a directory" if path.is_dir() else f"the script {shown} does not exist")
    suggested, why = planning.suggest_script(scripts)
    if answers.script is None and ask is None and not suggested:
        hint = advise("init", "--yes", max(scripts, key=scripts.__getitem__)) if scripts else _COPY_SCRIPT
        raise UsageError("init needs a script to run", reasons=[why] if why else [], hint=hint)


def _ask_question(
    answers: Answers, question: Question, ask: Ask | None, whys: dict[str, str], directory: Path
) -> Answers:
    """Asks a question until the answer is valid; returns ``answers`` with it. A script lies in ``directory``."""
    asked = question
    while True:
        text = question.default if ask is None else ask(asked).strip() or question.default
        result = planning.apply_answer(answers, question.key, text)
        if isinstance(result, Answers) and result.script and not (directory / result.script).is_file():
            result = f"{printable(result.script, 300)} is no file here"
        if isinstance(result, Answers):
            whys |= {question.key: question.why} if text == question.default else {}
            return result
        if ask is None:
            raise UsageError(f"{question.text} {result}")
        asked = replace(question, why=result)


def _choose_stack(answers: Answers, facts: HostFacts, context: Context) -> Workflow[Stack]:
    """Returns the stack that install would choose. Raises `UsageError` if none fits the hosts and the answers."""
    backend = answers.backend or "auto"
    request = StackRequest(track="ipex" if answers.ipex else "native", torch=answers.torch, backend=backend)  # type: ignore[arg-type]
    return (yield from resolve_available(request, facts, load_releases(), Install(), context))


def _shorten_path(path: Path) -> str:
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return printable(str(path), 300)
