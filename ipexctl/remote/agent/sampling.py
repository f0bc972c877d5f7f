"""A process beside the guard that samples its host.

A process of its own, because files of the system can hang (a device, a dead server): the guard must not. What it writes
into its pipe the guard passes on to the keeper; it ends when the guard closes the other pipe, or dies."""

import os
import select
import signal
import time
from contextlib import suppress
from typing import Dict, Iterator, List, Optional

from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.paths import Role
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.protocol.samples import KINDS, HostSample, encode_sample
from ipexctl.remote.agent import files, procs

DOUBLING = 720  # samples, after which the time between two of them doubles: so a run of weeks stays small
LONGEST = 60.0  # seconds between two samples, unless the user wants more
NICE = 10
METER = "meter"  # what this process calls itself, in the guard's place


class Sampler:
    """The guard's end."""

    def __init__(self, process: "procs.Process", output: int, control: int) -> None:
        self.process, self.output, self.control = process, output, control
        self.unread = b""
        self.open = True
        os.set_blocking(output, False)

    def receive(self) -> "List[HostSample]":
        """Returns what it has measured since the last call. Raises nothing."""
        while self.open:
            try:
                piece = os.read(self.output, 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            self.unread += piece
            self.open = bool(piece)
        *lines, self.unread = self.unread.split(b"\n")
        samples = map(KINDS.read, lines)
        return [sample for sample in samples if not isinstance(sample, Unreadable)]

    def finish(self, patience: float) -> "Iterator[HostSample]":
        """Yields its last samples, for which it has so many seconds; then it is ended."""
        os.close(self.control)
        until = time.monotonic() + patience
        while self.open and time.monotonic() < until:
            select.select([self.output], [], [], max(0.0, until - time.monotonic()))
            yield from self.receive()
        procs.send_signal([self.process], signal.SIGKILL)
        os.close(self.output)


def start_sampler(directory: str, spec: "RunSpec") -> "Optional[Sampler]":
    """Starts it; None where the run wants no samples, or no process can be had."""
    if spec.timings.sample <= 0:
        return None
    output, output_end = os.pipe()
    control_end, control = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        for number in (output, output_end, control, control_end):
            os.close(number)
        return None
    if pid == 0:
        try:
            _run_sampler(directory, spec, control_end, output_end)
        finally:
            os._exit(1)
    os.close(output_end)
    os.close(control_end)
    return Sampler(procs.find_process(pid) or procs.Process(pid, -1, os.getpid(), "X"), output, control)


def _run_sampler(directory: str, spec: "RunSpec", control: int, output: int) -> None:
    """The process: has no other file of the guard's open, among them its lock and its connection."""
    procs.die_with_parent()
    procs.rename_word(Role.GUARD.encode(), METER.encode())
    os.dup2(control, 0)
    os.dup2(output, 1)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with suppress(OSError):  # that of the listing itself
                os.close(int(name))
    with suppress(OSError):
        os.nice(NICE)
    files.run_then_record_crash(directory, METER, lambda: sample_host(directory, spec))


def sample_host(directory: str, spec: "RunSpec", control: int = 0, output: int = 1) -> None:
    """Writes samples to ``output`` until ``control`` ends; then one more. Every ``timings.sample`` seconds; after
    `DOUBLING` samples the time between two doubles, and again after as many more, up to `LONGEST`."""
    from ipexctl.remote.agent.samples import HostReader, compute_sample  # the guard itself does not need it

    cpus = [cpu for place in spec.ranks.values() for cpu in place.cpus[:1]]
    reader = HostReader(cpus)
    wrappers: "Dict[int, int]" = {}
    period, count, ended = spec.timings.sample, 0, False
    before = reader.read(find_wrappers(directory, spec, wrappers))
    due = before.steady + period
    while not ended:
        ended = bool(select.select([control], [], [], max(0.0, due - time.monotonic()))[0])
        now = reader.read(find_wrappers(directory, spec, wrappers))
        _write_sample(output, compute_sample(before, now, spec.host))
        before, count = now, count + 1
        if count % DOUBLING == 0:
            period = max(spec.timings.sample, min(2 * period, LONGEST))
        due = max(due + period, now.steady)


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


def _write_sample(output: int, sample: HostSample) -> None:
    """Ends this process where nobody reads any more."""
    line = encode_sample(sample)
    while line:
        line = line[os.write(output, line) :]
