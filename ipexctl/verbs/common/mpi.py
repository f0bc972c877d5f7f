"""The hosts' own MPI, for ``install`` and ``run``."""

from collections.abc import Sequence

from ipexctl.act.context import Context, run_on_hosts
from ipexctl.data import read_data
from ipexctl.decide.launch import mpi_launchers
from ipexctl.decide.launch.dialects import DIALECTS, find_wheel_dialect
from ipexctl.model.errors import Exit, Failure, Kind, UsageError, advise
from ipexctl.model.events import Workflow
from ipexctl.model.facts import HostFacts
from ipexctl.model.hosts import Command, Host, Link
from ipexctl.model.stack import MpiLauncher

_VERSION_TIMEOUT = 20.0  # seconds: `mpirun --version` from a cold network file system


def find_hosts_mpi(
    wanted: str, hosts: Sequence[Host], context: Context, *, named: str
) -> Workflow[MpiLauncher | dict[str, Failure]]:
    """Returns the MPI that all hosts have for ``wanted`` (``impi``, ``mpich``, ``openmpi`` or a path), or the hosts
    without it and why. ``named`` is the option that asks for it, for messages. Raises `UsageError` (exit 4) where hosts
    have different ones."""
    query = Command(mpi_launchers.build_launcher_query(wanted, read_data("find_mpi.sh")), timeout=_VERSION_TIMEOUT)

    def find_mpi(link: Link, _: object) -> MpiLauncher | Failure:
        launcher = mpi_launchers.parse_launcher_answer(wanted, link.run(query).text)
        if isinstance(launcher, MpiLauncher):
            return launcher
        hint = mpi_launchers.suggest_mpi_install(wanted, link.host.name)
        return Failure(link.host.name, Kind.STEP, f"{named}: {launcher}", hint, "no-mpi")

    launchers, failures = yield from run_on_hosts(context, hosts, "look for mpirun", find_mpi)
    return failures or mpi_launchers.choose_common_launcher(wanted, launchers)


def choose_mpi(option: str, facts: HostFacts) -> tuple[str, str]:
    """Returns what MPI to look for on the hosts for ``--mpi`` (empty: the environment's own), and the option that asks
    for it: ``--mpi``, or that of the install which recorded an MPI of the hosts. A wheel that was added to the
    environment is found by the name of its MPI. Raises `UsageError` (exit 4) where the environment's Intel MPI is asked
    for and it has none."""
    marker = next((fact.installed.marker for fact in facts.values() if fact.installed), None)
    if marker is None or (option == "auto" and not marker.stack.mpi.program):
        return ("" if option in {"auto", "impi"} else option), f"--mpi {option}"
    mpi = marker.stack.mpi
    if mpi.program and option in {"auto", mpi.dialect}:
        return mpi.program, f"install --mpi {mpi.program}"
    wheel = find_wheel_dialect(mpi.kind)
    if not mpi.program and option == (wheel.name if wheel else "impi"):
        return "", f"--mpi {option}"
    if any(dialect.name == option and dialect.wheel in marker.packages for dialect in DIALECTS):
        return f"{marker.prefix}/bin/mpirun", f"--mpi {option}"
    if option == "impi":
        what = "the environment has no Intel MPI: it was installed for another"
        reasons = [f"{mpi.name} at {mpi.program}" if mpi.program else f"the wheel {mpi.kind} {mpi.version}"]
        hint = advise("install", "--mpi", "wheel", text="run without --mpi, or install it:")
        raise UsageError(what, reasons=reasons, hint=hint.keep_installed(next(iter(facts))), exit=Exit.STEP)
    return option, f"--mpi {option}"
