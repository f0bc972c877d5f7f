"""What Tab offers: hosts, playbooks and runs that files here know; asked as a shell asks, by the environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ipexctl.cli.main import main
from tests.tables import read_table


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "hostfile").write_text("[cpu]\nnode0\nnode1\n")
    (tmp_path / "other").write_text("alpha\nbeta\n")
    (tmp_path / "play.yaml").write_text(
        "steps:\n  - {name: look, doctor: , tags: [prepare, slow]}\n  - {name: later on, doctor: , tags: end}\n"
    )
    (tmp_path / "bad.yaml").write_text("steps: [{instal: }]")
    for name in ("play$(touch x).yaml", "play;reboot;.yml", "play\x1b[2J.yaml"):  # a shell would execute some of them
        (tmp_path / name).touch()
    for name, run in (("0101-100000-abcd", "0101-100000-abcd"), ("0102-100000-12ef", "")):
        saved = tmp_path / "state/ipexctl/runs" / name
        saved.mkdir(parents=True)
        line = {"at": 1.0, "event": "run-started", "run": run} if run else {"at": 1.0, "event": "started"}
        (saved / "events.jsonl").write_text(json.dumps(line) + "\n")
    return tmp_path


def make_question(project: Path, words: str, shell: str) -> dict[str, str]:
    """The environment of a program that a shell asks; the last word is the one that is being typed."""
    asked = {
        "bash": {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
        "zsh": {"_TYPER_COMPLETE_ARGS": words},
    }[shell]
    return {"_IPEXCTL_COMPLETE": f"complete_{shell}", "XDG_STATE_HOME": str(project / "state"), **asked}


def offered(project: Path, words: str, shell: str = "bash") -> str:
    """By a process of its own, as for a shell."""
    env = {**os.environ, **make_question(project, words, shell)}
    env.pop("IPEXCTL_HOSTFILE", None)
    done = subprocess.run(
        [sys.executable, "-m", "ipexctl"], env=env, cwd=project, capture_output=True, text=True, timeout=60
    )
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize(("words", "expected"), read_table("completing/words_that_are_known_here_are_offered"))
def test_words_that_are_known_here_are_offered(
    project: Path, words: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the function that the process calls: it starts in a fifth of a second, this answers in a hundredth."""
    monkeypatch.chdir(project)
    monkeypatch.delenv("IPEXCTL_HOSTFILE", raising=False)
    for name, value in make_question(project, words, "bash").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    printed = capsys.readouterr()
    assert not printed.err
    assert printed.out.split("\n") == [*expected, ""] if expected else not printed.out.strip()


def test_a_process_of_its_own_offers_the_same(project: Path) -> None:
    assert offered(project, "ipexctl doctor --limit no") == "node0\nnode1\n"


def test_other_shells_are_answered_too(project: Path) -> None:
    assert "node0" in offered(project, "ipexctl doctor --limit no", "zsh")


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
