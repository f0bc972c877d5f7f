"""A script of Accelerate's: it learns from Accelerate who it is."""

import os
import time

import torch
from accelerate import Accelerator

who = Accelerator(cpu=True)
total = int(who.reduce(torch.ones(1), "sum"))
line = "rank %d of %d on %s: sum %d\n" % (who.process_index, who.num_processes, os.uname().nodename, total)
os.write(1, line.encode())
time.sleep(0.2)  # started without ipexctl, it has to give Gloo's threads their moment itself (docs/failures.md)
