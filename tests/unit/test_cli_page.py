"""docs/cli.md says what the commands say: it is written by tools/cli.py from the same text, and must not drift."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ipexctl.cli import app

PAGE = Path(__file__).parents[2] / "docs/cli.md"
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n\n```text\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S))
AGAIN = "write the page again: python tools/cli.py"


def commands(command: Any, path: str) -> dict[str, Any]:
    tree = {path: command}
    for name, inner in getattr(command, "commands", {}).items():
        tree |= {} if inner.hidden else commands(inner, f"{path} {name}")
    return tree


COMMANDS = commands(typer.main.get_command(app), "ipexctl")


@pytest.mark.parametrize("path", COMMANDS)
def test_the_page_is_what_the_help_prints(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        app(
            [*path.split()[1:], "--help-all" if getattr(COMMANDS[path], "advanced", ()) else "--help"],
            prog_name="ipexctl",
        )
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.strip().splitlines())
    assert re.sub(r"\n{3,}", "\n\n", printed) == SECTIONS[path].strip(), AGAIN


@pytest.mark.parametrize("path", [path for path, each in COMMANDS.items() if " " in path and hasattr(each, "commands")])
def test_a_list_of_commands_cuts_none_of_them_short(path: str) -> None:
    listed = SECTIONS[path].partition("\nCommands:\n")[2].partition("\n\n")[0].splitlines()
    shown = [command for command in COMMANDS[path].commands.values() if not command.hidden]
    assert len(listed) == len(shown), "one line each"
    assert not [line for line in listed if line.endswith("...")]


def test_the_tables_of_keys_in_the_playbook_page_are_those_of_the_tasks() -> None:
    written = runpy.run_path(str(PAGE.parents[1] / "tools/cli.py"))["playbook_page"]
    text = (PAGE.parent / "playbook.md").read_text("utf-8")
    assert written(text) == text, AGAIN


def test_the_page_has_every_command_and_no_other() -> None:
    assert SECTIONS.keys() == COMMANDS.keys(), AGAIN


def test_a_help_is_ascii_on_every_terminal() -> None:
    """Help is printed by Click as it is: it does not pass `Pipe`, which has a sign of ASCII for each of ours."""
    assert not [path for path, text in SECTIONS.items() if not text.isascii()]


@pytest.mark.parametrize(
    ("shell", "own"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete --command")]
)
def test_the_shells_own_script_is_printed(shell: str, own: str) -> None:
    # Typer would take the shell that has started us, whichever that is.
    env = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    words = [sys.executable, "-m", "ipexctl", "--show-completion", shell]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "_IPEXCTL_COMPLETE" in done.stdout
    assert own in done.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("ipexctl do", "doctor\n"),
        ("ipexctl hosts --lim", "--limit\n"),
        ("ipexctl logs 1120-", "1120-083015-a3f2\n"),
        ("ipexctl report l", "last\n"),
        ("ipexctl run 1120-", "\n"),
    ],
)
def test_a_shell_is_offered_commands_flags_and_saved_runs(words: str, offered: str, tmp_path: Path) -> None:
    for name in ("1120-083015-a3f2", r"1120-\$(id)", "1120-\x1b[2J"):  # zsh executes the second one
        saved = tmp_path / "ipexctl/runs" / name
        saved.mkdir(parents=True)
        (saved / "events.jsonl").touch()
    asked = {"_IPEXCTL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    env = {**os.environ, **asked, "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "ipexctl"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (offered, "")
