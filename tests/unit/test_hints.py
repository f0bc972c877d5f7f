"""Each command of ipexctl that is advised anywhere is one: made of words in one place, completed with the user's own
options, quoted once, and read by the real command line."""

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from ipexctl.cli import app
from ipexctl.cli.command import make_model
from ipexctl.cli.command_options import find_model
from ipexctl.data import read_data
from ipexctl.decide.checks.catalogue import parse_catalogue
from ipexctl.decide.diagnosis.known_errors import ErrorMatch, make_diagnosis
from ipexctl.model.errors import ON_HOSTS, WITH_VENV, Hint, Note, advise, complete_hint, complete_notes
from ipexctl.verbs.common.known_errors import read_known_errors
from tests.tables import read_table

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ipexctl"
TOP: Any = typer.main.get_command(app)
ERRORS = read_known_errors()
FINDINGS = parse_catalogue(read_data("findings.toml"))
PLACE = ("-f", "my hosts", "--limit", "a,b", "--venv", "/x y")
_UNKNOWN = "1"  # stands for a word that only a run of the program knows: a version, a number, a name, a path


def parse(words: list[str]) -> list[Any]:
    """What `ipexctl` reads in the words: the task that they make, and the options. Raises what the parser raises."""
    command, path = TOP, "ipexctl"
    words = [re.sub(r"\{\w+\}", _UNKNOWN, word) for word in words]
    while words and words[0] in getattr(command, "commands", {}):
        command, path = command.commands[words[0]], f"{path} {words[0]}"
        words = words[1:]
    assert "--install-completion" not in words, "parsing it does it: to the shell of whoever runs the tests"
    assert words or command is not TOP
    if hasattr(command, "commands") and words and not words[0].startswith("-"):
        raise LookupError(f"No such command {words[0]}")
    try:
        context = command.make_context(path, words)
    except typer.Exit as printed:  # a flag that only prints
        if printed.exit_code:
            raise
        return []
    return [make_model(find_model(model), context.params) for model in command.models]


def list_values(node: ast.expr) -> list[str]:
    """The words that an argument of `advise` may be."""
    match node:
        case ast.Constant(value=str(word)):
            return [word]
        case ast.IfExp(body=body, orelse=other):
            return [*list_values(body), *list_values(other)]
        case ast.BoolOp(values=values):
            return [word for value in values for word in list_values(value)]
    return [_UNKNOWN]


def list_word_lists(node: ast.expr) -> list[list[str]]:
    """The words that an argument adds: several of a starred one."""
    if not isinstance(node, ast.Starred):
        return [[word] for word in list_values(node)]
    match node.value:
        case ast.IfExp(body=ast.List(elts=yes), orelse=ast.List(elts=no)):
            return [[word for each in side for word in list_values(each)[:1]] for side in (yes, no)]
    return [[_UNKNOWN]]


def advised() -> Iterator[tuple[str, list[str]]]:
    """Where a command is advised, and each form of its words."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        if "advise" not in text:  # each worker collects this file: a fifth of its collection was the parsing of all
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Name(id="advise"), args=args) if args and path.name != "hints.py":
                    for words in product(*map(list_word_lists, args)):
                        yield f"{path.relative_to(PACKAGE)}:{node.lineno}", [word for part in words for word in part]


ADVISED = [*advised()]
_VALUES = {"--mpi": "mpich"}  # of options that do not take any text
# Where the words are made, read from a table, or the user's own.
ELSEWHERE = {"verbs/examples.py", "decide/diagnosis/known_errors.py", "verbs/common/select.py"}
ELSEWHERE |= {"verbs/install/build.py", "verbs/install/lock.py"}


@pytest.mark.parametrize(("where", "words"), ADVISED, ids=lambda value: value if isinstance(value, str) else "")
def test_each_advised_command_is_one(where: str, words: list[str]) -> None:
    if not (words == [_UNKNOWN] and where.partition(":")[0] in ELSEWHERE):
        parse([_VALUES.get(before, word) if word == _UNKNOWN else word for before, word in pairwise(["", *words])])


def test_most_hints_were_found() -> None:
    assert len(ADVISED) > 40


_COMMANDS = "|".join(re.escape(name) for name, command in TOP.commands.items())
_WRITTEN = re.compile(rf"(?<![\w-])ipexctl (?:-\S+ )*(?:{_COMMANDS})\b")
_REASON = "ipexctl stop"  # of the end of a run
_FREE = {  # texts that are no advice
    "decide/bundled.py": "replaces a word of a playbook's comment",
    "decide/planning/init.py": "says in a file what wrote it",
    "decide/migration.py": "a line of a report, beside the line that it replaces",
    "decide/parsing/dialects.py": "a comment of a written file",
    "decide/parsing/schedulers.py": "the schedulers' own commands stand before it",
    "show/page/render.py": "a page's sentence",
    "act/packages/download.py": "another process",
}


def find_written_commands(path: Path) -> list[str]:
    """The texts of a file, but its docstrings, that hold a command of ours."""
    nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {id(node.body[0].value) for node in nodes if isinstance(node, documented) and node.body
            and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in docs]
    return [text for text in texts if isinstance(text, str) and _WRITTEN.search(text) and text != _REASON]


def test_no_text_has_a_command_written_into_it() -> None:
    written = {str(path.relative_to(PACKAGE)): find_written_commands(path) for path in PACKAGE.rglob("*.py")}
    assert any(texts for name, texts in written.items() if name.startswith("cli/"))
    others = {name: texts for name, texts in written.items() if texts and not name.startswith("cli/")}
    assert others.keys() <= _FREE.keys(), "make it with `advise`"


@pytest.mark.parametrize("known", ERRORS, ids=lambda known: known.code)
def test_each_command_of_a_known_error_is_one(known: Any) -> None:
    if known.command:
        assert shlex.split(known.command)[0] == "ipexctl"
        parse(shlex.split(known.command)[1:])
    assert not known.command or not known.fix or known.fix.endswith(":")
    assert not _WRITTEN.search(known.fix), "the command is a key of its own"
    assert isinstance(make_diagnosis(ErrorMatch(known)).command, Hint) == bool(known.command)


@pytest.mark.parametrize("code", FINDINGS)
def test_each_command_of_a_finding_is_one(code: str) -> None:
    entry = FINDINGS[code]
    assert not _WRITTEN.search(entry.fix), "the command is a key of its own"
    if entry.command:
        assert shlex.split(entry.command)[0] == "ipexctl"
        parse(shlex.split(entry.command)[1:])
    if entry.do:
        subprocess.run(["sh", "-n", "-c", entry.do], check=True)


_SHELL = re.compile(
    r"(?:^|: |   or: )((?:sudo |echo |printf |ssh|timedatectl |ethtool |ip |chmod |ps |cat |df ).*?)"
    r"(?=   or: |$|[;,] or )"
)
SHELL = [(code, line) for code, entry in FINDINGS.items() for line in _SHELL.findall(entry.fix)]


@pytest.mark.parametrize(("code", "line"), SHELL)
def test_each_command_of_a_shell_is_read_by_one(code: str, line: str) -> None:
    line = re.sub(r"\{\w+\}", "word", line).partition("; check")[0]
    subprocess.run(["sh", "-n", "-c", line], check=True)


def test_fixes_of_several_findings_that_write_one_file_leave_it_what_it_has() -> None:
    files = re.findall(r"sudo tee (/\S+)", " ".join(line for _, line in SHELL))
    assert len(files) == len({*files})


def test_some_commands_of_a_shell_were_found() -> None:
    assert len(SHELL) >= 10


def test_the_commands_that_take_hosts_and_an_environment_are_those_of_the_command_line() -> None:
    options = {
        name: {word for param in command.params for word in param.opts} for name, command in TOP.commands.items()
    }
    with_hosts = {name for name in ON_HOSTS if {"-f", "--hosts", "--limit"} <= options[name]}
    assert with_hosts == ON_HOSTS
    assert {name for name in WITH_VENV if "--venv" in options[name]} == WITH_VENV
    verbs = {words[0] for _, words in ADVISED}
    assert {verb for verb in verbs & options.keys() if "--venv" in options[verb]} <= WITH_VENV
    assert {verb for verb in verbs & options.keys() if "--limit" in options[verb]} <= ON_HOSTS | {
        "stacks",
        "play",
        "init",
    }


@pytest.mark.parametrize(("words", "command"), read_table("hints/users_options", frozen=True))
def test_a_command_gets_the_users_options_once_and_only_those_it_takes(words: tuple[str, ...], command: str) -> None:
    hint = complete_hint(advise(*words, text="do:"), PLACE)
    assert hint == f"do:\n{command}"
    assert complete_hint(hint, PLACE) == hint, "completed twice"
    assert complete_hint(advise(*words), ()) == shlex.join(["ipexctl", *words])
    parse(shlex.split(command)[1:])
    (note,) = complete_notes([Note("x", advise(*words, text="do:"), ("n1",))], PLACE)
    assert note == Note("x", hint, ("n1",))


def test_any_other_text_stays_as_it_is() -> None:
    assert complete_hint("chmod 600 key; ipexctl doctor", PLACE) == "chmod 600 key; ipexctl doctor"
    assert complete_hint(None, PLACE) is None


def test_words_with_blanks_are_filled_in_before_they_are_quoted() -> None:
    assert advise("logs", "{run}").fill(run="a b") == "ipexctl logs 'a b'"


def test_a_refused_install_is_advised_again_with_all_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (hosts := tmp_path / "hosts").write_text("node0\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["install", "-f", str(hosts), "--torch", "2.0.1", "--backend=impi", "--with", "a > 1", "--venv", "/opt/x"]
    assert TOP.main(words, standalone_mode=False) == 2
    last = capsys.readouterr().err.splitlines()[-1].strip()
    kept = ["install", "-f", str(hosts), "--torch", "2.0.1", "--with", "a > 1", "--venv", "/opt/x", "--backend", "ccl"]
    assert shlex.split(last.removeprefix("hint: ")) == ["ipexctl", *kept]


@pytest.mark.parametrize(
    ("words", "advice"),
    read_table("hints/a_command_refused_before_its_start_is_advised_again_with_all_that_was_asked_for"),
)
def test_a_command_refused_before_its_start_is_advised_again_with_all_that_was_asked_for(
    words: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "h").write_text("node0\nnode1\n")
    (tmp_path / "t.py").write_text("import torch\n")
    (tmp_path / "go.sh").write_text("cd a || exit; python t.py\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert TOP.main(words.split(), standalone_mode=False) == 2
    assert capsys.readouterr().err.splitlines()[-1].strip().removeprefix("hint: ") == f"ipexctl {advice}"
