"""Which mpirun starts the ranks: that of the environment, or one that the hosts have, named by ``--mpi``."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ipexctl.decide.launch import hydra, openmpi
from ipexctl.decide.releases.runtime import Runtime
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.launch import NodePlan
from ipexctl.model.stack import Dialect, MpiLauncher

PROXIES: Mapping[Dialect, str] = {"impi": "hydra_bstrap_proxy", "mpich": "hydra_pmi_proxy", "openmpi": "orted"}
_ABI: Mapping[Dialect, str] = {"impi": "mpich", "mpich": "mpich", "openmpi": "openmpi"}  # as mpi4py calls them
_CANDIDATES: Mapping[str, tuple[str, ...]] = {
    "impi": ("mpiexec.hydra", "mpirun", "mpiexec"),
    "mpich": ("mpiexec.mpich", "mpiexec.hydra", "mpirun.mpich", "mpiexec", "mpirun"),
    "openmpi": ("mpirun.openmpi", "mpirun", "mpiexec"),
}
_ELSEWHERE = ("/usr/lib64/mpich/bin", "/usr/lib64/openmpi/bin", "/opt/intel/oneapi/mpi/latest/bin", "/usr/local/bin")
_SAYS: tuple[tuple[str, Dialect], ...] = (
    (r"Intel\(R\) MPI Library.*?(?:Version|version) ([\d.]+)", "impi"),
    (r"\(OpenRTE\) ([\d.]+)", "openmpi"),
    (r"\(Open MPI\) ([\d.]+)", "openmpi"),
    (r"\(PRRTE\) ([\d.]+)", "openmpi"),
    (r"HYDRA build details:\s*Version:\s*([\d.]+)", "mpich"),
)


def question(wish: str) -> tuple[str, ...]:
    """The words that ask a host for ``wish`` ("impi", "mpich", "openmpi" or a path); `answer` reads what they print."""
    names = (wish,) if "/" in wish else _CANDIDATES[wish]
    script = (
        f'PATH="$PATH:{":".join(_ELSEWHERE)}"; for n in "$@"; do p=$(command -v "$n") || continue; '
        'case $p in /*) ;; *) continue;; esac; v=$("$p" --version 2>&1 </dev/null | head -n 4 | tr "\\n\\t" "  "); '
        'd=${p%/*}; x=; for q in hydra_bstrap_proxy hydra_pmi_proxy orted prted; do [ -x "$d/$q" ] && x="$x $q"; done; '
        "for q in lib/prov lib/libfabric/prov libfabric/lib/prov opt/mpi/libfabric/lib/prov; do "
        '[ -d "${d%/*}/$q" ] && x="$x ${d%/*}/$q"; done; '
        'printf "%s\\t%s\\t%s\\n" "$p" "$v" "$x"; done'
    )
    return ("/bin/sh", "-c", script, "sh", *names)


def answer(wish: str, text: str) -> MpiLauncher | str:
    """The engine that a host has for ``wish``, or why it has none."""
    why = f"there is no {wish}" if "/" in wish else f"{wish} was not found on its PATH"
    for line in text.splitlines():
        program, _, rest = line.partition("\t")
        said, _, proxies = rest.partition("\t")
        engine = _read(program, said)
        if engine is None:
            why = f"{program} is no MPI we know: {said[:80].strip() or 'it says nothing'}" if "/" in wish else why
        elif "/" not in wish and engine.dialect != wish:
            continue
        elif engine.dialect == "openmpi" and int(engine.version.split(".")[0]) >= 5:
            why = f"{program} is Open MPI {engine.version}; of Open MPI, ipexctl speaks version 4"
        elif PROXIES[engine.dialect] not in proxies.split():
            why = f"there is no {PROXIES[engine.dialect]} beside {program}"
        else:
            providers = next((word for word in proxies.split() if word.startswith("/")), "")
            return replace(engine, providers=providers if engine.dialect == "impi" else "")
    return why


def remedy(wish: str) -> str:
    """What to do on a host that has no such MPI."""
    packages = {"mpich": "mpich", "openmpi": "openmpi-bin"}
    package = f"install it there (Debian: apt install {packages[wish]}), or " if wish in packages else ""
    return f"{package}run without --mpi"


def agreed(wish: str, found: Mapping[str, MpiLauncher]) -> MpiLauncher:
    """The one engine that all hosts have, at one path. Raises `UsageError` (exit 4) with what each host has."""
    if len(set(found.values())) > 1:
        raise UsageError(
            f"--mpi {wish} needs the same MPI at the same path on all hosts",
            reasons=[f"{host}: {engine} at {engine.program}" for host, engine in found.items()],
            exit=Exit.STEP,
        )
    return next(iter(found.values()))


def under(runtime: Runtime, engine: MpiLauncher, ccl: bool) -> Runtime:
    """The environment's runtime with its ranks started by ``engine``. The libraries of its own MPI stay out of their
    way, unless oneCCL (``ccl``) needs them."""
    directory = posixpath.dirname(engine.program)
    prefix = posixpath.dirname(directory)
    own = () if prefix in {"/usr", "/usr/local", "/", ""} else (f"{prefix}/lib",)
    intel = {"I_MPI_ROOT": prefix} if engine.dialect == "impi" else {}
    if engine.providers:
        intel["FI_PROVIDER_PATH"] = engine.providers
        own = (*own, posixpath.dirname(engine.providers))
    return replace(
        runtime,
        mpiexec=engine.program,
        path=(runtime.path[0], directory),
        library_path=(*own, *(runtime.library_path if ccl else ())),
        env={
            **{n: value for n, value in runtime.env.items() if ccl or n not in {"I_MPI_ROOT", "FI_PROVIDER_PATH"}},
            **intel,
            **({"MPI4PY_MPIABI": _ABI[engine.dialect]} if runtime.impi else {}),
        },
        dialect=engine.dialect,
        version=engine.version,
        # mpi4py asks for MPICH's library by its own name, libmpi.so.12; Debian gives it another.
        impi=runtime.impi and (engine.dialect != "mpich" or bool(own)),
    )


def label(index: int) -> str:
    """What the launcher calls a host: a name that cannot be taken for the local one."""
    return f"h{index}.ipexctl"


def framed(dialect: Dialect) -> bool:
    """Whether the ranks' wrappers have to frame what ranks write, for want of an exact tag."""
    return dialect == "openmpi"


def line(runtime: Runtime, shim: str, interface: str, nonce: str, seats: Sequence[NodePlan]) -> tuple[str, ...]:
    """The launcher's words, in its dialect."""
    if runtime.dialect == "openmpi":
        return openmpi.mpirun(runtime.mpiexec, shim, interface, seats)
    write = hydra.mpich if runtime.dialect == "mpich" else hydra.intel
    return write(runtime.mpiexec, shim, interface, nonce, seats)


def environment(dialect: Dialect, hosts: int, directory: str, user: str | None) -> Mapping[str, str]:
    """What the launcher or its proxy sees on one host, beyond its paths."""
    if dialect == "openmpi":
        return openmpi.environment(directory, user)
    return hydra.environment(hosts) if dialect == "impi" else {}


def _read(program: str, said: str) -> MpiLauncher | None:
    for pattern, dialect in _SAYS:
        match = re.search(pattern, said)
        if match:
            return MpiLauncher(dialect, program, match[1].rstrip("."))
    return None
