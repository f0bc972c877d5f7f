"""How fast a host is: matrix products, memory, and the way to one other host. Led by the controller over its own link.

Standard library, Python 3.6 or later; torch where the Python that runs this has it. Commands come as JSON lines,
answers go as JSON lines; the end of the input ends everything that was started here.
"""

import ctypes
import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional, Tuple

ARRAY = 64 << 20  # bytes of one array: more than any cache of its share
SIDE = 2048  # of the matrices
LARGE = 1 << 20  # bytes of one message
STARTED: List["subprocess.Popen[bytes]"] = []
PLACES: List[str] = []
MARK = "IPEXCTL_BENCH=" + os.urandom(16).hex()


def main() -> None:
    say({"ready": True})
    try:
        for line in sys.stdin.buffer:
            asked = json.loads(line.decode())
            try:
                say({"done": DO[asked.pop("do")](**asked)})
            except (OSError, RuntimeError, MemoryError, ValueError) as error:
                say({"failed": "bench", "what": str(error) or type(error).__name__})
    finally:
        clear()


def say(message: Dict[str, Any]) -> None:
    data = (json.dumps(message) + "\n").encode()
    while data:
        data = data[os.write(1, data) :]


def clear() -> None:
    """Ends what was started, with all it started (Hydra's proxies give each rank a session of its own, so what counts
    is our mark in its environment), and removes what was written."""
    until = time.time() + 5
    while True:
        marked = ours() if STARTED else []
        for pid in marked:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        for process in STARTED:
            process.poll()
        if not marked or time.time() > until:
            break
        time.sleep(0.05)
    for process in STARTED:
        process.kill()
        process.wait()
    del STARTED[:]
    while PLACES:
        shutil.rmtree(PLACES.pop(), ignore_errors=True)


def ours() -> List[int]:
    """Processes with our mark; a dead one that nobody has waited for has none any more."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                if MARK.encode() in file.read() and int(name) != os.getpid():
                    found.append(int(name))
        except (OSError, ValueError):
            pass
    return found


def marked(env: Dict[str, str]) -> Dict[str, str]:
    name, _, value = MARK.partition("=")
    # IMB's ranks wait in loops: on a host whose CPUs others use, too, each turn would cost a whole time slice
    return dict(env, I_MPI_THREAD_YIELD="2", **{name: value})


# --- one host ---------------------------------------------------------------------------------------------------------


def compute(seconds: float) -> Dict[str, Any]:
    """Each figure is the best of what fits into so many seconds: Gflop/s of products, bytes a second of memory.
    "spread" is by what share the middle one of the turns was behind the best."""
    threads = len(os.sched_getaffinity(0))
    spread = {}  # type: Dict[str, float]
    found = {"threads": threads, "torch": None, "spread": spread}  # type: Dict[str, Any]
    try:
        torch = importlib.import_module("torch")  # type: Any
    except Exception as error:  # whatever a broken environment raises: the memory can be measured without
        words = str(error).strip().splitlines()
        found["why"] = "%s: %s" % (type(error).__name__, words[-1][:300] if words else "")
        found["memory"], spread["memory"] = copies(threads, seconds)
        found["method"] = "copy"
        return found
    found["torch"] = str(torch.__version__)
    found["threads"] = torch.get_num_threads()
    with torch.no_grad():
        for name, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            left, right = torch.randn(SIDE, SIDE).to(kind), torch.randn(SIDE, SIDE).to(kind)
            out = torch.empty(SIDE, SIDE, dtype=kind)
            took, spread[name] = best(lambda: torch.mm(left, right, out=out), seconds)  # noqa: B023 (called at once)
            found[name] = 2.0 * SIDE**3 / took / 1e9
        one, two, three = (torch.ones(ARRAY // 4) for _ in range(3))
        took, spread["memory"] = best(lambda: torch.add(two, three, alpha=0.5, out=one), seconds)
        found["memory"] = 3.0 * ARRAY / took
        found["method"] = "triad"
    return found


def best(work: Callable[[], Any], seconds: float) -> Tuple[float, float]:
    """The shortest of several turns, after one that warms up; and by what share the middle one was slower."""
    work()
    took = []  # type: List[float]
    until = time.perf_counter() + seconds
    while not took or time.perf_counter() < until:
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
    took.sort()
    return took[0], 1 - took[0] / took[len(took) // 2]


def copies(threads: int, seconds: float) -> Tuple[float, float]:
    """Bytes a second that all CPUs together copy (read and written). ctypes lets the threads run at the same time."""
    size = ARRAY // 4
    pairs = [(ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)) for _ in range(min(threads, 64))]
    with ThreadPoolExecutor(len(pairs)) as pool:
        took, spread = best(lambda: list(pool.map(lambda pair: ctypes.memmove(pair[0], pair[1], size), pairs)), seconds)
    return 2.0 * size * len(pairs) / took, spread


# --- two hosts: IMB-MPI1 PingPong -----------------------------------------------------------------------------------
# mpiexec asks its launcher for each host. Ours writes down what is to be started where and waits; the controller reads
# that here and has it started there, over its own link. So no host needs a key of another.


def lead(mpiexec: str, program: str, env: Dict[str, str], interface: str, seconds: float) -> Dict[str, Any]:
    """Starts PingPong between the labels "a" and "b": what is to be started on each."""
    place = tempfile.mkdtemp(prefix="ipexctl-bench-")
    PLACES.append(place)
    shim = os.path.join(place, "shim")
    with open(shim, "w") as file:
        lines = "".join("%s=%s\n" % item for item in (("p", shlex.quote(place)), ("n", "$$")))
        file.write(
            '#!/bin/sh\n%sprintf "%%s\\0" "$@" >"$p/$n.part" && mv "$p/$n.part" "$p/$n.asked"\nexec sleep 60\n' % lines
        )
    os.chmod(shim, 0o700)
    line = [mpiexec, "-bootstrap", "ssh", "-bootstrap-exec", shim, "-iface", interface, "-genvnone"]
    # Nothing, 1, 2 and 4 MiB. (A file of lengths would be read by both ranks, and hang the one that has none.)
    rank = [program, "PingPong", "-msglog", "20:22", "-iter", "40", "-time", "%.2f" % (seconds / 4)]
    line += ["-n", "1", "-host", "ipexctl-a", *rank, ":", "-n", "1", "-host", "ipexctl-b", *rank]
    output = open(os.path.join(place, "output"), "wb")
    STARTED.append(
        subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(marked(env), I_MPI_HYDRA_BRANCH_COUNT="2", I_MPI_PIN="0"),
            cwd=place,
            start_new_session=True,
        )
    )
    output.close()
    asked = {}  # type: Dict[str, List[str]]
    until = time.time() + 8
    while len(asked) < 2:
        for name in os.listdir(place):
            if name.endswith(".asked"):
                with open(os.path.join(place, name)) as file:
                    words = file.read().split("\0")[:-1]
                at = next((at for at, word in enumerate(words) if word in ("ipexctl-a", "ipexctl-b")), None)
                if at is not None:
                    asked[words[at][-1]] = words[at + 1 :]
        if STARTED[-1].poll() is not None or time.time() > until:
            raise RuntimeError("mpiexec did not start: %s" % said(place))
        time.sleep(0.02)
    return {"asked": asked}


def serve(words: List[str], env: Dict[str, str]) -> Dict[str, Any]:
    """Starts one side. The words are for a shell, as ssh gives them to one."""
    line = ["/bin/sh", "-c", " ".join(words)]
    null = subprocess.DEVNULL
    env = marked(env)
    STARTED.append(subprocess.Popen(line, stdin=null, stdout=null, stderr=null, env=env, start_new_session=True))
    return {}


def score(seconds: float) -> Dict[str, Any]:
    """Waits for the end of PingPong: latency in seconds, and the best rate in bytes a second."""
    place = PLACES[-1]
    until = time.time() + seconds
    rows = {}  # type: Dict[int, List[float]]
    while True:
        ended = STARTED[0].poll() is not None or time.time() > until
        rows = table(said(place, 1 << 16))
        if ended or LARGE * 4 in rows:
            break
        time.sleep(0.1)
    if not rows:
        why = said(place).splitlines()[-1:] if STARTED[0].poll() else ["its ranks are silent (busy processors?)"]
        raise RuntimeError("IMB-MPI1 measured nothing within %.0f s: %s" % (seconds, "".join(why)))
    small = [row[1] for size, row in rows.items() if size <= 8]
    return {
        "latency": min(small) / 1e6 if small else None,
        "rate": max(row[2] for row in rows.values()) * 1e6 or None,  # None: its time was over before
        "largest": max(rows),
    }


def table(text: str) -> Dict[int, List[float]]:
    """Lines of four numbers: bytes → repetitions, t[usec], Mbytes/sec."""
    rows = {}
    for line in text.splitlines():
        try:
            size, *rest = [float(word) for word in line.split()]
        except ValueError:
            continue
        if len(rest) == 3:
            rows[int(size)] = rest
    return rows


def said(place: str, most: int = 300) -> str:
    try:
        with open(os.path.join(place, "output"), "rb") as file:
            return file.read()[-most:].decode("utf-8", "replace").strip()
    except OSError:
        return ""


def there(paths: List[str]) -> Dict[str, Optional[bool]]:
    """Which of these programs can be executed."""
    return {path: os.access(path, os.X_OK) for path in paths}


def finish() -> Dict[str, Any]:
    clear()
    return {}


DO = {
    "compute": compute,
    "lead": lead,
    "serve": serve,
    "score": score,
    "there": there,
    "finish": finish,
}  # type: Dict[str, Callable[..., Dict[str, Any]]]

main()
