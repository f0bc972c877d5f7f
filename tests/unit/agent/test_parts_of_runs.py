"""A host that only holds a part of a run that goes on starts no Python for it, and hides nothing else by that."""

import os
import subprocess
from pathlib import Path

import pytest

from ipexctl.act import run_control
from ipexctl.act.run_dir import RemoteRunDir, create_run_dir
from ipexctl.act.scripts import read_script
from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.model.hosts import Host
from ipexctl.protocol import messages, paths
from ipexctl.protocol.messages import KINDS, OrphanDirectory, RunListing
from ipexctl.protocol.paths import AGENT, GUARD, ROLE, RUNS, Role
from ipexctl.remote.agent import files, procs
from tests.tables import read_table
from tests.unit.agent.runs import PLAIN, SPEC, TIMINGS, keeping, remote
from tests.unit.agent.test_launcher_pipes import SHELLS
from tests.unit.agent.test_listing import ended
from tests.waiting import wait

HERE = Host("here", "localhost")
NOTHING = "nothing is listed"
QUICK = TIMINGS._replace(orderly=0.2, kill=0.5)


@pytest.fixture
def link(tmp_path: Path) -> LocalLink:
    return LocalLink(HERE, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]})


@pytest.fixture
def part(link: LocalLink, tmp_path: Path) -> Path:
    """A part of a run; its head is elsewhere."""
    directory = tmp_path / RUNS / f"{SPEC.run}-h1"
    spec = SPEC._replace(head=None, timings=QUICK)
    create_run_dir(link, RemoteRunDir(HERE, str(directory), "python3"), spec)
    return directory


def write_own_process(part: Path) -> None:
    """This process is its guard."""
    me = procs.find_process(os.getpid())
    assert me
    (part / GUARD).write_text(f"{me.pid} {me.start}\n")


def break_agent(part: Path) -> None:
    """Whoever asks it is refused."""
    (part / ROLE).write_text("#!/bin/sh\nexit 1\n")
    (part / AGENT).write_bytes(b"rubbish")


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_while_its_guard_lives_no_agent_is_asked(part: Path, tmp_path: Path, shell: list[str]) -> None:
    write_own_process(part)
    break_agent(part)
    (part.parent / "lock-here").write_text("{}")
    words = [RUNS, ROLE, AGENT, Role.LIST, NOTHING, GUARD]
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    script = [*shell, "-c", read_script("ownership.sh") + read_script("list_runs.sh"), "list_runs.sh", *words]
    done = subprocess.run(script, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (f"{NOTHING}\n", "", 0)


@pytest.mark.parametrize(("address", "asked"), read_table("parts_of_runs/guards"))
def test_the_part_of_a_run_whose_guard_lives_starts_no_python(
    link: LocalLink, part: Path, tmp_path: Path, address: str | None, asked: bool
) -> None:
    agent = part / ROLE
    agent.write_text(f"#!/bin/sh\n: >{tmp_path}/asked\n" + agent.read_text().partition("\n")[2])
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        me, dead = procs.find_process(os.getpid()), int(Path(f"/proc/{zombie.pid}/stat").read_text().split()[21])
        assert me
        if address is not None:
            text = address.format(pid=me.pid, start=me.start, zombie=zombie.pid, zombie_start=dead)
            (part / GUARD).write_text(text)
        assert run_control.list_runs_on_head(link) == RunListing()
    assert (tmp_path / "asked").exists() == asked
    ended(link, tmp_path, "0101-old", "python3")
    assert [row.run for row in run_control.list_runs_on_head(link).runs] == ["0101-old"]


def test_it_hides_no_half_made_directory(link: LocalLink, part: Path) -> None:
    """Which has no agent of its own to ask."""
    write_own_process(part)
    half = part.parent / "0101-half-h0"
    half.mkdir()
    os.utime(half, (1, 1))
    assert run_control.list_runs_on_head(link).orphans == [OrphanDirectory("0101-half", str(half))]


def test_a_guard_that_was_started_is_found_until_it_has_ended(link: LocalLink, part: Path, tmp_path: Path) -> None:
    with keeping(tmp_path / "elsewhere", timings=QUICK) as kept:
        words = remote("guard", str(part), "127.0.0.1", str(kept.port))
        done = subprocess.run(words, env=PLAIN, stdout=subprocess.PIPE, timeout=60)
        assert KINDS.read(done.stdout) == messages.GuardReady()
        wait((part / GUARD).exists)
        break_agent(part)
        assert run_control.list_runs_on_head(link) == RunListing()
        kept.connect(Role.ORDER, "test").send(messages.KillRun("test"))
        wait(lambda: kept.over)
    assert not part.exists()
    assert run_control.list_runs_on_head(link) == RunListing()


@pytest.mark.parametrize(("spec", "fresh", "half"), [(0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 0)])
def test_half_made_is_what_is_old_and_has_no_specification(tmp_path: Path, spec: int, fresh: int, half: int) -> None:
    """It is removed: a directory of a run never is, nor one that a controller fills just now."""
    run = tmp_path / "0101-run-h0"
    run.mkdir()
    if spec:
        (run / paths.SPEC).write_text("{}")
    if not fresh:
        os.utime(run, (1, 1))
    assert files.is_half_made(str(run)) is bool(half)
    assert not files.is_half_made(f"{run}-x")
