"""Instances: processes that do not know of each other, each on cores of its own; node0 has two NUMA nodes of four
cores, node1 one of six, all with two hardware threads."""

from typing import Any

import pytest

from ipexctl.decide.launch import emit
from ipexctl.decide.launch.instances import check_options
from ipexctl.decide.launch.run_spec import Identity, build_run_specs
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.launch import Launch
from ipexctl.model.tasks import Run
from ipexctl.model.text import format_cpus
from tests.tables import read_table
from tests.unit.launch.two import launch


def run(**settings: Any) -> Run:
    return Run(script="serve.py", **settings)


def cores(of: Launch) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for place in of.places:
        result.setdefault(place.host, []).append(format_cpus(place.cpus))
    return result


@pytest.mark.parametrize(("settings", "node0", "node1"), read_table("instances/cores"), ids=str)
def test_each_instance_has_cores_of_its_own(settings: dict[str, object], node0: list[str], node1: list[str]) -> None:
    two = launch(run(**settings))
    assert cores(two) == {"node0": node0, "node1": node1}
    assert [place.env["OMP_NUM_THREADS"] for place in two.places] == [str(len(place.cpus)) for place in two.places]


def test_core_lists_narrow_ranks_as_well() -> None:
    assert cores(launch(run(numa="0", ppn=1)))["node0"] == ["0-3"]
    assert cores(launch(run(cpus="2-5", ppn=2)))["node1"] == ["2-3", "4-5"]


def test_instances_have_nothing_to_find_each_other_by() -> None:
    two = launch(run(instances="2"), module="oneccl_bindings_for_pytorch")
    for seat in two.nodes:
        assert not [name for name in seat.env if name.startswith(("MASTER_", "GLOO_", "CCL_", "FI_TCP"))]
    text = str(two)
    assert "backend none: instances are independent of each other" in text
    assert "no RANK, WORLD_SIZE, MASTER_ADDR" in text
    reported = build_run_specs(two, run(instances="2", fail_fast=True), Identity("n", "t", "me", 0.0))
    assert all(spec.independent and spec.fail_fast for spec in reported.values())


@pytest.mark.parametrize("settings", read_table("instances/what_a_host_cannot_hold_is_refused"), ids=str)
def test_what_a_host_cannot_hold_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"node[01]|do not fit") as refused:
        launch(run(**settings))
    assert refused.value.exit is Exit.STEP


def test_wishes_that_do_not_go_together_are_reported_all_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        check_options(run(instances="per-node", cores_per_instance=2, ppn=1, backend="ccl", cpus="a-b"))
    assert len(refused.value.reasons) == 4
    with pytest.raises(UsageError, match="options conflict") as refused:
        check_options(run(fail_fast=True, instance=0, within_node=True))
    assert len(refused.value.reasons) == 3
    with pytest.raises(UsageError, match="asks for something else"):
        check_options(run(backend="gloo", backend_override=True))
    with pytest.raises(UsageError) as refused:
        check_options(run(instances="2", cpus="0-3", logical_cores=True))
    assert refused.value.reasons == ("--logical-cores has no effect: --cpus names logical CPUs",)
    check_options(run(instances="4"))


def test_where_no_core_is_known_an_instance_has_the_whole_host() -> None:
    elsewhere = {"cpus_allowed": (500,)}
    assert cores(launch(run(instances="1"), first=elsewhere, second=elsewhere)) == {"node0": [""], "node1": [""]}


def test_instances_are_not_written_for_other_programs() -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        emit.check_form(run(instances="2"), "sh")


def test_a_form_without_mpirun_is_refused_before_any_host_is_asked_where_impi_is_asked_for() -> None:
    with pytest.raises(UsageError, match="starts ranks without mpirun") as refused:
        emit.check_form(run(backend="impi"), "torchrun")
    assert refused.value.exit is Exit.INPUT
    emit.check_form(run(backend="impi"), "sh")
    emit.check_form(run(), "torchrun")
    with pytest.raises(UsageError, match="starts ranks without mpirun") as refused:
        emit.write_launch(launch(run(), impi=True), "torchrun", "")
    assert refused.value.exit is Exit.STEP
