"""All ranks train together; after a few steps one of them waits for data that never come, the others for it."""

import os
import sys
import time

import patience  # isort: skip
from meet import meet

patience.loaded.set()


def read_batch() -> None:
    time.sleep(600)


for step in range(1000):
    if step == 3 and os.environ["RANK"] == sys.argv[1]:
        read_batch()
    meet()
