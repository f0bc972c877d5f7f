"""A rank whose pace is a known function of its launch: huge pages make it faster. ``--way`` says what else it does."""

import os
import sys
import time

if os.environ.get("MEET"):
    from meet import meet
else:

    def meet():  # type: ignore[no-untyped-def]
        pass


way = sys.argv[sys.argv.index("--way") + 1] if "--way" in sys.argv else ""
pace = 20.0 if os.environ.get("THP_MEM_ALLOC_ENABLE") else 10.0
if way == "crash":
    raise ValueError("this launch cannot be")
if way == "hang":
    time.sleep(600)
if way == "lose":
    print("this host will be lost", flush=True)
    time.sleep(600)
if way == "eat":  # on one host; the others wait for it
    if os.environ["RANK"] != "1":
        meet()
        time.sleep(600)
    eaten = [b"x" * (16 << 20) for _ in range(128)]
for step in range(1, 30 if way == "end" else 2000):
    time.sleep(1 / pace)
    meet()
    print("step %d loss 0.5" % step, flush=True)
print("::metric name=score value=%.1f" % pace, flush=True)
