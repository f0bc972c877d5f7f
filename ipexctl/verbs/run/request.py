"""What ``ipexctl run`` is asked, checked as far as this machine can, with the files that it names."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ipexctl.act.inputs import read_env_file, read_input, read_stdin, suggest_file
from ipexctl.decide.launch import instances, mpi_launchers
from ipexctl.decide.launch.environment import SYSTEM_PATH, parse_user_env
from ipexctl.decide.launch.programs import Start, is_program_name, parse_file
from ipexctl.decide.launch.script_arguments import find_checkpoint_directory, find_resume_words
from ipexctl.model.engines import Engine, read_engines
from ipexctl.model.errors import Exit, UsageError, advise
from ipexctl.model.json_values import Record
from ipexctl.model.launch import Setting
from ipexctl.model.notifications import split_command
from ipexctl.model.tasks import Backend, Run
from ipexctl.model.text import printable
from ipexctl.store.private_files import open_regular_file, refuse_os_errors
from ipexctl.verbs.files.project import Project, find_project

if TYPE_CHECKING:
    from ipexctl.decide.launch.accelerate import AccelerateConfig
else:
    AccelerateConfig = Any  # few runs need its module

_FILE_SIZE_LIMIT = 1 << 23  # bytes of a file that are looked at


class RunRequest(Record):
    """What was asked. ``dry``: nothing is started; ``emit``: the form of a launch that is written for others."""

    task: Run
    script: Path  # on this machine; of what is no file the current directory
    starts: tuple[Start, ...]  # by the head, and (the last) by the other hosts
    engine: Engine | None  # that starts it
    project: Project  # what hosts get
    settings: Mapping[str, Setting]  # the user's variables
    config: AccelerateConfig | None
    stdin: bytes  # of rank 0
    dry: bool
    emit: str | None
    resume: tuple[str, ...] = ()  # words by which the script goes on from a checkpoint


def read_request(task: Run, environ: Mapping[str, str], *, dry: bool, emit: str | None) -> RunRequest:
    """Raises `UsageError` where the task contradicts itself or a file cannot be read."""
    task, engine = _apply_engine(task)
    starts = _read_starts(task)
    if engine and (task.role or starts[0].kind not in {"python", "module"}):
        hint = "leave out --engine, and give its whole command line with --per-host"
        raise UsageError(f"--engine {task.engine} starts a Python file or a module on all hosts", hint=hint)
    script = Path(starts[0].name) if starts[0].is_file else Path()
    check_options(task)
    task, resume = _find_checkpoints(task, starts[0])
    if emit and task.stdin is not None:
        hint = "leave it out, and give rank 0 its input by the launcher's own option"
        raise UsageError(f"--stdin does not fit --emit {emit}: nothing of it would be written", hint=hint)
    env_files = {name: read_env_file(name) for name in task.env_file}
    settings = parse_user_env(task.env, env_files, task.pass_env, environ)
    config, stdin = _read_accelerate_config(task, emit), b"" if dry or emit else read_stdin(task.stdin)
    project = find_project(script, task.project, task.exclude)
    return RunRequest(task, script, starts, engine, project, settings, config, stdin, dry, emit, resume)


def check_options(task: Run) -> None:
    """Raises `UsageError` for options that contradict each other, or whose values have a wrong form."""
    if task.host_notify:
        split_command("--host-notify", task.host_notify)
    if task.stop_on_nan and task.detach:
        raise UsageError("--stop-on-nan needs somebody who watches", hint="leave out --detach")
    of_restarts = {"--min-hosts": task.min_hosts, "--spares": task.spares, "--stall restart": task.stall == "restart"}
    for option, given in of_restarts.items():
        if given and not task.restarts:
            raise UsageError(f"{option} says how to start a run again", hint="add --restarts 1")
    if task.on_split == "wait" and task.min_hosts is None:
        raise UsageError("--on-split wait says what half of the hosts does", hint="add --min-hosts")
    if task.spares and task.n is not None:
        raise UsageError("-n does not say how many ranks a host gets that takes another's place", hint="give --ppn")
    if task.profile:
        from ipexctl.decide.profile.steps import parse_profile_steps

        parse_profile_steps(task.profile)
    instances.check_options(task)
    mpi_launchers.parse_ports(task.port_range)


def _find_checkpoints(task: Run, start: Start) -> tuple[Run, tuple[str, ...]]:
    """The task with the directory of the script's checkpoints, if one is known, and the words that resume."""
    text = ""
    if start.kind == "python":
        with suppress(OSError), open_regular_file(start.name, follow=True) as file:
            text = file.read(_FILE_SIZE_LIMIT).decode("utf-8", "replace")
    if task.keep is None and task.restarts:
        task = replace(task, keep=find_checkpoint_directory(start.args, text))
    if task.keep is not None and Path(os.path.normpath(task.keep)).name in {"", ".."}:
        what = f"--keep {printable(task.keep, 200)} is not a directory of checkpoints alone"
        raise UsageError(what, hint="give the one that the script writes them to")
    if task.resume == "auto" and task.keep is None:
        raise UsageError("--resume auto does not know where the checkpoints are", hint="add --keep PATH")
    return task, find_resume_words(start.name, text)


def _apply_engine(task: Run) -> tuple[Run, Engine | None]:
    """The task as its engine needs it, and the engine. Raises `UsageError` for an unknown one."""
    if task.engine is None:
        return task, None
    engines = read_engines()
    if task.engine not in engines:
        *most, last = engines
        what = f"--engine must be {', '.join(most)} or {last}, not {printable(task.engine, 100)!r}"
        raise UsageError(what, hint="--per-host starts any other launcher, with its own command line")
    engine = engines[task.engine]
    return replace(task, per_host=True, ready=task.ready or engine.ready), engine


def _read_starts(task: Run) -> tuple[Start, ...]:
    """What the head and the other hosts start. Raises `UsageError` for what no host can start."""
    starts = {"": _find_start(task, task.script, task.args)} if task.script else {}
    for role in task.role:
        name, _, command = role.partition(":")
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"--role {printable(role, 300)}: {str(error).lower()}") from None
        if name not in {"head", "rest"} or not words or name in starts:
            hint = "--role 'rest:COMMAND', beside a WHAT that node0 starts"
            what = f"--role takes head:COMMAND or rest:COMMAND, once each, not {printable(role, 300)!r}"
            raise UsageError(what, hint=hint)
        starts[name] = _find_start(task, words[0], tuple(words[1:]))
    if len(starts) == 3:
        raise UsageError("no host would start WHAT: each has a --role", hint="leave out WHAT")
    if task.launcher == "accelerate" and {start.kind for start in starts.values()} != {"python"}:
        raise UsageError("--launcher accelerate starts Python files only", hint="leave it out")
    if not task.role:
        return (starts[""],)
    return starts.get("head") or starts[""], starts.get("rest") or starts[""]


def _find_start(task: Run, word: str, args: tuple[str, ...]) -> Start:
    shown = printable(word, 300)
    if task.module and task.program:
        raise UsageError("-m and --program name two kinds of WHAT", hint="leave one of them out")
    if (task.module or word.endswith(".py")) and args[:1] == ("--",):
        args = args[1:]  # torchrun and accelerate launch take it so, too
    if task.module:
        _refuse_launcher(task, word, f"python -m {word}", args)
        return Start("module", word, args)
    if task.program:
        if "/" in word and not word.startswith("/"):
            hint = "its name, or its absolute path on the hosts; a file of this machine needs no --program"
            raise UsageError(f"--program {shown} is neither a name nor an absolute path", hint=hint)
        return Start("host", word, args, (), False)
    path = Path(word)
    if path.is_file() and "/" in word:
        _refuse_program(word, args)
    if not path.is_file():
        if not path.exists() and not task.per_host:
            _refuse_command_line(word, args)
        if is_program_name(word) and not path.exists():
            _refuse_launcher(task, word, word, args)
            if task.backend_override and word in get_args(Backend):
                raise UsageError(f"--backend-override takes no value, and {word} is none", hint=f"leave out {word}")
            return Start("env", word, args)
        kind = f"{shown} is {'a directory' if path.is_dir() else 'not a regular file'}"
        hint = _advise_module(word, args) or "give the path of a file on this machine; --program takes one of the hosts"
        if re.fullmatch(r"[\w.-]+:[0-9]+", word):
            hint = "several hosts stand between commas: --hosts a:2,b:2"
        if path.exists():
            raise UsageError(kind, hint=hint)
        meant, question = suggest_file(path, path)
        raise UsageError(f"the script {shown} does not exist{question}", hint=hint, meant=meant)
    if path.suffix == ".ipynb":
        raise UsageError(f"{shown} is a notebook", hint=f"jupyter nbconvert --to python {shlex.quote(shown)}")
    with refuse_os_errors(path, "cannot be read", Exit.INPUT), open_regular_file(path, follow=True) as file:
        return parse_file(word, file.read(_FILE_SIZE_LIMIT), os.access(path, os.X_OK), args)


def _advise_module(word: str, args: tuple[str, ...]) -> str:
    """The hint for what Python itself starts: a directory with a __main__.py, or with -m a module's name. Else ""."""
    main, parts = Path(word, "__main__.py"), word.split(".")
    if main.is_file():
        return advise("run", str(main), *args, text="the file that Python starts of it:")
    files = (Path(source, *parts).with_suffix(".py") for source in ("", "src"))
    if not all(map(str.isidentifier, parts)) or not any(map(Path.is_file, files)):
        return ""
    return advise("run", "-m", word, *args, text="a module of this name:")


def _refuse_program(word: str, args: tuple[str, ...]) -> None:
    """Raises `UsageError` for the path of an interpreter or launcher before a script, and for a program of the system:
    the directory of a script goes to the hosts."""
    from ipexctl.verbs.migrate import LaunchLines

    if args and LaunchLines().table.find_program((word, *args)):
        _refuse_command_line(word, args)
    if str(Path(word).parent) in SYSTEM_PATH:
        hint = advise("run", "--program", word, *args, text="that of the hosts:")
        raise UsageError(f"{printable(word, 200)} is a program of this machine, and no script", hint=hint)


def _refuse_command_line(word: str, args: tuple[str, ...]) -> None:
    """Raises `UsageError` for a shell's line that starts a script of this machine: with variables, a program that
    starts others or a version of Python before it, or all in one word."""
    from ipexctl.verbs.migrate import LaunchLines

    lines, line = LaunchLines(), shlex.join((word, *args)) if args else word
    known = lines.table.find_program((word, *args))
    starts_others = known is not None and known[0].kind == "prefix" and known[0].name != "python"
    if is_program_name(word) and not starts_others:
        return
    translation = lines.try_line(line)
    if translation is None:
        return
    options, script = translation.options, translation.script
    if "-m" not in options and not Path(script[0]).is_file():
        return
    if options[:2] == ("-n", "1") and "--ppn" not in options:  # no launcher gave it
        options = options[2:]
    what = f"run takes a script or program, not a line that starts one: {printable(line, 200)}"
    text = "install --with PACKAGE adds to the environment what uv would; then:" if "--with" in args else ""
    raise UsageError(what, hint=advise("run", *options, *script, text=text))


def _refuse_launcher(task: Run, word: str, line: str, args: tuple[str, ...]) -> None:
    """Raises `UsageError` for a program or module that starts ranks by itself; ``line`` begins its own launch line. And
    for pdb without input, at whose end it ends well, before the script's first line."""
    from ipexctl.decide.launch.launch_table import normalise_program
    from ipexctl.verbs.migrate import LaunchLines

    engines = {engine.program: name for name, engine in read_engines().items()}
    lines = LaunchLines()
    at = next((number for number, arg in enumerate(args) if arg == "-m" or arg[:1] != "-"), len(args))
    if normalise_program(word) == "python" and args[at : at + 1] == ("-m",) and args[at + 1 :]:
        _refuse_launcher(task, args[at + 1], shlex.join((word, *args[: at + 2])), args[at + 2 :])
        return
    begin = next((number for number, arg in enumerate(args) if arg == "-m" or Path(arg).is_file()), len(args))
    if word == "pdb" and not task.stdin:
        text = "without it; --stdin FILE gives pdb of rank 0 its commands:"
        without = advise("run", *(args[begin:] or args), text=text)
        raise UsageError("pdb asks for commands, and ranks have no keyboard", hint=without)
    if task.per_host:
        return
    known, module = lines.table.find_program((word, *args)), lines.table.find_module((word, *args))
    kind = "" if known is None else known[0].kind
    if not module and word not in engines and kind not in {"mpi", "slurm", "agent", "refused"}:
        return
    engine = engines.get(word if known is None else known[0].name)
    words = args[begin:]
    if not words:  # no file of this machine: the launcher's own recipe, or a program
        words = ("train.py",) if engine else ("--per-host", word, *args)
    if engine:
        words = ("--engine", engine, *words)
    launch = f"{line} {shlex.join(args)}"
    translation = lines.try_line(launch)
    if translation and (not engine or (begin and not translation.notes)):
        words = ("--from-mpirun", launch)
    if module:
        words = ("-m", module, *args[1:])
    what = f"{printable(word, 200)} starts ranks by itself, and here would be started once for each rank"
    text = "once on each host:" if words[0] == "--per-host" else "--per-host starts it once on each host, or:"
    raise UsageError(what, hint=advise("run", *words, text=text))


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
