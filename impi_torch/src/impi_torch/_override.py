"""Impi in Gloo's place, for scripts that say `gloo` or nothing, and in that of `ccl` and `mpi`, where torch lacks them.
Asked for by IMPI_TORCH_OVERRIDE=1, never unasked."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import torch.distributed.distributed_c10d as c10d

from ._launch import ImpiError, is_cut_off, launched_by, launched_size


def absent_backends() -> list[str]:
    """The backends over MPI that torch has from oneCCL's bindings, or of a build on a host with MPI, and not here."""
    present = {"ccl": "CCL" in c10d.Backend._plugins, "mpi": c10d.is_mpi_available()}
    return [name for name, is_there in present.items() if not is_there]


def reason_against(env: dict[str, str], backend: str) -> str:
    """Why Gloo must stay for a group that asked for `backend`; empty where impi can take its place."""
    parts = dict(pair.split(":", 1) for pair in backend.split(",") if ":" in pair)
    if parts:
        if set(parts) != {"cpu"} or parts["cpu"] != "gloo":
            return f"the backend is {backend}"
    elif backend not in ("gloo", "undefined", "", *absent_backends()):
        return f"the backend is {backend}"
    if not launched_by(env):
        return "no mpirun started this process"
    if is_cut_off(env):
        return "a launcher before this script closed the connection to mpirun"
    return ""


def install() -> None:
    """Let torch make impi groups where Gloo ones are asked for. They go on saying "gloo" to scripts that look."""
    make: Any = getattr(c10d, "_new_process_group_helper", None)
    if make is None:
        print("impi: this torch makes its groups in another way; gloo stays", file=sys.stderr)
        return

    @functools.wraps(make)
    def helper(group_size: int, group_rank: int, ranks: Any, backend: Any, *rest: Any, **words: Any) -> Any:
        asked = str(backend).lower()
        against = reason_against(dict(os.environ), asked)
        started = launched_size(os.environ)
        if asked == "mpi" and not ranks and not against:  # of its own group torch expects rank, size and store
            store, group_rank, group_size = next(c10d.rendezvous("mpi://", timeout=words["timeout"]))
            rest = (c10d.PrefixStore("default_pg", store), *rest[1:])
        if not against and not ranks and started and started != group_size:
            against = f"the script made a group of {group_size}, mpirun started {started}"
        said = {"gloo": "gloo", "cpu:gloo": "cpu:gloo"}.get(asked, "gloo")
        if against:
            if not ranks and group_rank == 0:
                print(f"impi: gloo stays: {against}", file=sys.stderr, flush=True)
            return make(group_size, group_rank, ranks, backend, *rest, **words)
        if not ranks and group_rank == 0:
            named = asked.replace("undefined", "") or "the default backend"  # torch's word for none
            print(f"impi: takes the place of {named} (IMPI_TORCH_OVERRIDE)", file=sys.stderr, flush=True)
        group, store = make(group_size, group_rank, ranks, c10d.Backend("impi"), *rest, **words)
        if group in c10d._world.pg_map:
            group.backend_name = "gloo"
            c10d._world.pg_map[group] = (said, c10d._world.pg_map[group][1])
        return group, store

    c10d._new_process_group_helper = helper


__all__ = ["ImpiError", "install", "reason_against"]
