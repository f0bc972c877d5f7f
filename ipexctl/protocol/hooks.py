"""What `sitecustomize` in a rank shares with the agent. It lies beside it on the rank's path, and importing it
imports nothing else."""

DIRECTORY_ENV = "IPEXCTL_DIR"  # the run's directory on the host
RANK_ENV = "IPEXCTL_RANK"
RUN_ENV = "IPEXCTL_RUN"
MEETING_ENV = "IPEXCTL_MEETING"  # where ranks can meet: "ADDRESS PORT COUNT" (1: not known how many; 0: need not)
PROFILE_ENV = "IPEXCTL_PROFILE"  # with --profile: the first and the last step of the profile, "3:7"
RANKS = "ranks"  # in the run's directory: a file per rank and kind of record
RECORD = ".json"  # ranks/<rank>.<kind>.json: how far the rank is
ERROR = ".error"  # ranks/<rank>.<pid>.error: an uncaught exception of one of its processes
THREAD_ERROR = ".thread"  # ranks/<rank>.<pid>.thread: the last one that ended a thread of the process
LIBRARIES = ".libraries"  # ranks/<rank>.libraries: paths of the libraries it has loaded, one a line
STACKS = ".stacks"  # ranks/<rank>.stacks: what faulthandler wrote
ASK = ".ask"  # ranks/<rank>.<pid>.ask: a pipe; whoever opens it has this process append a line to the rank's STACKS:
COLLECTIVES = "Collectives: "  # and, as JSON, the last one of each process group; null: it has left them all
RAISED = "Raised: "  # a line beside these: as JSON, an exception of the process
STACK_LIMIT = 1 << 15  # bytes kept of one answer of a process
# Real-time signals to which a rank's Python answers with the stacks of all threads. A thread takes the first when it
# has Python's lock: stacks of threads that go on meanwhile are freed memory, and reading them may end the process. The
# second is for a process in which another one keeps the lock, and stands still: it answers at once.
STACKS_REQUEST, STACKS_SIGNAL = 44, 45
OVER = "F"  # in place of a process's state: its Python has been taken down, and C code goes on, as MPI_Finalize

# Of a profile, in the run's directory: files of each rank. The host's files there are fetched when the run has ended.
PROFILE = "profile"
TRACE = ".trace.json.gz"  # <rank>.trace.json.gz: Chrome's JSON, as torch.profiler writes it
STEPS = ".steps"  # <rank>.<pid>.steps: JSON, which steps were profiled and when each ended, or why none was
KERNELS = ".onednn"  # <rank>.onednn: what oneDNN reported during these steps
VERBOSE = (b"onednn_verbose,", b"dnnl_verbose,")  # how its lines begin (oneDNN's guide: Verbose Mode)
VERBOSE_ENV = ("ONEDNN_VERBOSE", "DNNL_VERBOSE")  # set by users who want the lines themselves

# Stages, in the order in which a rank reaches them.
PROGRAM = "program"  # it is no Python: no stage follows but READY
PYTHON = "python"
TORCH = "torch"
RENDEZVOUS = "rendezvous"
CONNECTED = "connected"
FIRST_COLLECTIVE = "first collective"
RUNNING = "running"
READY = "ready"  # it has given the sign of --ready
FAILED = "failed"  # after that its script has ended in an exception, whatever its threads still do
STAGES = (PROGRAM, PYTHON, TORCH, RENDEZVOUS, CONNECTED, FIRST_COLLECTIVE, RUNNING, READY, FAILED)

# Records that a rank's own Python leaves as its wrapper does: kinds of `rank_records`.
WORLD, ALONE, MEETING, NOTE = "RankWorld", "RankAlone", "RankRendezvous", "RankNote"
ENV_GONE, EXIT_VALUE, FILE_LIMIT = "env-gone", "exit-value", "file-size"  # `RankEnded.observed`: known errors
STORE = "TCPStore"  # a fault of RankRendezvous: the script makes its store by itself
ACCELERATE = "accelerate"  # a cause: it takes ranks that have a process group for single processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def quietly(function: "Any") -> "Any":
    """Returns the function without its exceptions: whatever goes wrong (the run's directory may be gone, or its disk
    full) is not the script's trouble."""

    def call(*args: "Any", **kwargs: "Any") -> "Any":
        try:
            return function(*args, **kwargs)
        except Exception:
            return None

    return call


def call_around(owner: "Any", name: str, before: "Any" = lambda *_: None, after: "Any" = lambda *_: None) -> None:
    """Has ``before(args, kwargs)`` called with each call of this function of a module or class, and ``after`` when it
    has returned."""
    from functools import wraps

    before, own, after = quietly(before), getattr(owner, name), quietly(after)

    @wraps(own)
    def call(*args: "Any", **kwargs: "Any") -> "Any":
        before(args, kwargs)
        result = own(*args, **kwargs)
        after(args, kwargs)
        return result

    setattr(owner, name, call)


def write_once(path: str, text: str) -> None:
    """Writes a file, unless it is there, so that half of it is never seen. Raises OSError."""
    import os

    if not os.path.exists(path):
        fresh = "%s.%d" % (path, os.getpid())
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        os.rename(fresh, path)


class ModuleHooks:
    """A finder for the beginning of `sys.meta_path`: ``hooks`` maps names of modules to what is called with the module
    once its code ran, the first time that it is imported."""

    def __init__(self, hooks: "Any") -> None:
        self.hooks = hooks

    @quietly
    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """None where anything goes wrong: the import goes on without the hook."""
        hook = self.hooks.pop(name, None)
        if hook is None:
            return None
        import sys

        others = [finder.find_spec for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec: Any = next(filter(None, (find(name, path, target) for find in others)))
        execute = spec.loader.exec_module

        def execute_and_hook(module: "Any") -> None:
            execute(module)
            quietly(hook)(module)

        spec.loader.exec_module = execute_and_hook
        return spec
