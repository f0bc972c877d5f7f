"""``ipexctl init`` on separate hosts: asks, knows the answers, writes what lints and plays, overwrites nothing."""

from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import Terminal, Workspace
from tests.waiting import wait

pytestmark = pytest.mark.hosts


@pytest.fixture
def workspace(hosts: Cluster, tmp_path: Path) -> Workspace:
    made = Workspace(hosts, tmp_path / "desk")
    made.env["HTTPS_PROXY"] = "http://127.0.0.1:9"  # no index is reached, and that is known at once
    (made.path / "train.py").write_text("import torch\nfrom accelerate import Accelerator\n")
    return made


def typed(workspace: Workspace, words: list[str], answers: dict[str, str]) -> tuple[int, str]:
    """A command on a terminal; each answer is typed when its question stands there."""
    terminal, waiting = Terminal(workspace, *words, columns=200), dict(answers)

    def answer() -> bool:
        output = terminal.read().decode("utf-8", "replace")
        for question in [question for question in waiting if question in output and output.endswith(("] ", "  "))][:1]:
            terminal.type(waiting.pop(question).encode() + b"\n")
            terminal.screen += b"\n"
        return terminal.process.poll() is not None

    try:
        wait(answer, 90.0, lambda: repr(terminal.screen))
        return terminal.end(), terminal.screen.decode("utf-8", "replace")
    finally:
        terminal.kill()


def test_the_defaults_are_what_the_hosts_reported_and_the_playbook_lints_and_checks(workspace: Workspace) -> None:
    workspace.succeed("init", "--yes", "--backend", "gloo", "train.py", "--epochs", "1")
    text = (workspace.path / "playbook.yaml").read_text()
    assert "with: [accelerate==1.7.0]" in text
    assert "#   node[0-2]  " in text
    linted = workspace.succeed("play", "lint", "playbook.yaml", "--json")
    assert '"hosts": 3' in linted.out
    steps = workspace.succeed("play", "playbook.yaml", "--list-steps")
    assert "node0,node1,node2" in steps.out
    looked = workspace(
        "play", "playbook.yaml", "--tags", "prepare", "--start-at", "look", "--check", "--skip-tags", "train"
    )
    assert "step 1 of 2: look" in looked.err


def test_questions_are_asked_with_defaults_and_asked_again(workspace: Workspace) -> None:
    answers = {
        "Which script": "trian.py", "trian.py is no file here": "train.py",
        "How many ranks": "none", "a number from 1 to 1024": "3", "Use Intel Extension": "", "Mixed precision?": "no",
        "Which port": "", "Which collectives?": "gloo",
    }  # fmt: skip
    code, output = typed(workspace, ["init"], answers)
    assert code == 0, output
    text = (workspace.path / "playbook.yaml").read_text()
    assert "ppn: 3" in text
    assert 'precision: "no"' in text
    assert 'torch: "2.8.0"' in text
    assert workspace("play", "lint", "playbook.yaml").code == 0


def test_nothing_is_overwritten_without_asking(workspace: Workspace) -> None:
    (workspace.path / "playbook.yaml").write_text("mine")
    result = workspace("init", "--yes", "train.py")
    assert result.code == 2, result
    assert "playbook.yaml already exists" in result.err
    assert "--force overwrites it" in result.err
    code, output = typed(workspace, ["init", "train.py"], {"Overwrite playbook.yaml?": "no"})
    assert code == 2, output
    assert (workspace.path / "playbook.yaml").read_text() == "mine"
    assert workspace("init", "--yes", "--force", "train.py").code == 0
    assert (workspace.path / "playbook.yaml").read_text() != "mine"


def test_without_a_terminal_and_without_yes_it_is_refused(workspace: Workspace) -> None:
    result = workspace("init", "train.py")
    assert result.code == 2, result
    assert "which needs a terminal" in result.err
    assert "ipexctl init --yes train.py" in result.err
    (workspace.path / "other.py").touch()
    result = workspace("init", "--yes")
    assert result.code == 2, result
    assert "one of other.py, train.py" in result.err
    assert not (workspace.path / "playbook.yaml").exists()
    (workspace.path / "train.py").write_text("loss.backward()\n")
    assert workspace("init", "--yes").code == 0
    assert "script: train.py" in (workspace.path / "playbook.yaml").read_text()
    assert workspace("play", "lint", "playbook.yaml").code == 0


def test_a_host_that_is_away_is_reported_and_all_away_writes_nothing(workspace: Workspace, hosts: Cluster) -> None:
    with hosts.power_off("node2"):
        result = workspace("init", "--yes", "--connect-timeout", "3", "train.py")
    assert result.code == 3, result
    assert "node2      did not answer" in (workspace.path / "playbook.yaml").read_text()
    (workspace.path / "playbook.yaml").unlink()
    result = workspace("init", "--yes", "--hosts", "127.0.0.9", "--connect-timeout", "2", "train.py")
    assert result.code == 3, result
    assert "no file was written" in result.err
    assert not (workspace.path / "playbook.yaml").exists()
