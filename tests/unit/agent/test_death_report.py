"""What is told of a rank's death: an exception that nobody caught, or the stacks of a crash."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act import agent
from ipexctl.decide.diagnosis.evidence import collect_evidence
from ipexctl.model.reports import RankOutcome
from ipexctl.protocol import hooks
from ipexctl.protocol.rank_records import RankEnded
from ipexctl.remote.agent import death_report, procs

STACKS = "Current thread\nFatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  <no Python frame>\n"


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/3.stacks").write_text(STACKS)
    return tmp_path / "ranks"


def reported(ranks: Path, number: int = signal.SIGABRT, pid: int = 1) -> RankEnded:
    end = RankEnded(3, "node0", signal=number)
    return death_report.describe_rank_death(str(ranks.parent), end, pid, death_report.KernelLog(), "")


def good_end(ranks: Path, pid: int) -> RankEnded:
    return death_report.describe_good_end(str(ranks.parent), RankEnded(3, "node0", 0), pid)


@pytest.mark.parametrize(
    ("line", "oom"),
    [
        ("Memory cgroup out of memory: Killed process 7 (python) total-vm:8kB", True),
        ("python[7]: segfault at 0", False),
        ("Killed process 70 (python) total-vm:8kB", False),
    ],
)
def test_a_rank_that_the_kernel_killed_ran_out_of_memory_whatever_its_group_counts(
    ranks: Path, tmp_path: Path, line: str, oom: bool
) -> None:
    (tmp_path / "kmsg").write_text(f"6,1,2,-;{line}\n")
    log = death_report.KernelLog()
    log.fd = os.open(tmp_path / "kmsg", os.O_RDONLY)
    end = RankEnded(0, "node0", signal=signal.SIGKILL, kills=0)
    end = death_report.describe_rank_death(str(ranks.parent), end, 7, log, "")
    os.close(log.fd)
    assert bool(end.oom) is oom


def test_a_crash_is_reported_with_the_stacks_it_left(ranks: Path) -> None:
    assert reported(ranks).traceback.startswith("Fatal Python error: Aborted")
    assert reported(ranks).error == ""


def test_stacks_of_any_size_take_no_memory(ranks: Path) -> None:
    """A hole of a terabyte before them was read."""
    with (ranks / "3.stacks").open("r+") as file:
        file.seek(1 << 40)
        file.write(STACKS)
    assert reported(ranks).traceback.startswith("Fatal Python error: Aborted")
    os.mkfifo(ranks / "pipe")
    assert procs.read_tail(str(ranks / "pipe"), 9) == b""


@pytest.mark.parametrize("held", [False, True])
def test_a_pipe_in_place_of_a_record_holds_nobody(ranks: Path, held: bool) -> None:
    os.mkfifo(ranks / "3.1.error")
    writer = os.open(ranks / "3.1.error", os.O_RDWR) if held else -1
    assert reported(ranks).traceback.startswith("Fatal Python error: Aborted")
    if held:
        os.close(writer)


def test_an_exception_is_reported_although_the_process_aborted_at_its_exit(ranks: Path) -> None:
    noted = {"error": "ValueError: no", "traceback": 'Traceback\n  File "a.py", line 1\nValueError: no\n'}
    (ranks / "3.1.error").write_text(json.dumps(noted))
    end = reported(ranks)
    assert {"error": end.error, "traceback": end.traceback} == noted
    assert end.kernel == ""


@pytest.mark.parametrize(("stopped", "number", "status"), [(True, 15, 1), (True, 11, None), (False, 15, None)])
def test_a_raised_rank_that_is_stopped_has_failed(ranks: Path, stopped: bool, number: int, status: int | None) -> None:
    (ranks / "3.1.error").write_text(json.dumps({"error": OWN, "traceback": "", "at": 41.5}))
    end = RankEnded(3, "node0", signal=number, stopped=stopped, at=42.0)
    end = death_report.describe_rank_death(str(ranks.parent), end, 1, death_report.KernelLog(), "")
    assert (end.status, end.raised, end.at) == (status, 41.5, 41.5 if status else 42.0)
    assert end.lingered == (0.5 if status else 0.0)


@pytest.mark.parametrize(
    ("how", "status", "at"),
    [({"signal": 15, "stopped": True}, 3, 41.5), ({"status": 3}, 3, 41.5), ({"status": 0}, 0, 42.0)],
)
def test_a_script_that_called_exit_has_failed_then(ranks: Path, how: dict[str, Any], status: int, at: float) -> None:
    (ranks / "3.2.error").write_text(json.dumps({"error": HELPERS, "traceback": ""}))
    (ranks / "3.1.error").write_text(json.dumps({"status": 3, "at": 41.5}))
    end = RankEnded(3, "node0", at=42.0, **how)
    end = death_report.describe_rank_death(str(ranks.parent), end, 1, death_report.KernelLog(), "")
    assert (end.status, end.signal, end.at, end.error) == (status, 0, at, "" if "signal" in how else HELPERS)


@pytest.mark.parametrize("size", [9_000, 2_000_000])
def test_what_a_rank_has_written_of_its_end_is_bounded(ranks: Path, size: int) -> None:
    """Each file of its own before it is parsed, and what is passed on."""
    text = "x" * size
    (ranks / "3.1.error").write_text(json.dumps({"error": text, "traceback": text, "exit_line": text}))
    (ranks / "elastic").write_text(json.dumps({"message": {"message": text, "extraInfo": {"py_callstack": text}}}))
    for pid in (1, 2):
        end = RankEnded(3, "node0", 1)
        end = death_report.describe_rank_death(
            str(ranks.parent), end, pid, death_report.KernelLog(), str(ranks / "elastic")
        )
        assert bool(end.error) == (size == 9_000)
        assert len(end.error) < 3_000
        assert len(end.traceback) < 21_000
        assert len(end.exit_line) == (4_200 if pid == 1 and end.error else 0)
    assert len(good_end(ranks, 1).exit_line) in (0, 4_200)


def test_what_ends_a_script_that_had_asked_to_end_well_came_later(ranks: Path) -> None:
    (ranks / "3.1.error").write_text(json.dumps({"status": 0, "at": 41.5, "exit_line": "/home/u/brk.py:49"}))
    end = reported(ranks)
    assert (end.status, end.signal, end.raised, end.traceback[:18]) == (None, signal.SIGABRT, 0.0, "Fatal Python error")
    assert end.exit_line == "/home/u/brk.py:49"
    assert good_end(ranks, 1).exit_line == "/home/u/brk.py:49"
    assert good_end(ranks, 2).exit_line == ""


@pytest.mark.parametrize("ending", ["2.error", "1.thread"])
@pytest.mark.parametrize(("grouped", "error"), [(True, "ValueError: no"), (False, "")])
def test_a_rank_that_ended_well_has_the_exception_of_a_process_that_had_met_others(
    ranks: Path, ending: str, grouped: bool, error: str
) -> None:
    """Of a helper that looked for something alone it has not."""
    (ranks / f"3.{ending}").write_text(json.dumps({"error": "ValueError: no", "at": 41.5, "grouped": grouped}))
    end = good_end(ranks, 1)
    assert (end.status, end.error) == (0, error)


HELPER = "subprocess.run([sys.executable, '-c', 'import no_such_module'], stderr=subprocess.DEVNULL, check={check})"
OWN, HELPERS = "ValueError: no", "ModuleNotFoundError: No module named 'no_such_module'"
TORCHRUN = """
import collections, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "raise ValueError('no')"], stderr=subprocess.DEVNULL)
child.wait()
class ChildFailedError(Exception):
    def get_first_failure(self): return 0, collections.namedtuple("Failure", "pid")(child.pid)
raise ChildFailedError
"""
CALLS = f"import subprocess, sys; command = [sys.executable, '-c', {TORCHRUN!r}]; {{}}"
SPAWNS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "raise ValueError('no')"], stderr=subprocess.DEVNULL)
child.wait()
class ProcessExitedException(Exception):
    error_pid = child.pid
raise ProcessExitedException("process 0 terminated with exit code 1")
"""
INTERRUPTED = """
import traceback
format_exception = traceback.format_exception
def handle(*words):  # as the handler of SIGCHLD of a DataLoader whose worker has died, at this moment
    traceback.format_exception = format_exception
    raise RuntimeError("a worker is gone")
traceback.format_exception = handle
raise ValueError("no")
"""
PROCESS = (
    "import multiprocessing; fork = multiprocessing.get_context('fork'); ours, its = fork.Pipe();"
    "process = fork.Process(target=int, args=('no',)); process.start(); its.close()"
)
HANDLED = "import os, signal, subprocess, sys; " + HELPER.format(check=False)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (f"{HANDLED}; raise ValueError('no')", OWN),
        (f"{HANDLED}; subprocess.run(['false'], check=True)", "subprocess.CalledProcessError: Command '['false']' "),
        (f"{HANDLED}; os.kill(os.getpid(), signal.SIGKILL)", ""),
        (f"{HANDLED}; sys.exit(1)", HELPERS),
        (f"{HANDLED}; {HELPER.format(check=True)}", HELPERS),  # so does the launcher of Accelerate
        (TORCHRUN, OWN),
        (CALLS.format("sys.exit(subprocess.call(command))"), OWN),  # torchrun in a script, whose child failed
        (CALLS.format("subprocess.run(command, check=True)"), OWN),
        (INTERRUPTED, OWN),
        (SPAWNS, OWN),  # as torch.multiprocessing.spawn, of a process that ended before it was asked for anything
        ("import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'raise ValueError(\"no\")']))", OWN),
        (f"{PROCESS}; process.join(); raise SystemExit(process.exitcode)", "ValueError: invalid literal"),
    ],
)
def test_the_exception_of_a_helper_counts_only_where_the_script_has_none(ranks: Path, script: str, error: str) -> None:
    done, pid = ended(ranks, script)
    end = reported(ranks, max(0, -done), pid)
    assert end.error.startswith(error)
    assert bool(end.error) == bool(end.traceback) == bool(error)
    assert end.kernel == ""


@pytest.mark.parametrize(
    ("call", "texts"),
    [
        ("ours.recv()", ["EOFError"]),
        # as torchrl does, where a worker cannot start and where it fails later
        ("try: ours.recv()\nexcept EOFError as e: raise OSError('lost') from e", ["OSError: lost", "EOFError"]),
        ("try: ours.recv()\nexcept EOFError: raise OSError('lost')", ["OSError: lost"]),
    ],
)
def test_the_exception_of_a_process_that_its_rank_waited_for_is_the_cause(
    ranks: Path, call: str, texts: list[str]
) -> None:
    """As of an environment that cannot be made in its worker, to whose pipe the rank listens."""
    _, pid = ended(ranks, f"{PROCESS}\n{call}")
    end = reported(ranks, 0, pid)
    evidence = collect_evidence(RankOutcome(0, "node0", "failed", error=end.error, traceback=end.traceback))
    cause = "ValueError: invalid literal for int() with base 10: 'no'"
    assert [raised.text for raised in evidence.exceptions] == [*texts, cause]


def test_the_exception_of_a_process_that_a_pool_has_lost_is_the_cause(ranks: Path, tmp_path: Path) -> None:
    """As of a script without a main guard, which spawned processes execute again."""
    script = tmp_path / "pool.py"
    script.write_text(
        "import multiprocessing, concurrent.futures as futures\n"
        "if __name__ == '__mp_main__': raise ValueError('no')\n"
        "with futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('spawn')) as pool:\n"
        "    pool.submit(int).result()\n"
    )
    _, pid = ended(ranks, script)
    end = reported(ranks, 0, pid)
    assert end.error.startswith("concurrent.futures.process.BrokenProcessPool")
    evidence = collect_evidence(RankOutcome(0, "node0", "failed", error=end.error, traceback=end.traceback))
    last, cause = evidence.exceptions
    assert last.text.startswith(end.error)
    assert cause.text == "ValueError: no"
    assert "run_path(main_path" in cause.files


def test_an_environment_that_is_gone_is_observed_where_an_import_fails(ranks: Path) -> None:
    _, pid = ended(ranks, "import sys; sys.prefix = '/no/env'; import nosuch")
    end = reported(ranks, 0, pid)
    assert (end.error, end.observed) == ("ModuleNotFoundError: No module named 'nosuch'", (hooks.ENV_GONE, "/no/env"))


@pytest.mark.parametrize("text", ["", ", text=True"])
def test_what_a_command_wrote_that_failed_is_kept_where_the_script_captures_it(ranks: Path, text: str) -> None:
    script = f"import subprocess; subprocess.run(['ls', '/no/shard'], check=True, capture_output=True{text})"
    _, pid = ended(ranks, script)
    assert reported(ranks, 0, pid).traceback.splitlines()[-1].startswith("ls: cannot access '/no/shard'")


def test_the_full_disk_of_a_file_that_was_open_is_named(
    ranks: Path, tmp_path: Path, mount: Callable[[Path, str], None]
) -> None:
    """It was the one of the current directory: the exception of a write has no name of a file."""
    (tmp_path / "small").mkdir()
    mount(tmp_path / "small", "size=1m")
    script = (
        f"log = open({str(tmp_path / 'small/log')!r}, 'w')\nfor _ in range(9): log.write('x' * (1 << 19)); log.flush()"
    )
    _, pid = ended(ranks, script)
    assert reported(ranks, 0, pid).room == (str(tmp_path / "small"), 0)


def test_exceptions_of_helpers_fill_no_disk(ranks: Path) -> None:
    many = "import os\nfor _ in range(30):\n    if not os.fork(): raise KeyError(1)\n    os.wait()\n"
    _, pid = ended(ranks, many + "raise ValueError('no')")
    assert len(list(ranks.glob("3.*.error"))) == 8
    assert reported(ranks, 0, pid).error == OWN


def ended(ranks: Path, script: str | Path) -> tuple[int, int]:
    """The status and the id of a rank 3 that was this script."""
    (ranks / "3.stacks").unlink()
    hooks = ranks.parent / "hooks"
    hooks.mkdir()
    for name, data in agent.read_hooks().items():
        (hooks / name).write_bytes(data)
    env = {**os.environ, "PYTHONPATH": str(hooks), "IPEXCTL_DIR": str(ranks.parent), "IPEXCTL_RANK": "3"}
    words = ["-c", script] if isinstance(script, str) else [script]
    with subprocess.Popen([sys.executable, *words], env=env, stderr=subprocess.DEVNULL) as rank:
        return rank.wait(60), rank.pid
