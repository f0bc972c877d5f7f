"""What names a snapshot of a Hugging Face hub, and what later runs know of one that a host has."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl.act.hub import Snapshot
from ipexctl.decide.facts.system import find_hub_cache
from ipexctl.decide.parsing.playbook import parse_playbook
from ipexctl.model.errors import UsageError
from ipexctl.model.hub import HubReference, parse_hub_reference
from ipexctl.model.launch import Setting
from ipexctl.model.tasks import Fetch, Sync
from ipexctl.protocol.paths import HUB
from ipexctl.verbs.files.hub import StagedSnapshot
from tests.unit.launch.two import launch


@pytest.mark.parametrize(
    ("source", "reference", "folder"),
    [
        ("hf:org/tiny", HubReference("org/tiny"), "models--org--tiny"),
        ("hf:gpt2@v1.0", HubReference("gpt2", "v1.0"), "models--gpt2"),
        ("hf:org/tiny@refs/pr/1", HubReference("org/tiny", "refs/pr/1"), "models--org--tiny"),
        ("hf:datasets/org/tiny", HubReference("org/tiny", kind="dataset"), "datasets--org--tiny"),
    ],
)
def test_a_repository_with_its_revision(source: str, reference: HubReference, folder: str) -> None:
    assert parse_hub_reference(source) == reference
    assert reference.folder == folder


@pytest.mark.parametrize("source", ["hf:", "hf:a/b/c", "hf:../x", "hf:a/b@", "hf:a/b@../../x", "hf:a b", "hf:a/-b"])
def test_what_names_no_repository_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match="names no repository"):
        parse_hub_reference(source)


def test_a_path_is_no_repository() -> None:
    assert parse_hub_reference("models/hf:x") is None


def test_in_a_playbook_it_starts_nowhere_and_a_fetch_looks_elsewhere() -> None:
    sent = "{sync: {source: data}}, {sync: {source: 'hf:org/tiny'}}, {run: {role: ['head:a', 'rest:b']}}"
    play = parse_playbook(f"steps: [{sent}, {{fetch: {{paths: [x]}}}}]", "play.yaml", base="/work")
    sources = [step.task.source for step in play.steps if isinstance(step.task, Sync | Fetch)]
    assert sources == ["/work/data", "hf:org/tiny", "/work/data"]


def test_ranks_of_a_host_with_a_snapshot_look_there_and_stay_offline_unless_the_user_says_otherwise() -> None:
    cache = find_hub_cache(frozenset({"/dev/kfd", f"/home/alice/{HUB}/models--org--tiny/refs/main"}))
    assert cache == f"/home/alice/{HUB}"
    assert find_hub_cache(frozenset({"/dev/kfd"})) is None

    def find(**asked: str) -> list[list[str | None]]:
        two = launch(asked={name: Setting(value, "--env") for name, value in asked.items()}, first={"hub": cache})
        names = ("HF_HUB_CACHE", "HF_HUB_OFFLINE")
        return [[(node.env.get(name) or Setting("-", "")).value for name in names] for node in two.nodes]

    assert find() == [[cache, "1"], ["-", "-"]]
    assert find(HF_HUB_OFFLINE="0") == [[cache, "0"], ["-", "0"]]
    assert find(HF_HOME="/scratch") == [["-", "-"], ["-", "-"]]


def test_an_older_commit_in_which_something_is_mounted_stays(
    tmp_path: Path, mount: Callable[[Path, str], None]
) -> None:
    """The next commit removed what was mounted."""
    data = tmp_path / "hub/snapshots/a/data"
    data.mkdir(parents=True)
    mount(data, "mode=0755")
    (data / "keep").touch()
    staged = StagedSnapshot(
        HubReference("org/tiny"), Snapshot("b" * 40, {}, ""), tmp_path / "hub", (), lambda *_: False
    )
    with pytest.raises(UsageError, match="hub cannot be removed: device or resource busy"):
        [*staged.download()]
    assert (data / "keep").exists()
