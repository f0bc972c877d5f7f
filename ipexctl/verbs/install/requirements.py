"""The requirements of an install, looked at before any host is: what is no wheel is refused, or of the user's own
projects a wheel is built, here."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from ipexctl.act.inputs import expand_home, read_input
from ipexctl.act.packages.resolve import build_wheel, find_uv
from ipexctl.act.packages.sources import Sources
from ipexctl.decide.planning.extend import read_package_name
from ipexctl.decide.planning.requirements import Requirement, parse_requirements
from ipexctl.model.errors import Hint, UsageError
from ipexctl.model.events import StepEnded, StepStarted, Workflow
from ipexctl.model.tasks import Install, Wheels
from ipexctl.model.text import printable, strip_credentials
from ipexctl.model.wheels import parse_wheel_name

_CHARACTERS, _OF_LINE = 4 << 20, 100  # of all files that include one another; what a line counts beside its own
_INCLUDE = re.compile(r"(?:^|\s)(?:-[rc]|--(?:requirement|constraint))[\s=]*([^\n#]+)", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_QUOTES = re.compile(r"['\"\\]")  # uv takes them away wherever they stand in a name
_SHOWN_FAULTS = 10
_BUILD = "build the wheel"

Task = TypeVar("Task", Install, Wheels)


def fix_requirements(task: Task, *, builds: bool = False) -> Task:
    """Returns the task with wheels that it names by relative paths at their places, which are the same from everywhere.
    Raises `UsageError` for requirements that would have to be built, with what to do instead; ``builds``: not for the
    projects that `build_projects` takes."""
    if isinstance(task, Install) and not builds:
        if task.build:
            raise UsageError("install takes wheels, and builds nothing", reasons=["--build is for the command line"])
        _refuse_variables(task)
    if wrong := [text for text in task.build if read_package_name(text) != canonicalize_name(text)]:
        raise UsageError("--build takes names of packages", reasons=wrong)
    given: list[Requirement] = [_parse_option(text) for text in task.with_]
    listed: list[Requirement] = [*_read_requirements(task.requirements)]
    if faults := [f"{each.place}: {_show(each)}: {each.fault}" for each in (*given, *listed) if each.fault]:
        hint = "one requirement for each --with, and in a file a line: NAME or NAME==VERSION, as pip freeze writes them"
        parts: list[str] = []
        for each in given:
            parts += re.split(r"[,\s]+", each.text) if each.fault else [each.text]
        if isinstance(task, Install) and not any(each.fault for each in (*map(_parse_option, parts), *listed)):
            words: list[str] = [word for part in parts for word in ("--with", part)]  # of numpy,pandas
            hint = Hint(["install", *words], "one requirement for each --with:")
        raise UsageError("what is to be installed is no requirement", reasons=faults[:_SHOWN_FAULTS], hint=hint)
    unbuilt = [each for each in (*given, *listed) if each.kind and not (builds and _find_project(each))]
    relative = [each for each in listed if each.is_wheel and each.is_relative]
    reasons = [f"{each.place}: {_show(each)} is {each.kind}" for each in unbuilt]
    reasons += [f"{each.place}: {_show(each)} is a wheel by a relative path" for each in relative]
    if unbuilt:
        what = "builds only projects of --with that have a pyproject.toml or setup.py, without -e"
        what = f"install {what if builds else 'takes wheels, and builds nothing'}"
        raise UsageError(what, reasons=reasons, hint=_suggest_wheel(unbuilt[0]))
    if relative:
        hint = f"--find-links {shlex.quote(str(Path(relative[0].target).parent))}, and the package by its name"
        raise UsageError("requirements name wheels by relative paths", reasons=reasons, hint=hint)
    return replace(task, with_=tuple(_anchor_wheel(each) for each in given))


def _refuse_variables(task: Install) -> None:
    """Refuses variables of the environment that uv would put into what a playbook requires: its author chooses where
    they go. A file that is included by its address cannot be looked at. Raises `UsageError`."""
    reasons = []
    for place, text in list_texts(task):
        reasons += [f"{place}: {printable(text[at : at + 60])}" for at in (text.find("${"),) if at >= 0]
        odd = (each for each in _list_includes(text) if ":" in each or _QUOTES.search(each))
        reasons += [f"{place} includes {printable(each, 300)}" for each in odd]
    if reasons:
        what = "requirements of a playbook take no variables of the environment, and include plain files"
        hint = "write ${env:NAME} in the step's own with, and env_allow: [NAME] at the top of the playbook"
        raise UsageError(what, reasons=reasons[:_SHOWN_FAULTS], hint=hint)


def list_texts(task: Install) -> Iterator[tuple[str, str]]:
    """Yields the texts of all that a task requires, each with where it stands: of ``--with``, and of the files with
    those that they include."""
    yield from (("with", text) for text in task.with_)
    yield from _read_files(task.requirements, _list_includes)


def _read_files(files: Sequence[str], list_includes: Callable[[str], list[str]]) -> Iterator[tuple[str, str]]:
    """Yields the names and texts of files and of those that they include, each once, as uv does. One that is none is
    reported elsewhere. Raises `UsageError` where they are too much."""
    waiting, seen, size = [Path(name) for name in files], set[str](), 0
    for path in waiting:
        real, shown = os.path.realpath(path), printable(str(path), 300)
        if path.exists() and not path.is_file() and not path.is_dir():  # uv takes what comes from a device or a pipe
            raise UsageError(f"{shown} is not a file, and requirements include it")
        if real in seen or not path.is_file():
            continue
        seen.add(real)
        text = read_input(path).text
        size += len(text) + _OF_LINE * len(text.splitlines())
        if size > _CHARACTERS:
            raise UsageError(f"{shown}: the requirements are too long, with all that they include")
        yield shown, text
        waiting += [path.parent / _find_local_path(each) for each in list_includes(text)]


def _find_local_path(name: str) -> str:
    name = os.path.expandvars(name)
    return unquote(re.sub("^file://(localhost)?", "", name)) if name.startswith("file://") else name


def _list_includes(text: str) -> list[str]:
    """Returns the files and addresses that a file includes, as written, wherever they stand in a line."""
    text = _COMMENT.sub("", text.replace("\r", "\n"))  # which ends a line for uv
    included = (each for part in (text, re.sub(r"\\\n+", " ", text)) for each in _INCLUDE.findall(part))
    return [each.strip().strip("'\"") for each in included]


def list_packages(files: Sequence[str]) -> set[str]:
    """Returns the packages that requirements files name."""
    return {read_package_name(each.text) for each in _read_requirements(files)}


def build_projects(task: Install, cache: Path, sources: Sources) -> Workflow[Install]:
    """Returns the task with wheels in place of the local projects of ``--with``, built now by this machine's account:
    a project is a program that does what it likes. Raises `UsageError` (exit 4)."""
    requirements = []
    for each in map(_parse_option, task.with_):
        if project := _find_project(each):
            yield StepStarted("", _BUILD)
            wheel = build_wheel(find_uv(), project, cache, sources)
            yield StepEnded("", _BUILD, "ok", wheel.name)
            marker = f" ; {each.marker}" if each.marker else ""
            requirements.append(_anchor_wheel(Requirement(f"{wheel}{each.extras}{marker}", "--with")))
        else:
            requirements.append(each.text)
    return replace(task, with_=tuple(requirements))


def _find_project(requirement: Requirement) -> Path | None:
    """Returns the directory of a project of this machine that a wheel can be built of; None for another requirement."""
    if requirement.kind != "a local project" or requirement.editable or requirement.place != "--with":
        return None
    path = expand_home(requirement.target.removeprefix("file://")).absolute()
    return path if any((path / name).is_file() for name in ("pyproject.toml", "setup.py")) else None


def find_unfit_requirements(task: Install, place: str) -> Iterator[str]:
    """One sentence for each requirement that `fix_requirements` refuses; ``place`` is where the task was written."""
    try:
        fix_requirements(task)
    except UsageError as error:
        yield from (f"{place}: {error.sentence}: {reason}" for reason in error.reasons or ("",))


def _parse_option(text: str) -> Requirement:
    word, _, value = text.strip().partition(" ")
    editable = word in ("-e", "--editable") and bool(value.strip())
    return Requirement(value.strip() if editable else text, "--with", editable)


def _read_requirements(files: Sequence[str]) -> Iterator[Requirement]:
    """Yields the requirements of files and of those that they include."""

    def list_includes(text: str) -> list[str]:
        return [each for each in parse_requirements(text, "") if isinstance(each, str)]

    for shown, text in _read_files(files, list_includes):
        yield from (each for each in parse_requirements(text, shown) if isinstance(each, Requirement))


def _show(requirement: Requirement) -> str:
    """Returns a requirement for a message: as it was written, without passwords."""
    text = f"-e {requirement.text}" if requirement.editable else requirement.text
    return printable(strip_credentials(text), 300)


def _suggest_wheel(requirement: Requirement) -> str:
    path = requirement.target.removeprefix("file://")
    if requirement.name and path.startswith("/") and not Path(path).exists():  # where conda built it
        listed = "pip list --format freeze (conda's pip freeze names paths of other machines)"
        return f"{requirement.name}==VERSION in its place, as written by {listed}"
    target = shlex.quote(_show(Requirement(requirement.target, "")))
    build = f"pip wheel --no-deps -w wheels {target}, then --find-links wheels --with {requirement.name or 'NAME'}"
    return f"{build}; or leave it out: a package of the script's project needs no install, run and sync carry it"


def _anchor_wheel(requirement: Requirement) -> str:
    """Returns the requirement with the absolute path of its wheel, and the name that the file has."""
    target = requirement.target
    if not requirement.is_wheel or not (requirement.is_relative or target.startswith(("/", "~"))):
        return requirement.text
    path = expand_home(target).absolute()
    try:
        name = requirement.name or parse_wheel_name(path.name)[0]
    except ValueError:
        return requirement.text  # no wheel by its name: uv says so
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return f"{name}{requirement.extras} @ {path.as_uri()}{marker}"
