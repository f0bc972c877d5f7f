"""What an install will do, from what was seen."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.decide.planning.install import (
    advise_place,
    choose_next_script,
    choose_venv,
    describe_changes,
    format_pylock,
    group_hosts_by_tokens,
    list_download_origins,
    plan_install,
    read_state,
)
from ipexctl.decide.releases.env_health import DEFAULT_VENV, describe_drift
from ipexctl.decide.releases.resolve import resolve_stack
from ipexctl.decide.releases.runtime import build_runtime, detect_layout, list_layout_paths
from ipexctl.decide.releases.table import parse_table
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.facts import Facts, Installed
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.json_values import parse_json, to_json
from ipexctl.model.stack import MpiLayout, Stack, StackRequest, read_marker
from ipexctl.model.text import format_size
from ipexctl.model.toml import parse_toml
from ipexctl.model.wheels import Lock, Wheel
from ipexctl.protocol.session import Inspection
from tests.markers import MARKER

ROOT = Path(__file__).parents[3]
STACK: Stack = resolve_stack(
    StackRequest(torch="2.8.0"), {}, parse_table((ROOT / "ipexctl/data/stacks.toml").read_text())
)
TORCH_URL = "https://host.example/whl/torch-2.8.0%2Bcpu-cp311-cp311-linux_x86_64.whl"
TORCH = Wheel("torch", "2.8.0+cpu", TORCH_URL, "a" * 64, 200 << 20)
NUMPY = Wheel("numpy", "1.26.4", "http://other.example:8080/numpy-1.26.4-py3-none-any.whl", "b" * 64, 10 << 20)
LOCK = Lock((NUMPY, TORCH), "3.11", "inputs")


def seen(**changes: Any) -> Inspection:
    facts: dict[str, Any] = {"kind": "absent", "free": 100 << 30, "at": "/home", **changes}
    return Inspection(**facts)


def test_each_host_gets_what_it_lacks_and_says_why() -> None:
    there = {
        "new": seen(),
        "old": seen(kind="ours", active="torch2.7.0-1", complete=["torch2.7.0-1"]),
        "ready": seen(kind="ours", active="torch2.7.0-1", complete=["torch2.7.0-1", LOCK.id]),
        "done": seen(kind="ours", active=LOCK.id, complete=[LOCK.id], packages={"torch": "2.8.0", "numpy": "1.26.4"}),
        "drifted": seen(kind="ours", active=LOCK.id, complete=[LOCK.id], packages={"torch": "2.9.0"}),
        "dangling": seen(kind="ours", active=LOCK.id, complete=[LOCK.id]),
    }
    made, failures = plan_install(STACK, LOCK, "/x/env", there, "auto")
    assert failures == []
    assert {host: (step.do, step.why) for host, step in made.steps.items()} == {
        "new": ("build", "nothing is installed"),
        "old": ("build", "instead of torch2.7.0-1"),
        "ready": ("switch", "it is there, complete, and not active"),
        "done": ("nothing", "it is installed"),
        "drifted": ("build", "repair: numpy is missing, torch is 2.9.0, not 2.8.0+cpu"),
        "dangling": ("build", "repair: its Python is missing"),
    }
    assert not made.changes_nothing


def test_an_environment_with_the_same_torch_is_linked_and_only_what_differs_is_fetched() -> None:
    old = {"torch": "2.8.0+cpu", "numpy": "1.26.3", "tabulate": "0.9.0"}
    wheels = {"torch": TORCH.sha256, "numpy": "c" * 64, "tabulate": "d" * 64}
    base = replace(MARKER, id="base", python="3.11", packages=old, wheels=wheels)
    there = {
        "same": seen(kind="ours", active="base", complete=["base"], packages=old),
        "drifted": seen(kind="ours", active="base", complete=["base"], packages={**old, "torch": "2.9.0"}),
    }
    made, _ = plan_install(STACK, LOCK, "/x/env", there, "auto", markers={"base": base})
    why = "instead of base: numpy 1.26.3 → 1.26.4, removes tabulate 0.9.0"
    assert (made.steps["same"].why, made.steps["same"].wheels) == (why, (NUMPY,))
    assert (made.steps["drifted"].why, made.steps["drifted"].wheels) == ("instead of base", LOCK.wheels)
    alone = plan_install(STACK, LOCK, "/x/env", {"same": there["same"]}, "auto", markers={"base": base})[0]
    assert "wheels       10 MiB in 1 file; 1 that are there are linked; each host fetches them" in alone.text
    rebuilt = replace(base, packages=LOCK.packages, wheels={**wheels, "numpy": "e" * 64})
    assert describe_changes(rebuilt, LOCK) == "another wheel of numpy 1.26.4"
    assert describe_changes(replace(rebuilt, wheels={}), LOCK) == "", "nobody knows which it has"


def test_the_text_of_a_plan_is_the_dry_run() -> None:
    made, _ = plan_install(
        STACK, LOCK, "/x/env", {"node0": seen(), "n1": seen(unreachable=["host.example:443"])}, "auto"
    )
    assert made.text.splitlines() == [
        "torch 2.8.0 + ipex 2.8.0 + impi-rt 2021.18.1, Python 3.13 · backend impi",
        f"environment  /x/env → env.d/{LOCK.id}",
        "wheels       210 MiB in 2 files; once from here to each host; each host fetches them itself",
        "note         backend impi: there is no oneccl_bind_pt in torch 2.8.0 + ipex 2.8.0",
        "note         IPEX 2.8.0 is the last one: there will be none for a newer torch",
        "node0  build: nothing is installed",
        "n1     build: nothing is installed; this host does not reach host.example:443",
        "then on every host: imports, one training step in bf16, one rank of mpirun; only then the switch",
    ]


@pytest.mark.fault("D3")
def test_a_place_that_is_not_ours_and_a_full_disk_are_failures_of_that_host_only() -> None:
    there = {
        "a": seen(kind="foreign", why="/x/env is there already, and ipexctl did not make it"),
        "b": seen(free=150 << 20),
        "c": seen(),
    }
    made, failures = plan_install(STACK, LOCK, "/x/env", there, "hosts")
    assert [(failure.host, failure.code) for failure in failures] == [("a", "foreign"), ("b", "no-space")]
    assert failures[1].what == "no space left: need 524 MiB, 150 MiB free in /home"
    assert list(made.steps) == ["c"]


def test_another_place_is_one_that_every_host_has_room_in() -> None:
    first, second = {"/home/ann": 1 << 30, "/scratch/ann": 8 << 30}, {"/home/ann": 2 << 30, "/data/ann": 8 << 30}
    hint = advise_place([first, second], LOCK)
    assert hint.splitlines() == [
        "a place that this account can write on these hosts, with 1.0 GiB free:",
        "ipexctl install --venv /home/ann/ipexctl",
    ]
    none = advise_place([first, {"/home/ann": 1 << 20}], LOCK)
    assert none.startswith("no directory that this account can write on all of these hosts has ")
    assert advise_place([first, {}], LOCK) == none


def test_wheels_that_come_from_the_controller_need_room_beside_the_environment() -> None:
    steps = [plan_install(STACK, LOCK, "/x/env", {"a": seen()}, way)[0].steps["a"] for way in ("hosts", "controller")]
    assert steps[1].need - steps[0].need == LOCK.size


def test_hosts_with_the_same_work_are_one_line_of_the_plan() -> None:
    hosts = {f"n{n}": seen() for n in range(9)}
    text = plan_install(STACK, LOCK, "/x/env", hosts, "auto")[0].text
    assert "n[0-8]  build: nothing is installed" in text.splitlines()


def test_packages_a_user_added_are_no_drift_and_local_versions_do_not_count() -> None:
    assert describe_drift(LOCK.packages, {"torch": "2.8.0", "numpy": "1.26.4", "datasets": "3"}) == []
    assert describe_drift({"oneccl-bind-pt": "2.7.0"}, {"oneccl_bind_pt": "2.7.0+cpu"}) == []
    assert describe_drift(LOCK.packages, {"torch": "2.8.0"}) == ["numpy is missing"]


def test_the_environment_has_one_path_on_all_hosts() -> None:
    hosts = Inventory((Host("a", "a"), Host("b", "b", vars={"venv": "/opt/env"}), Host("gone", "gone")))
    home = {"a": Facts(home="/home/u"), "b": Facts(home="/root")}
    assert choose_venv("/named", hosts, home) == "/named"
    assert choose_venv("~/env", Inventory((hosts["a"],)), home) == "/home/u/env"
    with pytest.raises(UsageError, match="the same absolute path on all hosts") as caught:
        choose_venv(None, hosts, home)
    assert caught.value.reasons == (f"a: /home/u/{DEFAULT_VENV}", "b: /opt/env")
    assert caught.value.exit == Exit.STEP
    alone = Inventory((Host("a", "a"),))
    assert choose_venv(None, alone, home) == f"/home/u/{DEFAULT_VENV}"
    with pytest.raises(UsageError):  # without a home directory there is no absolute path
        choose_venv(None, alone, {"a": Facts()})


def test_a_host_that_has_exactly_this_and_nothing_besides_is_not_looked_at_again() -> None:
    packages = {"torch": "2.8.0+cpu", "numpy": "1.26.4"}
    ready = Installed("/e", True, "3.11", packages, replace(MARKER, id=LOCK.id, packages=packages), (LOCK.id,))
    result = read_state(Facts(installed=ready), "/e", LOCK)
    assert result == Inspection("ours", active=LOCK.id, complete=[LOCK.id], packages=packages)
    for other in (
        None,
        replace(ready, venv="/other"),
        replace(ready, exists=False),
        replace(ready, marker=None),
        replace(ready, marker=MARKER),
        replace(ready, beside=(LOCK.id, "torch2.7.0-1")),
        replace(ready, packages={"torch": "2.8.0"}),
    ):
        assert read_state(Facts(installed=other), "/e", LOCK) is None, other


def test_the_id_is_that_of_the_files_and_the_python() -> None:
    moved = Lock(
        tuple(Wheel(w.name, w.version, "file:///x/" + w.filename, w.sha256) for w in LOCK.wheels), "3.11", "else"
    )
    assert moved.id == LOCK.id
    assert Lock(LOCK.wheels[:0], "3.12", "").id != Lock(LOCK.wheels[:0], "3.11", "").id
    assert Lock(LOCK.wheels[1:], "3.11", "inputs").id != LOCK.id
    assert len({Lock(LOCK.wheels, "3.11", "", mpi=mpi).id for mpi in ("", "mpich /a/mpiexec", "mpich /b/mpiexec")}) == 3
    assert parse_json(Lock, json.dumps(to_json(LOCK))) == LOCK


def test_the_lock_is_passed_to_uv_as_a_pylock() -> None:
    data = parse_toml(format_pylock(LOCK.wheels, {"numpy": '/odd "place"/numpy.whl'}))
    assert [package["name"] for package in data["packages"]] == ["numpy", "torch"]
    numpy, torch = (package["wheels"][0] for package in data["packages"])
    assert numpy == {"name": NUMPY.filename, "path": '/odd "place"/numpy.whl', "hashes": {"sha256": "b" * 64}}
    assert torch["url"] == TORCH.url
    assert torch["name"] == "torch-2.8.0+cpu-cp311-cp311-linux_x86_64.whl"


def test_the_places_hosts_fetch_from_are_asked_once_each() -> None:
    assert list_download_origins(LOCK) == [("other.example", 8080), ("host.example", 443)]
    local = Lock((Wheel("torch", "1", "file:///x/torch-1-py3-none-any.whl", "c" * 64),), "3.11", "")
    assert list_download_origins(local) == []


def test_hosts_that_see_each_others_tokens_are_one_group() -> None:
    tokens = {"a": ["a", "c"], "b": ["b"], "c": ["a", "c"], "d": ["a", "d"]}
    assert group_hosts_by_tokens(["a", "b", "c", "d"], tokens) == [["a", "c"], ["b"], ["d"]]


def test_bytes_are_reported_for_people() -> None:
    sizes = [format_size(size) for size in (100, 150 << 20, 3 << 30, 5 << 29, 12 << 30)]
    assert sizes == ["100 B", "150 MiB", "3.0 GiB", "2.5 GiB", "12 GiB"]


# ---------------------------------------------------------------------------------------------------- the runtime


def _stack(**wish: Any) -> Stack:
    return resolve_stack(StackRequest(**wish), {}, parse_table((ROOT / "ipexctl/data/stacks.toml").read_text()))


IMPI_NEW = ("bin/mpiexec.hydra", "lib/libmpi.so.12", "lib/libfabric.so.1")
IMPI_OLD = ("bin/mpiexec.hydra", "lib/libmpi.so.12", "lib/libfabric/libfabric.so.1", "lib/libfabric/prov")


@pytest.mark.parametrize(
    ("there", "library_path", "env"),
    [
        (IMPI_NEW, ("/e/lib",), {}),
        (IMPI_OLD, ("/e/lib", "/e/lib/libfabric"), {"FI_PROVIDER_PATH": "/e/lib/libfabric/prov"}),
    ],
)
def test_both_layouts_of_impi_rt_are_found(
    there: tuple[str, ...], library_path: tuple[str, ...], env: Mapping[str, str]
) -> None:
    stack = _stack(torch="2.8.0")
    assert set(there) <= set(list_layout_paths(stack))
    ready = build_runtime(replace(MARKER, prefix="/e", layout=detect_layout(stack, there)))
    assert (ready.python, ready.mpiexec) == ("/e/bin/python", "/e/bin/mpiexec.hydra")
    assert ready.path == ("/e/bin",)
    assert ready.library_path == library_path
    assert ready.env == {"I_MPI_ROOT": "/e", "VIRTUAL_ENV": "/e", **env}
    assert (ready.dialect, ready.version) == ("impi", "2021.18.1")


def test_the_mpi_inside_ipex_is_found_in_both_of_its_layouts() -> None:
    site = "lib/python3.11/site-packages/intel_extension_for_pytorch"
    for torch, binaries, libraries in (("2.3.1", "bin", "lib"), ("2.7.0", "opt/mpi/bin", "opt/mpi/lib")):
        stack = _stack(torch=torch, backend="gloo", python="3.11")
        assert stack.mpi == "ipex"
        there = [
            f"{site}/{binaries}/mpiexec.hydra",
            f"{site}/{libraries}/libmpi.so.12",
            f"{site}/lib/libccl.so.1",
            f"{site}/opt/mpi/libfabric/lib/libfabric.so.1",
            f"{site}/opt/mpi/libfabric/lib/prov",
        ]
        assert set(there) <= set(list_layout_paths(stack))
        ready = build_runtime(replace(MARKER, prefix="/e", layout=detect_layout(stack, there)))
        assert ready.mpiexec == f"/e/{site}/{binaries}/mpiexec.hydra"
        assert f"/e/{site}/{libraries}" in ready.library_path
        assert ready.env["FI_PROVIDER_PATH"] == f"/e/{site}/opt/mpi/libfabric/lib/prov"


def test_an_environment_without_mpi_is_refused_by_name_of_what_is_missing() -> None:
    with pytest.raises(UsageError) as caught:
        detect_layout(_stack(torch="2.8.0"), ["lib/libmpi.so.12"])
    assert "mpiexec.hydra not found" in str(caught.value)
    assert caught.value.exit == Exit.STEP


def test_a_marker_of_somebody_else_is_no_runtime() -> None:
    written = to_json(MARKER)
    assert read_marker(json.dumps(written)) == MARKER
    for changes in (
        {"prefix": 3},
        {"layout": "x"},
        {"layout": None},
        {"stack": {"name": "x"}},
        {"packages": [1]},
        {"packages": {"torch": "2\n"}},
        {"stack": written["stack"] | {"mpi": written["stack"]["mpi"] | {"program": "mpirun"}}},  # ended with 70
    ):
        assert read_marker(json.dumps(written | changes)) is None
    for text in ("", "{}", "[]", "[" * 100_000, '{"prefix": "/e"}'):
        assert read_marker(text) is None
    for marker in (None, replace(MARKER, layout=MpiLayout("impi-rt", "2021.18.1"))):
        with pytest.raises(UsageError):
            build_runtime(marker)


@pytest.mark.fault("K2")
def test_hosts_without_room_for_the_files_are_reported_how_many_there_are(tmp_path: Path) -> None:
    made, failures = plan_install(STACK, LOCK, "/x/env", {"few": seen(files=2000), "some": seen(files=20_000)}, "auto")
    assert [*made.steps] == ["some"]
    assert failures[0].what == "no room for 12,000 files: 2,000 free in /home"


@pytest.mark.parametrize(
    ("scripts", "chosen"),
    [(["a.py", "train.py"], "train.py"), (["a.py"], "a.py"), (["a.py", "b.py"], None), ([], None)],
)
def test_the_next_command_names_a_script_that_exists(scripts: list[str], chosen: str | None) -> None:
    assert choose_next_script(scripts) == chosen
