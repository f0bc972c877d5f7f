"""The machines of tests/machines: what is read from the texts they would print is what their pages state."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.model.facts import Facts
from ipexctl.model.json_values import to_json
from ipexctl.model.text import format_cpus
from tests.machines.page import Cgroup, Cpus, Numa, Page, Processor, System, expected, load_page, pages
from tests.machines.render import render
from tests.unit.doctor.corpus import uarchs

# Each was read wrongly by us or by somebody else, on a real machine.
TRAPS = {
    "amx_fp16_not_printed", "avx512f_without_bw_dq_vl", "below_avx2", "bf16_without_amx", "cgroup_quota",
    "container_cpuinfo", "core_id_repeats_in_package", "cpuinfo_contradicts_sysfs", "cpuset_limited",
    "flags_hidden_by_kernel", "flags_wrapped_mid_word", "four_threads_per_core", "generic_model_name", "hot_plug",
    "hybrid", "interleaved_numa", "masked_flags", "memory_only_nodes", "mixed_smt", "mostly_offline",
    "no_frequency_hints", "nps2", "nps4", "numa_more_than_sockets", "odd_numa_count", "offline_cpus",
    "one_core_sockets", "overlapping_nodes", "single", "smt_off", "snc", "utf8_bom", "vm", "xen", "xen_dom0",
}  # fmt: skip
# What any one of the texts may say or leave out, and never say otherwise.
TOLD_BY_ANY = (
    "arch", "vendor", "model_name", "isa_level", "sockets", "cores_per_socket", "threads_per_core", "physical_cores",
    "logical_online", "cpus_online", "cpus_offline", "hybrid",
)  # fmt: skip
machine = pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in pages()])


def read(facts: Facts, name: str) -> Any:
    """A fact, in the form of `expected`."""
    value = getattr(facts, name)
    if name == "numa" and value is not None:
        return tuple((node.id, node.cpus) for node in value)
    return dict(value) if name == "hybrid" and value is not None else value


@machine
def test_what_the_page_states_is_read(path: Path) -> None:
    page = load_page(path)
    facts = parse_facts(render(page), uarchs())
    true = expected(page)
    assert {name: read(facts, name) for name in true} == true
    json.dumps(to_json(facts))
    if page.processor.silicon:
        assert facts.isa_refused[page.processor.silicon].code == "hidden"
    if facts.cores:
        assert tuple(sorted(cpu for core in facts.cores for cpu in core.cpus)) == facts.cpus_online


@machine
def test_one_text_alone_states_the_same_or_nothing(path: Path) -> None:
    page = load_page(path)
    true = expected(page)
    for source in page.sources:
        if source == "cpuinfo" and "cpuinfo-keeps-offline" in page.quirks:
            continue  # it contradicts the kernel's own list
        facts = parse_facts(render(page, [source]), uarchs())
        wrong = {name: read(facts, name) for name in TOLD_BY_ANY if read(facts, name) not in (None, true[name])}
        assert not wrong, source


def test_the_pages_are_many_and_hold_every_trap() -> None:
    assert len(pages()) >= 60
    assert set().union(*(load_page(path).traps for path in pages())) == TRAPS


@st.composite
def layouts(draw: st.DrawFn) -> Cpus:
    """Any machine of up to 256 CPUs, some of them switched off (never CPU 0, as on x86). With four threads a core all
    are on: old lscpu prints a mean, and 1, 1 and 4 threads are 2 to it."""
    sockets, threads = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 4]))
    cores = draw(st.integers(1, 16))
    hybrid = sockets == 1 and threads == 2 and draw(st.booleans())
    e_cores = draw(st.integers(1, 16)) if hybrid else 0
    count = sockets * (cores * threads + e_cores)
    switched_off: set[int] = set()
    if count > 1 and threads < 4 and not hybrid:
        switched_off = draw(st.sets(st.integers(1, count - 1), max_size=count - 1))
    order = draw(st.sampled_from(["siblings-last", "siblings-adjacent", "round-robin"]))
    return Cpus(
        sockets=sockets,
        cores=cores,
        threads=threads,
        e_cores=e_cores,
        order=order,
        offline=format_cpus(tuple(switched_off)),
    )


@settings(max_examples=60)
@given(layouts(), st.integers(1, 4), st.sampled_from(["2.23", "2.34", "2.38"]), st.booleans())
def test_any_layout_is_read(cpus: Cpus, nodes: int, lscpu: Any, limited: bool) -> None:
    processor = Processor(name="Core", model=151, flags="alder_lake", uarch="alder_lake", level="AVX2_VNNI")
    if cpus.threads == 4:
        processor = Processor(name="Phi", model=87, flags="knights_landing", uarch="knights_landing", level="AVX2")
    group = Cgroup(cpuset="0-3", status="0-3", quota=1.5, memory_gib=2) if limited else None
    page = Page(title="any", processor=processor, cpus=cpus, numa=Numa(per_socket=nodes), system=System(lscpu=lscpu),
                cgroup=group)  # fmt: skip
    true = expected(page)
    facts = parse_facts(render(page), uarchs())
    assert {name: read(facts, name) for name in true} == true
    # lscpu divides threads by cores, these by sockets, and drops the rest: of uneven ones it says nothing certain.
    uneven = len(set(Counter(core.socket for core in facts.cores).values())) > 1
    uneven |= len({len(core.cpus) for core in facts.cores}) > 1
    means = {"cores_per_socket", "physical_cores", "threads_per_core"}
    for source in page.sources:
        part = parse_facts(render(page, [source]), uarchs())
        names = set(TOLD_BY_ANY) - (means if uneven and source.startswith("lscpu") else set())
        assert {name: read(part, name) for name in names if read(part, name) not in (None, true[name])} == {}, source
