"""What ``ipexctl run`` is asked, checked as far as this machine can, with the files that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.act.inputs import read_env_file, read_input, read_stdin
from ipexctl.decide.launch import instances, mpi_launchers
from ipexctl.decide.launch.environment import parse_user_env
from ipexctl.model.errors import UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.launch import Setting
from ipexctl.model.tasks import Run
from ipexctl.verbs.files.project import Project, find_project

if TYPE_CHECKING:
    from ipexctl.decide.launch.accelerate import AccelerateConfig


class RunRequest(Record):
    """What was asked. ``dry``: nothing is started; ``emit``: the form of a launch that is written for others."""

    task: Run
    script: Path  # on this machine; of a module the directory in which it lies
    project: Project  # what hosts get
    settings: Mapping[str, Setting]  # the user's variables
    environ: Mapping[str, str]  # of this machine
    config: AccelerateConfig | None
    stdin: bytes  # of rank 0
    dry: bool
    emit: str | None


def read_request(task: Run, environ: Mapping[str, str], *, dry: bool, emit: str | None) -> RunRequest:
    """Raises `UsageError` where the task contradicts itself or a file cannot be read."""
    script = _find_script(task)
    _check_restarts(task)
    if task.profile:
        from ipexctl.decide.profile.steps import parse_profile_steps

        parse_profile_steps(task.profile)
    if emit and task.stdin is not None:
        hint = "leave it out, and give rank 0 its input by the launcher's own option"
        raise UsageError(f"--stdin does not fit --emit {emit}: nothing of it would be written", hint=hint)
    instances.check_options(task)
    mpi_launchers.parse_ports(task.port_range)
    env_files = {name: read_env_file(name) for name in task.env_file}
    settings = parse_user_env(task.env, env_files, task.pass_env, environ)
    config, stdin = _read_accelerate_config(task, emit), b"" if dry or emit else read_stdin(task.stdin)
    project = find_project(script, task.project, task.exclude)
    return RunRequest(task, script, project, settings, environ, config, stdin, dry, emit)


def _check_restarts(task: Run) -> None:
    for option, given in (("--restarts", task.restarts), ("--stop-on-nan", task.stop_on_nan)):
        if given and task.detach:
            raise UsageError(f"{option} needs somebody who watches", hint="leave out --detach")
    if task.min_hosts is not None and not task.restarts:
        raise UsageError("--min-hosts says how to start again without a lost host", hint="add --restarts 1")


def _find_script(task: Run) -> Path:
    """The script's path on this machine; of a module, which is found from the current directory, that directory."""
    if task.launcher == "module":
        base = Path(*task.script.split("."))
        if not base.with_suffix(".py").is_file() and not (base / "__main__.py").is_file():
            reasons = [f"neither {base}.py nor {base}/__main__.py is below {Path.cwd()}"]
            hint = "start ipexctl in the directory that holds it"
            raise UsageError(f"the module {task.script} does not exist", reasons=reasons, hint=hint)
        return Path()
    script = Path(task.script)
    if not script.is_file():
        what = f"{task.script} is {'a directory' if script.is_dir() else 'not a regular file'}"
        what = what if script.exists() else f"the script {task.script} does not exist"
        raise UsageError(what, hint="give the path of a Python file on this machine")
    return script


def _read_accelerate_config(task: Run, emit: str | None) -> AccelerateConfig | None:
    """Returns the configuration given for Accelerate. What is written for other programs starts mpirun as those do."""
    if task.accelerate_config is None:
        return None
    if task.launcher != "accelerate":
        hint = "add --launcher accelerate"
        raise UsageError("--accelerate-config is read with --launcher accelerate only", hint=hint)
    from ipexctl.decide.launch import accelerate

    config = accelerate.read_config(read_input(task.accelerate_config).text, task.accelerate_config)
    return replace(config, hostfile="") if emit else config
