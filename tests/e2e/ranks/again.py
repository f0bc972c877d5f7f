"""Nobody ends at the first start."""

import os
import time

if "MEET" in os.environ:  # the ranks are a process group (tests/stock.py)
    import meet  # noqa: F401

start = int(os.environ["IPEXCTL_RESTART"])
print("start %d, rank %s of %s" % (start, os.environ["RANK"], os.environ["WORLD_SIZE"]), flush=True)
if start == 0:
    time.sleep(300)
