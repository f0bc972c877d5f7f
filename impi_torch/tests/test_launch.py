"""How a process was started, and what is said when it was not by mpirun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Run, environment, job, mpirun, version

from impi_torch._engine import cores_of
from impi_torch._launch import ImpiError, check_launch, is_cut_off, launched_by, launched_size
from impi_torch._override import reason_against

SCRIPT = (
    "import torch.distributed as dist; dist.init_process_group('impi'); print('size', dist.get_world_size()); "
    "dist.destroy_process_group()"
)


def rank_environment(rank: int, size: int, port: int) -> dict[str, str]:
    return environment(RANK=rank, WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)


def test_launchers_are_known_by_their_variables() -> None:
    assert launched_by({}) == ""
    assert launched_by({"PMI_RANK": "0", "PMI_SIZE": "4"}) == "PMI_RANK"
    assert launched_size({"PMI_RANK": "0", "PMI_SIZE": "4"}) == 4
    assert launched_size({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}) == 3
    assert launched_size({"PMIX_RANK": "1"}) == 0
    assert launched_size({}) == 0


def test_a_process_without_mpirun_is_refused_with_the_command_to_use() -> None:
    with pytest.raises(ImpiError, match=r"not by mpirun(.|\n)*hint: start it with `mpirun"):
        check_launch(2, {})
    with pytest.raises(ImpiError, match="started by torchrun"):
        check_launch(2, {"TORCHELASTIC_RUN_ID": "x"})
    check_launch(1, {})


def test_a_job_of_another_size_than_mpirun_started_is_refused() -> None:
    with pytest.raises(ImpiError, match=r"mpirun started 4 processes, but .* world_size=2"):
        check_launch(2, {"PMI_RANK": "0", "PMI_SIZE": "4"})


def test_a_process_whose_launcher_closed_the_connection_to_mpirun_is_told_from_others(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    with here, there, (tmp_path / "file").open("w") as file:
        assert not is_cut_off({"PMI_FD": str(here.fileno())})
        assert is_cut_off({"PMI_FD": str(file.fileno())})  # the number belongs to something else by now
        closed = str(there.fileno())
    with socket.create_server(("127.0.0.1", 0)) as store:
        assert is_cut_off({"PMI_FD": str(store.fileno())})
    started = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": closed}
    assert is_cut_off(started)
    assert not is_cut_off({"PMI_PORT": "localhost:1"})
    assert reason_against(started, "gloo") == "a launcher before this script closed the connection to mpirun"
    with pytest.raises(ImpiError, match=r"closed the connection(.|\n)*hint: start the script itself"):
        check_launch(2, started)


@pytest.mark.parametrize("backend", ["gloo", "impi"])
def test_ranks_that_a_program_behind_mpirun_started_keep_gloo_or_are_refused(run: Run, backend: str) -> None:
    """As `accelerate launch` starts them: MPI ended them by SIGSEGV."""
    if "Open MPI" in version():
        pytest.skip("its ranks are no children of mpirun with a socket of their own")
    ended = run("below", backend, ranks=2, IMPI_TORCH_OVERRIDE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=29873)
    if backend == "gloo":
        assert ended.ok().out.split() == ["2", "2"]
        assert "gloo stays: a launcher before this script closed the connection to mpirun" in ended.err
    else:
        assert ended.code == 1
        assert "closed the connection to mpirun" in ended.err


def test_lists_of_cores_are_read() -> None:
    assert cores_of("") == set()
    assert cores_of("3") == {3}
    assert cores_of("0,4-6") == {0, 4, 5, 6}


def test_gloo_is_replaced_only_where_that_is_safe() -> None:
    started = {"PMI_RANK": "0", "PMI_SIZE": "2"}
    for backend in ("gloo", "undefined", "", "cpu:gloo", "ccl", "mpi"):
        assert reason_against(started, backend) == ""
    assert "nccl" in reason_against(started, "nccl")
    assert "cpu:gloo,cuda:nccl" in reason_against(started, "cpu:gloo,cuda:nccl")
    assert reason_against({}, "gloo") == "no mpirun started this process"


def test_a_script_started_by_nothing_gets_the_reason() -> None:
    ended = job([sys.executable, "-c", SCRIPT], rank_environment(1, 2, 1), 60)
    # rank 1 would first wait for the store of rank 0: so it is rank 0 that is asked
    two = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=rank_environment(0, 2, 29871), stderr=subprocess.PIPE, text=True
    )
    one = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=rank_environment(1, 2, 29871),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    _, err = two.communicate(timeout=60)
    assert ended.code != 0
    assert two.returncode == one.returncode == 1
    assert "was started by no MPI launcher, not by mpirun" in err
    assert "mpirun -n RANKS python SCRIPT" in one.stderr


def test_one_process_alone_needs_no_mpirun() -> None:
    ended = job([sys.executable, "-c", SCRIPT], rank_environment(0, 1, 29872), 60).ok()
    assert ended.out == "size 1\n"


def test_torch_knows_the_backend_without_an_import() -> None:
    code = "import sys, torch.distributed as d\nprint('impi' in d.Backend.backend_list, 'mpi4py' in sys.modules)"
    ended = job([sys.executable, "-c", code], environment(), 60).ok()
    assert ended.out == "True False\n"


@pytest.mark.parametrize("asked", ["gloo", "cpu:gloo", "nothing", "ccl", "mpi"])
def test_an_override_takes_the_place_of_gloo_and_of_what_this_torch_lacks(run: Run, asked: str) -> None:
    ended = run("override", asked, ranks=2, IMPI_TORCH_OVERRIDE=1).ok()
    lines = [line.split() for line in ended.out.splitlines() if line[:1].isdigit()]
    assert len(lines) == 2
    assert all(line[-2:] == ["ImpiProcessGroup", "ImpiProcessGroup"] for line in lines)
    assert all("gloo" in line[1] and line[2] == "gloo" for line in lines)
    assert f"impi: takes the place of {asked.replace('nothing', 'the default backend')} (" in ended.err


def test_without_an_override_gloo_stays(run: Run) -> None:
    ended = run("override", "gloo", ranks=2).ok()
    assert "ImpiProcessGroup" not in ended.out


def test_a_library_that_is_not_mpiruns_is_refused() -> None:
    """Each process is then a world of its own: it looks as if PMI had not been there."""
    if not mpirun():
        pytest.skip("no mpirun")
    code = (
        "import os; size = int(os.environ['PMI_SIZE']) if 'PMI_SIZE' in os.environ else 2\n"
        "for name in [n for n in os.environ if n.startswith(('PMI_', 'PMIX_', 'OMPI_', 'HYDRA', 'HYDI'))]: "
        "del os.environ[name]\n"
        "from impi_torch._launch import check_world; check_world(size, {'PMI_RANK': '0', 'PMI_SIZE': str(size)})"
    )
    ended = job([mpirun(), "-n", "2", sys.executable, "-c", code], environment(), 60)
    assert ended.code != 0
    assert "MPI sees 1 process where 2 were started" in ended.err


def test_the_thread_goes_to_the_cores_it_is_given(run: Run) -> None:
    core = min(os.sched_getaffinity(0))
    run("thread", str(core), ranks=2, IMPI_TORCH_WORKER_CORES=core).ok()


def test_tensors_over_2_gib_go_through(run: Run) -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = int(next(line for line in lines if "MemAvailable" in line).split()[1])
    if free < 16 * 2**20:
        pytest.skip(f"needs 16 GiB of free memory, there are {free / 2**20:.0f}")
    run("long", ranks=2, limit=600).ok()
