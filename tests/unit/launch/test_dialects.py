"""All that a dialect says, as it was read last: `python -m tests.unit.launch.test_dialects` writes it anew."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import pytest

from ipexctl.decide.launch.dialects import DIALECTS, find_wheel_dialect, get_dialect, identify_dialect
from ipexctl.decide.launch.dialects.base import LaunchLine, MpiDialect, PortRange, ProxyHost
from ipexctl.model.stack import Dialect, MpiWheel
from ipexctl.model.tasks import Install, Run
from ipexctl.verbs.common.probe import load_releases
from tests.mpi import SYSTEM, WHEELS

GOLDEN = Path(__file__).parent / "golden"
# What the mpirun of each prints for --version, and the version in it: one of each value.
VERSIONS = {
    "impi-hydra_bstrap_proxy": ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260428", "2021.18.1"),
    "mpich-hydra_pmi_proxy": ("HYDRA build details: Version:   5.0.2 Release Date: Fri Sep 25", "5.0.2"),
    "openmpi-orted": ("mpirun.openmpi (OpenRTE) 4.1.4  Report bugs to", "4.1.4"),
    "openmpi-prted": ("mpirun (Open MPI) 5.0.11  Report bugs to", "5.0.11"),
}
OTHERS = ("slurm-wlm 22.05.8", "prterun (PRRTE) 3.0.11", "mpirun (MVAPICH2-GDR) 2.3.7", "")


def name_value(dialect: MpiDialect) -> str:
    return f"{dialect.name}-{dialect.proxies[0]}"


EACH = pytest.mark.parametrize("dialect", DIALECTS, ids=name_value)


def describe(dialect: MpiDialect) -> str:
    """Everything that a launch may take from it."""
    line = LaunchLine("/opt/mpi/bin/mpirun", "/run/shim", "eth0", [("h0.ipexctl", 2), ("h1.ipexctl", 1)])
    proxies = {"root": ProxyHost(20, "/root/run", "root"), "alice": ProxyHost(2, "/home/alice/run", "alice")}
    ports = dialect.build_port_env(PortRange(40000, 40017))
    hosts = dialect.write_shell_hosts([("192.0.2.10", 2), ("192.0.2.11", 1)])
    options = dialect.write_shell_options("eth0", ["HF_TOKEN", "KEY"])
    sections = {
        "arguments": _split_options(dialect.build_arguments(line)),
        "over IPv6": ["never" if dialect.ipv6_options is None else " ".join(dialect.ipv6_options)],
        "a rank's variables": [dialect.rank_variable, *(f"{prefix}*" for prefix in dialect.rank_prefixes)],
        "on one machine": _list_variables(dialect.one_machine),
        "one rank": [" ".join(dialect.single_rank), *_list_variables(dialect.single_rank_env)],
        "library": _list_variables(dialect.build_library_env("/opt/mpi", "/opt/mpi/prov")),
        **{f"proxy: {who}": _list_variables(dialect.build_proxy_env(host)) for who, host in proxies.items()},
        "ports: launcher": _list_variables(ports.launcher),
        "ports: proxies": _list_variables(ports.proxies),
        "ports: ranks": _list_variables(ports.ranks),
        "interface": _list_variables(dialect.build_interface_env("ens3", False)),
        "interface, with RDMA": _list_variables(dialect.build_interface_env("ib0", True)),
        "in a shell script": [" ".join(words) for words in (*options, *hosts)],
        "without secrets": [" ".join(words) for words in dialect.write_shell_options("lo", [])],
    }
    return "".join(f"{title}\n{''.join(f'    {line}{chr(10)}' for line in lines)}" for title, lines in sections.items())


def _list_variables(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


def _split_options(words: Sequence[str]) -> Iterable[str]:
    """The words, an option with its values a line."""
    lines: list[list[str]] = []
    for word in words:
        if not lines or word.startswith("-") or word in {":", "/bin/sh"}:
            lines.append([])
        lines[-1].append(word)
    return [" ".join(line) for line in lines]


@EACH
def test_a_dialect_is_as_it_was_read_last(dialect: MpiDialect) -> None:
    golden = GOLDEN / f"mpi-{name_value(dialect)}.txt"
    assert golden.exists(), "python -m tests.unit.launch.test_dialects writes it"
    assert describe(dialect) == golden.read_text()


@EACH
def test_a_dialect_is_known_by_what_its_mpirun_prints(dialect: MpiDialect) -> None:
    text, version = VERSIONS[name_value(dialect)]
    assert identify_dialect(text) == (dialect, version)
    assert get_dialect(dialect.name, version) is dialect


def test_what_other_programs_print_is_no_dialects() -> None:
    assert [identify_dialect(text) for text in OTHERS] == [None] * len(OTHERS)


def test_each_dialect_has_a_value_and_is_taken_by_its_name() -> None:
    assert {dialect.name for dialect in DIALECTS} == set(get_args(Dialect))
    for name in get_args(Dialect):
        assert (Run(script="x.py", mpi=name).mpi, Install(mpi=name).mpi) == (name, name)


def test_each_dialect_is_tried_on_real_hosts_and_documented() -> None:
    tried = {"impi", *SYSTEM, *(name.removesuffix("-wheel") for name in WHEELS)}
    assert tried == set(get_args(Dialect))
    page = (Path(__file__).parents[3] / "docs/launch.md").read_text()
    header = next(line for line in page.splitlines() if line.startswith("| event |"))
    assert [dialect.title for dialect in DIALECTS if dialect.title not in header] == []


def test_each_wheel_has_a_dialect_and_a_version() -> None:
    wheels = set(get_args(MpiWheel))
    assert {dialect.wheel for dialect in DIALECTS if dialect.wheel} == wheels
    assert set(load_releases().mpis) == wheels - {"impi-rt"}
    assert find_wheel_dialect("torch") is None


if __name__ == "__main__":
    for each in DIALECTS:
        (GOLDEN / f"mpi-{name_value(each)}.txt").write_text(describe(each))
