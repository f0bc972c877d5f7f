"""However a rank of somebody else's ends, over whichever MPI and backend: which one it was, on which host, at which
line, with all that it wrote (docs/failures.md has the table of what was seen)."""

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

import pytest

from tests.e2e.workspace import RANKS, Workspace


class End(NamedTuple):
    """What is to be said of the rank that failed, and of its last words."""

    status: int | None = 1
    signal: int = 0
    abort: int | None = None
    error: str = ""
    line: str = ""
    lines: int = 200


ENDS = {
    "one": End(error="KeyError: 'record 1'", line="ends.py"),
    "all": End(error="KeyError: 'record", line="ends.py"),
    "before-init": End(error="ValueError: wrong before init", line="ends.py", lines=0),
    "after-finalize": End(error="RuntimeError: wrong after finalize", line="ends.py"),
    "thread": End(9),
    "worker": End(error="OSError: Caught OSError in DataLoader worker process 0."),
    "abort": End(None, abort=7),
    "exit-3": End(3),
    "slow-exit": End(3),
    "os-exit": End(4),
    "segv": End(None, 11),
    "kill": End(None, 9),
    "memory": End(error="MemoryError"),
    "flood": End(error="KeyError: 'record 1'", lines=20_000),
}
BACKENDS = ("impi", "gloo", "mpi4py", "none")
# Over impi one is met under MPICH 5 (test_engines.py).
QUICK = {("gloo", "slow-exit"), ("mpi4py", "abort"), ("mpi4py", "exit-3"), ("mpi4py", "one"), ("none", "flood")}


def list_ends() -> Iterator[tuple[str, str]]:
    """Each backend with each way in which one of its ranks can end."""
    for backend in BACKENDS:
        for way in ENDS:
            if way == "abort" and backend in ("gloo", "none"):
                continue  # without MPI nobody aborts it
            if way == "slow-exit" and backend != "gloo":
                continue  # nobody notices that it leaves
            if way == "worker" and backend in ("mpi4py", "none"):
                continue  # without torch there is no loader
            yield backend, way


def mark_end(backend: str, way: str, quick: Collection[tuple[str, str]]) -> list[pytest.MarkDecorator]:
    """Whether this end is one of `make test`, and which of the faults it is."""
    marks = [pytest.mark.backend, *([] if (backend, way) in quick else [pytest.mark.beyond_core])]
    fault = {"one": "M1", "abort": "M2"}.get(way)
    return [*marks, pytest.mark.fault(fault)] if fault else marks


@pytest.mark.parametrize(("backend", "way"), [pytest.param(*end, marks=mark_end(*end, QUICK)) for end in list_ends()])
def test_the_rank_that_failed_is_named_with_all_it_wrote(
    stock: str, workspace: Workspace, backend: str, way: str
) -> None:
    words = ["--backend", "impi" if backend == "impi" else "gloo"]
    result = workspace(
        "run", "--venv", stock, "--limit", "node0,node1", "--ppn", "2", *words, RANKS / "ends.py", backend, way
    )
    assert result.code == 5, result
    check_end(workspace, way)
    if way == "one":
        for text in ("rank 1 on node0", "KeyError: 'record 1'", 'ends.py", line'):
            assert text in result.out, result
    assert way != "abort" or "rank 1 on node0 called MPI_Abort(7)" in result.out


@pytest.mark.backend
@pytest.mark.parametrize("backend", ["impi", "gloo"])
def test_a_rank_that_catches_its_exception_and_leaves_a_collective_out_is_named(
    stock: str, workspace: Workspace, backend: str
) -> None:
    words = ["--venv", stock, "--limit", "node0,node1", "--ppn", "1", "--backend", backend]
    result = workspace("run", *words, RANKS / "shifted.py")
    assert result.code == 0, result
    assert "rank 1: it took part in 5 collectives, rank 0 in 6: after a step that one rank leaves out" in result.err


def check_end(workspace: Workspace, way: str, *, ends_itself: bool = False) -> None:
    """Judges the last run of `ends.py` by its report and its logs. ``ends_itself``: as under Open MPI, where a rank
    that calls MPI_Abort exits with its code."""
    end, run = ENDS[way], workspace.report()["run"]
    rank = run["first"] if way == "all" else 1
    first = run["ranks"][rank]
    assert (run["first"], first["host"]) == (rank, f"node{rank // 2}")
    status = end.abort if ends_itself and first["status"] == end.abort else end.status
    assert (first["status"], first["signal"], first["abort"]) == (status, end.signal, end.abort), first
    assert end.error in first["error"], first
    written = workspace.written(rank) if end.lines else b""
    assert [int(number) for number in re.findall(rb"^rank \d line (\d+)$", written, re.M)] == list(range(end.lines))
    assert not end.lines or b"last words" in workspace.written(rank, "err")
