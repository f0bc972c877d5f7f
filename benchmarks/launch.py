"""How long from the command to the first line of rank 0: ``ipexctl run``, and a bare mpirun on the head over one login.

The bare launch reaches the other host over the same tuned ssh. ipexctl also looks at the hosts, carries the script
over, starts a keeper that survives us, and after the last line proves that nothing is left. Twice: with a login shell
without startup files, and with one whose startup files take 150 ms, as those of pyenv and conda do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ground import CLIENTS, IPEXCTL, Ground, arguments, conditions, hosts, read_load
from tables import Cell, Measurement, Table, publish

from ipexctl.model.json_values import to_json
from ipexctl.model.stack import StackMpi, StackSummary

LIMIT = 120.0
WORD = b"the first line"
FIRST_LINE = f"import time\nprint({WORD.decode()!r}, flush=True)\ntime.sleep(0.2)\n"
IMPI = "impi-rt==2021.18.1"
BARE = "ssh + mpirun"
FLOOR = "Paramiko Transport + mpirun"  # the least that a controller in Python with Paramiko can take
LOGINS = {"clean": "", "heavy": "sleep 0.15\n"}  # startup files


class Taken(NamedTuple):
    first: float  # seconds to the first line
    whole: float  # seconds to the end
    shells: int  # login shells that were started on the hosts


def main() -> None:
    given = arguments(__doc__ or "", hosts=2).parse_args()
    said = conditions()
    with hosts(given.hosts, homes=True) as ground:
        venv, project = prepare_hosts(ground, "first.py", FIRST_LINE)
        cases = {
            "ipexctl run": ours(ground, venv, project),
            "ipexctl run --no-sync": ours(ground, venv, project, "--no-sync"),
            FLOOR: floor(ground, venv, project),
            BARE: bare(ground, venv, project),
        }
        taken: dict[tuple[str, str], list[Taken]] = {(login, name): [] for login in LOGINS for name in cases}
        loads = []
        for turn in range(given.rounds):
            loads.append(read_load())
            for (login, name), times in taken.items():
                count = write_startup_files(ground, LOGINS[login])
                times.append(measure(cases[name], ground.env(), count))
                print(f"  round {turn + 1}: {login} login: {name}: {times[-1].first:.2f} s", file=sys.stderr)
    rows: list[list[Cell]] = []
    for (login, name), times in taken.items():
        first, whole, shells = (statistics.median(values) for values in zip(*times, strict=True))
        bare_first = statistics.median(each.first for each in taken[login, BARE])
        rows.append([login, name, first, first / bare_first, whole, shells])
    heads = ["login", "command", "s to the first line", "× bare", "s to the end", "login shells"]
    subject = f"{given.hosts} hosts, one rank each, medians of {given.rounds} interleaved rounds"
    publish(Measurement("launch", subject, said, [Table(heads, rows, digits={"login shells": 0})], loads), given)


def prepare_hosts(ground: Ground, name: str, script: str) -> tuple[Path, Path]:
    """An environment with Intel MPI, a directory with one script, and a working directory for each host: the paths of
    the first two."""
    venv, project = ground.place / "venv", ground.place / "project"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/python", "-m", "pip", "install", "-q", IMPI], check=True)
    (venv / "ipexctl.json").write_text(json.dumps(as_installed(venv)))
    project.mkdir()
    (project / name).write_text(script)
    for i in range(len(ground.addresses)):
        (ground.place / f"hosts/h{i:03}").mkdir(parents=True, mode=0o700)
    return venv, project


def write_startup_files(ground: Ground, text: str) -> Path:
    """Gives each host's login shell these startup files; the file in which each start leaves a line."""
    count = ground.place / "logins"
    count.write_text("")
    for address in ground.addresses:
        (ground.home(address) / ".bashrc").write_text(f"echo >>{count}\n{text}")
    return count


def as_installed(venv: Path, packages: Mapping[str, str] | None = None) -> dict[str, object]:
    """What `ipexctl install` would have left: an environment with Intel MPI, and with nothing else or these packages
    (name → version)."""
    version, python = IMPI.partition("==")[2], f"{sys.version_info.major}.{sys.version_info.minor}"
    stack = StackSummary("impi-rt only", "2.8.0", None, None, None, "gloo", python, StackMpi("impi-rt", version))
    layout = {"mpi": "impi-rt", "version": version, "mpiexec": "bin/mpiexec.hydra", "bin": ["bin"]}
    return {
        "format": 1,
        "id": "bench",
        "venv": str(venv),
        "prefix": str(venv),
        "python": python,
        "stack": to_json(stack),
        "packages": dict(packages or {}),
        "layout": {**layout, "lib": ["lib"], "providers": None, "mpi_root": "", "ccl_root": None, "module": None},
    }


def ours(ground: Ground, venv: Path, project: Path, *flags: str) -> list[str]:
    options = ["-f", str(ground.hostfile), "--venv", str(venv), "--ppn", "1", "--allow-duplicates", "--iface", "lo"]
    return [*IPEXCTL, "run", *options, *flags, str(project / "first.py")]


def bare(ground: Ground, venv: Path, project: Path) -> list[str]:
    """As a user types it who has logged in on the head."""
    return [*ground.ssh(tuned=True), ground.addresses[0], format_mpirun(ground, venv, project)]


def floor(ground: Ground, venv: Path, project: Path) -> list[str]:
    """The same line, by the least program that Paramiko takes; as `ipexctl` it starts a Python and imports Paramiko."""
    words = [sys.executable, str(CLIENTS), "run", "transport", str(ground.place), str(ground.port), "1"]
    return [*words, format_mpirun(ground, venv, project), "--", ground.addresses[0]]


def format_mpirun(ground: Ground, venv: Path, project: Path) -> str:
    ssh = ground.place / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {" ".join(ground.ssh(tuned=True))} "$@"\n')
    ssh.chmod(0o755)
    listed = ground.place / "machines"
    listed.write_text("".join(f"{address}\n" for address in ground.addresses))
    mpirun = f"PATH={venv}/bin:$PATH LD_LIBRARY_PATH={venv}/lib FI_PROVIDER_PATH={venv}/lib/libfabric mpirun"
    launcher = f"-launcher ssh -launcher-exec {ssh} -iface lo"
    line = f"{mpirun} {launcher} -f {listed} -ppn 1 -n {len(ground.addresses)}"
    return f"{line} {venv}/bin/python {project}/first.py"


def measure(words: Sequence[str], env: Mapping[str, str], count: Path) -> Taken:
    """Ends this program where rank 0 never says something."""
    begun = time.monotonic()
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
    )
    assert process.stdout is not None
    seen, said = 0.0, b""
    try:
        while data := os.read(process.stdout.fileno(), 65536):
            said += data
            if not seen and WORD in said:
                seen = time.monotonic() - begun
        process.wait(LIMIT)
    finally:
        process.stdout.close()
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not seen or process.returncode:
        sys.exit(f"{' '.join(words)} ended with {process.returncode}:\n{said.decode(errors='replace')}")
    return Taken(seen, time.monotonic() - begun, count.read_text().count("\n"))


if __name__ == "__main__":
    main()
