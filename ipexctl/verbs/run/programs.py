"""Whether each host has the program or the module that a run starts there."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ipexctl.act.context import Context, run_on_hosts
from ipexctl.act.inputs import refuse_planted
from ipexctl.data import read_data
from ipexctl.decide.launch.environment import SYSTEM_PATH
from ipexctl.decide.launch.programs import FIND_MODULE, FIND_PROGRAM, Start, find_linked_mpi
from ipexctl.decide.releases.runtime import Runtime, build_runtime
from ipexctl.decide.script_imports import parse_import_table
from ipexctl.model.errors import Failure, Kind, UsageError, advise
from ipexctl.model.events import Workflow
from ipexctl.model.facts import HostFacts
from ipexctl.model.hosts import Command, Inventory, Link
from ipexctl.model.text import printable
from ipexctl.store.private_files import open_regular_file
from ipexctl.verbs.files.project import Project

_LARGEST = 1 << 26  # bytes of a program that are searched for its libraries
_TIMEOUT = 20.0  # seconds: the first start of an interpreter from a cold network file system


def find_local_module(name: str, project: Project) -> Path | None:
    """Returns the file that ``-m`` starts, below the current directory or one of the project's that is on the ranks'
    path; None if there is none. Raises `UsageError` for one that another user has put where everybody may."""
    for directory in _list_import_directories(project):
        base = directory.joinpath(*name.split("."))
        for file in (base / "__main__.py", base.with_name(f"{base.name}.py")):
            if file.is_file():
                refuse_planted(directory / file.relative_to(directory).parts[0])
                return file
    return None


def _list_import_directories(project: Project) -> list[Path]:
    return [Path(), *(project.root / path for path in project.list_import_paths())]


def find_programs(
    starts: Sequence[Start], project: Project, inventory: Inventory, context: Context, facts: HostFacts
) -> Workflow[tuple[Start, ...] | None]:
    """Returns what is started, with what the hosts say of it; None where a host lacks it. Raises `UsageError` for a
    file here that has the name of a program of the environment."""
    of_host = {host.name: starts[0 if host is inventory.head else -1] for host in inventory}
    asked = [host for host in inventory if _must_ask(of_host[host.name], project)]

    def find(link: Link, _: object) -> str | Failure | None:
        host = link.host.name
        installed = facts[host].installed
        runtime = build_runtime(installed.marker if installed else None)
        if of_host[host].kind == "module":
            return _find_module(link, of_host[host].name, project, runtime)
        return _find_program(link, of_host[host], runtime)

    found, failures = yield from run_on_hosts(context, asked, "look for the program", find)
    if failures:
        return None
    known = []
    for start, host in zip(starts, (inventory.names[0], inventory.names[-1]), strict=False):
        answer = found.get(host)
        if start.is_ambiguous and answer is not None:
            what = f"{printable(start.name, 200)} is a file here, and a program of the environment"
            raise UsageError(what, hint=advise("run", f"./{start.name}", text="the file:"))
        kind, _, mpi = answer.partition(" ") if isinstance(answer, str) else ("", "", "")
        if start.kind == "file" and not start.program:
            with open_regular_file(start.name, follow=True) as file:
                mpi = find_linked_mpi(file.read(_LARGEST))
        known.append(replace(start, is_python=kind == "python" if start.kind == "env" else start.is_python, mpi=mpi))
    return tuple(known)


def _must_ask(start: Start, project: Project) -> bool:
    if start.kind == "module":
        return find_local_module(start.name, project) is None
    return bool(start.program) or start.is_ambiguous


def _find_module(link: Link, name: str, project: Project, runtime: Runtime) -> str | Failure:
    completed = link.run(Command((runtime.python, "-c", FIND_MODULE, name), timeout=_TIMEOUT))
    if completed.ok:
        return "python"
    what = f"the environment has no module {printable(name, 200)} to start, nor is it below {project.root}"
    package = name.partition(".")[0]
    hint: str = advise("install", "--with", package)
    if any((directory / package).is_dir() for directory in _list_import_directories(project)):
        hint = f"name a module of the project's own {printable(package, 200)}"  # not a stranger's package of its name
    elif completed.status == 2:
        hint = f"the environment has {printable(package, 200)}: name one of its modules that can be started"
    return Failure(link.host.name, Kind.STEP, what, hint, "no-module")


def _find_program(link: Link, start: Start, runtime: Runtime) -> str | Failure | None:
    """Returns what `FIND_PROGRAM` prints of it; None of a file that is no program's."""

    def find(name: str, *path: str) -> str:
        return link.run(Command(("find-program", ":".join(path), name), FIND_PROGRAM, timeout=_TIMEOUT)).text.strip()

    if start.is_ambiguous and (answer := find(start.name, *runtime.path)):
        return answer
    path = runtime.path if start.kind == "env" else (*runtime.path, *SYSTEM_PATH)
    answer = find(start.program, *path) if start.program else "none"
    if answer:
        return None if start.is_file else answer
    name = printable(start.program, 200)
    what, hint = f"the host has no program {name}", "give its absolute path, or install it on the host"
    if start.is_file:
        line = f"line 1 of {printable(start.name, 200)}"
        what, hint = f"{what}, which {line} names", f"install it on the host, or change {line}"
    elif start.kind == "env":
        what, hint = f"the environment has no program {name}", f"--program {name} starts one of the hosts"
        package = parse_import_table(read_data("imports.toml")).distributions.get(start.program)
        if package is not None:  # accelerate, deepspeed, ray and others have a program of their name
            hint = advise("install", "--with", package)
        elif Path(f"{start.program}.py").is_file():
            hint = advise("run", f"{name}.py", *start.args, text="a file here:")
        elif start.args[:1] and start.args[0].endswith(".py"):
            hint = f"further hosts stand behind a comma: --hosts A,{name}; {hint}"
    return Failure(link.host.name, Kind.STEP, what, hint, "no-program")
