"""The version table against the wheels themselves, as far as the package index of this machine has them.

The index is the one that pip's configuration names, without the further ones (a mirror beside it may hold a part of a
release); uv asks it, and only for what the table names. Where no index answers there is nothing to compare with.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from ipexctl.act.context import Limits
from ipexctl.act.packages.resolve import WheelTarget, find_uv, resolve_wheels
from ipexctl.act.packages.sources import read_pip_settings
from ipexctl.data import read_data
from ipexctl.decide.releases.resolve import resolve_stack
from ipexctl.decide.releases.table import get_minor_version, parse_table, parse_version
from ipexctl.model.errors import UsageError
from ipexctl.model.stack import StackRelease, StackRequest
from ipexctl.model.toml import parse_toml

TABLE = parse_table(read_data("stacks.toml"))
IPEX = "intel-extension-for-pytorch"
# glibc of the manylinux names from before PEP 600.
GLIBC = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
# One index only: uv takes a version from the first that has it, and a mirror may have it for one Python alone.
# Only on Intel's own page, or there for more Pythons than on the default index (facts of 2026-11-20).
ENVIRON = {name: value for name, value in os.environ.items() if name not in {"UV_FIND_LINKS", "UV_INDEX"}}
SOURCES = replace(read_pip_settings(ENVIRON), extra=(), find_links=(), from_pip=False, limits=Limits(probe=10))
ELSEWHERE = {(IPEX, "1.10.0"), (IPEX, "1.10.100")}

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]


@dataclass(frozen=True)
class Release:
    """What an index says of one version: tags of its wheels for x86-64 Linux, and its warnings. No tags: not there."""

    pythons: frozenset[str] = frozenset()
    glibc: str = ""  # the least that some wheel of it asks for
    output: str = ""


def ask(requirement: str, python: str) -> Release:
    """One exact version, looked up by uv with pip's settings, without what it requires."""
    argv = [find_uv().path, "pip", "compile", "-", "--universal", "--no-deps", "--no-header", "--no-build"]
    argv += ["--format", "pylock.toml", "--python", sys.executable, "--no-python-downloads", "--python-version", python]
    done = subprocess.run(
        argv,
        input=requirement,
        env=SOURCES.build_environment(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    tags = [
        (name[2], name[3])
        for name in re.findall(r"/([^/\"]+?)-([^-/\"]+)-([^-/\"]+)-[^-/\"]+-([^-/\"]+)\.whl\"", done.stdout)
        if "x86_64" in name[3] and "linux" in name[3]
    ]
    platforms = [platform for _, names in tags for platform in names.split(".")]
    return Release(
        frozenset(f"3.{result}" for python, _ in tags for result in re.findall(r"cp3(\d+)", python)),
        min((_glibc(platform) for platform in platforms), key=parse_version, default=""),
        done.stderr,
    )


def _glibc(platform: str) -> str:
    result = re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", platform)
    return f"{result[1]}.{result[2]}" if result else GLIBC[platform.removesuffix("_x86_64")]


@pytest.fixture(scope="module")
def releases() -> dict[tuple[str, str], Release]:
    """By package and version: everything of the table that the default index may have."""
    first = ask(f"impi-rt=={TABLE.impi['newest']}", "3.9")
    if not first.glibc:
        pytest.skip(f"no package index answers here: {(first.output.splitlines() or ['(nothing said)'])[-1]}")
    wanted = {("torch", row.torch): row.torch_pythons[0] for row in TABLE.releases}
    wanted |= {(IPEX, row.ipex): row.pythons[0] for row in TABLE.releases if row.ipex}
    wanted |= {("impi-rt", version): "3.9" for version in (TABLE.impi["older"], "2021.19.0")}
    # torch 1.10 asks for Python 3.6.2, not 3.6.0.
    questions = [(f"{name}=={version}", f"{python}.2") for (name, version), python in wanted.items()]
    with ThreadPoolExecutor(4) as pool:
        result = dict(zip(wanted, pool.map(lambda asked: ask(*asked), questions), strict=True))
    return result | {("impi-rt", TABLE.impi["newest"]): first}


def test_wheels_are_there_for_the_pythons_the_table_says(releases: dict[tuple[str, str], Release]) -> None:
    wrong = []
    for (name, version), release in releases.items():
        if name == "impi-rt":
            continue
        rows = [row for row in TABLE.releases if version == (row.torch if name == "torch" else row.ipex)]
        for row in rows:
            output = set(row.torch_pythons if name == "torch" else row.pythons)
            if (name, version) in ELSEWHERE:
                assert set(release.pythons) < output
            elif release.pythons != output:
                wrong.append(f"{name} {version}: index {sorted(release.pythons)}, table {sorted(output)}")
    assert not wrong, "\n".join(dict.fromkeys(wrong))


def test_what_is_withdrawn_is_what_the_table_calls_withdrawn(releases: dict[tuple[str, str], Release]) -> None:
    for row in TABLE.releases:
        if not row.ipex or not (release := releases[IPEX, row.ipex]).pythons:
            continue
        assert ("is yanked" in release.output) == bool(row.yanked), (row.name, release.output)
        why = release.output.partition("reason: ")[2].strip(
            '")\n '
        )  # an index that has none gives an empty one, or says nothing
        assert not row.yanked or row.yanked in (why or "no reason given"), (row.name, release.output)
        assert "is yanked" not in releases["torch", row.torch].output, row.torch


def test_wheels_ask_for_no_newer_glibc_than_the_table(releases: dict[tuple[str, str], Release]) -> None:
    for row in TABLE.releases:
        name, version = (IPEX, row.ipex) if row.ipex else ("torch", row.torch)
        if result := releases[name, version].glibc:
            assert result == row.glibc, (row.name, result)
    assert releases["impi-rt", TABLE.impi["newest"]].glibc == TABLE.impi["newest_glibc"]
    assert parse_version(releases["impi-rt", TABLE.impi["older"]].glibc) < parse_version("2.17")


def test_the_pins_of_every_row_go_together(releases: dict[tuple[str, str], Release]) -> None:
    """Requires-Dist and Requires-Python, as the resolver of install reads them, on the newest Python of each row."""

    def locked(row: StackRelease) -> dict[str, str]:
        stack = resolve_stack(StackRequest(torch=row.torch, ipex=row.ipex or None, backend="gloo"), {}, TABLE)
        assert (stack.release.torch, stack.release.ipex, get_minor_version(stack.python)) == (
            row.torch,
            row.ipex,
            stack.python,
        )
        wheels = resolve_wheels(find_uv(), stack.pins, WheelTarget(stack.python, "2.28"), SOURCES)
        return {wheel.name: wheel.version.partition("+")[0] for wheel in wheels}

    rows = [row for row in TABLE.releases if not row.ipex or (IPEX, row.ipex) not in ELSEWHERE]
    with ThreadPoolExecutor(4) as pool:
        for row, packages in zip(rows, pool.map(locked, rows), strict=True):
            assert packages["torch"] == row.torch
            assert packages.get(IPEX, "") == row.ipex
            assert ("impi-rt" in packages) == (not row.ipex_mpi), row.name
            # IPEX asks for psutil in every release from 1.11 on; torch has never asked for it.
            assert ("psutil" in packages) == bool(row.ipex), row.name
            if "numpy<2" in row.requires and "numpy" in packages:
                assert parse_version(packages["numpy"]) < parse_version("2"), row.name
            if row.ipex and "setuptools<81" in row.requires:
                assert parse_version(packages["setuptools"]) < parse_version("81"), row.name


def test_ipex_does_not_ask_for_torch_so_that_only_the_table_can_know_the_pair() -> None:
    newest = max((row for row in TABLE.releases if row.ipex), key=lambda row: parse_version(row.ipex))
    try:
        alone = resolve_wheels(find_uv(), [f"{IPEX}=={newest.ipex}"], WheelTarget("3.11", "2.28"), SOURCES)
    except UsageError as refusal:
        if "does not answer" in refusal.sentence:
            pytest.skip(refusal.sentence)
        raise
    assert "torch" not in {wheel.name for wheel in alone}


def test_the_intel_mpi_that_the_table_refuses_cannot_be_installed(releases: dict[tuple[str, str], Release]) -> None:
    rows = parse_toml(read_data("stacks.toml"))["wrong"]
    (wrong,) = [row for row in rows if row.get("package") == "impi-rt"]
    assert releases["impi-rt", wrong["version"]].glibc, "it is there"
    asked = [f"impi-rt=={wrong['version']}"]
    with pytest.raises(UsageError, match="libfabric"):
        resolve_wheels(find_uv(), asked, WheelTarget("3.11", "2.28"), SOURCES)
    assert TABLE.impi["newest"] == wrong["instead"]
