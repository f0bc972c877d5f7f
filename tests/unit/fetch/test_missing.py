"""What no host has is named once for all of them."""

from pathlib import Path

import pytest

from ipexctl.act.context import Context
from ipexctl.model.events import HostFailed, Message
from ipexctl.model.hosts import Command, Completed, Host, Inventory
from ipexctl.model.tasks import Fetch
from ipexctl.verbs.files.fetch import fetch
from tests.fakes import FakeOpener


@pytest.mark.parametrize(
    ("places", "where"),
    [
        ({"n0": b"/home/ada/w", "n1": b"/home/ada/w"}, "/home/ada/w"),
        ({"n0": b"/home/ada/w", "n1": b"/data/w"}, "its working directory"),
    ],
)
def test_the_place_is_named_where_all_hosts_have_the_same(tmp_path: Path, places: dict[str, bytes], where: str) -> None:
    def answer(host: Host, _: Command) -> Completed:
        return Completed(0, places[host.name] + b"\0")

    context = Context(FakeOpener(answer), tmp_path / "state", tmp_path / "cache")
    inventory = Inventory(tuple(Host(name, name) for name in places))
    task = Fetch(paths=("nope*",), into=str(tmp_path / "fetched"))
    events = list(fetch(task, inventory, context))
    assert [event.failure.what for event in events if isinstance(event, HostFailed)] == [
        f"no host has nope* in {where}"
    ]
    early = list(
        fetch(Fetch(paths=("nope*",), into=str(tmp_path / "fetched")), inventory, context, early=True, dry=True)
    )
    assert not [event for event in early if isinstance(event, HostFailed)]
    assert f"no host has nope* in {where} yet" in [event.text for event in early if isinstance(event, Message)]
