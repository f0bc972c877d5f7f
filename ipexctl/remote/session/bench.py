"""How fast a host is: matrix products and memory. Led by the controller over its own link.

Standard library, Python 3.6 or later; torch where the Python that runs this has it. Requests come through `loop`."""

import ctypes
import importlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Tuple

from ipexctl.protocol.session import Figures, SessionError
from ipexctl.remote.session.loop import call_by_name, serve_requests

ARRAY = 64 << 20  # bytes of one array: more than any cache of its share
SIDE = 2048  # of the matrices


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


if __name__ == "__main__":
    serve_requests(call_by_name(compute), lambda: None)
