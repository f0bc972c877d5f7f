"""The process beside the guard that samples its host."""

import select
import time
from typing import Dict

from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import files, rpc

DOUBLING_SAMPLES = 720  # samples, after which the time between two of them doubles: so a run of weeks stays small
MAX_INTERVAL = 60.0  # seconds between two samples, unless the user wants more


def sample_host(directory: str, spec: "RunSpec", guard: "rpc.Wire") -> None:
    """Sends samples to the guard until that says no more; then one more. Every ``timings.sample`` seconds; after
    `DOUBLING_SAMPLES` samples the time between two doubles, and again after as many more, up to `MAX_INTERVAL`."""
    from ipexctl.remote.agent.samples import HostReader, compute_sample  # the guard itself does not need it

    reader = HostReader([cpu for place in spec.ranks.values() for cpu in place.cpus[:1]])
    wrappers: "Dict[int, int]" = {}
    period, count, ended = spec.timings.sample, 0, False
    before = reader.read(find_wrappers(directory, spec, wrappers))
    due = before.steady + period
    while guard.open and not ended:
        ended = bool(select.select([guard], [], [], max(0.0, due - time.monotonic()))[0])
        now = reader.read(find_wrappers(directory, spec, wrappers))
        guard.send(compute_sample(before, now, spec.host))
        before, count = now, count + 1
        if count % DOUBLING_SAMPLES == 0:
            period = max(spec.timings.sample, min(2 * period, MAX_INTERVAL))
        due = max(due + period, now.steady)
    guard.drain(spec.timings.last_sample)


def find_wrappers(directory: str, spec: "RunSpec", wrappers: "Dict[int, int]") -> "Dict[int, int]":
    """Rank → its wrapper, of those that have begun, as they recorded it; those not known yet are added."""
    for rank in spec.ranks:
        if rank not in wrappers:
            try:
                pid = files.read_json(directory, files.build_record_path(rank, files.BEGIN)).get("pid")
            except (OSError, ValueError):
                continue
            if type(pid) is int and pid:
                wrappers[rank] = pid
    return wrappers
