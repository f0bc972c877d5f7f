"""The world of an attempt that some hosts no longer belong to: what the hosts compute is what a launch on those hosts
alone would have been."""

from itertools import combinations
from typing import Any

import pytest

from ipexctl.decide.launch.dialects import DIALECTS
from ipexctl.decide.launch.dialects.base import LaunchLine, MpiDialect
from ipexctl.protocol.rank_layout import (
    CHANGED_ENV,
    RankLayout,
    build_rank_layout,
    choose_hosts,
    place_spec,
    select_hosts,
)
from ipexctl.protocol.run_spec import NodeSpec, RankSpec
from tests.tables import read_table
from tests.unit.agent import runs
from tests.unit.launch.test_dialects import name_value

SPEC = runs.SPEC._replace(leaders=dict.fromkeys(("n0", "n1", "n2", "n3"), "10.0.0.1"))

COUNTS = [("h0.ipexctl", 2), ("h1.ipexctl", 1), ("h2.ipexctl", 2), ("h3.ipexctl", 1)]
NODES = {f"n{at}": NodeSpec(label, [0] * count, "/d", "python") for at, (label, count) in enumerate(COUNTS)}
RANKS = {
    2: RankSpec(
        0, values={"rank": "2", "hosts": "4", "host_rank": "1", "world_size": "6", "ppn": "1", "head": "10.0.0.1"}
    )
}
VARYING = {"GROUP_RANK": "host_rank", "GROUP_WORLD_SIZE": "hosts", "IPEXCTL_RESTART": "restart"}


def numbered() -> dict[str, NodeSpec]:
    layout = build_rank_layout(0, SPEC.head_spec._replace(hosts=NODES), list(NODES))
    return {host: node._replace(ranks=layout.ranks[host]) for host, node in NODES.items()}


@pytest.mark.parametrize("dialect", DIALECTS, ids=name_value)
def test_a_launcher_is_told_of_the_hosts_that_are_left_as_if_there_were_no_others(dialect: MpiDialect) -> None:
    def write(counts: list[tuple[str, int]]) -> list[str]:
        return ["mpirun", *dialect.build_arguments(LaunchLine("/opt/mpi/bin/mpirun", "/run/shim", "eth0", counts))]

    for size in range(1, len(COUNTS) + 1):
        for kept in map(list, combinations(COUNTS, size)):
            assert select_hosts(write(COUNTS), COUNTS, [label for label, _ in kept]) == write(kept)


def test_ranks_are_numbered_anew_and_each_host_has_as_many_as_before() -> None:
    head = SPEC.head_spec._replace(hosts=numbered())
    assert build_rank_layout(1, head, ["n0", "n2", "n3"]).ranks == {"n0": [0, 1], "n2": [2, 3], "n3": [4]}


@pytest.mark.parametrize(("present", "least", "chosen"), read_table("worlds/attempts"))
def test_an_attempt_has_the_hosts_that_are_there_if_they_are_enough(present: str, least: int, chosen: str) -> None:
    head = SPEC.head_spec._replace(hosts=numbered(), min_hosts=least)
    assert choose_hosts(head, {*present.split()}) == chosen.split()


@pytest.mark.parametrize(("present", "before", "least", "chosen"), read_table("worlds/spares"))
def test_spares_take_the_places_of_lost_hosts_and_keep_them(present: str, before: str, least: int, chosen: str) -> None:
    head = SPEC.head_spec._replace(hosts=numbered(), min_hosts=least, used=2)
    assert choose_hosts(head, {*present.split()}, before.split()) == chosen.split()


def test_the_ranks_meet_at_the_host_that_leads() -> None:
    leaders, varying = {"n0": "10.0.0.1", "n1": "10.0.0.2"}, {"MASTER_ADDR": "head"}
    values = {"rank": "2", "ppn": "1", "head": "10.0.0.1"}
    more: dict[str, Any] = {"host": "n1", "size": 6, "ranks": {2: RankSpec(0, values=values)}, "varying": varying}
    base = SPEC._replace(head=None, env={"MASTER_ADDR": "10.0.0.1"}, leaders=leaders, **more)
    placed = place_spec(base, RankLayout(1, {"n1": [0], "n2": [1]}))
    assert (placed.env["MASTER_ADDR"], placed.ranks[0].values["head"]) == ("10.0.0.2", "10.0.0.2")


def test_a_hosts_specification_has_its_new_ranks_and_what_they_hold_of_the_others() -> None:
    more: dict[str, Any] = {"host": "n1", "label": "h1.ipexctl", "size": 6, "ranks": RANKS, "varying": VARYING}
    base = SPEC._replace(head=None, env={"GROUP_RANK": "1", "OMP": "4"}, **more)
    placed = place_spec(base, RankLayout(2, {"n1": [0], "n2": [1, 2]}))
    assert (placed.size, list(placed.ranks), placed.head) == (3, [0], None)
    values = {"rank": "0", "hosts": "2", "host_rank": "0", "world_size": "3", "ppn": "1", "head": "10.0.0.1"}
    assert placed.ranks[0].values == values
    expected = {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2", "IPEXCTL_RESTART": "2", "OMP": "4", CHANGED_ENV: "6"}
    assert placed.env == expected
    spare = place_spec(base, RankLayout(3, {"n0": [0, 1], "n2": [2, 3]}))
    assert spare.ranks == {}
    same = place_spec(base, build_rank_layout(1, SPEC.head_spec._replace(hosts=numbered()), list(NODES)))
    assert same.ranks == RANKS
    assert CHANGED_ENV not in same.env


def test_a_process_that_stands_for_all_ranks_of_its_host_knows_their_numbers() -> None:
    values = {"rank": "4", "hosts": "3", "host_rank": "2", "world_size": "6", "ppn": "2", "head": "10.0.0.1"}
    base = SPEC._replace(host="n2", head=None, size=3, per_host=True, ranks={2: RankSpec(0, values=values)})
    placed = place_spec(base, RankLayout(1, {"n0": [0], "n2": [1]}))
    expected = {"rank": "2", "hosts": "2", "host_rank": "1", "world_size": "4", "ppn": "2", "head": "10.0.0.1"}
    assert placed.ranks[1].values == expected
