"""Paths of an installed environment that a job needs: its Python, its mpiexec, its libraries.

The correct variables depend on the layout of the wheels, which changed often; so `install` checks which paths exist
(`list_layout_paths`), and only those are used. Users source nothing.

Sources: impi-rt measured for 2021.10.0 … 2021.18.1 (libfabric in ``lib/libfabric`` with providers in ``prov`` up to
2021.14, everything directly in ``lib`` from 2021.15); MPI inside IPEX 2.3.0 … 2.7.0 measured; the binding's layouts
from oneapi-src/oneCCL:cmake/setvars.sh.in and vars.sh.in at the pin of each release."""

import posixpath
from collections.abc import Collection, Mapping

from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.hints import advise
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
    return f"lib/python{stack.python}/site-packages/{modules[stack.mpi]}/" if stack.mpi in modules else ""


def list_layout_paths(stack: Stack) -> tuple[str, ...]:
    """Paths below the environment whose presence identifies the layout; see `detect_layout`."""
    if stack.mpi == "system":
        return ()
    names = (
        "bin/mpiexec.hydra", "opt/mpi/bin/mpiexec.hydra", "lib/libmpi.so.12", "opt/mpi/lib/libmpi.so.12",
        "lib/libccl.so.1", "lib/libccl.so.1.0", "lib/libfabric.so.1", "lib/libfabric/libfabric.so.1",
        "lib/libfabric/prov", "lib/prov", "opt/mpi/libfabric/lib/libfabric.so.1", "opt/mpi/libfabric/lib/prov",
    )  # fmt: skip
    return tuple(f"{_find_mpi_prefix(stack)}{name}" for name in names)


def detect_layout(stack: Stack, seen: Collection[str]) -> MpiLayout:
    """The paths of MPI and oneCCL below the environment, from the `list_layout_paths` that were seen on a host.

    Raises `UsageError` (exit 4) if mpiexec or libmpi is not there: then nothing could be started."""
    if stack.mpi == "system":
        return MpiLayout("system", stack.mpi_version)
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
    missing = [name for name, path in (("mpiexec.hydra", mpiexec), ("libmpi.so.12", libmpi)) if not path]
    if missing:
        raise UsageError(
            f"the environment has no usable MPI: {' and '.join(missing)} not found",
            reasons=(f"expected from {stack.mpi} below {below('') or '.'}",),
            exit=Exit.STEP,
        )
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


def build_runtime(marker: InstallMarker | None) -> Runtime:
    """The runtime that the marker of an installed environment describes. Pure: trusts what install saw and wrote.

    Raises `UsageError` (exit 4) without a marker (an environment not made by ipexctl), or one without an MPI."""
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

    # mpirun sources env/vars.sh only where I_MPI_ROOT is unset; setting it keeps the variables ours.
    env = {"VIRTUAL_ENV": prefix} if system else {"I_MPI_ROOT": at(layout.mpi_root), "VIRTUAL_ENV": prefix}
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
        dialect="impi",
        version=layout.version,
        module=layout.module or "",
        impi="impi-torch" in marker.packages,
    )
