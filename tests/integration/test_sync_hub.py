"""A snapshot of a Hugging Face hub on three hosts: downloaded once, sent once, found offline by later runs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, Workspace, light
from tests.hub import Hub
from tests.integration.test_sync_relay import count_sent
from tests.tables import read_table

MIB = 1 << 20
NAMES = ("node0", "node1", "node2")
FIRST, SECOND = "a" * 40, "b" * 40
TOKEN = "hf_" + "s3cret" * 6
CACHE = "/root/ipexctl/hub"


@pytest.fixture(scope="module")
def weights() -> bytes:
    return os.urandom(70 * MIB)


@pytest.fixture
def three(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster(*NAMES)


@pytest.fixture
def hub(three: Cluster, weights: bytes) -> Iterator[Hub]:
    of_first = {"config.json": b"{}", "model.safetensors": weights, "onnx/model.onnx": b"o" * MIB}
    commits = {FIRST: of_first, SECOND: {"config.json": b'{"new": 1}'}}
    hub = Hub("org/tiny", commits, {"main": FIRST, "v2": SECOND})
    with hub.serve(three.inside()):
        yield hub


@pytest.fixture
def workspace(three: Cluster, tmp_path: Path, hub: Hub) -> Workspace:
    workspace = Workspace(three, tmp_path / "desk")
    workspace.env |= {"HF_ENDPOINT": hub.url}
    return workspace


def list_files(cluster: Cluster, host: str) -> dict[str, int]:
    command = f"cd {CACHE} && find . -type f ! -name .ipexctl-sync.json -printf '%P %s\\n'"
    lines = cluster.exec(host, ["sh", "-c", command]).stdout.splitlines()
    return {name: int(size) for name, size in (line.rsplit(" ", 1) for line in lines)}


def test_a_snapshot_crosses_the_uplink_once(three: Cluster, workspace: Workspace, hub: Hub, weights: bytes) -> None:
    plan = workspace("sync", "hf:org/tiny", "--dry-run")
    assert (plan.code, hub.sent) == (0, 0), plan
    assert f"org/tiny@{FIRST[:12]}: 3 files, 71 MiB, from {hub.url}" in plan.out
    hub.token, before = TOKEN, count_sent(three)
    result = workspace.succeed("sync", "hf:org/tiny", "--exclude", "onnx/", HF_TOKEN=TOKEN)
    assert hub.sent == len(weights) + 2, "one download"
    assert 70 * MIB < count_sent(three) - before < 1.1 * 70 * MIB, "one uplink"
    folder = "models--org--tiny"
    wanted = {f"{folder}/refs/main": 40, f"{folder}/snapshots/{FIRST}/config.json": 2}
    wanted[f"{folder}/snapshots/{FIRST}/model.safetensors"] = len(weights)
    assert [list_files(three, name) for name in NAMES] == [wanted] * 3
    assert hub.tokens == {f"Bearer {TOKEN}"}
    for name in NAMES:
        search = f"! grep -rqs {TOKEN} /root /tmp /var/tmp /run /dev/shm /proc/[0-9]*/environ"
        searched = three.exec(name, ["sh", "-c", search])
        assert searched.returncode == 0, "the token is on a host"
    assert TOKEN not in result.out + result.err
    again = workspace("sync", "hf:org/tiny", "--exclude", "onnx/", HF_TOKEN=TOKEN)
    assert "node[0-2]  nothing to do" in again.out, again
    assert hub.sent == len(weights) + 2


def test_a_run_looks_in_what_was_sent(three: Cluster, workspace: Workspace, tmp_path: Path) -> None:
    light(three, tmp_path / "light")
    script = workspace.path / "show.py"
    script.write_text("import os\nprint([os.environ.get(f'HF_HUB_{name}') for name in ('CACHE', 'OFFLINE')])\n")
    result = workspace.succeed("sync", "hf:org/tiny@v2")
    assert "look for models in it alone; --env HF_HUB_OFFLINE=0 lets them download" in result.out + result.err
    refs = dict.fromkeys(("models--org--tiny/refs/main", "models--org--tiny/refs/v2"), 40)
    assert list_files(three, "node1") == {f"models--org--tiny/snapshots/{SECOND}/config.json": 10, **refs}
    workspace.succeed("run", "--venv", LIGHT, "--ppn", "1", script)
    assert workspace.written(2) == b"['/root/ipexctl/hub', '1']\n"
    assert f"{CACHE}/models--org--tiny" in {place["path"] for place in workspace("du", "--json").answer["places"]}
    assert workspace("du", "--prune", "--older-than", "0s", "--yes").code == 0
    assert list_files(three, "node2") == {}


def test_a_playbook_sends_a_snapshot_to_a_directory_of_its_own(three: Cluster, workspace: Workspace) -> None:
    play = workspace.path / "play.yaml"
    play.write_text("steps:\n  - sync: {source: 'hf:datasets/org/tiny@v2', workdir: /scratch/hub}\n")
    result = workspace.succeed("play", play)
    assert "ranks find it with --env HF_HUB_CACHE=/scratch/hub --env HF_HUB_OFFLINE=1" in result.out + result.err
    there = f"/scratch/hub/datasets--org--tiny/snapshots/{SECOND}/config.json"
    assert three.read("node2", there) == b'{"new": 1}'


@pytest.mark.parametrize(("source", "code", "sentence"), read_table("sync_hub/missing_on_the_hub"))
def test_what_the_hub_has_not_got_is_said_and_no_host_is_contacted(
    three: Cluster, workspace: Workspace, source: str, code: int, sentence: str
) -> None:
    result = workspace("sync", source)
    assert (result.code, sentence in result.out + result.err) == (code, True), result


def test_a_gated_repository_and_a_hub_that_is_away(three: Cluster, workspace: Workspace, hub: Hub) -> None:
    hub.token, hub.gated = TOKEN, True
    result = workspace("sync", "hf:org/tiny")
    assert result.code == 4, result
    assert "org/tiny is gated" in result.err
    assert "hint: hf auth login" in result.err
    away = workspace("sync", "hf:org/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert (away.code, "org/tiny cannot be downloaded from the hub" in away.err) == (4, True), away
