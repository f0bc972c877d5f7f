"""The hosts' own MPI, where somebody named it: for ``install`` and for ``run``."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from ipexctl.act.context import Context
from ipexctl.act.fanout import each
from ipexctl.decide.launch import mpi_launchers
from ipexctl.model.commands import Command
from ipexctl.model.errors import Exit, Failure, Kind, UsageError
from ipexctl.model.events import Event
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host
from ipexctl.model.links import Link
from ipexctl.model.stack import MpiLauncher

_PATIENCE = 20.0  # seconds: `mpirun --version` from a cold network file system


def find_hosts_mpi(
    wish: str, hosts: Sequence[Host], context: Context, *, named: str
) -> Generator[Event, None, MpiLauncher | dict[str, Failure]]:
    """The MPI that all hosts have for ``wish`` (``impi``, ``mpich``, ``openmpi`` or a path), or who has none and why.
    ``named`` says in messages who asked for it.

    Raises `UsageError` (exit 4) where hosts have different ones.
    """
    question = Command(mpi_launchers.build_query(wish), timeout=_PATIENCE)

    def ask(link: Link, _: object) -> MpiLauncher | Failure:
        found = mpi_launchers.parse_answer(wish, link.run(question).text)
        if isinstance(found, MpiLauncher):
            return found
        return Failure(
            link.host.name, Kind.STEP, f"{named}: {found}", mpi_launchers.suggest_mpi_install(wish), "no-mpi"
        )

    answers = yield from each(context, hosts, "look for mpirun", ask)
    found = {host: engine for host, engine in answers.items() if isinstance(engine, MpiLauncher)}
    if len(found) < len(hosts):
        return {host: failure for host, failure in answers.items() if isinstance(failure, Failure)}
    return mpi_launchers.choose_common_launcher(wish, found)


def choose_mpi(asked: str, facts: Mapping[str, Facts]) -> tuple[str, str]:
    """What to look for on the hosts (empty: the environment's own MPI will do), and who asked for it: ``--mpi``, or an
    install that was told to use an MPI of the hosts.

    Raises `UsageError` (exit 4) where the environment's Intel MPI is asked for and it has none.
    """
    found = next((fact.installed for fact in facts.values() if fact.installed), None)
    stack = (found.marker.get("stack") if found else None) or {}
    recorded = stack.get("mpi") or {}
    program, dialect = str(recorded.get("program") or ""), str(recorded.get("dialect") or "")
    if program and asked in {"auto", dialect}:
        return program, f"install --mpi {dialect}"
    if asked == "impi" and recorded.get("kind") == "system":
        raise UsageError(
            "the environment has no Intel MPI: it was installed for the hosts' own MPI",
            reasons=[f"{recorded.get('name') or dialect} at {program}"],
            hint="run without --mpi, or ipexctl install --mpi wheel",
            exit=Exit.STEP,
        )
    return ("" if asked in {"auto", "impi"} else asked), f"--mpi {asked}"
