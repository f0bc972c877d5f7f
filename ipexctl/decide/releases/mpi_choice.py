"""The MPI of a stack: Intel's wheel by itself, another wheel, or the hosts' own."""

from collections.abc import Collection
from dataclasses import replace
from typing import get_args

from ipexctl.decide.launch.dialects import DIALECTS, find_wheel_dialect, get_dialect
from ipexctl.decide.launch.mpi_launchers import offers_library
from ipexctl.decide.releases.resolve import replace_impi_by_gloo
from ipexctl.decide.releases.table import ReleaseTable, parse_version
from ipexctl.model.errors import Exit, Note, UsageError
from ipexctl.model.stack import MpiLauncher, MpiWheel, Stack, StackRelease

DEFAULT = "wheel"  # of ``--mpi``: Intel's, in whichever wheel of the release it is


def use_wheel_mpi(stack: Stack, name: str, table: ReleaseTable) -> Stack:
    """Returns the same stack with the MPI of this dialect from its wheel. Raises `UsageError` (exit 4) where the stack
    has an MPI in another wheel, or the hosts are too old."""
    dialect, wheel = next((each, each.wheel) for each in DIALECTS if each.name == name and each.wheel)
    if dialect.name == "impi" and stack.arch == "x86_64":
        return stack
    if dialect.name == "impi":
        raise UsageError("Intel MPI has no wheel for aarch64", hint="leave out --mpi, for MPICH", exit=Exit.STEP)
    if stack.mpi not in get_args(MpiWheel):
        what = f"{stack.release.name} has an MPI of its own, which --mpi {name} does not replace"
        reasons = [f"Intel MPI {stack.mpi_version} is a part of its wheels"]
        raise UsageError(what, reasons=reasons, hint="--backend impi or gloo, or another --torch", exit=Exit.STEP)
    version, glibc = table.mpis[wheel]["newest"], table.mpis[wheel]["glibc"]
    if stack.glibc and parse_version(stack.glibc) < parse_version(glibc):
        what = f"the wheel of {dialect.title} {version} needs glibc {glibc}, and a host has {stack.glibc}"
        raise UsageError(what, hint="leave out --mpi", exit=Exit.STEP)
    note = Note("mpi-wheel", f"mpirun is that of the wheel {wheel} {version}; {stack.mpi} is not installed")
    own = f"{stack.mpi}=="
    pins = tuple(f"{wheel}=={version}" if pin.startswith(own) else pin for pin in stack.pins)
    return replace(stack, pins=pins, mpi=wheel, mpi_version=version, notes=(*stack.notes, note))


def use_host_mpi(stack: Stack, launcher: MpiLauncher, backend: str) -> Stack:
    """Returns the same stack with ranks started by the hosts' own MPI; impi-rt is not installed then. Raises
    `UsageError` (exit 4) where ``backend`` asks for impi, and this MPI's library has another name."""
    dialect = get_dialect(launcher.dialect, launcher.version)
    if stack.backend == "impi" and not offers_library(dialect, launcher.program):
        why = f"the hosts' {launcher} has no library of the name that mpi4py asks for ({dialect.library})"
        if backend == "impi":
            hint = "--backend gloo" + (f", or --mpi {dialect.name} for its wheel" if dialect.wheel else "")
            raise UsageError(why, hint=hint, exit=Exit.STEP)
        stack = replace_impi_by_gloo(stack, why)
    replaced = stack.mpi in get_args(MpiWheel)
    instead = f"; {stack.mpi} is not installed" if replaced else ""
    note = Note("host-mpi", f"mpirun is the hosts' own: {launcher} at {launcher.program}{instead}")
    stack = replace(stack, launcher=launcher, notes=(*stack.notes, note))
    if not replaced:
        return stack
    pins = tuple(pin for pin in stack.pins if not pin.startswith(f"{stack.mpi}=="))
    return replace(stack, pins=pins, mpi="system", mpi_version=launcher.version)


def list_mpis(release: StackRelease, table: ReleaseTable) -> tuple[str, ...]:
    """The MPIs that the release goes with, by their names for ``--mpi``: Intel's, and others by their wheels."""
    names = [dialect.name for dialect in DIALECTS if dialect.wheel in table.mpis]
    return ("impi",) if release.oneccl or release.ipex_mpi else ("impi", *names)


def find_wheel_mpi(packages: Collection[str]) -> str:
    """Returns what ``--mpi`` names the MPI of the wheels among these packages."""
    dialects = (find_wheel_dialect(package) for package in packages)
    return next((dialect.name for dialect in dialects if dialect and dialect.name != "impi"), DEFAULT)


def require_one_mpi(packages: Collection[str]) -> None:
    """Raises `UsageError` (exit 4) for packages of which several hold an MPI: each overwrites files of the others."""
    dialects = {package: dialect for package in packages if (dialect := find_wheel_dialect(package))}
    if len(dialects) < 2:
        return
    others = [(package, dialect) for package, dialect in dialects.items() if dialect.name != "impi"]
    package, dialect = others[0]
    raise UsageError(
        f"{' and '.join(sorted(dialects))} cannot be in one environment",
        reasons=["each holds an MPI, with bin/mpiexec, bin/mpirun and lib/libmpi.so of its own"],
        hint=f"leave out --with {package}; --mpi {dialect.name} installs {dialect.title}",
        exit=Exit.STEP,
    )
