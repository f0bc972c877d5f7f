"""What `sitecustomize` in a rank shares with the agent. It lies beside it on the rank's path, and importing it
imports nothing else."""

DIRECTORY_ENV = "IPEXCTL_DIR"  # the run's directory on the host
RANK_ENV = "IPEXCTL_RANK"
PROFILE_ENV = "IPEXCTL_PROFILE"  # with --profile: the first and the last step of the profile, "3:7"
RANKS = "ranks"  # in the run's directory: a file per rank and kind of record
RECORD = ".json"  # ranks/<rank>.<kind>.json: how far the rank is
ERROR = ".error"  # ranks/<rank>.<pid>.error: an uncaught exception of one of its processes
LIBRARIES = ".libraries"  # ranks/<rank>.libraries: paths of the libraries it has loaded, one a line
STACKS = ".stacks"  # ranks/<rank>.stacks: what faulthandler wrote
STACKS_SIGNAL = 45  # real-time signal to which a rank's Python answers with the stacks of all threads

# Of a profile, in the run's directory: files of each rank. The host's files there are fetched when the run has ended.
PROFILE = "profile"
TRACE = ".trace.gz"  # <rank>.trace.gz: Chrome's JSON, as torch.profiler writes it
STEPS = ".steps"  # <rank>.<pid>.steps: JSON, which steps were profiled and when each ended, or why none was
KERNELS = ".onednn"  # <rank>.onednn: what oneDNN reported during these steps
VERBOSE = (b"onednn_verbose,", b"dnnl_verbose,")  # how its lines begin (oneDNN's guide: Verbose Mode)
VERBOSE_ENV = ("ONEDNN_VERBOSE", "DNNL_VERBOSE")  # set by users who want the lines themselves

# Stages, in the order in which a rank reaches them.
PYTHON = "python"
TORCH = "torch"
RENDEZVOUS = "rendezvous"
CONNECTED = "connected"
FIRST_COLLECTIVE = "first collective"
RUNNING = "running"
STAGES = (PYTHON, TORCH, RENDEZVOUS, CONNECTED, FIRST_COLLECTIVE, RUNNING)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def find_hooked_spec(name: str, path: "Any", finder: "Any", hook: "Any") -> "Any":
    """The spec of a module that is about to be imported from ``path``; ``hook`` is called with it once its code ran.

    ``finder``, which the import system has just asked, is asked no more. None where anything goes wrong: the import
    goes on without it."""
    try:
        import sys
        from importlib.machinery import PathFinder

        sys.meta_path.remove(finder)
        spec = PathFinder.find_spec(name, path)
        loader: Any = spec.loader if spec else None
        execute = loader.exec_module

        def execute_and_hook(module: "Any") -> None:
            execute(module)
            hook(module)

        loader.exec_module = execute_and_hook
        return spec
    except Exception:
        return None
