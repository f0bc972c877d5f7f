"""The progress thread runs where IMPI_TORCH_WORKER_CORES says."""

from __future__ import annotations

import os
import sys
import threading
import time

import torch.distributed as dist
from common import init

init()
dist.barrier()
thread = next(thread for thread in threading.enumerate() if thread.name == "impi-progress")
time.sleep(0.2)
assert thread.native_id is not None
assert os.sched_getaffinity(thread.native_id) == {int(sys.argv[1])}
dist.destroy_process_group()
