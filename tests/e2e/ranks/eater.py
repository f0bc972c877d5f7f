"""The rank given as the argument eats memory until somebody minds; the others wait."""

import os
import sys
import time

if os.environ["RANK"] == sys.argv[1]:
    eaten = []
    while True:
        eaten.append(b"x" * (1 << 24))
time.sleep(300)
