"""Every command that is advised, but installs (tests/integration/test_install_hosts.py): given as printed on hosts with
a run that goes on and one that has failed, it changes nothing on them but what ipexctl keeps for itself."""

import shlex
from collections.abc import Callable

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, Started, Workspace
from tests.unit.test_hints import ADVISED, ERRORS, FINDINGS
from tests.waiting import wait

NOT_PLAYED = {
    "install", "uninstall",  # played with their own hosts and indexes
    "run", "sync", "play", "tune", "init", "demo", "lab", "shell",  # start what the user names, who has read it
    "watch", "1",  # goes on until Ctrl-C; a file's own examples
}  # fmt: skip
OWN = ("/root/.local/state/ipexctl", "/root/.cache/ipexctl")


def list_commands(failed: str) -> list[tuple[str, ...]]:
    """Of both catalogues and the code, one of each verb and options; what is filled in is of the run that failed."""
    lines = [*(known.command for known in ERRORS), *(entry.command for entry in FINDINGS.values())]
    tables = [shlex.split(line)[1:] for line in lines if line]
    tables = [[failed if word == "{run}" else word for word in words] for words in tables]
    commands = [tuple(words) for words in tables]
    for _, words in ADVISED:
        if words[0] in ("stop", "attach", "logs", "report") and "1" in words:  # the run comes before all other words
            words = [*words[: words.index("1")], failed, *words[words.index("1") + 1 :]]
        commands.append(tuple(words))
    played = [words for words in commands if words[0] not in NOT_PLAYED and "{" not in " ".join(words)]
    kinds = {(words[0], *sorted(word for word in words if word.startswith("-"))): words for words in played}
    return list(kinds.values())


def list_changes(hosts: Cluster, name: str) -> set[str]:
    """Paths of the host that are newer than its mark, but ours."""
    every = ["find", "/root", "/etc", "/opt", "/home", "/srv", "-xdev", "-newer", "/tmp/mark", "-print"]
    paths = hosts.exec(name, every).stdout.splitlines()
    parents = {parent for own in OWN for parent in (own.rsplit("/", 1)[0], own.rsplit("/", 2)[0], "/root")}
    return {path for path in paths if not path.startswith(OWN) and path not in parents}


@pytest.mark.fault("M6")
def test_what_is_advised_changes_nothing_and_ends_no_run(
    workspace: Workspace, hosts: Cluster, start: Callable[..., Started]
) -> None:
    script = workspace.path / "fails.py"
    script.write_text("import os, sys\nsys.exit(3 * (os.environ['RANK'] == '1'))\n")
    assert workspace("run", "--venv", LIGHT, "--ppn", "1", script).code == 5
    failed = workspace.report()["run"]["run"]
    goes_on = workspace.path / "goes_on.py"
    goes_on.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    other = start("run", "--venv", LIGHT, "--ppn", "1", goes_on)
    wait(lambda: other.output.out.count("up") == 3, 60, lambda: str(other.output))
    ranks = {(name, each.pid) for name in hosts.names for each in hosts.processes(name) if "RANK" in each.environ}
    for name in hosts.names:
        hosts.exec(name, ["touch", "/tmp/mark"], check=True)
    commands = list_commands(failed)
    assert {words[0] for words in commands} >= {"doctor", "logs", "stacks", "stop", "attach", "ps", "runs"}
    for words in commands:
        if "--yes" in words:  # a change that was agreed to
            continue
        done = workspace(*words, timeout=300)
        assert done.code != 70, (words, str(done))
        alive = {(name, each.pid) for name in hosts.names for each in hosts.processes(name)}
        assert ranks <= alive, (words, str(done))
    assert {name: list_changes(hosts, name) for name in hosts.names} == {name: set() for name in hosts.names}
    assert workspace("stop").code == 0
    other.end()
