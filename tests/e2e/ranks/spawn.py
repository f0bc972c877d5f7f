"""Ranks that start two more by MPI, from a file whose name is relative: that of this one."""

import os
import sys

from mpi4py import MPI

if __name__ == "__main__":
    parent = MPI.Comm.Get_parent()
    if parent == MPI.COMM_NULL:
        children = MPI.COMM_WORLD.Spawn(sys.executable, args=[os.path.basename(__file__)], maxprocs=2)
        print("sum", children.allreduce(0, MPI.SUM), flush=True)
        children.Disconnect()
    else:
        parent.allreduce(MPI.COMM_WORLD.rank + 1, MPI.SUM)
        parent.Disconnect()
