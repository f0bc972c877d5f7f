"""Which release `install` takes where nobody names one: the newest whose wheels can be had now."""

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ipexctl.act.context import Context, Limits
from ipexctl.decide.releases.table import ReleaseTable
from ipexctl.model.events import Event, StepEnded
from ipexctl.model.hosts import Host, Link
from ipexctl.model.stack import Stack, StackRequest
from ipexctl.model.tasks import Install
from ipexctl.verbs.common.probe import load_releases
from ipexctl.verbs.install.lock import LockRequest, load_or_create_lock, resolve_available
from tests import wheels
from tests.wheels import Index, serving

LIMITS = Limits(stall=12.0, tries=3, probe=1.0)
CLOSED = "http://127.0.0.1:9/simple"
BINDING = wheels.binding("2.7.0", "oneccl_bindings_for_pytorch", "opt-mpi")


class NoHosts:
    """Nothing here opens a host."""

    def open(self, host: Host) -> Link:
        raise AssertionError(host)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Workspace:
    """A controller with a cache of its own, whose default package index is ``index``."""

    path: Path
    index: Index
    rows: ReleaseTable

    @property
    def environ(self) -> dict[str, str]:
        home = {"HOME": str(self.path), "PATH": os.environ["PATH"]}
        return {**home, "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "UV_DEFAULT_INDEX": self.index.url}

    @property
    def context(self) -> Context:
        places = self.path / "state", self.path / "cache"
        return Context(NoHosts(), *places, environ=self.environ, limits=LIMITS)

    def choose(self, request: StackRequest, **task: Any) -> tuple[Stack, list[Event]]:
        """The stack that install would take, and what it showed."""
        install = Install(**task)
        return run(resolve_available(request, {}, self.rows, install, self.context))

    def lock(self, stack: Stack) -> None:
        run(load_or_create_lock(LockRequest(Install(), stack, self.context)))


T = TypeVar("T")


def run(workflow: Generator[Event, None, T]) -> tuple[T, list[Event]]:
    events: list[Event] = []
    while True:
        try:
            events.append(next(workflow))
        except StopIteration as stop:
            return stop.value, events


def indexes_at(url: str) -> ReleaseTable:
    """The version table with its indexes at another place."""
    rows = load_releases()
    return replace(rows, indexes={name: replace(index, url=url, kind="index") for name, index in rows.indexes.items()})


@pytest.fixture
def default() -> Iterator[Index]:
    """What the default index has of the newest rows: all but the binding."""
    plain = [wheels.torch("2.8.0"), wheels.ipex("2.8.0"), wheels.torch("2.7.0"), wheels.ipex("2.7.0"), wheels.numpy()]
    with serving(Index([*plain, wheels.wheel("setuptools", "80.0.0", {"setuptools/__init__.py": ""})])) as index:
        yield index


def test_without_intels_index_the_newest_release_without_the_binding_is_taken(tmp_path: Path, default: Index) -> None:
    stack, events = Workspace(tmp_path, default, indexes_at(CLOSED)).choose(StackRequest())
    assert (stack.release.name, stack.backend) == ("torch 2.8.0 + ipex 2.8.0", "impi")
    assert str(stack.notes[0]).endswith(f"its index does not answer: {CLOSED}; taking torch 2.8.0 + ipex 2.8.0")
    assert [event.detail for event in events if isinstance(event, StepEnded)] == ["none can be had"]


def test_a_binding_that_was_named_is_kept_and_no_index_is_asked(tmp_path: Path, default: Index) -> None:
    workspace = Workspace(tmp_path, default, indexes_at(CLOSED))
    for request in (StackRequest(backend="ccl"), StackRequest(oneccl="2.7.0"), StackRequest(backend="gloo")):
        stack, events = workspace.choose(request)
        assert not events
        assert (stack.backend == "ccl") == (request.backend != "gloo")


def test_the_binding_is_taken_from_the_index_of_the_table_if_that_has_it(tmp_path: Path, default: Index) -> None:
    with serving(Index([BINDING])) as intel:
        stack, _ = Workspace(tmp_path, default, indexes_at(intel.url)).choose(StackRequest())
    assert stack.release.name == "torch 2.7.0 + ipex 2.7.0 + oneccl 2.7.0"


def test_a_binding_of_the_users_own_counts(tmp_path: Path, default: Index) -> None:
    house = wheels.fill(tmp_path / "wheels", [wheels.binding("2.7.0+cpu", "oneccl_bindings_for_pytorch", "opt-mpi")])
    workspace = Workspace(tmp_path, default, indexes_at(CLOSED))
    stack, _ = workspace.choose(StackRequest(), find_links=[str(house)])
    assert stack.release.name == "torch 2.7.0 + ipex 2.7.0 + oneccl 2.7.0"
    stack, _ = workspace.choose(StackRequest(), wheels=str(house))
    assert stack.backend == "ccl"


def test_a_binding_that_no_release_goes_with_does_not_hide_one_that_does(tmp_path: Path, default: Index) -> None:
    house = wheels.fill(tmp_path, [wheels.binding("2.8.0+xpu", "oneccl_bindings_for_pytorch", "opt-mpi")])
    workspace = Workspace(tmp_path, default, indexes_at(CLOSED))
    stack, _ = workspace.choose(StackRequest(), find_links=[str(house)])
    assert stack.release.name == "torch 2.8.0 + ipex 2.8.0"
    wheels.fill(house, [BINDING])
    stack, _ = workspace.choose(StackRequest(), find_links=[str(house)])
    assert stack.release.oneccl == "2.7.0"


def test_a_remembered_lock_of_the_release_needs_no_index(tmp_path: Path, default: Index) -> None:
    with serving(Index([BINDING])) as intel:
        workspace = Workspace(tmp_path, default, indexes_at(intel.url))
        stack, _ = workspace.choose(StackRequest())
        workspace.lock(stack)
        default.wheels.clear()
        intel.wheels.clear()
        again, events = workspace.choose(StackRequest())
    assert again == stack
    assert not events
