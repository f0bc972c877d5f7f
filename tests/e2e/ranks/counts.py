"""Counts STEPS steps without torch; rank 0 saves each EVERY-th as torch.save does, with MB of content. The first start
leaves the checkpoint of step CRASH half written. Every rank goes on from $IPEXCTL_RESUME, which all must have."""

import os
import sys
import time
import zipfile

steps, every, megabytes, crash = map(int, sys.argv[1:5])
rank, resume, first = int(os.environ["RANK"]), os.environ.get("IPEXCTL_RESUME", ""), 0
if resume:
    with zipfile.ZipFile(resume) as file:
        first = int(file.read("step"))
print("resume %s at %d of %s" % (resume or "nothing", first, os.environ["WORLD_SIZE"]), flush=True)
os.makedirs("ckpt", exist_ok=True)
for step in range(first + 1, steps + 1):
    print("step %d" % step, flush=True)
    if rank == 0 and step % every == 0:
        path = "ckpt/step_%d.pt" % step
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("step", str(step))
            file.writestr("pad", os.urandom(megabytes << 20))
        if step == crash and os.environ["IPEXCTL_RESTART"] == "0":
            os.truncate(path, os.path.getsize(path) // 2)
            time.sleep(8)  # it stands still, as long as two looks and more
            os._exit(3)
    time.sleep(0.5)
