"""Every fact that the truth file of a recorded machine states is what we read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ipexctl.decide.facts.cgroup import read_cgroup
from ipexctl.decide.facts.numbers import parse_cpu_list
from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.facts.probe_output import ProbeOutput
from ipexctl.model.json_values import to_json
from tests.tables import read_table
from tests.unit.doctor.corpus import MACHINES, bundle, facts, machines, needs_machines, truth, uarchs

PLAIN = read_table("machines/plain")
LISTS = ("cpus_online", "cpus_offline")
STRUCTURED = (
    "numa",
    "hybrid",
    "cgroup",
    "hypervisor_vendor",
    "isa_flags",
    "isa_level_of_uarch",
    "must_not_say",
    "kernel",
)


def stated() -> list[Any]:
    """Pairs of machine and fact."""
    return [
        pytest.param(machine, fact, id=f"{machine.name}-{fact}")
        for machine in machines()
        for fact in (*PLAIN, *LISTS, *STRUCTURED)
        if fact in truth(machine) and not (is_arm(machine) and truth(machine)[fact] is None)
    ]


def is_arm(machine: Path) -> bool:
    """Its processor was unknown when these were written down; tests/machines/aarch64.toml has what such are."""
    return bool(facts(machine).arch == "aarch64")


def as_set(text: str | None) -> set[int] | None:
    return None if text is None else set(parse_cpu_list(text) or ())


@needs_machines
@pytest.mark.parametrize(("machine", "fact"), stated())
def test_fact_is_read_as_it_is(machine: Path, fact: str) -> None:
    true, read = truth(machine), facts(machine)
    if fact in PLAIN:
        assert getattr(read, fact) == true[fact]
    elif fact in LISTS:
        value = getattr(read, fact)
        assert (None if value is None else set(value)) == as_set(true[fact])
    elif fact == "numa":
        assert numa_as_stated(machine) == numa_as_read(machine)
    elif fact == "hybrid":
        stated_ = true["hybrid"] and {key: as_set(true["hybrid"][key]) for key in ("p_cpus", "e_cpus")}
        as_read: Any = read.hybrid and {key: set(value) for key, value in read.hybrid.items()}
        assert as_read == stated_
    elif fact == "cgroup":
        if true["cgroup"]:
            assert set(read.cpus_allowed or ()) == as_set(true["cgroup"]["allowed_cpus"])
        assert read.cgroup_cpus is None  # none of the machines has a quota
    elif fact == "hypervisor_vendor":
        assert read.hypervisor == true[fact]
    elif fact == "kernel":
        text = "".join(bundle(machine).files.get(path, "") for path in ("/proc/version", "/proc/sys/kernel/osrelease"))
        assert read.kernel == (true[fact] if text else None)  # else the source knew it from elsewhere
    elif fact == "isa_flags":
        assert set(true[fact]) <= read.flags
    elif fact == "isa_level_of_uarch":
        assert read.silicon == true[fact]
    elif fact == "must_not_say":
        for name, wrong in (true[fact] or {}).items():
            assert getattr(read, name) not in (wrong if isinstance(wrong, list) else [wrong])
    else:  # a fact without a comparison must not pass
        raise AssertionError(fact)


def numa_as_stated(machine: Path) -> Any:
    nodes = truth(machine)["numa"]
    return nodes and [(node["id"], as_set(node["cpus"]) or set(), node.get("mem_total_kb")) for node in nodes]


def numa_as_read(machine: Path) -> Any:
    nodes = facts(machine).numa
    return nodes and [(node.id, set(node.cpus), node.mem_total_kb) for node in nodes]


@needs_machines
@pytest.mark.parametrize("machine", [pytest.param(machine, id=machine.name) for machine in machines()])
def test_each_level_that_a_machine_does_not_have_has_a_reason(machine: Path) -> None:
    read = facts(machine)
    if read.isa_level is None or is_arm(machine):
        assert is_arm(machine) or not read.flags
        return
    assert read.isa_level in truth(machine)["isa_accept"]
    refused = read.isa_refused
    assert read.isa_level not in refused
    if truth(machine)["flags_hide_capability"] and truth(machine)["isa_level_of_uarch"] != read.isa_level:
        assert refused[truth(machine)["isa_level_of_uarch"]].code == "hidden"


@needs_machines
@pytest.mark.parametrize("machine", [pytest.param(machine, id=machine.name) for machine in machines()])
def test_what_is_known_of_cores_agrees_with_itself(machine: Path) -> None:
    read = facts(machine)
    if read.cores:
        assert len(read.cores) == read.physical_cores
        assert tuple(sorted(cpu for core in read.cores for cpu in core.cpus)) == read.cpus_online
    json.dumps(to_json(read))


def cases() -> list[Any]:
    path = MACHINES / "cgroups.json"
    return [pytest.param(case, id=case["id"]) for case in json.loads(path.read_text())] if path.exists() else []


@needs_machines
@pytest.mark.parametrize("case", cases())
def test_control_groups_are_read_as_their_projects_expect(case: dict[str, Any]) -> None:
    expected = case["expect"]
    result = read_cgroup(ProbeOutput(case["files"]))
    assert bool(result.malformed) == expected.get("error", False)
    assert result.quota == pytest.approx(expected.get("cpu_quota"))
    assert result.cpuset == (parse_cpu_list(expected["cpuset"]) if "cpuset" in expected else None)
    assert result.memory == expected.get("memory_max_bytes")


@needs_machines
def test_all_machines_are_there() -> None:
    assert len(machines()) == 53
    assert all(bundle(machine).files or bundle(machine).commands for machine in machines())


# One machine's cpuinfo contradicts its sysfs: it still lists the CPU that is off line (notes of its truth file).
CONSISTENT = [machine for machine in machines() if machine.name != "k8-opteron-865-cpuset-tree"]


@needs_machines
@pytest.mark.parametrize("machine", [pytest.param(machine, id=machine.name) for machine in CONSISTENT])
def test_less_text_tells_the_same_or_nothing(machine: Path) -> None:
    """Whatever source is missing: no fact is guessed from what is left."""
    whole = facts(machine)
    kinds = ("/proc/cpuinfo", "/proc/meminfo", "/sys", "lscpu", "lscpu -J -B")
    for left in kinds:
        files = {path: text for path, text in bundle(machine).files.items() if path.startswith(left)}
        commands = {name: text for name, text in bundle(machine).commands.items() if name == left}
        part = parse_facts(ProbeOutput(files, commands), uarchs())
        for name in (*PLAIN, *LISTS, "hybrid", "cpus_allowed"):
            assert getattr(part, name) in (None, getattr(whole, name)), (left, name)
