"""Select the mpirun that starts the ranks: that of the environment, or a host's own one named by ``--mpi``."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace

from ipexctl.decide.releases.runtime import Runtime
from ipexctl.decide.releases.table import parse_version
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.stack import Dialect, MpiLauncher

PROXIES: Mapping[Dialect, str] = {"impi": "hydra_bstrap_proxy", "mpich": "hydra_pmi_proxy", "openmpi": "orted"}
_ABI: Mapping[Dialect, str] = {"impi": "mpich", "mpich": "mpich", "openmpi": "openmpi"}  # as mpi4py calls them
_CANDIDATES: Mapping[str, tuple[str, ...]] = {
    "impi": ("mpiexec.hydra", "mpirun", "mpiexec"),
    "mpich": ("mpiexec.mpich", "mpiexec.hydra", "mpirun.mpich", "mpiexec", "mpirun"),
    "openmpi": ("mpirun.openmpi", "mpirun", "mpiexec"),
}
_ELSEWHERE = ("/usr/lib64/mpich/bin", "/usr/lib64/openmpi/bin", "/opt/intel/oneapi/mpi/latest/bin", "/usr/local/bin")
_VERSIONS: Mapping[Dialect, str] = {  # what ``--version`` prints
    "impi": r"Intel\(R\) MPI Library.*?(?:Version|version) ([\d.]+)",
    "openmpi": r"\((?:OpenRTE|Open MPI|PRRTE)\) ([\d.]+)",
    "mpich": r"HYDRA build details:\s*Version:\s*([\d.]+)",
}


def build_query(name: str) -> tuple[str, ...]:
    """The command that looks on a host for ``name`` ("impi", "mpich", "openmpi" or a path); see `parse_answer`."""
    names = (name,) if "/" in name else _CANDIDATES[name]
    script = (
        f'PATH="$PATH:{":".join(_ELSEWHERE)}"; for n in "$@"; do p=$(command -v "$n") || continue; '
        'case $p in /*) ;; *) continue;; esac; v=$("$p" --version 2>&1 </dev/null | head -n 4 | tr "\\n\\t" "  "); '
        'd=${p%/*}; x=; for q in hydra_bstrap_proxy hydra_pmi_proxy orted prted; do [ -x "$d/$q" ] && x="$x $q"; done; '
        "for q in lib/prov lib/libfabric/prov libfabric/lib/prov opt/mpi/libfabric/lib/prov; do "
        '[ -d "${d%/*}/$q" ] && x="$x ${d%/*}/$q"; done; '
        'printf "%s\\t%s\\t%s\\n" "$p" "$v" "$x"; done'
    )
    return ("/bin/sh", "-c", script, "sh", *names)


def parse_answer(name: str, text: str) -> MpiLauncher | str:
    """The launcher that a host has under ``name``, or the reason why it has none, from the output of `build_query`."""
    reason = f"there is no {name}" if "/" in name else f"{name} was not found on its PATH"
    for line in text.splitlines():
        program, _, fields = line.partition("\t")
        output, _, helpers = fields.partition("\t")
        launcher = _parse_version(program, output)
        if launcher is None:
            reason = f"{program} is not a known MPI: {output[:80].strip() or 'no output'}" if "/" in name else reason
        elif "/" not in name and launcher.dialect != name:
            continue
        elif launcher.dialect == "openmpi" and parse_version(launcher.version).major >= 5:
            reason = f"{program} is Open MPI {launcher.version}; ipexctl supports Open MPI 4"
        elif PROXIES[launcher.dialect] not in helpers.split():
            reason = f"there is no {PROXIES[launcher.dialect]} beside {program}"
        else:
            providers = next((word for word in helpers.split() if word.startswith("/")), "")
            return replace(launcher, providers=providers if launcher.dialect == "impi" else "")
    return reason


def suggest_mpi_install(name: str) -> str:
    """Advice for a host without that MPI."""
    packages = {"mpich": "mpich", "openmpi": "openmpi-bin"}
    package = f"install it there (Debian: apt install {packages[name]}), or " if name in packages else ""
    return f"{package}run without --mpi"


def choose_common_launcher(name: str, launchers: Mapping[str, MpiLauncher]) -> MpiLauncher:
    """The launcher that all hosts share, at one path. Raises `UsageError` (exit 4) listing that of each host."""
    if len(set(launchers.values())) > 1:
        raise UsageError(
            f"--mpi {name} needs the same MPI at the same path on all hosts",
            reasons=[f"{host}: {launcher} at {launcher.program}" for host, launcher in launchers.items()],
            exit=Exit.STEP,
        )
    return next(iter(launchers.values()))


def switch_launcher(runtime: Runtime, launcher: MpiLauncher, ccl: bool) -> Runtime:
    """The same runtime with ranks started by ``launcher``. The environment's own MPI libraries are removed from the
    search path unless oneCCL (``ccl``) needs them."""
    directory = posixpath.dirname(launcher.program)
    prefix = posixpath.dirname(directory)
    own = () if prefix in {"/usr", "/usr/local", "/", ""} else (f"{prefix}/lib",)
    intel = {"I_MPI_ROOT": prefix} if launcher.dialect == "impi" else {}
    if launcher.providers:
        intel["FI_PROVIDER_PATH"] = launcher.providers
        own = (*own, posixpath.dirname(launcher.providers))
    return replace(
        runtime,
        mpiexec=launcher.program,
        path=(runtime.path[0], directory),
        library_path=(*own, *(runtime.library_path if ccl else ())),
        env={
            **{n: value for n, value in runtime.env.items() if ccl or n not in {"I_MPI_ROOT", "FI_PROVIDER_PATH"}},
            **intel,
            **({"MPI4PY_MPIABI": _ABI[launcher.dialect]} if runtime.impi else {}),
        },
        dialect=launcher.dialect,
        version=launcher.version,
        # mpi4py asks for MPICH's library by its own name, libmpi.so.12; Debian gives it another.
        impi=runtime.impi and (launcher.dialect != "mpich" or bool(own)),
    )


def _parse_version(program: str, output: str) -> MpiLauncher | None:
    for dialect, pattern in _VERSIONS.items():
        if match := re.search(pattern, output):
            return MpiLauncher(dialect, program, match[1].rstrip("."))
    return None
