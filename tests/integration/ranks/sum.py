"""MPI itself, without a compiler: the launcher's own libmpi through ctypes sums up the ranks' numbers."""

import ctypes
import sys
import time
from typing import Any

library = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)  # Open MPI's parts look for it there
if "libmpi.so.40" in sys.argv[1]:  # Open MPI: handles are addresses of its objects

    def handle(name: str) -> Any:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, name)))

    world, double, add = (handle(name) for name in ("ompi_mpi_comm_world", "ompi_mpi_double", "ompi_mpi_op_sum"))
else:  # MPICH's ABI, which Intel MPI has too
    world, double, add = 0x44000000, 0x4C00080B, 0x58000003
assert library.MPI_Init(None, None) == 0
rank, size = ctypes.c_int(), ctypes.c_int()
library.MPI_Comm_rank(world, ctypes.byref(rank))
library.MPI_Comm_size(world, ctypes.byref(size))
mine, total = ctypes.c_double(rank.value + 1.0), ctypes.c_double()
assert library.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, double, add, world) == 0
print(f"rank {rank.value} of {size.value}: sum {total.value:g}")
if "ports" in sys.argv:  # what listens on this host, and the connections to others, each with both ports
    tables = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
    sockets = [(row[1].split(":"), row[2].split(":"), row[3]) for row in tables]
    near = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
    listening = sorted({int(own[1], 16) for own, _, state in sockets if state == "0A" and own[0] not in near})
    ends = {(int(own[1], 16), int(to[1], 16)) for own, to, state in sockets if state == "01" and own[0] not in near}
    print("listening", *listening)
    print("connected", *(f"{own}:{to}" for own, to in sorted(ends)))
    # Nobody leaves before all have looked; the same call again needs no further connection.
    library.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, double, add, world)
# MPICH before 4.2 waits for ever in MPI_Finalize, where a connection of UCX is still being made (pmodels/mpich#6596).
for _ in range(20):
    library.MPI_Barrier(world)
    time.sleep(0.02)
assert library.MPI_Finalize() == 0
