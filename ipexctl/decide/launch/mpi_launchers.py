"""The mpirun that starts the ranks: that of the environment, or a host's own one named by ``--mpi``.

Hosts appear under labels that never name the local machine, so that the launcher asks our shim for every one of them,
node0 included; the shim asks the guard of that host."""

import posixpath
from collections.abc import Mapping
from dataclasses import replace

from ipexctl.decide.launch.dialects import DIALECTS, get_dialect, identify_dialect
from ipexctl.decide.launch.dialects.base import MpiDialect, PortEnv, PortRange
from ipexctl.decide.releases.runtime import Runtime
from ipexctl.model.errors import Exit, UsageError, advise
from ipexctl.model.stack import MpiLauncher
from ipexctl.model.tasks import Run
from ipexctl.model.text import pluralize

_SYSTEM_PREFIXES = {"/usr", "/usr/local", "/", ""}


def build_launcher_query(name: str, script: str) -> tuple[str, ...]:
    """Returns the command that looks on a host for ``name`` (a dialect's, or a path); ``script`` is
    ``data/find_mpi.sh``. See `parse_launcher_answer`."""
    named = [dialect for dialect in DIALECTS if dialect.name == name]
    programs = [name] if "/" in name else [program for dialect in named for program in dialect.programs]
    directories = [directory for dialect in named for directory in dialect.directories]
    proxies = {proxy for dialect in DIALECTS for proxy in dialect.proxies}
    words = (":".join(dict.fromkeys(directories)), " ".join(sorted(proxies)), *dict.fromkeys(programs))
    return ("/bin/sh", "-c", script, "sh", *words)


def parse_launcher_answer(name: str, text: str) -> MpiLauncher | str:
    """The launcher that a host has under ``name``, or why it has none, from the output of `build_launcher_query`."""
    reason = f"there is no {name}" if "/" in name else f"{name} was not found on its PATH"
    for line in text.splitlines():
        program, _, fields = line.partition("\t")
        output, _, beside = fields.partition("\t")
        known = identify_dialect(output)
        if known is None:
            reason = f"{program} is not a known MPI: {output[:80].strip() or 'no output'}" if "/" in name else reason
            continue
        dialect, version = known
        if "/" not in name and dialect.name != name:
            continue
        missing = [proxy for proxy in dialect.proxies if proxy not in beside.split()]
        if not missing:
            providers = next((word for word in beside.split() if word.startswith("/")), "")
            return MpiLauncher(
                dialect.name, dialect.title, program, version, providers if dialect.names_providers else ""
            )
        reason = f"there is no {missing[0]} beside {program}"
    return reason


def suggest_mpi_install(name: str, host: str) -> str:
    """Advice for this host without that MPI."""
    dialect = next((dialect for dialect in reversed(DIALECTS) if dialect.name == name), None)
    if dialect is None or not dialect.package:
        return "run without --mpi"
    text = f"install it there (Debian: apt install {dialect.package}), or its wheel into the environment:"
    return advise("install", "--like", host, "--mpi", name, text=text)


def choose_common_launcher(name: str, launchers: Mapping[str, MpiLauncher]) -> MpiLauncher:
    """The launcher that all hosts share, at one path. Raises `UsageError` (exit 4) listing that of each host."""
    if len(set(launchers.values())) > 1:
        what = f"--mpi {name} needs the same MPI at the same path on all hosts"
        reasons = [f"{host}: {launcher} at {launcher.program}" for host, launcher in launchers.items()]
        raise UsageError(what, reasons=reasons, exit=Exit.STEP)
    return next(iter(launchers.values()))


def switch_launcher(runtime: Runtime, launcher: MpiLauncher, ccl: bool) -> Runtime:
    """Returns the same runtime with ranks started by ``launcher``. The environment's own MPI libraries are removed from
    the search path unless oneCCL (``ccl``) needs them."""
    dialect = get_dialect(launcher.dialect, launcher.version)
    prefix = find_prefix(launcher.program)
    libraries = (f"{prefix}/lib",) if prefix else ()
    if launcher.providers:
        libraries = (*libraries, posixpath.dirname(launcher.providers))
    kept = {n: value for n, value in runtime.env.items() if ccl or n not in {"I_MPI_ROOT", "FI_PROVIDER_PATH"}}
    return replace(
        runtime,
        mpiexec=launcher.program,
        path=(runtime.path[0], posixpath.dirname(launcher.program)),
        library_path=(*libraries, *(runtime.library_path if ccl else ())),
        env={**kept, **dialect.build_library_env(prefix, launcher.providers), "MPI4PY_MPIABI": dialect.abi},
        dialect=launcher.dialect,
        version=launcher.version,
        impi=runtime.impi and offers_library(dialect, launcher.program),
    )


def offers_library(dialect: MpiDialect, program: str) -> bool:
    """Returns whether the MPI of this mpirun has its library under the name that mpi4py asks for."""
    return bool(find_prefix(program)) or dialect.system_library == dialect.library


def find_prefix(program: str) -> str:
    """Returns the directory that an MPI was installed into; empty for one of the system's own."""
    prefix = posixpath.dirname(posixpath.dirname(program))
    return "" if prefix in _SYSTEM_PREFIXES else prefix


def parse_ports(text: str | None) -> tuple[int, int]:
    """Returns the first and last port of ``--port-range``; (0, 0) without one. Raises `UsageError`."""
    low, high = map(int, (text or "0-0").split("-"))
    if text and not 1024 <= low <= high <= 65535:
        raise UsageError(
            f"--port-range {text} is not a range of ports from 1024 to 65535", hint="--port-range 40000-40099"
        )
    return low, high


def build_port_env(dialect: MpiDialect, task: Run, most: int) -> PortEnv:
    """Returns the variables for ``--port-range``. Its last two ports are left to the keeper and the rendezvous. Raises
    `UsageError` for a range that ``most`` ranks of one host cannot share."""
    low, high = parse_ports(task.port_range)
    if not low:
        return PortEnv()
    needed = most + len(("launcher", "proxy", "keeper", "rendezvous"))
    if high - low + 1 < needed:
        what = f"--port-range {task.port_range} has too few ports"
        raise UsageError(what, reasons=[f"a host with {pluralize(most, 'rank')} needs {needed}"])
    ports = PortRange(low, high - 2)
    env = dialect.build_port_env(ports)
    libfabric = {"FI_TCP_PORT_LOW_RANGE": str(low + 2), "FI_TCP_PORT_HIGH_RANGE": str(ports.last)}
    return env._replace(ranks={**libfabric, **env.ranks})
