"""docs/json has a schema of every answer, written by tools/json_schemas.py, and the verbs answer what they say."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context
from ipexctl.act.ssh import Links
from ipexctl.decide.parsing import parse_list, playbook
from ipexctl.model.answers import AnyAnswer, UnknownAnswer, get_answer_kind, list_answer_types
from ipexctl.model.events import Answer, Event, Stamped
from ipexctl.model.json_values import to_json
from ipexctl.model.stack import StackRequest
from ipexctl.model.tasks import Doctor
from ipexctl.store import event_json
from ipexctl.store.record import REPORT, read_report
from ipexctl.verbs.doctor.doctor import doctor
from ipexctl.verbs.hosts import hosts
from ipexctl.verbs.install.list_releases import stacks, stacks_why
from ipexctl.verbs.play.lint import lint
from ipexctl.verbs.play.play import PlayOptions, list_steps
from tests.unit.show import streams
from tests.unit.show.streams import fold
from tools import json_schemas

AGAIN = "write them again: python tools/json_schemas.py"
INVENTORY = parse_list("a,b", "--hosts")


def test_the_schemas_are_those_of_the_types() -> None:
    written = {path.name: path.read_text("utf-8") for path in json_schemas.DIRECTORY.iterdir()}
    assert written == json_schemas.schemas(), AGAIN


@pytest.mark.parametrize("kind", list_answer_types())
def test_hosts_are_a_list_of_objects_with_their_names_in_every_document(kind: str) -> None:
    schema = json.loads((json_schemas.DIRECTORY / f"{kind}.schema.json").read_text("utf-8"))
    report = json.loads((json_schemas.DIRECTORY / "report.schema.json").read_text("utf-8"))
    hosts = schema["properties"].get("hosts")
    if (
        hosts is None
    ):  # then the keys of the report are there too, and one of its own that has the name of such means the same
        assert not (schema["properties"].keys() - {"exit", "ok", "hint", "run"}) & report["properties"].keys()
        return
    [items] = [each["items"] for each in hosts.get("anyOf", [hosts]) if each.get("type") == "array"]
    names = {reference["$ref"].rpartition("/")[2] for reference in items.get("anyOf", [items])}
    kinds = [schema["$defs"][name] for name in names]
    kinds = [
        schema["$defs"][one["$ref"].rpartition("/")[2]] for each in kinds for one in each.get("anyOf", [])
    ] or kinds
    assert all("host" in each["required"] for each in kinds)


MODULES = {answer.__module__.rpartition(".")[2] for answer in list_answer_types().values()}


@pytest.mark.parametrize("module", sorted(MODULES - {"plan", "hosts", "tools"}))
def test_each_module_of_answers_has_one_of_screens(module: str) -> None:
    assert callable(import_module(f"ipexctl.show.answers.{module}").format_answer)


def answers(events: Iterable[Event]) -> Iterator[AnyAnswer]:
    values = (event.value for event in events if isinstance(event, Answer))
    yield from (value for value in values if not isinstance(value, UnknownAnswer))


def real_answers(directory: Path) -> Iterator[AnyAnswer]:
    (directory / "p.yaml").write_text("steps: [{doctor: }]")
    book = playbook.parse_playbook("steps: [{doctor: , tags: [x], when: sockets > 1}]", "p.yaml")
    yield from answers(hosts(INVENTORY))
    yield from answers(stacks())
    yield from answers(stacks_why(StackRequest()))
    yield from answers(doctor(Doctor(explain="CPU001"), INVENTORY, Context(Links(), directory, directory)))
    yield from answers(lint(["p.yaml"], environ={}, cwd=directory, variables={}))
    yield from answers(list_steps(book, INVENTORY, PlayOptions()))
    yield from answers(stamped.event for stamped in (*streams.doctor(3), *streams.install(2), *streams.run(2)))


def schema_of(kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((json_schemas.DIRECTORY / f"{kind}.schema.json").read_text("utf-8"))
    return schema


def test_real_answers_have_the_keys_of_their_schemas_and_come_back_equal(tmp_path: Path) -> None:
    kinds = set()
    for answer in real_answers(tmp_path):
        kind = get_answer_kind(type(answer))
        kinds.add(kind)
        value, schema = to_json(answer), schema_of(kind)
        assert {*schema["required"]} <= value.keys() <= schema["properties"].keys(), kind
        line = event_json.dump_ascii_json(event_json.encode_event(Stamped(1.0, Answer(answer))))
        assert event_json.decode_event(json.loads(line)).event == Answer(answer)
    assert kinds >= {"hosts", "stacks", "stacks-why", "explain", "lint", "play-list", "doctor", "install"}


@pytest.mark.parametrize("fails", [None, 1])
def test_a_report_has_the_keys_of_its_schema_and_comes_back_equal(fails: int | None, tmp_path: Path) -> None:
    report = fold(streams.run(2, fails=fails))
    schema = schema_of("report")
    assert {*schema["required"]} <= to_json(report).keys() <= schema["properties"].keys()
    for command in ("train.py", "'t\udce9st.py'"):  # whose name is no UTF-8: the run was "unfinished" in `runs`
        assert report.run
        report = replace(report, run=replace(report.run, command=command))
        (tmp_path / REPORT).write_text("".join(event_json.format_document(report)))
        assert read_report(tmp_path) == report
