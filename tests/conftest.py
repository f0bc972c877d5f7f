"""Fixtures that several rooms' tests share."""

import gc
import os
import signal
import subprocess
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.cluster import Bench, Cluster, Spec, missing
from tests.cluster.bench import on_loopback, separate

# How long an example takes says how busy the machine is, and nothing of the code. Everybody gets the same examples;
# those of `make fuzz` are others each time.
settings.register_profile("fuzz", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", settings.get_profile("fuzz"), derandomize=True)
settings.load_profile("fixed")

# Started with & by a script, or by nohup, this process ignores Ctrl-C, and so would each command that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where several workers share the tests, these begin first, in this order: they take the longest. Of the others, those
# that wait stand in folders of their own: an order by chance, always the same, mixes them with those that compute.
FIRST = (
    "e2e/test_road.py",
    "e2e/",
    "faults/",
    "integration/",
    "unit/agent/test_watching.py",
    "unit/show/test_pictures.py",
    "unit/doctor/test_probe.py",
    "unit/show/test_live.py",
    "contract/test_link_contract.py",
)
# Files whose tests of the real stack need one environment stay on one worker; the first two share theirs.
ENVIRONMENTS = {
    "recipes": ("emit.py", "ccl.py", "recipes.py", "road.py"),
    "ipex": ("engines.py", "first_minutes.py", "with.py", "ipex.py"),
    "frameworks": ("frameworks.py", "sft.py"),
    "native": ("native.py", "e2e/test_profile.py"),
}


class EnvironmentScheduling(LoadFileScheduling):
    """The files of an environment stay on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((name for name, files in ENVIRONMENTS.items() if file.endswith(files)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    return EnvironmentScheduling(config, log) if config.option.markexpr.startswith("stack") else None


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three separate hosts, node0 to node2, for the whole session; whole again after each test that used them."""
    _need_hosts()
    with Cluster() as three:
        yield three


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """``make_cluster("node0", Spec("node1", docker=True))``: special hosts for one test."""
    _need_hosts()
    with ExitStack() as opened:

        def make(*specs: Spec | str) -> Cluster:
            return opened.enter_context(Cluster(specs))

        yield make


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Three hosts to reach over SSH: those of `cluster`, or without root the lab's."""
    if not missing():
        yield separate(request.getfixturevalue("cluster"))
        return
    with on_loopback(tmp_path_factory.mktemp("bench") / "lab") as hosts:
        yield hosts


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[Path, str], None]]:
    """Mounts a file system of memory in a directory, with these options, until the end of the test."""
    with ExitStack() as mounted:

        def mount(place: Path, options: str) -> None:
            if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True).returncode:
                pytest.skip("nothing can be mounted here (not root)")
            # Somebody may look into it.
            mounted.callback(lambda: subprocess.run(["umount", "--lazy", place], check=True))

        yield mount


@pytest.fixture(autouse=True)
def _whole_again(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").restore()


@pytest.fixture(autouse=True)
def _interruptible_again() -> Iterator[None]:
    """A test that plays a command in this process leaves its signal handlers behind: Ctrl-C would go to them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the collector of garbage, which else looks at thousands of tests again and again, and in every worker:
    they live to the end, so that it need not look at them later either."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = int(os.environ.get("IPEXCTL_FAULTS_TIMES", "1"))
    if times > 1 and list(metafunc.definition.iter_markers("fault")):
        metafunc.fixturenames.append("_turn")
        metafunc.parametrize("_turn", range(times), ids=lambda turn: f"turn{turn}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"cluster", "make_cluster", "checks"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("hosts")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _find_turn(str(item.path)))


def _find_turn(path: str) -> tuple[int, int]:
    turn = next((turn for turn, place in enumerate(FIRST) if f"/tests/{place}" in path), len(FIRST))
    return turn, zlib.crc32(path.rpartition("/tests/")[2].encode()) if turn == len(FIRST) else 0


def _need_hosts() -> None:
    if why := missing():
        pytest.skip(why)
