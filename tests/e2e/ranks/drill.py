"""``drill.py TAG BACKEND``: prints a numbered line every tenth of a second; rank 0 is done after 2 s, each further one
a second later. With a backend (impi, gloo) the ranks meet first, and go on as a group of torch."""

import os
import sys
import time

tag, backend = sys.argv[1:3]
if backend != "none":
    import torch
    import torch.distributed as dist

    if backend == "impi":
        import impi_torch  # noqa: F401
    dist.init_process_group(backend)
    dist.all_reduce(torch.ones(8))
for number in range(20 + 10 * int(os.environ["RANK"])):
    sys.stdout.write("%s tick %d\n" % (tag, number))
    sys.stdout.flush()
    time.sleep(0.1)
