"""ARM machines: what `doctor --recorded` says of them, and what it says of both architectures together."""

from typing import Any

import pytest

from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.facts.probe_output import parse_bundle
from ipexctl.model.events import FactsRead, FindingReported
from ipexctl.model.facts import Facts
from ipexctl.verbs.doctor.doctor import check_recorded
from tests.machines.arm import load_arm_machines, make_bundles
from tests.unit.doctor.corpus import uarchs
from tests.unit.doctor.test_doctor import answer, text_of

MACHINES = load_arm_machines()
machine = pytest.mark.parametrize("name", MACHINES)


def read(name: str, source: str) -> Facts:
    return parse_facts(parse_bundle(make_bundles(name, uarchs())[source], name), uarchs())


def test_recorded_arm_machines_get_their_levels() -> None:
    assert len(MACHINES) >= 40
    events = list(check_recorded({name: make_bundles(name, uarchs())["all"] for name in MACHINES}))
    levels = {event.host: event.facts.isa_level for event in events if isinstance(event, FactsRead)}
    assert levels == {name: arm.level for name, (arm, _) in MACHINES.items()}
    findings = {event.finding.code: event.finding for event in events if isinstance(event, FindingReported)}
    assert findings["CPU003"].hosts == ("graviton-3-nosve-on-the-command-line",)
    assert set(findings["CPU009"].hosts) == {name for name, (arm, _) in MACHINES.items() if arm.efficient}
    assert not findings.keys() & {"CPU001", "CPU012", "CPU014", "DOC002"}


@machine
def test_an_arm_machine_is_known_by_its_registers(name: str) -> None:
    arm, _ = MACHINES[name]
    facts = read(name, "all")
    assert (facts.arch, facts.uarch, facts.isa_level) == ("aarch64", arm.uarch, arm.level)
    known = uarchs().arm.find(*arm.kinds[-1][:2])
    assert facts.silicon == (arm.silicon or (known.level or None if known else None))
    assert facts.vector_bits == (8 * arm.vector or None)
    assert (facts.sockets, facts.logical_online) == (-(-arm.count // (arm.count // arm.packages)), arm.count)
    assert (facts.physical_cores, facts.threads_per_core) == (arm.count // arm.threads, arm.threads)
    assert len(facts.numa or ()) == arm.nodes + arm.empty_nodes
    slow = tuple(range(arm.efficient))
    kinds = {"e_cpus": slow, "p_cpus": tuple(range(arm.efficient, arm.count))} if arm.efficient else None
    assert facts.hybrid == kinds


@machine
@pytest.mark.parametrize("source", ["cpuinfo", "lscpu"])
def test_one_text_of_an_arm_machine_says_the_same_or_nothing(name: str, source: str) -> None:
    whole, part = read(name, "all"), read(name, source)
    assert (part.arch, part.isa_level) == ("aarch64", whole.isa_level)
    names = ("uarch", "vendor", "silicon", "threads_per_core", "physical_cores", "logical_online")
    told = {name: getattr(part, name) for name in names if getattr(part, name) is not None}
    if name == "dgx-spark-gb10" and source == "cpuinfo":
        assert told.pop("uarch") == "cortex_a725"  # without capacities: one of its kinds
    assert told == {name: getattr(whole, name) for name in told}
    assert source == "lscpu" or (part.uarch is None) == (whole.uarch is None)


def test_an_efficiency_core_that_is_off_line_is_in_no_list() -> None:
    bundle = parse_bundle(make_bundles("rock-5b-rk3588", uarchs())["all"], "")
    files: dict[str, Any] = {**bundle.files, "/sys/devices/system/cpu/online": "2-7\n"}
    facts = parse_facts(type(bundle)(files, bundle.commands), uarchs())
    assert facts.hybrid == {"p_cpus": (4, 5, 6, 7), "e_cpus": (2, 3)}


def test_registers_that_are_no_numbers_leave_what_cpuinfo_says() -> None:
    bundle = parse_bundle(make_bundles("graviton-2-t4g-micro", uarchs())["all"], "")
    path = "/sys/devices/system/cpu/cpu{}/regs/identification/midr_el1"
    files = {**bundle.files, path.format(0): "0xzz\n", path.format(1): "nothing\n"}
    assert parse_facts(type(bundle)(files, bundle.commands), uarchs()).uarch == "neoverse_n1"


def test_advice_is_that_of_the_architecture_and_none_is_common_to_two() -> None:
    graviton = make_bundles("graviton-3-c7g-16xlarge", uarchs())["all"]
    value = answer(check_recorded({"a": graviton, "b": graviton}))
    assert value["common_isa"] == "SVE_BF16"
    assert any("ONEDNN_DEFAULT_FPMATH_MODE=BF16" in sentence for sentence in value["advice"])
    altra = make_bundles("altra-q80-30", uarchs())["all"]
    value = answer(check_recorded({"a": graviton, "b": altra}))
    assert value["common_isa"] == "NEON_DOT"
    assert [finding["hosts"] for finding in value["findings"] if finding["code"] == "CPU002"] == [["b"]]
    assert value["advice"][0].startswith("float32: bf16 is emulated on NEON_DOT")
    mixed = {"a": graviton, "x": text_of("avx2 fma"), "b": graviton}
    value = answer(check_recorded(mixed))
    assert value["common_isa"] is None
    (finding,) = (finding for finding in value["findings"] if finding["code"] == "CPU014")
    assert (finding["hosts"], finding["level"]) == (["x"], "error")
    assert "--limit '!x'" in finding["fix"]
