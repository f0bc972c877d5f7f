"""Records that cannot be read (case L3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, GATE, LIGHT, Desk, Started, open_gates
from tests.faults.checks import expect
from tests.faults.test_h_output import measure

RUN = ("run", "--venv", LIGHT, "--limit", "node[0-2]")

Start = Callable[..., Started]

JUNK = (
    b'{"kind": "Launched of tomorrow", "version": 9}\n', b'{"what": "rank"}\n', b'{"kind": "RankEnd', b"\n\0\0\0\n",
    b"\xff\xfe no text\n", b"x" * (20 << 20) + b"\n",
)  # fmt: skip


@pytest.mark.fault("L3")
def test_l3_a_journal_that_cannot_be_read_ends_no_watching(
    start: Start, controller: Desk, mpi: Cluster, new_controller: Callable[..., Desk]
) -> None:
    going = start(*RUN, ACTOR, "count", "40", GATE)
    going.until("0│tick 8\n", "1│tick 8\n", "2│tick 8\n")
    [journal] = mpi.path("node0", "/root/.local/state/ipexctl/runs").glob("*/journal.jsonl")
    with journal.open("ab") as out:
        for piece in JUNK:
            out.write(piece)
    open_gates(mpi)
    _, memory = measure(going)
    expect(going.said, 9, "cannot be read", "0 processes left on 3 hosts")
    assert memory < 200 << 20
    for rank in range(3):
        assert controller.written(rank) == b"".join(b"tick %d\n" % n for n in range(40))
