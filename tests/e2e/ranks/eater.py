"""The rank given as the argument eats memory until somebody minds; the others wait."""

import os
import sys
import time

if "MEET" in os.environ:  # the ranks are a process group (tests/stock.py)
    import meet  # noqa: F401

if os.environ["RANK"] == sys.argv[1]:
    eaten = []
    while True:
        eaten.append(b"x" * (1 << 24))
time.sleep(300)
