"""``ipexctl accelerate config`` for a version that is named: nobody is contacted."""

from pathlib import Path

import pytest
import yaml

from ipexctl.act.context import Context
from ipexctl.decide import parsing
from ipexctl.decide.launch.accelerate import AccelerateConfig
from ipexctl.model.answers.tools import AccelerateAnswer
from ipexctl.model.errors import UsageError
from ipexctl.model.events import Answer, Message
from ipexctl.verbs.accelerate import accelerate_config
from tests.fakes import FakeOpener

WORLD = Context(FakeOpener({}), Path("state"), Path("cache"))  # whom nobody asks


def config(hosts: str, version: str = "1.7.0", **more: object) -> tuple[dict[str, object], list[str]]:
    """The file's keys, and what was said beside it."""
    wish = more.pop("wish", AccelerateConfig(precision="bf16", ipex=True))
    options = {"n": None, "ppn": None, "venv": None, "file": None, **more}
    events = list(accelerate_config(wish, parsing.parse_list(hosts), WORLD, version=version, **options))  # type: ignore[arg-type]
    (answer,) = (event for event in events if isinstance(event, Answer))
    assert isinstance(answer.value, AccelerateAnswer)
    return yaml.safe_load(str(answer.value.text)), [event.text for event in events if isinstance(event, Message)]


def test_one_host_gets_one_process() -> None:
    result, output = config("node0")
    assert (result["distributed_type"], result["num_processes"], result["ipex_config"]) == ("NO", 1, {"ipex": True})
    assert output == []


def test_ranks_are_those_of_the_hostfile_or_the_flags() -> None:
    assert config("10.0.0.1:4,10.0.0.2:4")[0]["num_processes"] == 8
    assert config("10.0.0.1:4,10.0.0.2:4", ppn=2)[0]["num_processes"] == 4
    assert config("10.0.0.1:4,10.0.0.2:4", n=3)[0]["num_processes"] == 3
    result, output = config("10.0.0.1,10.0.0.2")
    assert result["num_processes"] == 2
    assert "slots are unknown; 1 rank each is assumed" in output[0]


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="is not a version"):
        config("node0", version="new; rm")


def test_it_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "default_config.yaml"
    wish = AccelerateConfig(precision="no")
    hosts = parsing.parse_list("node0")
    list(accelerate_config(wish, hosts, WORLD, n=None, ppn=None, version="1.15.0", venv=None, file=str(file)))
    assert yaml.safe_load(file.read_text())["mixed_precision"] == "no"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        config("node0", file=str(tmp_path / "none/config.yaml"))
