"""What keeper and guard make is for nobody else, whatever the login's umask, which ranks keep (faults.md J4)."""

import os
import subprocess
from pathlib import Path

import pytest

from ipexctl.protocol.messages import KINDS, GuardReady, KillRun
from ipexctl.remote.agent import files
from tests.unit.agent.runs import PLAIN, TIMINGS, Kept, keeping, remote
from tests.waiting import wait

QUICK = TIMINGS._replace(orderly=0.2, kill=0.5)  # how a run is ended is not the matter here
SAY = "umask >{output}.new; echo loud; mv {output}.new {output}; exec sleep 300"


def open_to_others(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*") if path.stat().st_mode & 0o077]


@pytest.mark.fault("J4")
@pytest.mark.parametrize("umask", [0o000, 0o027])
def test_files_are_for_nobody_else_and_ranks_have_the_logins_umask(tmp_path: Path, umask: int) -> None:
    launched, started = tmp_path / "launched", tmp_path / "started"
    mpiexec = ["/bin/sh", "-c", SAY.format(output=launched)]
    with keeping(tmp_path, umask, QUICK, head={"mpiexec": mpiexec}) as kept:
        guard(kept, umask)
        wait(launched.exists)
        kept.request_proxy("/bin/sh", "-c", f"'{SAY.format(output=started)}'")
        wait(started.exists)
        assert [int(output.read_text(), 8) for output in (launched, started)] == [umask, umask]
        wait(lambda: (kept.directory / "err.bin.000000").exists())
        assert {"journal.jsonl", "reserve", "err.bin.000000", "place.json", "port.json"} <= {
            path.name for path in kept.directory.iterdir()
        }
        (kept.directory / "spec.json").chmod(0o600)  # the test's own
        assert open_to_others(kept.directory) == []
        kept.connect("tell", "test").send(KillRun("test"))
        wait(lambda: kept.over, 20.0)


def guard(kept: Kept, umask: int) -> None:
    """The host's real guard, which goes into the background."""
    words = remote("guard", str(kept.directory), "127.0.0.1", str(kept.port))
    done = subprocess.run(words, env=PLAIN, stdout=subprocess.PIPE, timeout=60, umask=umask)
    assert KINDS.read(done.stdout) == GuardReady()


def test_a_home_without_locks_keeps_no_run_from_starting(tmp_path: Path) -> None:
    """ENOLCK from NFS without a lock server: nothing tells two runs on one host from each other then."""
    without = (
        "import errno, fcntl; "
        "fcntl.flock = lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, 'No locks available'))"
    )
    with keeping(tmp_path, timings=QUICK, share=False) as kept:
        words = remote("guard", str(kept.directory), "127.0.0.1", str(kept.port), before=without)
        done = subprocess.run(words, env=PLAIN, stdout=subprocess.PIPE, timeout=60)
        assert KINDS.read(done.stdout) == GuardReady()
        kept.connect("tell", "test").send(KillRun("test"))
        wait(lambda: kept.over, 20.0)


def test_age_is_by_the_clock_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock may be hours from that of a file server."""
    monkeypatch.setattr("time.time", lambda: 0.0)
    (tmp_path / "run").mkdir()
    assert files.is_fresh(str(tmp_path / "run"))
    os.utime(tmp_path / "run", (1, 1))
    assert not files.is_fresh(str(tmp_path / "run"))
