"""Ends of the whole job in what MPI writes of them."""

import pytest

from ipexctl.protocol.mpi_abort import Abort, find_aborts

MPICH = "Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1\n"
OPEN_MPI_4 = """--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
with errorcode 7.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
"""
OPEN_MPI_5 = """MPI_ABORT was invoked on rank 0 in communicator MPI COMMUNICATOR 3 SPLIT FROM 0
  Proc: [[52031,1],5]
  Errorcode: -1
"""


@pytest.mark.parametrize(
    ("text", "aborts"),
    [
        (MPICH, [Abort(7, 1)]),
        ("application called MPI_Abort(MPI_COMM_WORLD, 0) - process 3[cli_3]: aborting\njob:\n", [Abort(0, 3)]),
        ("Abort(3): application called MPI_Abort(MPI_COMM_WORLD, 3) - process 2", [Abort(3, 2)]),
        # a communicator of its own: only MPICH's "node" is the rank of the run
        ("Abort(-2) on node 5 (rank 0 in comm 140): application called MPI_Abort(comm=0x84000001, -2) - process 0",
         [Abort(-2, 5)]),
        ("application called MPI_Abort(MPI_COMM_SELF, 4) - process 0", [Abort(4)]),
        (OPEN_MPI_4, [Abort(7, 1)]),
        (OPEN_MPI_4.replace("MPI_COMM_WORLD", "MPI_COMM_SELF").replace("rank 1", "rank 0"), [Abort(7)]),
        (OPEN_MPI_5, [Abort(-1, 5)]),
        (MPICH + "x\n" + MPICH.replace("7", "8").replace(" 1", " 2"), [Abort(7, 1), Abort(8, 2)]),
        # errors inside MPI, which are no call
        ("Abort(60619) on node 1 (rank 1 in comm 0): Fatal error in internal_Init: x", [Abort(60619, 1, called=False)]),
        ("Abort(1) on node 1: Internal error", []),
        ("[node1] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,", []),
        ("", []),
    ],
)  # fmt: skip
def test_each_is_found_with_its_code_and_its_rank(text: str, aborts: list[Abort]) -> None:
    assert list(find_aborts(text.encode())) == aborts


@pytest.mark.parametrize(
    "text",
    [
        b"MPI_ABORT was invoked on rank 1 in communicator " + b" " * (1 << 17),
        b"Abort(1) on node " + b"1" * (1 << 17),
        b"application called MPI_Abort(MPI_COMM_WORLD, " + b"1" * 5000 + b") - process 0",
    ],
    ids=["blanks", "digits", "code"],
)
def test_a_line_without_an_end_is_no_abort_and_takes_no_more_time_than_to_read_it(text: bytes) -> None:
    """The first two held a rank's wrapper and the keeper, by the square of their length; the third ended them."""
    assert not [*find_aborts(text)]
