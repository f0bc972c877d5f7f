"""Says which instance it is, where it computes, and what it could find others by; ends or lives on as it is told."""

import json
import os
import socket
import sys
import time

mine = int(os.environ["IPEXCTL_INSTANCE"])
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "PMI_SIZE", "I_MPI_HYDRA_IFACE")
reported = {
    "instance": mine,
    "of": int(os.environ["IPEXCTL_INSTANCES"]),
    "host": socket.gethostname(),
    "cpus": sorted(os.sched_getaffinity(0)),
    "threads": os.environ.get("OMP_NUM_THREADS"),
    "others": [name for name in names if name in os.environ],
}
print(json.dumps(reported))
if "--fail" in sys.argv and mine == 0:
    raise SystemExit(3)
time.sleep(float(sys.argv[1]) if mine else 0)
print("to the end")
