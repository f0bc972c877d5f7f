"""A group of processes that a program behind mpirun started by `subprocess`, which closes the connection to mpirun."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
import torch.distributed as dist

backend = sys.argv[1]
if "below" not in sys.argv[2:]:
    env = dict(os.environ, RANK=os.environ["PMI_RANK"], WORLD_SIZE=os.environ["PMI_SIZE"])
    sys.exit(subprocess.run([sys.executable, __file__, backend, "below"], env=env, check=False).returncode)

dist.init_process_group(backend)
one = torch.ones(1)
dist.all_reduce(one)
sys.stdout.write(f"{int(one.item())}\n")
dist.destroy_process_group()
