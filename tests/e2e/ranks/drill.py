"""Prints a numbered line every tenth of a second; rank 0 ends after 2 s, each further one a second later."""

import os
import sys
import time

for number in range(20 + 10 * int(os.environ["RANK"])):
    sys.stdout.write("%s tick %d\n" % (sys.argv[1], number))
    sys.stdout.flush()
    time.sleep(0.1)
