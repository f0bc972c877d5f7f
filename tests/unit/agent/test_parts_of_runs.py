"""Directories of a host that only holds a part of a run."""

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ipexctl.act import run_control
from ipexctl.act.run_dir import RemoteRunDir, create_run_dir, remove_run_dir
from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.model.hosts import Host
from ipexctl.protocol import messages, paths
from ipexctl.protocol.messages import KINDS, OrphanDirectory, RunListing
from ipexctl.protocol.paths import RUNS, Role
from ipexctl.remote.agent import files
from tests.unit.agent.runs import PLAIN, SPEC, TIMINGS, keeping, remote
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


def test_it_hides_no_half_made_directory(link: LocalLink, part: Path) -> None:
    """Which has no agent of its own to ask."""
    half = part.parent / "0101-half-h0"
    half.mkdir()
    os.utime(half, (1, 1))
    assert run_control.list_runs_on_head(link).orphans == [OrphanDirectory("0101-half", str(half))]


def test_a_part_is_no_orphan_until_its_guard_has_ended(link: LocalLink, part: Path, tmp_path: Path) -> None:
    """However long nothing was written there."""
    with keeping(tmp_path / "elsewhere", timings=QUICK) as kept:
        words = remote("guard", str(part), "127.0.0.1", str(kept.port))
        marked = {**PLAIN, paths.RUN_ENV: SPEC.run}
        done = subprocess.run(words, env=marked, stdout=subprocess.PIPE, timeout=60)
        assert KINDS.read(done.stdout) == messages.GuardReady()

        def make_old() -> bool:
            for path in (part, *part.iterdir()):
                with suppress(FileNotFoundError):  # the guard is at work
                    os.utime(path, (1, 1))
            return not files.is_fresh(str(part))

        wait(make_old)
        assert run_control.list_runs_on_head(link) == RunListing()
        kept.connect(Role.ORDER, "test").send(messages.KillRun("test"))
        wait(lambda: kept.over)
    assert not part.exists()
    assert run_control.list_runs_on_head(link) == RunListing()


def test_a_part_without_a_guard_is_an_orphan(link: LocalLink, part: Path) -> None:
    for path in (part, *part.iterdir()):
        os.utime(path, (1, 1))
    assert run_control.list_runs_on_head(link).orphans == [OrphanDirectory(SPEC.run, str(part))]


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


@pytest.mark.parametrize("age", [0, 61])
def test_a_transfer_that_takes_its_time_is_not_half_made(tmp_path: Path, age: int) -> None:
    """The guard of another run removed the directory while the input of rank 0 was still on its way."""
    run = tmp_path / "0101-half-h0"
    stdin = run / f"{paths.PART}put-7/tree/stdin"
    stdin.parent.mkdir(parents=True)
    stdin.touch()
    for path, seconds in ((run, 100), (stdin, age)):
        os.utime(path, (path.stat().st_mtime - seconds,) * 2)
    assert files.is_half_made(str(run)) is bool(age)


@pytest.mark.parametrize("name", ["1120-103112-a3f2", "1120-103112-a3f2~2", "mine-h"])
def test_what_a_controller_has_saved_stays_where_it_is_a_host_itself(
    link: LocalLink, part: Path, tmp_path: Path, name: str
) -> None:
    """The same directory has the runs of a host and, on the controller, what was saved of earlier runs."""
    record = part.parent / name
    record.mkdir()
    (record / "events.jsonl").write_text("{}")
    os.utime(record, (1, 1))
    with keeping(tmp_path / "elsewhere", timings=QUICK) as kept:
        words = remote("guard", str(part), "127.0.0.1", str(kept.port))
        done = subprocess.run(words, env={**PLAIN, paths.RUN_ENV: SPEC.run}, stdout=subprocess.PIPE, timeout=60)
        assert KINDS.read(done.stdout) == messages.GuardReady()
        kept.connect(Role.ORDER, "test").send(messages.KillRun("test"))
        wait(lambda: kept.over)
    assert (record / "events.jsonl").is_file()
    assert run_control.list_runs_on_head(link) == RunListing()


def test_a_directory_of_a_run_is_removed_however_deep_a_rank_made_it(tmp_path: Path) -> None:
    """Its guard failed at the end of a run that had ended well: the host counted as lost."""
    made = tmp_path / "run"
    subprocess.run(["mkdir", "-p", f"{made}/{'a/' * 1500}"], check=True)
    try:
        files.remove_directory(str(made))
        assert not made.exists()
    finally:  # pytest's own removal is recursive
        subprocess.run(["rm", "-rf", made], check=True)


def test_a_directory_of_a_run_in_which_something_is_mounted_stays(
    link: LocalLink, part: Path, mount: Callable[[Path, str], None]
) -> None:
    """Open MPI's ranks have it as TMPDIR. What was mounted was removed, and then the directory was not."""
    (part / "a place").mkdir()
    mount(part / "a place", "mode=0755")
    (part / "a place/keep").touch()
    remove_run_dir(link, RemoteRunDir(HERE, str(part), "python3"))
    files.remove_directory(str(part))
    assert (part / "a place/keep").exists()
