"""Which rank gets which cores: laws that hold on every machine of tests/machines, and on random ones."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.launch.placement import Cores, count_ranks, find_usable_cores, place_ranks
from ipexctl.model.errors import UsageError
from ipexctl.model.facts import Core, Facts, NumaNode
from ipexctl.model.hosts import Host
from ipexctl.model.launch import RankPlacement
from tests.machines.page import load_page, pages
from tests.machines.render import render
from tests.tables import read_table
from tests.unit.doctor.corpus import uarchs

HOST = Host("a", "a")


def seated(fact: Facts, ppn: int | None = None, n: int | None = None, workers: int = 1) -> tuple[RankPlacement, ...]:
    cores = {"a": find_usable_cores(fact)}
    counts = count_ranks([HOST], cores, n, ppn)
    return place_ranks(counts, cores, {"a": "m"}, workers)[0]


def lawful(fact: Facts, places: tuple[RankPlacement, ...], workers: int) -> None:
    """No CPU twice, all of them allowed, one per core, shares of one size, workers beside and not among the rest."""
    allowed = set(fact.cpus_allowed or fact.cpus_online or ())
    core_of = {cpu: index for index, core in enumerate(fact.cores) for cpu in core.cpus}
    available = len(find_usable_cores(fact).cpus)
    used = [cpu for place in places for cpu in (*place.cpus, *place.workers)]
    assert set(used) <= allowed
    if len(places) <= available:
        assert len(used) == len(set(used))
        assert len({core_of.get(cpu, cpu) for cpu in used}) == len(used)
        assert len({len(place.cpus) for place in places}) == 1
        assert len({len(place.workers) for place in places}) == 1
        assert len(places[0].workers) in {0, workers}
    assert all(place.cpus for place in places) == bool(available)
    assert [place.rank for place in places] == list(range(len(places)))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_on_every_machine_cores_are_dealt_lawfully(page: Path) -> None:
    fact = parse_facts(render(load_page(page)), uarchs())
    nodes = find_usable_cores(fact).nodes
    assert len(seated(fact)) == max(1, nodes)
    for ppn in {1, 2, 3, 4, 7, max(1, nodes), 2 * max(1, nodes), max(1, len(find_usable_cores(fact).cpus))}:
        for workers in (1, 2, 4):
            lawful(fact, seated(fact, ppn, workers=workers), workers)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_on_every_machine_one_rank_a_numa_node_stays_inside_it(page: Path) -> None:
    places = seated(parse_facts(render(load_page(page)), uarchs()))
    assert all(len(place.nodes) <= 1 for place in places)
    assert len({place.nodes for place in places}) == len(places)


def machine(
    nodes: int, cores: int, threads: int = 1, *, step: int = 1, first: int = 0, fast: int | None = None
) -> Facts:
    """``step`` spreads the numbers of CPUs out; ``fast`` cores of each node are performance cores."""
    topology = []
    total = nodes * cores
    for core in range(total):
        cpus = tuple(first + step * (core + total * thread) for thread in range(threads))
        topology.append(Core(cpus, core // cores, core // cores))
    online = tuple(sorted(cpu for core in topology for cpu in core.cpus))
    quick = [cpu for core in topology if fast is not None and topology.index(core) % cores < fast for cpu in core.cpus]
    slow = [cpu for cpu in online if cpu not in quick]
    hybrid = {"p_cpus": tuple(quick), "e_cpus": tuple(slow)} if fast else None
    numa = tuple(NumaNode(node, ()) for node in range(nodes))
    return Facts(cpus_online=online, cores=tuple(topology), numa=numa, hybrid=hybrid)


MACHINES = st.builds(
    machine,
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 2),
    step=st.integers(1, 3),
    first=st.integers(0, 5),
    fast=st.none() | st.integers(1, 9),
)


@given(MACHINES, st.data(), st.integers(1, 12), st.integers(1, 4), st.none() | st.floats(0.5, 40))
def test_on_any_machine_with_any_cpuset_and_quota_cores_are_dealt_lawfully(
    fact: Facts, data: st.DataObject, ppn: int, workers: int, quota: float | None
) -> None:
    allowed = data.draw(st.lists(st.sampled_from(fact.cpus_online or ()), min_size=1, unique=True))
    fact = replace(fact, cpus_allowed=tuple(sorted(allowed)), cgroup_cpus=quota)
    lawful(fact, seated(fact, ppn, workers=workers), workers)
    if quota is not None:
        assert len(find_usable_cores(fact).cpus) <= max(1, int(quota))


def test_of_two_hardware_threads_the_first_that_is_allowed_is_used() -> None:
    fact = replace(machine(1, 4, 2), cpus_allowed=(1, 2, 4, 5, 6, 7))
    assert [cpu for cpu, _ in find_usable_cores(fact).cpus] == [1, 2, 4, 7]


def test_on_hybrid_processors_only_performance_cores_compute() -> None:
    assert [cpu for cpu, _ in find_usable_cores(machine(1, 6, fast=2)).cpus] == [0, 1]


def test_off_line_and_sparse_cpus_are_no_cores() -> None:
    fact = Facts(cpus_online=(0, 5, 9), cores=(Core((0,), 0, 0), Core((5,), 0, 0), Core((9,), 0, 1)))
    assert find_usable_cores(fact).cpus == ((0, 0), (5, 0), (9, 1))
    assert [place.cpus for place in seated(fact, ppn=3)] == [(0,), (5,), (9,)]


def test_a_quota_below_the_cores_is_reported() -> None:
    cores = find_usable_cores(replace(machine(1, 8), cgroup_cpus=2.5))
    assert (len(cores.cpus), str(cores.note)) == (2, "its control group allows 2.5 CPUs of 8 cores")


def test_workers_get_the_last_cores_of_their_rank() -> None:
    first, second = seated(machine(2, 4), workers=1)
    assert (first.cpus, first.workers, first.nodes) == ((0, 1, 2), (3,), (0,))
    assert (second.cpus, second.workers, second.nodes) == ((4, 5, 6), (7,), (1,))


def test_a_rank_without_a_core_to_spare_shares_it_with_its_worker() -> None:
    assert [(place.cpus, place.workers) for place in seated(machine(1, 2), ppn=2)] == [((0,), ()), ((1,), ())]


def test_more_ranks_than_cores_share_and_it_is_reported() -> None:
    cores = {"a": find_usable_cores(machine(1, 2))}
    places, warnings = place_ranks((("a", 3),), cores, {"a": "m"}, 1)
    assert [place.cpus for place in places] == [(0,), (1,), (0,)]
    assert tuple(map(str, warnings)) == ("a: 3 ranks share 2 cores",)


def test_hosts_of_different_shapes_get_different_maps() -> None:
    hosts = [Host("a", "a"), Host("b", "b")]
    cores = {
        "a": find_usable_cores(machine(2, 4)),
        "b": find_usable_cores(replace(machine(1, 8), cpus_allowed=(2, 3, 6))),
    }
    counts = count_ranks(hosts, cores, None, None)
    assert counts == (("a", 2), ("b", 1))
    places, _ = place_ranks(counts, cores, {"a": "x", "b": "y"}, 1)
    assert [(place.host, place.local, place.cpus, place.workers) for place in places] == [
        ("a", 0, (0, 1, 2), (3,)),
        ("a", 1, (4, 5, 6), (7,)),
        ("b", 0, (2, 3), (6,)),
    ]


def test_hosts_that_are_one_machine_share_its_cores() -> None:
    cores = dict.fromkeys("ab", find_usable_cores(machine(1, 4)))
    places, _ = place_ranks((("a", 1), ("b", 1)), cores, {"a": "m", "b": "m"}, 1)
    assert [(place.cpus, place.workers) for place in places] == [((0,), (1,)), ((2,), (3,))]


@pytest.mark.parametrize(("n", "ppn", "slots", "counts"), read_table("placement/spread", frozen=True))
def test_ranks_are_spread_as_asked(
    n: int | None, ppn: int | None, slots: tuple[int | None, ...], counts: tuple[int, ...]
) -> None:
    hosts = [Host(name, name, slots=count) for name, count in zip("ab", slots, strict=True)]
    cores = dict.fromkeys("ab", Cores(((0, 0), (1, 1))))
    assert tuple(count for _, count in count_ranks(hosts, cores, n, ppn)) == counts


def test_too_many_ranks_are_refused_with_the_room_there_is() -> None:
    with pytest.raises(UsageError) as refused:
        count_ranks([Host("a", "a", slots=2)], {"a": Cores(((0, 0),))}, 3, None)
    assert list(refused.value.reasons) == ["room for 2: a 2"]


def two_nodes(**more: object) -> Facts:
    """Two sockets of sixteen cores."""
    cores = tuple(Core((cpu,), cpu // 16, cpu // 16) for cpu in range(32))
    return Facts(cpus_online=tuple(range(32)), cores=cores, **more)  # type: ignore[arg-type]


def test_a_batch_job_that_owns_a_node_and_two_cores_of_the_next_uses_all_of_them() -> None:
    places = seated(two_nodes(cpus_allowed=tuple(range(18))), ppn=2, workers=0)
    assert [place.cpus for place in places] == [tuple(range(9)), tuple(range(9, 18))]


@pytest.mark.parametrize(("quota", "each"), [(32.0, 16), (20.0, 10), (17.0, 8), (2.0, 1)])
def test_the_cores_of_a_quota_are_those_of_all_nodes_alike(quota: float, each: int) -> None:
    places = seated(two_nodes(cgroup_cpus=quota), ppn=2, workers=0)
    assert [place.cpus for place in places] == [tuple(range(each)), tuple(range(16, 16 + each))]
    assert [place.nodes for place in places] == [(0,), (1,)]


def test_a_few_cores_less_on_one_node_do_not_tear_ranks_out_of_their_nodes() -> None:
    places = seated(two_nodes(cpus_allowed=tuple(range(30))), ppn=2, workers=0)
    assert [(len(place.cpus), place.nodes) for place in places] == [(14, (0,)), (14, (1,))]
