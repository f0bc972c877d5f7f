"""Records are read as they were written: JSON's own types only, whatever else the text holds."""

import dataclasses
import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ipexctl
from ipexctl.model.answers.files import FailedTransfer, SyncAnswer, SyncedHost
from ipexctl.model.errors import Failure, Kind, Note
from ipexctl.model.events import HostFailed
from ipexctl.model.facts import Facts, NumaNode
from ipexctl.model.json_values import Record, convert_json, field, parse_json, to_json
from ipexctl.model.page import DoctorRecord
from ipexctl.model.stack import InstallMarker, MpiLayout, StackMpi, StackSummary
from tests.unit.page.runs import make_doctor

MARKER = InstallMarker(
    id="0123",
    venv="/root/venv",
    prefix="/root/venv.d/0123",
    python="3.11",
    stack=StackSummary("torch 2.8.0", "2.8.0", None, None, None, "gloo", "3.11", StackMpi("impi-rt", "2021.18.1")),
    packages={"torch": "2.8.0", "impi-rt": "2021.18.1"},
    layout=MpiLayout("impi-rt", "2021.18.1", "bin/mpiexec.hydra", ("bin",), ("lib",)),
    created=1.5,
    requested=("numpy<3",),
)
DOCTOR = make_doctor(("a", "b"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
PATHS = [
    *((name,) for name in to_json(MARKER)),
    *(("stack", name) for name in to_json(MARKER.stack)),
    *(("layout", name) for name in to_json(MARKER.layout)),
    ("stack", "mpi", "kind"),
    ("packages", "torch"),
    ("unknown",),
]


def change(path: tuple[str, ...], new: object) -> str:
    """The marker's text with another value in it; ``...`` takes it away."""
    written = to_json(MARKER)
    place = written
    for name in path[:-1]:
        place = place[name]
    if new is Ellipsis:
        place.pop(path[-1], None)
    else:
        place[path[-1]] = new
    return json.dumps(written)


@given(st.sampled_from(PATHS), st.just(...) | JSON)
@example(("created",), 2)
@example(("layout", "bin"), ["a", "b"])
def test_a_marker_with_another_value_is_refused_or_has_it(path: tuple[str, ...], new: object) -> None:
    text = change(path, new)
    try:
        marker = parse_json(InstallMarker, text)
    except ValueError:
        return
    given, written = json.loads(text), to_json(marker)
    given.pop("unknown", None)
    assert {key: written[key] for key in given if key not in ("stack", "layout")} == {
        key: value for key, value in given.items() if key not in ("stack", "layout")
    }


@pytest.mark.parametrize(
    ("path", "new"),
    [
        (("created",), True),
        (("created",), "1.5"),
        (("format",), 1.0),
        (("format",), "1"),
        (("format",), True),
        (("format",), float("nan")),
        (("layout", "bin"), "ab"),
        (("stack", "backend"), "mpi"),
        (("requested",), {}),
        (("packages",), {"torch": None}),
        (("packages",), {"to\nrch": "1"}),
        (("layout",), ...),
        (("id",), ...),
    ],
)
def test_other_types_and_missing_keys_are_refused(path: tuple[str, ...], new: object) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        parse_json(InstallMarker, change(path, new))


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "NaN", '{"created": 1e999}', '{"created": NaN}', "[" * 100_000, '{"layout": ' * 100_000,
        '{"format": ' + "9" * 5000 + "}", '{"id": "\\ud800"}', "\x00",
    ],
)  # fmt: skip
def test_hostile_texts_are_refused_as_any_other(text: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        parse_json(InstallMarker, text)


def test_what_is_written_is_read_back() -> None:
    assert parse_json(InstallMarker, json.dumps(to_json(MARKER))) == MARKER
    assert parse_json(DoctorRecord, json.dumps(to_json(DOCTOR))) == DOCTOR
    facts = Facts(
        cpus_online=(0, 1, 2), flags=frozenset({"avx", "sse"}), hybrid={"p_cpus": (0, 1)},
        isa_refused={"AMX": Note("", "hidden")}, numa=(NumaNode(0, (0, 2)),), ports=(1, 2),
    )  # fmt: skip
    assert to_json(facts)["hybrid"] == {"p_cpus": "0-1"}
    assert convert_json(Facts, json.loads(json.dumps(to_json(facts)))) == facts
    assert convert_json(HostFailed, to_json(HostFailed(Failure("a", Kind.STEP, "b")))).failure.kind is Kind.STEP


def test_an_answer_of_several_types_is_read_as_that_which_it_is() -> None:
    answer = SyncAnswer(False, (SyncedHost("a", "/w", True, 1, 2, 0), FailedTransfer("b", "no space", "disk")))
    assert parse_json(SyncAnswer, json.dumps(to_json(answer))) == answer
    with pytest.raises(ValueError, match="none of SyncedHost, FailedTransfer"):
        parse_json(SyncAnswer, '{"dry": false, "hosts": [{"failed": "x"}]}')


def list_records(kind: Any = Record) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from list_records(each)


def test_every_default_of_a_record_is_msgspecs() -> None:
    """A `dataclasses.field` would be the default itself."""
    for module in pkgutil.walk_packages(ipexctl.__path__, "ipexctl."):
        if ".remote" not in module.name and "__main__" not in module.name:
            importlib.import_module(module.name)
    records = [*list_records()]
    assert len(records) > 200
    for record in records:
        assert not [each for each in record.__struct_defaults__ if isinstance(each, dataclasses.Field)], record


class Point(Record):
    x: int
    tags: Mapping[str, int] = field(default_factory=dict)


class Place(Point):
    name: str = ""


def test_a_record_is_a_frozen_value_with_the_fields_of_a_dataclass() -> None:
    assert dataclasses.replace(Place(1), x=2, name="a") == Place(2, name="a")
    assert [each.name for each in dataclasses.fields(Place)] == ["x", "tags", "name"]
    assert Place(1) != Point(1)
    assert Point(1).tags is not Point(1).tags
    assert hash(StackMpi("impi-rt", "1")) == hash(StackMpi("impi-rt", "1"))
    with pytest.raises(AttributeError):
        MARKER.id = "4567"  # type: ignore[misc]
    match Place(1, name="a"):
        case Point(1):
            pass
        case _:
            pytest.fail("not matched")
