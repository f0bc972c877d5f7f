"""The house keeps its shape: who may import whom, what a host must be able to run, one schema for flags and keys."""

import ast
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

import ipexctl
from ipexctl.cli import app
from ipexctl.loop import SAVED_RUNS_LIMIT
from ipexctl.model import tasks
from ipexctl.model.facts import OLDEST_PYTHON
from ipexctl.protocol import hooks, journal, messages, paths
from ipexctl.protocol.paths import HOOK_FILES, PROFILE_HOOK_FILES

ROOT = Path(ipexctl.__file__).parent

# Each floor, and the floors it may import. `loop` stands beside `cli`: it hands one story to the sinks.
BELOW = {
    "cli": {"cli", "loop", "verbs", "decide", "act", "show", "store", "model"},
    "loop": {"verbs", "decide", "act", "show", "store", "model", "data"},
    "verbs": {"verbs", "decide", "act", "show", "store", "model", "protocol", "data"},
    "decide": {"decide", "model", "protocol"},
    "act": {"act", "store", "model", "protocol"},
    "show": {"show", "store", "model"},
    "store": {"store", "model"},
    "model": {"model", "data"},
    "remote": {"remote", "protocol"},
    "protocol": {"protocol"},
    "data": set(),
}
CLOCK_ENV_DISK_NETWORK = {"time", "socket", "subprocess", "pathlib", "secrets", "random", "tempfile", "threading"}
NAMES_AS_BYTES = {"fsencode", "fsdecode"}  # all that a pure module may want of os
STACK = {"torch", "intel_extension_for_pytorch", "oneccl_bindings_for_pytorch", "torch_ccl"}
IN_THE_ENVIRONMENT = {"verify.py", "bench.py"}  # run by its interpreter, to try the stack

FILES = sorted(path for path in ROOT.rglob("*.py") if "__pycache__" not in path.parts)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def floor(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, from the module on: parsed once, as all tests here read all files."""
    return tuple(ast.walk(ast.parse(path.read_text("utf-8"))))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, wherever in the file it stands."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} imports relatively"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


NAMES = (
    "Accelerate",
    "DeepSpeed",
    "Intel",
    "IPEX",
    "MASTER_ADDR",
    "Open MPI",
    "Python",
    "SSH",
)  # a sentence may begin with one


def sentences(path: Path) -> Iterator[tuple[str, str]]:
    """How each sentence of a refusal in a file begins and ends, also of one that a variable ``what`` holds first; where
    a value stands there, nothing is told."""
    for node in nodes(path):
        match node:
            case ast.Call(func=ast.Name(id="UsageError"), args=[first, *_]):
                pass
            case ast.Assign(targets=[ast.Name(id="what")], value=first):
                pass
            case _:
                continue
        for text in (first.body, first.orelse) if isinstance(first, ast.IfExp) else (first,):
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            output = [str(part.value) if isinstance(part, ast.Constant) else "" for part in parts]
            yield output[0], output[-1]


def test_refusals_begin_small_and_end_without_a_stop() -> None:
    result = [(name(path), begin, end) for path in FILES for begin, end in sentences(path)]
    assert len(result) > 100
    assert not [each for each in result if each[1][:1].isupper() and not each[1].startswith(NAMES)]
    assert not [each for each in result if each[2].endswith(".")]


def test_a_choice_of_more_than_two_is_a_statement() -> None:
    choices = [(name(path), node) for path in FILES for node in nodes(path) if isinstance(node, ast.IfExp)]
    assert len(choices) > 100
    assert not [
        (path, node.lineno)
        for path, node in choices
        for part in (node.body, node.orelse)
        if isinstance(part, ast.IfExp)
    ]


def test_every_floor_is_known() -> None:
    assert {floor(path) for path in FILES} - {"__init__", "__main__"} <= BELOW.keys()


def find_files(*floors: str) -> list[Path]:
    """The files of these floors; a floor that moved away is no floor without faults."""
    result = [path for path in FILES if floor(path) in floors]
    assert {floor(path) for path in result} == {*floors}
    return result


def test_imports_run_one_way() -> None:
    above = {}
    for path in FILES:
        ours = {module.split(".")[1] for module in imports(path) if module.startswith("ipexctl.")} - {"__version__"}
        above[name(path)] = ours - BELOW.get(floor(path), BELOW["cli"])
    assert not {path: floors for path, floors in above.items() if floors}


# What these make is the user's own: a destination that was named, or a directory of the system.
OPEN_DIRECTORIES = {
    "act/lab.py", "verbs/examples.py", "verbs/install/wheels.py", "verbs/play/init.py",
}  # fmt: skip


def test_missing_parents_are_made_private() -> None:
    """`Path.mkdir` gives its mode to the last directory alone: `make_private_directories` is for those of ours."""
    makers = set()
    for path in find_files("cli", "loop", "verbs", "decide", "act", "show", "store", "model"):
        calls = [node for node in nodes(path) if isinstance(node, ast.Call)]
        if any(keyword.arg == "parents" for call in calls for keyword in call.keywords):
            makers.add(name(path))
        assert not any(isinstance(call.func, ast.Attribute) and call.func.attr == "makedirs" for call in calls)
    assert makers == OPEN_DIRECTORIES


def test_what_decides_is_pure() -> None:
    touched = {}
    for path in find_files("decide"):
        touched[name(path)] = {module.split(".")[0] for module in imports(path)} & CLOCK_ENV_DISK_NETWORK
        touched[name(path)] |= {module for module in imports(path) if module.startswith("os.")}
        for node in nodes(path):
            match node:
                case ast.Attribute(value=ast.Name(id="os"), attr=attr) if attr not in NAMES_AS_BYTES:
                    touched[name(path)].add(f"os.{attr}")
    assert not {path: modules for path, modules in touched.items() if modules}


def test_what_runs_on_hosts_needs_an_old_python_and_nothing_else() -> None:
    hooks = HOOK_FILES | PROFILE_HOOK_FILES  # they lie beside each other on a rank's path
    ours = {"ipexctl", *(name[:-3] for name in hooks)}
    foreign = {}
    for path in find_files("remote", "protocol"):
        ast.parse(path.read_text("utf-8"), name(path), feature_version=int(OLDEST_PYTHON.removeprefix("3.")))
        allowed = STACK if path.name in IN_THE_ENVIRONMENT else set()
        foreign[name(path)] = (
            {module.split(".")[0] for module in imports(path)} - sys.stdlib_module_names - ours - allowed
        )
    assert not {path: modules for path, modules in foreign.items() if modules}


def texts(path: Path) -> Iterator[str]:
    """Every string constant of a file but its docstrings, also the parts of f-strings; bytes as Latin-1."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in nodes(path)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes(path):
        if isinstance(node, ast.Constant) and id(node) not in docstrings and isinstance(node.value, str | bytes):
            yield node.value if isinstance(node.value, str) else node.value.decode("latin-1")


def values(module: object) -> set[str]:
    """A module's constants that no other subject would use: names of files and variables, marks in bytes."""
    constants = {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}
    return {value for value in constants if value.startswith("IPEXCTL_") or value.endswith((".json", ".jsonl", ".pyz"))}


KINDS_OF_MESSAGES = {*journal.KINDS.types, *messages.KINDS.types}
PROTOCOL_NAMES = (values(paths) | values(hooks) | {paths.RUNS, "\x01"}) - {hooks.RECORD}


NO_PROTOCOL = {"protocol", "model", "show", "store"}  # the latter two say names in sentences


def test_names_and_kinds_of_the_protocol_stand_nowhere_else() -> None:
    names = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(map(re.escape, PROTOCOL_NAMES))})")
    result = [(name(path), text) for path in FILES if floor(path) not in NO_PROTOCOL for text in texts(path)]
    assert len(result) > 5000
    assert not [each for each in result if each[1] in KINDS_OF_MESSAGES or names.search(each[1])]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.sh")), ids=name)
def test_scripts_for_hosts_use_the_protocols_names(path: Path) -> None:
    """They are read by a shell, so the names stand there again."""
    known = {paths.MANIFEST, paths.PART}
    used = set(re.findall(r"\.ipexctl-[a-z]+(?:-|\.[a-z]+)", path.read_text("utf-8")))
    assert used <= known


HEAVY = {"fabric", "invoke", "asyncio", "unittest.mock", "yaml", "jinja2", "pydantic"}  # what few commands use
SSH = HEAVY | {"paramiko", "cryptography", "ipexctl.act.transfer", "ipexctl.decide.launch"}
HELP = SSH | {"rich", "packaging"}


ANSWERS = {path.stem for path in (ROOT / "model/answers").glob("*.py")} - {"__init__"}


def answers_but(*used: str) -> set[str]:
    """The types of the answers of other verbs, and their screens."""
    return {f"ipexctl.{floor}.answers.{module}" for floor in ("model", "show") for module in ANSWERS.difference(used)}


@pytest.mark.parametrize(
    ("words", "heavy", "exit"),
    [
        ("--help", HELP | {"ipexctl.model"}, 0),
        ("--version", HELP | {"ipexctl.model"}, 0),
        ("run --help", HELP, 0),
        ("lab --help", HELP, 0),
        ("hosts --hosts node[0-9]", HELP | answers_but("hosts"), 0),
        ("stacks why --no-such-flag", HELP, 2),
        ("stacks why --track fast", HELP - {"pydantic"}, 2),  # Typer says what is wrong with a value
        ("ps -f nowhere", HELP - {"ipexctl.act.transfer"} | answers_but("manage", "run"), 2),
        ("ps", HEAVY | {"packaging"} | answers_but("manage", "run"), 3),
        ("doctor", HEAVY | answers_but("doctor", "install"), 3),
        ("run --ppn 2 --no-sync train.py", HEAVY | {"rich"}, 3),
    ],
)
def test_a_command_loads_nothing_that_it_does_not_use(words: str, heavy: set[str], exit: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    for number in range(SAVED_RUNS_LIMIT + 1):  # a user's everyday: the oldest makes room
        saved = tmp_path / f"ipexctl/runs/2026-11-01T0000-run-{number:02x}"
        saved.mkdir(parents=True)
        (saved / "events.jsonl").touch()
        (saved / "report.json").write_text('{"run": null}')
    (tmp_path / "hostfile").write_text("node0 address=127.0.0.1 port=1\n")  # nobody listens there
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host *\n  User somebody\n")
    program = (
        "import sys\n"
        "from ipexctl.cli import main\n"
        "try:\n    main()\n"
        f"except SystemExit as end:\n    assert (end.code or 0) == {exit}, end\n"
        f"loaded = {heavy!r} & sys.modules.keys()\n"
        "assert not loaded, loaded\n"
    )
    env = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT.parent)}
    command = [sys.executable, "-c", program, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_run_needs_once_its_hosts_have_answered_is_not_imported_before() -> None:
    """They are asked after these imports, and what follows is imported while they answer."""
    late = ("ipexctl.verbs.run.prepare", "ipexctl.decide.launch.build", "ipexctl.decide.page.build", "rich", "yaml")
    code = f"import sys; import ipexctl.loop, ipexctl.verbs.run.run; print([n for n in {late} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# flags and keys ---------------------------------------------------------------------------------------------------

# The rest of a command's parameters say which hosts, how to connect and how to talk. They are no keys of a task.
BESIDE = {"hostfile", "hosts", "limit", "json_", "output", "raw", "label_hosts", "dry_run"}
BESIDE |= {"accept_new_host_keys", "connect_timeout", "forks", "ask_pass", "emit", "verbose", "help_all"}
BESIDE |= {"report", "page"}  # whether a run leaves its page; the file of another one
BESIDE |= {"notify"}
BESIDE |= {"files", "verify", "from_mpirun"}  # what follows --recorded FILE, another look; a line that stands for flags
COMMANDS: dict[str, type[tasks.Task]] = {
    "doctor": tasks.Doctor,
    "install": tasks.Install,
    "uninstall": tasks.Uninstall,
    "wheels fetch": tasks.Wheels,
    "sync": tasks.Sync,
    "run": tasks.Run,
    "fetch": tasks.Fetch,
    "bench": tasks.Bench,
    "tune": tasks.Tune,
    "exec": tasks.Execute,
}


def parameters(command: str) -> dict[str, Any]:
    """A command's flags and arguments, by name."""
    result: Any = typer.main.get_command(app)
    for word in command.split():
        result = result.commands[word]
    return {param.name: param for param in result.params}


def test_every_task_has_its_command() -> None:
    assert {*tasks.Task.__subclasses__()} | {tasks.Tune} == {*COMMANDS.values()}


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_and_keys_are_the_same_words(command: str) -> None:
    every, given = dataclasses.fields(COMMANDS[command]), parameters(command)
    fields = {each.name: each for each in every if each.name not in COMMANDS[command].left_out}
    beside = BESIDE | ({"resume"} if command == "tune" else set())  # of tune the study, no key
    assert given.keys() - beside == fields.keys()
    for field, info in fields.items():
        if given[field].param_type_name == "option":
            assert f"--{(info.metadata['flag'].alias or field).replace('_', '-')}" in given[field].opts


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_and_keys_have_the_same_defaults(command: str) -> None:
    given = parameters(command)
    for field in dataclasses.fields(COMMANDS[command]):
        if field.name not in COMMANDS[command].left_out and field.default not in (None, (), dataclasses.MISSING):
            assert given[field.name].default == field.default, field.name


PROSE = {"sentence", "why", "reasons", "because", "note", "notes", "detail", "hint", "what", "title", "evidence", "fix"}
FIELDS = PROSE | {"text", "source", "warning", "warnings"}  # of a value; a variable `text` is mostly read from a file
FOREIGN = {  # words of others, which have no codes
    "decide/parsing/": {"text"},  # scalars of a file
    "decide/facts/": {"text"},
    "decide/run/journal_events.py": {"what"},  # a kind of record in the journal
    "decide/checks/connectivity.py": {"source"},  # a host
    "act/transfer/send.py": {"what"},  # a shell's last line
}


def prose_of(node: ast.expr) -> str:
    """The words for people that an expression names: `why`, `a.why`, `a["why"]`, `a.get("why")`, `str(a.why)`."""
    match node:
        case ast.Name(id=word) if word in PROSE:
            return word
        case ast.Attribute(attr=word) | ast.Subscript(slice=ast.Constant(value=str(word))) if word in FIELDS:
            return word
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(word)), *_]) if word in FIELDS:
            return word
        case ast.Call(func=ast.Attribute(value=value, attr="lower" | "strip" | "casefold")):
            return prose_of(value)
        case ast.Call(func=ast.Name(id="str"), args=[value]):
            return prose_of(value)
    return ""


def prose_read(tree: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Where words for people are compared with a constant, or searched: line and name."""
    for node in tree:
        read: list[ast.expr] = []
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                if isinstance(operator, ast.In | ast.NotIn):
                    read += [right] if isinstance(left, ast.Constant) else []
                    read += [left] if isinstance(right, ast.Tuple | ast.Set | ast.List) else []
                elif any(isinstance(side, ast.Constant) and side.value for side in (left, right)):
                    read += [left, right]
            case ast.Call(func=ast.Attribute(value=value, attr="startswith" | "endswith" | "find" | "index")):
                read += [value]
            case ast.Call(func=ast.Attribute(attr="search" | "match" | "fullmatch"), args=arguments):
                read += arguments
        yield from ((value.lineno, word) for value in read if (word := prose_of(value)))


def test_nothing_is_decided_by_a_sentence() -> None:
    reads = []
    for path in FILES:
        if floor(path) == "remote":
            continue  # its only sentences are those of programs it runs
        foreign = {word for start, words in FOREIGN.items() if name(path).startswith(start) for word in words}
        reads += [(name(path), *read) for read in prose_read(nodes(path)) if read[1] not in foreign]
    assert not reads, "decide by a code (`Note.code`, `Failure.code`, `UsageError.code`)"


def test_a_decision_by_a_sentence_is_found() -> None:
    for line in (
        "if why == 'no space': pass",
        "if 'space' in failure.why: pass",
        "if failure.why in ('a', 'b'): pass",
        "note.text.lower().startswith('no')",
        "re.search('space', str(answer['hint']))",
        "answer.get('sentence').find('space')",
    ):
        assert [*prose_read(ast.walk(ast.parse(line)))], line


# JSON without a type ----------------------------------------------------------------------------------------------

UNTYPED = re.compile(r"\b(?:dict|Dict|Mapping)\[str, Any\]")
# Where JSON, TOML or YAML is read or written, and how often such a type stands there at most: less is better, and a
# file that is not named here has none. Between floors there are types (`model/answers`, `model/reports.py` …).
UNTYPED_AT_MOST = {
    "remote/": (99, "programs on hosts read and write JSON with the standard library alone"),
    "protocol/": (99, "messages and records are read from JSON here, and written to it"),
    "model/toml.py": (2, "reads TOML"),
    "model/task_schemas.py": (2, "the keywords of a schema's fields"),
    "cli/command.py": (9, "the values of flags, before they become a task"),
    "cli/command_options.py": (2, "Typer's keyword arguments"),
    "act/packages/download.py": (1, "urllib3's keyword arguments"),
    "decide/parsing/playbook.py": (3, "the JSON schema of playbooks"),
    "decide/releases/table.py": (1, "reads TOML"),
    "decide/facts/probe_output.py": (1, "reads saved probes"),
    "decide/planning/sync.py": (3, "reads what a host lists"),
    "decide/launch/accelerate.py": (1, "writes YAML"),
}


def test_json_without_a_type_is_where_it_is_read_or_written() -> None:
    crowded = {}
    for path in FILES:
        most = next((most for start, (most, _) in UNTYPED_AT_MOST.items() if name(path).startswith(start)), 0)
        lines = [line.strip() for line in path.read_text("utf-8").splitlines() if UNTYPED.search(line)]
        if len(lines) > most:
            crowded[name(path)] = lines
    assert not crowded, "a type of its own, please"


def test_only_one_helper_looks_for_the_home_of_a_user() -> None:
    """`Path.expanduser` raises RuntimeError for a user that does not exist: `expand_home` says so in a sentence."""
    result = {
        name(path)
        for path in FILES
        if not name(path).startswith("remote/")  # its own home, on a host
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr == "expanduser"
    }
    assert result == {"act/inputs.py"}


def find_modules() -> dict[str, Path]:
    names = {path: "ipexctl." + ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def test_no_module_imports_itself_through_others() -> None:
    """Imports inside of functions count: modules that need each other are one."""
    modules = find_modules()
    imported = {
        module: {each if each in modules else each.rpartition(".")[0] for each in imports(path)} & modules.keys()
        for module, path in modules.items()
    }
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"a circle: {' → '.join(above[above.index(module) :])} → {module}"
        if module not in done:
            for each in sorted(imported[module] - {module}):
                visit(each, (*above, module))
            done.add(module)

    for module in modules:
        visit(module, ())


def test_no_class_name_has_two_meanings() -> None:
    """A record of `protocol` and the value that `model` makes of it are one noun."""
    result: dict[str, set[str]] = {}
    for path in FILES:
        for node in next(each for each in nodes(path) if isinstance(each, ast.Module)).body:
            if isinstance(node, ast.ClassDef):
                result.setdefault(node.name, set()).add(name(path))
    doubles = {each: files for each, files in result.items() if len(files) > 1}
    assert not {
        each: files
        for each, files in doubles.items()
        if {floor(ROOT / path) for path in files} != {"model", "protocol"}
    }
