"""`init_method="mpi://"`: rank and size from mpirun itself, so no RANK, WORLD_SIZE or MASTER_ADDR is needed."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore

from ._engine import engine
from ._launch import check_launch, launched_size, mpi


def rendezvous(timeout: timedelta | None) -> tuple[Any, int, int]:
    """(store, rank, size): rank 0 serves a store on a free port and tells the others where, through MPI.

    Its address is MASTER_ADDR where that is set, else the loopback when all ranks are on one host, else its host name.
    """
    check_launch(launched_size(os.environ) or 1, os.environ)
    MPI = mpi()
    engine()  # it ends MPI with the script, also where the groups are Gloo's
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    wait = {} if timeout is None else {"timeout": timeout}
    names = world.allgather(socket.gethostname())
    address = os.environ.get("MASTER_ADDR") or ("127.0.0.1" if len(set(names)) == 1 else names[0])
    store = None
    if rank == 0:
        store = TCPStore(address, 0, size, True, wait_for_workers=False, **wait)
    port = world.bcast(store.port if store is not None else None)
    return store or TCPStore(address, port, size, False, **wait), rank, size
