"""With ``run --profile`` only: loaded by every Python that a rank starts, for torch.profiler during some steps.

A step ends with `torch.optim.Optimizer.step`, so plain scripts, Accelerate and Trainer need no change; of several
optimizers the one that has made the most steps counts. Step N is what happens between the ends of step N-1 and step N.
Nothing here ever raises into the script. Files below ``$IPEXCTL_DIR/profile``: see `protocol.hooks`."""

import atexit
import gzip
import importlib
import json
import os
import sys
import time
import weakref
from contextlib import suppress
from typing import Any, List, Optional

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipexctl.protocol import hooks as names
else:
    import _ipexctl_hooks as names  # the same file, put beside this one

OPTIMIZER = "torch.optim.optimizer"
SIZE_LIMIT = 256 << 20  # bytes of a rank's trace before it is packed
WORK_LIMIT = 20000  # operations of impi
PIECE = 1 << 20


class StepProfiler:
    """Counts the steps of one process and profiles those from ``first`` to ``last``."""

    def __init__(self, directory: str, rank: str, first: int, last: int) -> None:
        self.base = os.path.join(directory, names.PROFILE, rank)
        self.first, self.last = first, last
        self.pid = os.getpid()
        self.counts: "Any" = weakref.WeakKeyDictionary()  # optimizer → its steps
        self.steps = 0
        self.ends: "List[int]" = []  # of the step before the first and of each profiled one: Unix nanoseconds
        self.profiler: "Any" = None
        self.verbose: "Any" = None
        self.works: "Any" = []  # of impi, which torch's profiler does not see: name, begin and end, Unix nanoseconds
        self.stop_recording: "Any" = None
        self.done = False
        self.traced = False
        self.why = ""

    def hook_optimizers(self, module: "Any") -> None:
        """torch has hooks of all optimizers from 2.0 on (pytorch/pytorch#89176)."""
        with suppress(Exception):
            register = getattr(module, "register_optimizer_step_post_hook", None)
            if register is None:
                self.why = "torch before 2.0 does not report the steps of its optimizers"
            else:
                register(lambda optimizer, *args, **kwargs: self.count_step(optimizer))
            atexit.register(self.end)

    def count_step(self, optimizer: "Any") -> None:
        """An optimizer has made a step."""
        if self.done or os.getpid() != self.pid:  # a forked child is none of the script's steps
            return
        try:
            count = self.counts[optimizer] = self.counts.get(optimizer, 0) + 1
            if count <= self.steps:
                return
            self.steps = count
            if self.profiler is not None:
                self.ends.append(int(time.time() * 1e9))
            if self.steps == self.first - 1:
                self.begin()
            elif self.steps >= self.last:
                self.end()
        except Exception as error:
            self.fail(error)

    def begin(self) -> None:
        try:  # one process of a rank is profiled
            os.close(os.open(self.base + ".begun", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            self.done = True
            return
        torch_profiler = importlib.import_module("torch.profiler")
        self.profiler = torch_profiler.profile(activities=[torch_profiler.ProfilerActivity.CPU], record_shapes=True)
        if not any(os.environ.get(name) for name in names.VERBOSE_ENV):
            with suppress(Exception):  # a torch without oneDNN
                verbose = importlib.import_module("torch.backends.mkldnn").verbose(1)
                verbose.__enter__()
                self.verbose = verbose
        record = getattr(sys.modules.get("impi_torch"), "record_works", None)
        if record is not None:
            self.stop_recording = record(self.note_work)
        self.profiler.start()
        self.ends.append(int(time.time() * 1e9))

    def note_work(self, work: "Any") -> None:
        if len(self.works) < WORK_LIMIT:
            self.works.append(work)

    def end(self) -> None:
        """After the last step, or at the script's end if that is earlier: writes what there is. Once."""
        if self.done or os.getpid() != self.pid:
            return
        self.done = True
        try:
            if self.profiler is not None:
                self.stop_profiler()
                self.write_trace()
            elif not self.why and (self.steps < self.first - 1 or not self.steps):
                made = "%d optimizer step%s" % (self.steps, "" if self.steps == 1 else "s")
                self.why = "the script made %s; the profile begins at step %d" % (made, self.first)
            self.write_steps()
        except Exception as error:
            self.fail(error)

    def stop_profiler(self) -> None:
        try:
            self.profiler.stop()
        finally:
            if self.verbose is not None:
                self.verbose.__exit__(None, None, None)
                self.verbose = None
            if self.stop_recording is not None:
                self.stop_recording()
                self.stop_recording = None

    def write_trace(self) -> None:
        """The trace, packed under its name at once, so that nobody reads half of it."""
        raw, packed = self.base + ".part", self.base + ".packed"
        try:
            self.profiler.export_chrome_trace(raw)
            self.profiler = None
            size = os.stat(raw).st_size
            if size > SIZE_LIMIT:
                self.why = "the trace has %d MB; at most %d are kept: profile fewer steps" % (
                    size >> 20,
                    SIZE_LIMIT >> 20,
                )
                return
            number = os.open(packed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(raw, "rb") as source, os.fdopen(number, "wb") as out, gzip.GzipFile("", "wb", 3, out) as target:
                for piece in iter(lambda: source.read(PIECE), b""):
                    target.write(piece)
            os.rename(packed, self.base + names.TRACE)
            self.traced = True
        finally:
            for path in (raw, packed):
                with suppress(OSError):
                    os.unlink(path)

    def write_steps(self) -> None:
        first = self.first if self.ends else 0
        value: Any = {"first": first, "steps": self.steps, "ends": self.ends, "traced": self.traced, "why": self.why}
        if self.works:
            value["works"] = self.works
        path = "%s.%d%s" % (self.base, self.pid, names.STEPS)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            json.dump(value, out)

    def fail(self, error: BaseException) -> None:
        """The script goes on without a profile."""
        self.done = True
        self.why = "%s: %.300s" % (type(error).__name__, error)
        begun = self.verbose is not None or self.stop_recording is not None
        for work in (self.stop_profiler,) * begun + (self.write_steps,):
            with suppress(Exception):
                work()


def install_profiler(directory: str, rank: str) -> "Optional[StepProfiler]":
    """Waits for torch's optimizers. None where the steps cannot be read, or nothing can be written."""
    try:
        first, _, last = os.environ.get(names.PROFILE_ENV, "").partition(":")
        profiler = StepProfiler(directory, rank, int(first), int(last))
        os.makedirs(os.path.join(directory, names.PROFILE), 0o700, exist_ok=True)
    except (OSError, ValueError):
        return None
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's library writes when it starts and stops
    finder: Any = names.ModuleHooks({OPTIMIZER: profiler.hook_optimizers})
    sys.meta_path.insert(0, finder)
    return profiler
