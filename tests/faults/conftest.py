"""Four separate hosts, a controller with a home of its own, four checks after each case, and the count of cases.

A case's tests are marked ``fault("A1")``; all of them must pass, or the case is not survived. Those of this folder
are named ``test_a1_…``; others prove the same in a lower tier. `make faults` tries all; `make test` leaves out
those of this folder that are not core. ``IPEXCTL_FAULTS_TIMES=3`` tries each three times.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, missing
from tests.e2e.workspace import Started, Workspace, clean, light
from tests.faults.cases import load
from tests.faults.checks import COUNTS, Broken, Checks
from tests.stock import group, mpich, stock

__all__ = ["group", "mpich", "stock"]

CASES = load()
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
def new_controller(checks: Checks, hosts: Cluster, tmp_path: Path) -> Callable[..., Workspace]:
    """``new_controller("second")``: one more user, with a home and a temporary directory of its own."""

    def make(name: str, **more: Any) -> Workspace:
        workspace = Workspace(hosts, tmp_path / name, **more)
        (workspace.path / "tmp").mkdir()
        workspace.env["TMPDIR"] = str(workspace.path / "tmp")
        checks.workspaces.append(workspace)
        return workspace

    return make


@pytest.fixture
def controller(new_controller: Callable[..., Workspace]) -> Workspace:
    """``controller("doctor", …)`` is the real command line; `Workspace.start` leaves it running."""
    return new_controller("controller")


@pytest.fixture
def start(controller: Workspace) -> Iterator[Callable[..., Started]]:
    """`Workspace.start`, ended with the test."""
    yield from controller.start_for_test()


# the count ---------------------------------------------------------------------------------------------------------


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers(CASE):
            (code,) = marker.args
            item.user_properties.append((CASE, code))
            if Path(__file__).parent in item.path.parents:
                assert item.name.startswith(f"test_{code.lower()}_"), f"{item.nodeid} is marked as {code}"
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
    if terminalreporter.config.option.markexpr not in ("", CASE):
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
