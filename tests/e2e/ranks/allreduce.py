"""MPI itself, without torch or a compiler: libmpi through ctypes, with the handles of MPICH's ABI."""

import ctypes
import os
import socket

WORLD, DOUBLE, SUM = 0x44000000, 0x4C00080B, 0x58000003
COUNT = 1 << 17

mpi = ctypes.CDLL("libmpi.so.12")
assert mpi.MPI_Init(None, None) == 0
rank, size = ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(WORLD, ctypes.byref(rank))
mpi.MPI_Comm_size(WORLD, ctypes.byref(size))
mine = (ctypes.c_double * COUNT)(*[rank.value + 1.0] * COUNT)
total = (ctypes.c_double * COUNT)()
assert mpi.MPI_Allreduce(mine, total, COUNT, DOUBLE, SUM, WORLD) == 0
assert set(total) == {size.value * (size.value + 1) / 2}
print(f"rank {rank.value} of {size.value} on {socket.gethostname()} by {os.environ['FI_TCP_IFACE']}: sum {total[0]:g}")
assert mpi.MPI_Finalize() == 0
