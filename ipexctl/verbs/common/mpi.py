"""The hosts' own MPI, for ``install`` and ``run``."""

from collections.abc import Generator, Mapping, Sequence

from ipexctl.act.context import Context
from ipexctl.act.fanout import run_on_hosts
from ipexctl.data import read_data
from ipexctl.decide.launch import mpi_launchers
from ipexctl.model.commands import Command
from ipexctl.model.errors import Exit, Failure, Kind, UsageError
from ipexctl.model.events import Event
from ipexctl.model.facts import Facts
from ipexctl.model.hints import advise
from ipexctl.model.hosts import Host
from ipexctl.model.links import Link
from ipexctl.model.stack import MpiLauncher

_PATIENCE = 20.0  # seconds: `mpirun --version` from a cold network file system


def find_hosts_mpi(
    wanted: str, hosts: Sequence[Host], context: Context, *, named: str
) -> Generator[Event, None, MpiLauncher | dict[str, Failure]]:
    """The MPI that all hosts have for ``wanted`` (``impi``, ``mpich``, ``openmpi`` or a path), or the hosts without it
    and why. ``named`` is the option that asks for it, for messages.

    Raises `UsageError` (exit 4) where hosts have different ones."""
    query = Command(mpi_launchers.build_launcher_query(wanted, read_data("find_mpi.sh")), timeout=_PATIENCE)

    def find_mpi(link: Link, _: object) -> MpiLauncher | Failure:
        launcher = mpi_launchers.parse_launcher_answer(wanted, link.run(query).text)
        if isinstance(launcher, MpiLauncher):
            return launcher
        hint = mpi_launchers.suggest_mpi_install(wanted)
        return Failure(link.host.name, Kind.STEP, f"{named}: {launcher}", hint, "no-mpi")

    results = yield from run_on_hosts(context, hosts, "look for mpirun", find_mpi)
    if failures := {host: result for host, result in results.items() if isinstance(result, Failure)}:
        return failures
    launchers = {host: result for host, result in results.items() if isinstance(result, MpiLauncher)}
    return mpi_launchers.choose_common_launcher(wanted, launchers)


def choose_mpi(option: str, facts: Mapping[str, Facts]) -> tuple[str, str]:
    """What MPI to look for on the hosts for ``--mpi`` (empty: the environment's own), and the option that asks for it:
    ``--mpi``, or that of the install which recorded an MPI of the hosts.

    Raises `UsageError` (exit 4) where the environment's Intel MPI is asked for and it has none."""
    installed = next((fact.installed for fact in facts.values() if fact.installed), None)
    recorded = installed.marker.stack.mpi if installed and installed.marker else None
    program, dialect = (recorded.program or "", recorded.dialect or "") if recorded else ("", "")
    if program and option in {"auto", dialect}:
        return program, f"install --mpi {dialect}"
    if option == "impi" and recorded and recorded.kind == "system":
        what = "the environment has no Intel MPI: it was installed for the hosts' own MPI"
        reasons = [f"{recorded.name or dialect} at {program}"]
        hint = advise("install", "--mpi", "wheel", text="run without --mpi, or install it:")
        raise UsageError(what, reasons=reasons, hint=hint, exit=Exit.STEP)
    return ("" if option in {"auto", "impi"} else option), f"--mpi {option}"
