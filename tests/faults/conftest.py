"""Four separate hosts, a controller with a home of its own, four checks after each case, and the count of cases.

A case's tests are marked ``fault("A1")`` and named ``test_a1_…``; all of them must pass, or the case is not survived.
`make faults` tries all; the core ones are in `make test`. ``IPEXCTL_FAULTS_TIMES=3`` tries each three times.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, missing
from tests.e2e.desk import Desk, Started, clean, light
from tests.faults.cases import load
from tests.faults.checks import COUNTS, Broken, Checks

CASES = load()
ODD = 2222  # the port of a second sshd
CASE, TOLL = "fault", "fault toll"  # properties of reports, which travel from the workers


@pytest.fixture(scope="package")
def hosts() -> Iterator[Cluster]:
    """node0 to node3, whole and empty before each test."""
    if why := missing():
        pytest.skip(why)
    with Cluster([f"node{n}" for n in range(4)]) as four:
        yield four


@pytest.fixture(scope="package")
def mpi(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The hosts, with Intel MPI in /opt/light: for cases that start ranks."""
    light(hosts, tmp_path_factory.mktemp("light"))
    return hosts


@pytest.fixture
def checks(hosts: Cluster, tmp_path: Path) -> Iterator[Checks]:
    """What is asked after the test; every test has it by its controller."""
    hosts.restore()
    clean(hosts)
    made = Checks(hosts, tmp_path)
    try:
        yield made
    finally:
        hosts.restore()
        for host in hosts.names:
            hosts.exec(host, ["rm", "-rf", "/root/.cache", "/root/.local/share"])
    made.all()


@pytest.fixture
def new_controller(checks: Checks, hosts: Cluster, tmp_path: Path) -> Callable[..., Desk]:
    """``new_controller("second")``: one more user, with a home and a temporary directory of its own."""

    def make(name: str, **more: Any) -> Desk:
        desk = Desk(hosts, tmp_path / name, **more)
        (desk.path / "tmp").mkdir()
        desk.env["TMPDIR"] = str(desk.path / "tmp")
        checks.desks.append(desk)
        return desk

    return make


@pytest.fixture
def controller(new_controller: Callable[..., Desk]) -> Desk:
    """``controller("doctor", …)`` is the real command line; `Desk.start` leaves it running, `Terminal` gives it one."""
    return new_controller("controller")


@pytest.fixture
def start(controller: Desk) -> Iterator[Callable[..., Started]]:
    """`Desk.start`, ended with the test."""
    begun: list[Started] = []

    def start(*words: str | Path, **env: str) -> Started:
        begun.append(controller.start(*words, **env))
        return begun[-1]

    yield start
    for command in begun:
        command.close()


# the count ---------------------------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = int(os.environ.get("IPEXCTL_FAULTS_TIMES", "1"))
    if times > 1 and list(metafunc.definition.iter_markers(CASE)):
        metafunc.fixturenames.append("_turn")
        metafunc.parametrize("_turn", range(times), ids=lambda turn: f"turn{turn}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers(CASE):
            (code,) = marker.args
            assert item.name.startswith(f"test_{code.lower()}_"), f"{item.nodeid} is marked as {code}"
            item.user_properties.append((CASE, code))
            if not CASES[code].core:
                item.add_marker("beyond_core")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, Broken):
        report.user_properties.append((TOLL, [call.excinfo.value.count, call.excinfo.value.toll]))
    return report


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many cases were survived; a case that was skipped or has no test was not."""
    if terminalreporter.config.option.markexpr:
        return  # a part, and not the whole list
    outcome: dict[str, str] = {}
    tolls: Counter[str] = Counter()
    for kind in ("passed", "failed", "error", "skipped"):  # what is worst comes last
        for report in terminalreporter.stats.get(kind, ()):
            properties = getattr(report, "user_properties", ())
            for code in (value for name, value in properties if name == CASE):
                outcome[code] = kind
            for count, toll in (value for name, value in properties if name == TOLL):
                tolls[count] += toll
    if not outcome:
        return
    survived = [code for code in CASES if outcome.get(code) == "passed"]
    terminalreporter.section("faults")
    for code, case in CASES.items():
        if code not in survived:
            terminalreporter.line(f"{code:4} {case.title}: {outcome.get(code, 'not tried')}")
    counts = ", ".join(f"{tolls[count]} {count}" for count in COUNTS)
    terminalreporter.line(f"faults survived {len(survived)} of {len(CASES)}: {counts}")


@pytest.fixture
def odd_sshd(mpi: Cluster, new_controller: Callable[..., Desk], tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """``odd_sshd(4, "MaxStartups 2:100:3")``: a controller whose hosts' sshd has these lines, listed so many times."""
    begun: list[subprocess.Popen[bytes]] = []

    def make(entries: int, *lines: str) -> Desk:
        config = mpi.read("node0", "/etc/ssh/sshd_config").decode().replace("Port 22", f"Port {ODD}")
        config = config.replace("PidFile /run/sshd.pid", "PidFile none")
        hosts, known = [], []
        for host in mpi.names:
            mpi.write(host, "/etc/ssh/odd_config", (config + "\n".join(lines) + "\n").encode())
            words = [*mpi.entrance(host), "/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/odd_config"]
            begun.append(
                subprocess.Popen(words, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True)
            )
            known.append(f"[{mpi.address(host)}]:{ODD} {mpi.host_key(host)}")
            for n in range(entries):
                more = f"port={ODD} user=root key={mpi.key} known_hosts={tmp_path}/odd_known"
                hosts.append(f"{host}{f'-{n}' if n else ''} address={mpi.address(host)} {more}")
        (tmp_path / "odd_known").write_text("\n".join(known) + "\n")
        (tmp_path / "odd_hosts").write_text("\n".join(hosts) + "\n")
        time.sleep(0.5)  # until all listen
        return new_controller("odd", hostfile=tmp_path / "odd_hosts")

    yield make
    for process in begun:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for host in mpi.names:
        mpi.exec(host, ["rm", "-f", "/etc/ssh/odd_config"])
