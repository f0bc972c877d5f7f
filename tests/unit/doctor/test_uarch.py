"""The table of microarchitectures: whole, without contradictions, and its rules where one model has several names."""

import pytest

from ipexctl.decide.facts.isa import ORDER
from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.facts.probe_output import ProbeOutput
from ipexctl.model.toml import parse_toml
from tests.tables import read_table
from tests.unit.doctor.corpus import ROOT, uarchs

DATA = parse_toml((ROOT / "ipexctl" / "data" / "cpus.toml").read_text())


def test_every_row_has_a_source_and_a_level_that_exists() -> None:
    for family in DATA["family"]:
        assert family["source"]
        for cpu in family["cpus"]:
            assert cpu["level"] in ORDER, cpu
            assert cpu["models"], cpu


def test_every_brand_has_a_source_and_names_rows_of_the_table() -> None:
    names = {cpu["name"] for family in DATA["family"] for cpu in family["cpus"]}
    for brand in uarchs().brands:
        assert brand.source
        assert {*brand.uarchs} <= names
        assert brand.level in (*ORDER, "")


def test_no_two_rows_claim_the_same_processor() -> None:
    for (vendor, family), rows in uarchs().rows.items():
        for model in range(256):
            for stepping in range(16):
                fitting = [
                    uarch.name
                    for models, steppings, uarch in rows
                    if model in models and (not steppings or stepping in steppings) and not uarch.needs
                ]
                assert len(fitting) < 2, (vendor, family, model, stepping, fitting)


@pytest.mark.parametrize(("numbers", "name"), read_table("uarch/processors_are_distinguished", frozen=True))
def test_processors_are_distinguished(
    numbers: tuple[str | None, int | None, int | None, int | None], name: str | None
) -> None:
    result = uarchs().find(*numbers, flags=())
    assert (result.name if result else None) == name


def test_a_number_that_two_have_is_reported_by_a_flag() -> None:
    qemu = uarchs().find("GenuineIntel", 6, 134, 0, {"avx512f"})
    network = uarchs().find("GenuineIntel", 6, 134, 0, {"sse4_2"})
    assert qemu is not None
    assert network is not None
    assert (qemu.name, network.name) == ("ice_lake_sp", "tremont")


def test_a_processor_that_only_a_hypervisor_has_has_no_microarchitecture() -> None:
    block = "processor: 0\nvendor_id: GenuineIntel\ncpu family: 15\nmodel: 6\nstepping: 1\nflags: lm\nmodel name: "
    assert parse_facts(ProbeOutput({"/proc/cpuinfo": block + "Common KVM processor\n"}), uarchs()).uarch is None
    assert (
        parse_facts(ProbeOutput({"/proc/cpuinfo": block + "Intel(R) Xeon(TM) CPU 3.20GHz\n"}), uarchs()).uarch
        == "netburst"
    )
