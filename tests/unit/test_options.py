"""Options are made from the models, help texts keep one style, every example works, and the old words still do."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from ipexctl import loop
from ipexctl.cli import app, help_page
from ipexctl.cli.command import make_model
from ipexctl.cli.command_options import find_model
from ipexctl.cli.help_page import shorten_help
from tests.tables import read_table

GROUPS = {"Options", "Hosts", "Placement", "Collectives", "Environment", "Limits", "Output", "Connection", "Versions"}
GROUPS |= {"Packages", "Files", "Checks", "Fixes", "Instances", "Steps", "Playbook", "Comparison", "Measurement"}
GROUPS |= {"Selection", "Removal", "Export", "Replay", "Notifications"}
TOP: Any = typer.main.get_command(app)


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that the help lists and that does something."""
    for name, inner in command.commands.items():
        if not inner.hidden:
            if hasattr(inner, "examples"):
                yield f"{path}{name}", inner
            if hasattr(inner, "commands"):
                yield from commands(inner, f"{path}{name} ")


COMMANDS = dict(commands(TOP))
EXAMPLES = [(path, line) for path, command in COMMANDS.items() for line in command.examples]
OPTIONS = [(path, param) for path, command in COMMANDS.items() for param in command.params if param.name != "verbose"]


@pytest.mark.parametrize("path", COMMANDS)
def test_every_help_begins_with_examples(path: str) -> None:
    examples = COMMANDS[path].examples
    assert 2 <= len(examples) <= 3
    assert all(line.startswith("ipexctl ") and len(line) < 77 for line in examples)
    result = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "80"})
    head, _, options = result.output.partition("\n\nExamples:\n  " + "\n  ".join(examples) + "\n\n")
    assert options
    assert re.fullmatch(r"Usage: .*\n\n(  \S.*\n?)+", head)


def list_names(page: str) -> set[str]:
    """The words of the left column of a help."""
    lines = [line[2:].partition("  ")[0] for line in page.splitlines() if re.match(r"  \S", line)]
    return {word for line in lines if not line.startswith("ipexctl ") for word in (line, *re.split(r",? ", line))}


@pytest.mark.parametrize("path", COMMANDS)
def test_a_help_is_one_screen_and_the_long_one_has_every_option(path: str) -> None:
    command = COMMANDS[path]
    short, long = (
        CliRunner().invoke(app, [*path.split(), word], env={"COLUMNS": "80"}).output
        for word in ("--help", "--help-all")
    )
    assert len(short.splitlines()) <= 40
    assert max(len(line) for line in short.splitlines()) <= 80
    whole = " ".join((long if command.advanced else short).split())
    for param in command.params:
        name = param.opts[0] if param.param_type_name == "option" else re.sub(r"[][]", "", param.metavar)
        assert (name in list_names(short)) == (param.name not in command.advanced and param.name != "help_all"), name
        assert not command.advanced or name in list_names(long), name
        assert " ".join((param.help or "").split()) in whole, name
    assert not command.advanced or short.endswith(f"\nAll options: ipexctl {path} --help-all\n")


def test_the_help_of_the_program_has_each_command_in_one_group_on_one_screen() -> None:
    grouped = [name for names in help_page.COMMANDS.values() for name in names]
    assert sorted(grouped) == sorted(name for name, command in TOP.commands.items() if not command.hidden)
    page = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}, prog_name="ipexctl").output
    assert len(page.splitlines()) <= 45
    assert re.findall(r"^(\S[^:\n]*):$", page, re.M) == ["Examples", *help_page.COMMANDS]
    for name in grouped:
        assert re.search(rf"^  {name} +\S.*\.$", page, re.M), "one whole line each"
    assert page.endswith("\nAll options: ipexctl --help-all\n")


@pytest.mark.parametrize("path", ["", *COMMANDS])
def test_a_help_fits_narrow_terminals_but_for_command_lines(path: str) -> None:
    page = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "40"}).output
    wide = [
        line
        for line in page.splitlines()
        if len(line) > 40 and not re.match(r"  ipexctl |All options|  \S+ \S*\|\S*$", line)
    ]
    assert not wide


@pytest.mark.parametrize(("width", "text", "short"), read_table("options/a_help_is_shortened_between_clauses"))
def test_a_help_is_shortened_between_clauses(width: int, text: str, short: str) -> None:
    assert shorten_help(text, width) == short


@pytest.mark.parametrize(("path", "line"), EXAMPLES)
def test_every_example_is_read_into_its_task(path: str, line: str) -> None:
    words = shlex.split(line.partition(" > ")[0])[1:]
    command, rest = COMMANDS[path], words[len(path.split()) :]
    assert words[: len(path.split())] == path.split()
    context = command.make_context(path, rest)
    for model in command.models:
        made = make_model(find_model(model), context.params)
        assert type(made).__name__ == model.rpartition(".")[2]


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A working directory with what the examples name; nobody listens where its hosts are."""
    monkeypatch.setattr(loop, "get_state_directory", lambda: tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IPEXCTL_HOSTFILE", raising=False)
    Path("hostfile").write_text("".join(f"node{n} address=127.0.0.1 port=1\n" for n in range(2)))
    Path("cluster.yaml").write_text("all:\n  hosts:\n    node[0:1]:\n")
    Path("job").mkdir()
    Path("job/train.py").write_text("import torch\n")
    Path("playbook.yaml").write_text("vars: {epochs: 1}\nsteps: [{doctor: , tags: train}]\n")
    return CliRunner()


CONTACTLESS = ("hosts", "stacks why", "migrate", "play lint")
RUN_HERE = [
    line
    for _, line in EXAMPLES
    if re.search("--(dry-run|check)", line) or line.removeprefix("ipexctl ").startswith(CONTACTLESS)
    if not re.search("wheels", line)
]


@pytest.mark.parametrize("line", RUN_HERE)
def test_examples_that_change_nothing_run(controller: CliRunner, line: str) -> None:
    words = [f"job/{word}" if word == "train.py" else word for word in shlex.split(line)[1:]]
    result = controller.invoke(app, words)
    assert result.exit_code in {0, 3}, result.output  # 3: the hosts cannot be reached
    assert "Traceback" not in result.output


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_has_a_group_a_metavar_and_a_help_of_one_style(path: str) -> None:
    for param in [param for command, param in OPTIONS if command == path]:
        text = param.help
        assert re.match(r"([A-Z]|oneCCL )", text), text
        assert text.endswith("."), text
        assert not re.search(r"\(else|\bthere\b|\btold\b|\bthey\b", text), text
        if param.param_type_name == "option":
            assert param.rich_help_panel in GROUPS, param.name
            assert param.is_flag or param.metavar or "|" in param.get_help_record(context(path))[0], param.name
            assert param.is_flag or param.default is None or "default: " in text, param.name


def context(path: str) -> Any:
    command = COMMANDS[path]
    return command.context_class(command, info_name=path)


def test_a_default_is_named_in_one_way_only() -> None:
    helps = "\n".join(param.help for _, param in OPTIONS)
    assert "[default" not in helps
    assert "default: " in helps
    assert not re.search(r"(?<![(;] )(?<!\()default: ", helps)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("stop --orphans --kill", "--kill does not fit --orphans"),
        ("doctor --verify --fix --yes", "--fix does not fit --verify"),
        ("doctor --verify --timeout 3", "--timeout does not fit --verify"),
    ],
)
def test_flags_that_do_not_fit_each_other_are_refused(controller: CliRunner, line: str, sentence: str) -> None:
    result = controller.invoke(app, line.split())
    assert (result.exit_code, sentence in result.output) == (2, True), result.output
