"""Records of ours are read without pydantic, which takes and refuses the same: the marker of an environment, and what
doctor reported."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ipexctl.model.json_values import parse_json, read_record, to_json
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


def read(text: str, *, pydantic: bool) -> InstallMarker | None:
    try:
        return parse_json(InstallMarker, text, strict=True) if pydantic else read_record(InstallMarker, text)
    except ValueError:
        return None


def change(value: Any, path: tuple[str, ...], new: object) -> None:
    for name in path[:-1]:
        value = value[name]
    if new is Ellipsis:
        value.pop(path[-1], None)
    else:
        value[path[-1]] = new


@given(st.sampled_from(PATHS), st.just(...) | JSON)
@example(("created",), 2)
@example(("created",), True)
@example(("format",), 1.0)
@example(("layout", "bin"), ["a", "b"])
@example(("layout", "bin"), "ab")
@example(("stack", "backend"), "mpi")
@example(("requested",), None)
@example(("layout",), ...)
def test_a_marker_is_read_as_pydantic_reads_it(path: tuple[str, ...], new: object) -> None:
    written = to_json(MARKER)
    change(written, path, new)
    text = json.dumps(written)
    assert read(text, pydantic=False) == read(text, pydantic=True)


DOCTOR = make_doctor(("a", "b"))
DOCTOR_PATHS = [(name,) for name in to_json(DOCTOR)] + [("speed", name) for name in to_json(DOCTOR.speed)]


@given(st.sampled_from(DOCTOR_PATHS), st.just(...) | JSON)
@example(("findings",), [{"code": "SSH001", "level": "error", "hosts": [], "title": "a", "action": False}])
@example(("findings",), [{"code": "SSH001", "level": "worse", "hosts": [], "title": "a"}])
@example(("speed",), None)
@example(("speed", "missed"), {"a": "busy"})
def test_what_doctor_reported_is_read_as_pydantic_reads_it(path: tuple[str, ...], new: object) -> None:
    written = to_json(DOCTOR)
    change(written, path, new)
    text = json.dumps(written)
    results = []
    for parse in (read_record, lambda kind, text: parse_json(kind, text, strict=True)):
        try:
            results.append(parse(DoctorRecord, text))
        except ValueError:
            results.append(None)
    assert results[0] == results[1]


def test_what_is_written_is_read_back() -> None:
    assert read_record(InstallMarker, json.dumps(to_json(MARKER))) == MARKER
    assert read_record(DoctorRecord, json.dumps(to_json(DOCTOR))) == DOCTOR
