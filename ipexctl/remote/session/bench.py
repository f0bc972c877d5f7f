"""How fast a host is: matrix products, memory, and the way to one other host. Led by the controller over its own link.

Standard library, Python 3.6 or later; torch where the Python that runs this has it. Requests come through `loop`; the
end of the session ends everything that was started here."""

import ctypes
import importlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from subprocess import DEVNULL, STDOUT
from typing import Any, Callable, Dict, List, Optional, Tuple

from ipexctl.protocol.session import Executables, Figures, LaunchRequests, PingPong, SessionError
from ipexctl.remote.agent import procs
from ipexctl.remote.session.loop import call_by_name, serve_requests

ARRAY = 64 << 20  # bytes of one array: more than any cache of its share
SIDE = 2048  # of the matrices
LARGE = 1 << 20  # bytes of one message
STARTED: List["subprocess.Popen[bytes]"] = []
FOLDERS: List[str] = []
TAG, TAG_VALUE = "IPEXCTL_BENCH", os.urandom(16).hex()  # in the environment of all that is started


def finish() -> None:
    """Ends what was started, with all it started (Hydra's proxies give each rank a session of its own, so what counts
    is our tag in its environment), and removes what was written."""
    if STARTED:
        procs.kill_marked("%s=%s" % (TAG, TAG_VALUE), 0)
    for process in STARTED:
        process.poll()
    del STARTED[:]
    while FOLDERS:
        shutil.rmtree(FOLDERS.pop(), ignore_errors=True)


def compute(seconds: float) -> Figures:
    """Measures Gflop/s of products and bytes a second of memory, each the best of what fits into so many seconds.
    "spread" is by what share the middle one of the turns was behind the best."""
    threads = len(os.sched_getaffinity(0))
    spread: Dict[str, float] = {}
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as error:  # whatever a broken environment raises: the memory can be measured without
        lines = str(error).strip().splitlines()
        why = "%s: %s" % (type(error).__name__, lines[-1][:300] if lines else "")
        memory, spread["memory"] = measure_copy_rate(threads, seconds)
        return Figures(threads, "copy", memory, spread, why=why)
    gflops: Dict[str, float] = {}
    try:
        with torch.no_grad():
            for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
                left, right = torch.randn(SIDE, SIDE).to(dtype), torch.randn(SIDE, SIDE).to(dtype)
                out = torch.empty(SIDE, SIDE, dtype=dtype)
                took, spread[name] = measure_best_time(lambda: torch.mm(left, right, out=out), seconds)  # noqa: B023
                gflops[name] = 2.0 * SIDE**3 / took / 1e9
            first, second, third = (torch.ones(ARRAY // 4) for _ in range(3))
            took, spread["memory"] = measure_best_time(lambda: torch.add(second, third, alpha=0.5, out=first), seconds)
    except (RuntimeError, MemoryError, ValueError) as error:  # what torch raises where something is lacking
        raise SessionError("bench", str(error)[:300] or type(error).__name__) from error
    figures = Figures(torch.get_num_threads(), "triad", 3.0 * ARRAY / took, spread, str(torch.__version__))
    return figures._replace(fp32=gflops["fp32"], bf16=gflops["bf16"])


def measure_best_time(work: Callable[[], Any], seconds: float) -> Tuple[float, float]:
    """Returns the shortest of several turns, after one that warms up; and by what share the middle one was slower."""
    work()
    took: List[float] = []
    until = time.perf_counter() + seconds
    while not took or time.perf_counter() < until:
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
    took.sort()
    return took[0], 1 - took[0] / took[len(took) // 2]


def measure_copy_rate(threads: int, seconds: float) -> Tuple[float, float]:
    """Bytes a second that all CPUs together copy (read and written). ctypes lets the threads run at the same time."""
    size = ARRAY // 4
    pairs = [(ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)) for _ in range(min(threads, 64))]
    with ThreadPoolExecutor(len(pairs)) as pool:
        took, spread = measure_best_time(
            lambda: list(pool.map(lambda pair: ctypes.memmove(pair[0], pair[1], size), pairs)), seconds
        )
    return 2.0 * size * len(pairs) / took, spread


# --- two hosts: IMB-MPI1 PingPong -----------------------------------------------------------------------------------
# mpiexec asks its launcher for each host. Ours writes down what is to be started where and waits; the controller reads
# that here and has it started there, over its own link. So no host needs a key of another.


def start_mpiexec(mpiexec: str, program: str, env: Dict[str, str], interface: str, seconds: float) -> LaunchRequests:
    """Starts PingPong between the labels "a" and "b": the command that each must start."""
    folder = tempfile.mkdtemp(prefix="ipexctl-bench-")
    FOLDERS.append(folder)
    shim = os.path.join(folder, "shim")
    with open(shim, "w") as file:
        file.write("#!/bin/sh\np=%s/$$\n" % shlex.quote(folder))
        file.write('printf "%s\\0" "$@" >"$p.part" && mv "$p.part" "$p.asked"\nexec sleep 60\n')
    os.chmod(shim, 0o700)
    line = [mpiexec, "-bootstrap", "ssh", "-bootstrap-exec", shim, "-iface", interface, "-genvnone"]
    # Nothing, 1, 2 and 4 MiB. (A file of lengths would be read by both ranks, and hang the one that has none.)
    rank = [program, "PingPong", "-msglog", "20:22", "-iter", "40", "-time", "%.2f" % (seconds / 4)]
    line += ["-n", "1", "-host", "ipexctl-a", *rank, ":", "-n", "1", "-host", "ipexctl-b", *rank]
    with open(os.path.join(folder, "output"), "wb") as output:
        start_tagged_process(line, dict(env, I_MPI_HYDRA_BRANCH_COUNT="2", I_MPI_PIN="0"), output, folder)
    asked: Dict[str, List[str]] = {}
    until = time.time() + 8
    while len(asked) < 2:
        for name in os.listdir(folder):
            if name.endswith(".asked"):
                with open(os.path.join(folder, name)) as file:
                    words = file.read().split("\0")[:-1]
                at = next((at for at, word in enumerate(words) if word in ("ipexctl-a", "ipexctl-b")), None)
                if at is not None:
                    asked[words[at][-1]] = words[at + 1 :]
        if STARTED[-1].poll() is not None or time.time() > until:
            raise SessionError("bench", "mpiexec did not start: %s" % read_output(folder))
        time.sleep(0.02)
    return LaunchRequests(asked)


def start_rank(words: List[str], env: Dict[str, str]) -> None:
    """Starts one side. The words are for a shell, as ssh passes them to one."""
    start_tagged_process(["/bin/sh", "-c", " ".join(words)], env, DEVNULL)


def start_tagged_process(line: List[str], env: Dict[str, str], output: Any, folder: Optional[str] = None) -> None:
    # IMB's ranks wait in loops: on a host whose CPUs others use, too, each turn would cost a whole time slice
    env = dict(env, I_MPI_THREAD_YIELD="2", **{TAG: TAG_VALUE})
    STARTED.append(
        subprocess.Popen(line, stdin=DEVNULL, stdout=output, stderr=STDOUT, env=env, cwd=folder, start_new_session=True)
    )


def wait_pingpong(seconds: float) -> PingPong:
    """Waits for the end of PingPong, at most ``seconds``. Raises `SessionError`."""
    folder = FOLDERS[-1]
    until = time.time() + seconds
    rows: Dict[int, List[float]] = {}
    while True:
        ended = STARTED[0].poll() is not None or time.time() > until
        rows = parse_table(read_output(folder, 1 << 16))
        if ended or LARGE * 4 in rows:
            break
        time.sleep(0.1)
    if not rows:
        if STARTED[0].poll():
            why = read_output(folder).splitlines()[-1:]
        else:
            why = ["ranks are silent (busy processors?)"]
        raise SessionError("bench", "IMB-MPI1 measured nothing within %.0f s: %s" % (seconds, "".join(why)))
    small = [row[1] for size, row in rows.items() if size <= 8]
    rate = max(row[2] for row in rows.values()) * 1e6 or None
    return PingPong(min(small) / 1e6 if small else None, rate)


def parse_table(text: str) -> Dict[int, List[float]]:
    """Returns lines of four numbers: bytes → repetitions, t[usec], Mbytes/sec."""
    rows = {}
    for line in text.splitlines():
        try:
            size, *columns = [float(word) for word in line.split()]
        except ValueError:
            continue
        if len(columns) == 3:
            rows[int(size)] = columns
    return rows


def read_output(folder: str, most: int = 300) -> str:
    return procs.read_file(os.path.join(folder, "output"))[-most:].decode("utf-8", "replace").strip()


def find_executables(paths: List[str]) -> Executables:
    """Returns which of these programs can be executed."""
    return Executables({path: os.access(path, os.X_OK) for path in paths})


if __name__ == "__main__":
    functions = (compute, start_mpiexec, start_rank, wait_pingpong, find_executables, finish)
    serve_requests(call_by_name(*functions), finish)
