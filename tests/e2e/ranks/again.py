"""``again.py fail``: rank 1 fails at the first start. ``again.py wait``: nobody ends at the first start."""

import os
import sys
import time

start = int(os.environ["IPEXCTL_RESTART"])
print("start %d, rank %s of %s" % (start, os.environ["RANK"], os.environ["WORLD_SIZE"]), flush=True)
if start == 0 and sys.argv[1] == "wait":
    time.sleep(300)
elif start == 0 and os.environ["RANK"] == "1":
    sys.exit(3)
elif start == 0:
    time.sleep(300)
