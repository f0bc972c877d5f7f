"""The table of packages that depend on torch's build, and what is said of those that do not fit."""

import pytest
from packaging.utils import canonicalize_name

from ipexctl.data import read_data
from ipexctl.decide.releases.torch_builds import parse_torch_builds
from tests.tables import read_table

TABLE = parse_torch_builds(read_data("torch_builds.toml"))
INDEX = "https://index.example/cpu"


def test_every_package_is_named_as_locks_name_it_and_stands_in_one_table() -> None:
    names = [*TABLE.cpu_builds, *TABLE.ended, *TABLE.needs_cuda]
    assert [canonicalize_name(name) for name in names] == names
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("packages", "whys"), read_table("torch_builds/other_builds"))
def test_a_package_of_another_build_than_torch_is_found(packages: dict[str, str], whys: list[str]) -> None:
    result = TABLE.find_other_builds(packages, INDEX)
    assert [misfit.why for misfit in result] == whys
    assert all(misfit.fix.startswith(f"--extra-index-url {INDEX}, or --find-links DIRECTORY") for misfit in result)


def test_a_package_that_ended_and_one_that_needs_cuda_are_causes_too() -> None:
    packages = {"torch": "2.13.0+cpu", "torchtext": "0.18.0", "xformers": "0.0.35"}
    ended, cuda = TABLE.find_misfits(packages, {"torchtext", "xformers"}, INDEX)
    assert ended.why == "torchtext ended with torch 2.3, and beside it is torch 2.13.0+cpu"
    assert (cuda.why, cuda.fix.partition(":")[0]) == ("xformers is made for CUDA", "leave xformers out")
    assert TABLE.find_misfits({"torch": "2.3.1+cpu", "torchtext": "0.18.0"}, (), INDEX) == []
