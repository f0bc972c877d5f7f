"""A launch line of mpirun becomes as many ranks on the same hosts as the real mpirun starts for it."""

import re
import shlex
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from ipexctl.decide.launch.placement import Cores, count_ranks
from ipexctl.decide.parsing import limit_inventory, parse_inventory, parse_list
from ipexctl.verbs.migrate import LaunchLines

# Several addresses of this machine. MPICH starts its ranks there; Open MPI only says where it would.
A, B, C = "127.0.0.2", "127.0.0.3", "127.0.0.4"
HOSTFILES = {"plain": f"{A}\n{B}\n", "colons": f"{A}:1\n{B}:3\n", "slots": f"{A} slots=2\n{B} slots=2\n"}
MPICH = (
    f"-hosts {A},{B} -n 4",
    f"-hosts {A},{B} -n 3",
    f"-hosts {A}:1,{B}:2 -n 3",
    f"-hosts {A}:2,{B}:2",
    f"-hosts {A},{B}",
    f"-hosts {A},{B},{C} -n 2",
    f"-hosts {A},{B} -ppn 1 -n 4",
    f"-hosts {A}:2,{B}:2 -n 8",
    f"--hosts {A},{B} --ppn 2",
    "-f plain",
    "-f plain -ppn 2 -n 4",
    "-machinefile colons -n 4",
    f"-hosts {A},{B} -n 1 python train.py : -n 1",
    f"-hosts {A}:3,{B} -n 4",
)
OPEN_MPI = (
    f"-n 3 -H {A}:1,{B}:2",
    f"-H {A},{B}",
    f"-H {A},{A},{B}",
    f"-np 4 -H {A}:8,{B}:8",
    f"-np 4 --map-by node -H {A}:8,{B}:8",
    f"-np 3 --map-by node -H {A}:8,{B}:8",
    f"-np 4 --map-by socket:SPAN -H {A}:4,{B}:4",
    f"-np 4 --map-by ppr:2:node -H {A}:4,{B}:4",
    f"--pernode -H {A}:4,{B}:4",
    f"-N 2 -H {A}:4,{B}:4",
    f"-np 4 -H {A},{B} --oversubscribe",
    "--hostfile slots -np 3",
    "--hostfile slots",
    f"--hostfile slots --host {B}",
    f"--hostfile slots --host {A}:2,{B}:2",
    f"-np 1 -host {A} python train.py : -np 2 -host {B}:2",
)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in HOSTFILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def count_translated(line: str) -> dict[str, int]:
    """Ranks of each host, as ``run`` places them."""
    options = LaunchLines().translate_line(line).options
    given = dict(zip(options[::2], options[1::2], strict=True))
    inventory = parse_list(given["--hosts"]) if "--hosts" in given else parse_inventory(HOSTFILES[given["-f"]], "f")
    inventory = limit_inventory(inventory, given["--limit"]) if "--limit" in given else inventory
    cores = {host.name: Cores(((0, 0), (1, 1))) for host in inventory}  # two NUMA nodes
    numbers = [int(given[name]) if name in given else None for name in ("-n", "--ppn")]
    return dict(count_ranks(inventory.hosts, cores, *numbers))


def run_launcher(words: str) -> str:
    for _ in range(3):
        done = subprocess.run(shlex.split(words), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        if done.returncode != -signal.SIGPIPE:  # MPICH 4.0.2 writes to a proxy that is gone, on a busy machine
            break
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("mpiexec.mpich"), reason="MPICH is not installed")
@pytest.mark.parametrize("options", MPICH)
def test_as_many_ranks_as_mpich_starts(options: str, directory: Path) -> None:
    started = run_launcher(f"mpiexec.mpich -launcher fork -prepend-pattern '%h ' {options} echo x".replace(
        "python train.py", "echo x"))  # fmt: skip
    assert count_translated(f"mpiexec.mpich {options} python train.py") == Counter(started.split()[::2])


@pytest.mark.skipif(not shutil.which("mpirun.openmpi"), reason="Open MPI is not installed")
@pytest.mark.parametrize("options", OPEN_MPI)
def test_as_many_ranks_as_open_mpi_would_start(options: str, directory: Path) -> None:
    shown = run_launcher(f"mpirun.openmpi --allow-run-as-root --do-not-launch --display-map {options} true".replace(
        "python train.py", "true"))  # fmt: skip
    hosts = re.findall(r"Data for node: (\S+).*?Num procs: (\d+)", shown)
    assert count_translated(f"mpirun {options} python train.py") == {host: int(count) for host, count in hosts}
