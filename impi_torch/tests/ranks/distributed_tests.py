"""torch's own tests of its process groups, as they lie in torch's wheel, one after the other in the ranks of an mpirun,
which stand for the processes that those tests start. Arguments: ``impi`` or ``gloo``, a directory, names of tests."""

from __future__ import annotations

import os
import sys
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from impi_torch._launch import launched_by, launched_size

SECONDS = 60  # a collective's, as those tests have it
SKIPPED = range(70, 90)  # exit codes of tests that do not apply here (common_distributed.TEST_SKIPS)


def load_suite() -> Any:
    """Those tests, as Gloo has them: they ask which backend they are for when they are loaded."""
    os.environ.update(BACKEND="gloo", TEMP_DIR="", INIT_METHOD="env://")
    from torch.testing._internal.distributed import distributed_test

    bases = (distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase)
    return distributed_test, type("Suite", bases, {})


def run_test(suite: Any, module: Any, name: str, rank: int, size: int) -> str:
    """What came of it: "ok", "skipped: …", or the exception."""
    test = suite(name)
    test.rank, test.file_name = rank, str(Path(os.environ["TEMP_DIR"], "store"))
    seconds = module.CUSTOM_PG_TIMEOUT.get(name, SECONDS)
    module.Barrier.barrier_id = 0
    torch.testing._internal.common_utils.set_rng_seed()
    store = f"file://{test.file_name}"
    dist.init_process_group("gloo", store, timedelta(seconds=seconds), world_size=size, rank=rank)
    try:
        test._barrier(timeout=SECONDS)
        getattr(test, name)()
    except unittest.SkipTest as skipped:
        return f"skipped: {skipped}"
    except SystemExit as end:
        return f"skipped: {end.code}" if end.code in SKIPPED else f"exit {end.code}"
    except BaseException:
        return traceback.format_exc()
    test._barrier(timeout=SECONDS)
    dist.destroy_process_group()
    return "ok"


def await_results(directory: Path, size: int) -> list[str]:
    """The results of all ranks, or of those that have one after a while: the others wait for somebody."""
    until, results = time.monotonic() + 3, list[str]()
    while len(results) < size and time.monotonic() < until:
        time.sleep(0.05)
        results = [path.read_text() for path in directory.glob("result-*")]
    return results


def main() -> None:
    directory, names = Path(sys.argv[2]), sys.argv[3:]
    rank, size = int(os.environ[launched_by(os.environ)]), launched_size(os.environ)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    module, suite = load_suite()
    (directory / "loaded").touch()
    # To a profiler, Gloo's collectives are events of their own, those of a group in Python are not.
    if sys.argv[1] == "impi":
        module.PROFILING_SUPPORTED_BACKENDS = module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS = []
    for name in names:
        os.environ["TEMP_DIR"] = str(directory / name)
        result = run_test(suite, module, name, rank, size)
        part = directory / name / f"part-{rank}"
        part.write_text(result)
        part.rename(directory / name / f"result-{rank}")
        if result == "ok":
            continue
        results = [] if result.startswith("skipped") else await_results(directory / name, size)
        if "ok" in results or 0 < len(results) < size:
            os._exit(1)  # what it left half done is nobody's any more
        dist.destroy_process_group()  # no rank waits for another one: the next test may follow
    await_results(directory / names[-1], size)  # who leaves without MPI_Finalize ends those that are not there yet
    os._exit(0)


if __name__ == "__main__":
    main()
