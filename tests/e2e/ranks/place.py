"""Says where a rank is and what it was given."""

import json
import os
import socket

names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
elastic = ("ROLE_RANK", "GROUP_RANK", "NODE_RANK", "TORCHELASTIC_RUN_ID")
more = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "FI_TCP_IFACE", "HOME", "SECRET", "LEAK")
env = {name: os.environ[name] for name in (*names, *elastic, *more) if name in os.environ}
print(json.dumps({"host": socket.gethostname(), "cpus": sorted(os.sched_getaffinity(0)), **env}))
