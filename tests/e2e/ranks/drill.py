"""``drill.py TAG``: prints a numbered line every tenth of a second; rank 0 is done after 2 s, each further one
a second later."""

import os
import sys
import time

if "MEET" in os.environ:  # the ranks are a process group (tests/stock.py)
    import meet  # noqa: F401
tag = sys.argv[1]
for number in range(20 + 10 * int(os.environ["RANK"])):
    sys.stdout.write("%s tick %d\n" % (tag, number))
    sys.stdout.flush()
    time.sleep(0.1)
