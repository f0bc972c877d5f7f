"""Paths of an installed environment that a job needs: its Python, its mpiexec, its libraries.

The correct variables depend on the layout of the wheels, which changed often; so `install` checks which paths exist
(`list_layout_paths`), and only those are used. Users source nothing.

Sources: impi-rt measured for 2021.10.0 … 2021.18.1 (libfabric in ``lib/libfabric`` with providers in ``prov`` up to
2021.14, everything directly in ``lib`` from 2021.15); MPI inside IPEX 2.3.0 … 2.7.0 measured; the binding's layouts
from oneapi-src/oneCCL:cmake/setvars.sh.in and vars.sh.in at the pin of each release."""

import posixpath
from collections.abc import Collection, Mapping

from ipexctl.decide.launch.dialects import find_wheel_dialect
from ipexctl.decide.launch.dialects.base import MpiDialect
from ipexctl.model.errors import Exit, UsageError, advise
from ipexctl.model.json_values import Record
from ipexctl.model.stack import Dialect, InstallMarker, MpiKind, MpiLayout, Stack


class Runtime(Record):
    """Absolute paths, equal on all hosts of an installation. ``mpiexec`` is empty where only the hosts have an MPI.
    ``path`` and ``library_path`` go in front of PATH and LD_LIBRARY_PATH; ``env`` is set as it is."""

    python: str
    mpiexec: str
    path: tuple[str, ...]
    library_path: tuple[str, ...]
    env: Mapping[str, str]
    dialect: Dialect
    version: str
    module: str = ""  # import name of the oneCCL binding, empty without one
    impi: bool = False  # it holds impi_torch


def _find_mpi_prefix(stack: Stack) -> str:
    """The directory of the wheel with the MPI, below the environment: ends with a slash, or is the environment."""
    modules: dict[MpiKind, str] = {"binding": stack.release.module, "ipex": "intel_extension_for_pytorch"}
    if stack.mpi in modules:
        return f"lib/python{stack.python}/site-packages/{modules[stack.mpi]}/"
    return ""


def list_layout_paths(stack: Stack) -> tuple[str, ...]:
    """Paths below the environment whose presence identifies the layout; see `detect_layout`."""
    if stack.mpi == "system":
        return ()
    if dialect := _find_other_dialect(stack.mpi):
        return (*(f"bin/{program}" for program in dialect.programs), f"lib/{dialect.library}")
    names = (
        "bin/mpiexec.hydra", "opt/mpi/bin/mpiexec.hydra", "lib/libmpi.so.12", "opt/mpi/lib/libmpi.so.12",
        "lib/libccl.so.1", "lib/libccl.so.1.0", "lib/libfabric.so.1", "lib/libfabric/libfabric.so.1",
        "lib/libfabric/prov", "lib/prov", "opt/mpi/libfabric/lib/libfabric.so.1", "opt/mpi/libfabric/lib/prov",
    )  # fmt: skip
    return tuple(f"{_find_mpi_prefix(stack)}{name}" for name in names)


def detect_layout(stack: Stack, seen: Collection[str]) -> MpiLayout:
    """Returns the paths of MPI and oneCCL below the environment, from the `list_layout_paths` that were seen on a host.
    Raises `UsageError` (exit 4) if mpiexec or libmpi is not there: then nothing could be started."""
    if stack.mpi == "system":
        return MpiLayout("system", stack.mpi_version)
    if dialect := _find_other_dialect(stack.mpi):
        program = next((name for name in dialect.programs if f"bin/{name}" in seen), "")
        library = dialect.library if f"lib/{dialect.library}" in seen else ""
        _require_mpi(stack, ".", {dialect.programs[-1]: program, dialect.library: library})
        return MpiLayout(stack.mpi, stack.mpi_version, mpiexec=f"bin/{program}", bin=("bin",), lib=("lib",))
    prefix = _find_mpi_prefix(stack)
    present = {name.removeprefix(prefix) for name in seen}

    def below(name: str) -> str:
        return f"{prefix}{name}".rstrip("/")

    def first(*names: str) -> str:
        return next((name for name in names if name in present), "")

    # The binding from 2.4 on has a `bin` of oneCCL beside `opt/mpi/bin`; only the latter has an mpiexec.
    mpiexec = first("opt/mpi/bin/mpiexec.hydra", "bin/mpiexec.hydra")
    libmpi = first("opt/mpi/lib/libmpi.so.12", "lib/libmpi.so.12")
    libccl = first("lib/libccl.so.1", "lib/libccl.so.1.0")
    fabric = first("lib/libfabric/libfabric.so.1", "opt/mpi/libfabric/lib/libfabric.so.1", "lib/libfabric.so.1")
    _require_mpi(stack, below("") or ".", {"mpiexec.hydra": mpiexec, "libmpi.so.12": libmpi})
    providers = first(f"{posixpath.dirname(fabric)}/prov")
    bins = [posixpath.dirname(mpiexec)] + (["bin"] if mpiexec.startswith("opt/") else [])
    libs = [posixpath.dirname(name) for name in (libccl, libmpi, fabric) if name]
    return MpiLayout(
        stack.mpi,
        stack.mpi_version,
        mpiexec=below(mpiexec),
        bin=tuple(below(name) for name in dict.fromkeys(bins)),
        lib=tuple(below(name) for name in dict.fromkeys(libs)),
        providers=below(providers) if providers else None,
        mpi_root=below("opt/mpi" if mpiexec.startswith("opt/") else ""),
        ccl_root=below("") if stack.mpi != "impi-rt" else None,
        module=stack.release.module if stack.release.oneccl else None,
    )


def _find_other_dialect(kind: MpiKind) -> MpiDialect | None:
    return None if kind == "impi-rt" else find_wheel_dialect(kind)


def _require_mpi(stack: Stack, place: str, found: Mapping[str, str]) -> None:
    if missing := [name for name, path in found.items() if not path]:
        raise UsageError(
            f"the environment has no usable MPI: {' and '.join(missing)} not found",
            reasons=(f"expected from {stack.mpi} below {place}",),
            exit=Exit.STEP,
        )


def build_runtime(marker: InstallMarker | None) -> Runtime:
    """Returns the runtime that the marker of an installed environment describes. Pure: trusts what install saw and
    wrote. Raises `UsageError` (exit 4) without a marker (an environment not made by ipexctl), or one without an MPI."""
    system = marker is not None and marker.layout.mpi == "system"
    if marker is None or not (marker.layout.mpiexec or system):
        raise UsageError(
            "the environment was not made by ipexctl: it does not say where its MPI is",
            hint=advise("install"),
            exit=Exit.STEP,
        )
    layout, prefix = marker.layout, marker.prefix

    def at(name: str) -> str:
        return prefix if name in {"", "."} else f"{prefix}/{name}"

    env = {"VIRTUAL_ENV": prefix}
    if dialect := _find_other_dialect(layout.mpi):
        env |= {**dialect.build_library_env(prefix, ""), "MPI4PY_MPIABI": dialect.abi}
    elif not system:
        # mpirun sources env/vars.sh only where I_MPI_ROOT is unset; setting it keeps the variables ours.
        env = {"I_MPI_ROOT": at(layout.mpi_root), **env}
    if layout.providers:
        env["FI_PROVIDER_PATH"] = at(layout.providers)
    if layout.ccl_root:
        env["CCL_ROOT"] = at(layout.ccl_root)
    return Runtime(
        python=at("bin/python"),
        mpiexec="" if system else at(layout.mpiexec),
        path=tuple(dict.fromkeys(map(at, ["bin", *layout.bin]))),
        # The environment's own lib holds run-time libraries from wheels (intel-openmp); harmless where it holds none.
        library_path=tuple(dict.fromkeys(map(at, [*layout.lib, "lib"]))),
        env=env,
        dialect=dialect.name if dialect else "impi",
        version=layout.version,
        module=layout.module or "",
        impi="impi-torch" in marker.packages,
    )
