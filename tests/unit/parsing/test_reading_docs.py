"""Every example of the reference pages is read, and every key of the schema is named there."""

import re
from pathlib import Path

import pytest

from ipexctl.data import read_data
from ipexctl.decide.parsing import limit_inventory, parse_inventory, playbook, validators
from ipexctl.model.errors import UsageError
from ipexctl.model.task_schemas import make_schema

DOCS = Path(__file__).parents[3] / "docs"
HOSTFILE = (DOCS / "hostfile.md").read_text()
PLAYBOOK = (DOCS / "playbook.md").read_text()


def blocks(page: str, *kinds: str) -> list[str]:
    return [text for kind, text in re.findall(r"^```(.+)\n((?:.*\n)*?)```$", page, re.MULTILINE) if kind in kinds]


def first_column(page: str) -> set[str]:
    """The keys that tables name: every `word` in the first cell of a row."""
    return {word for cell in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for word in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize("text", blocks(HOSTFILE, "hostfile", "ini", "yaml"))
def test_every_hostfile_of_the_page_is_read(text: str) -> None:
    assert len(parse_inventory(text, "hostfile")) > 0


def test_the_two_inventories_of_the_page_are_one() -> None:
    ini, yaml = (parse_inventory(text, "x") for text in blocks(HOSTFILE, "ini", "yaml"))
    assert ini.names == yaml.names == ("xeon01", "xeon02", "xeon03", "xeon04")
    assert [(host.user, host.port, host.slots, host.groups, host.vars) for host in ini] == [
        (host.user, host.port, host.slots, host.groups, host.vars) for host in yaml
    ]
    assert limit_inventory(ini, "cpu:&amx:!xeon02").names == ("xeon01",)


def test_the_refusals_of_the_pages_are_what_is_reported() -> None:
    with pytest.raises(UsageError) as hostfile:
        parse_inventory(blocks(HOSTFILE, "hostfile refused")[0], "hostfile")
    assert f"{hostfile.value}\n" == blocks(HOSTFILE, "text")[0]
    with pytest.raises(UsageError) as play:
        playbook.parse_playbook(blocks(PLAYBOOK, "yaml refused")[0], "playbook.yaml", ansible=read_data("ansible.toml"))
    assert f"{play.value}\n" == blocks(PLAYBOOK, "text")[0]


@pytest.mark.parametrize("text", blocks(PLAYBOOK, "yaml"))
def test_every_playbook_of_the_page_is_read(text: str) -> None:
    assert playbook.parse_playbook(text, "playbook.yaml", base="/plays", environ={"USER": "alice"}).steps


def test_the_pages_name_every_key_and_no_other() -> None:
    assert set(validators.KEYS) <= first_column(HOSTFILE)
    keys = {
        key
        for model in playbook.MODELS.values()
        for key in (field.alias or name for name, field in make_schema(model).model_fields.items())  # type: ignore[arg-type]
    }
    assert first_column(PLAYBOOK) == keys | {*playbook.PLAY_KEYS, *playbook.STEP_KEYS}
