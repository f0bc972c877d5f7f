"""A rank that tells what it sees: its environment, its cores, its memory policy, what was loaded into it."""

import json
import os
import sys

place, rank = sys.argv[1], os.environ["RANK"]
with open("/proc/self/numa_maps") as maps:
    policies = {line.split()[1] for line in maps}
with open("/proc/self/maps") as maps:
    loaded = sorted({line.split()[-1] for line in maps if ".so" in line})
reported = {
    "env": dict(os.environ),
    "cpus": sorted(os.sched_getaffinity(0)),
    "policies": sorted(policies),
    "loaded": loaded,
    "cwd": os.getcwd(),
    "argv": sys.argv[2:],
}
with open(os.path.join(place, rank + ".json"), "w") as out:
    json.dump(reported, out)
