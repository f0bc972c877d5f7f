"""Which checkpoints are whole, what is copied where, and which one the ranks go on from."""

from collections.abc import ValuesView
from typing import Any

from ipexctl.protocol import journal
from ipexctl.protocol.messages import CheckpointPart, CheckpointsFound, CheckpointTaken, TakeCheckpoint
from ipexctl.protocol.run_spec import KeepSpec
from ipexctl.remote.agent import keeping
from ipexctl.remote.agent.keeping import Keeping

HOSTS = ("a", "b", "c")
KEEP = KeepSpec("/w/ckpt", 1, False, False, [], dict.fromkeys(HOSTS, "10.0.0.1"), [0, 0])


def make_part(step: int, *shards: int, **changes: Any) -> CheckpointPart:
    """What a host has of a checkpoint of DCP with three shards: these, and with 0 the metadata."""
    name = f"ckpt/step_{step}"
    files = {f"{name}/__{shard}_0.distcp": [10, step] for shard in shards}
    needs = [f"{name}/.metadata"]
    if 0 in shards:
        files[f"{name}/.metadata"] = [1, step]
        needs += [f"{name}/__{shard}_0.distcp" for shard in range(3)]
    part = CheckpointPart(name, f"{step}{shards}", files, float(step), needs)
    return part._replace(**changes)


def make_copy(step: int, owner: str, *shards: int, **changes: Any) -> CheckpointPart:
    marks = {host: f"{step}{(rank,)}" for rank, host in enumerate(HOSTS)}
    return make_part(step, *shards, owner=owner, marks=marks, **changes)


def know(**parts: list[CheckpointPart]) -> Keeping:
    """What hosts have reported."""
    reports = {host: CheckpointsFound(7, 4000, found) for host, found in parts.items()}
    return Keeping(reports=reports, look=7, number=7)


def list_names(known: Keeping, hosts: tuple[str, ...] = HOSTS, **more: bool) -> list[str]:
    return [each.name for each in keeping.list_whole(known, hosts, **more)]


def test_a_checkpoint_is_whole_when_the_hosts_have_all_its_files_between_them() -> None:
    known = know(a=[make_part(1, 0), make_part(2, 0)], b=[make_part(1, 1), make_part(2, 1)], c=[make_part(1, 2)])
    assert list_names(known) == ["ckpt/step_1"]
    known = know(a=[make_part(1, 0)], b=[make_part(1, 1)], c=[make_part(1, 2, settled=False)])
    assert list_names(known) == [], "a part is being written"


def test_copies_stand_for_a_host_that_is_gone() -> None:
    known = know(a=[make_part(1, 0)], c=[make_part(1, 2), make_copy(1, "b", 1)])
    assert list_names(known, ("a", "c"), quiet=True) == ["ckpt/step_1"]
    assert list_names(know(a=[make_part(1, 0)], c=[make_part(1, 2)]), ("a", "c"), quiet=True) == []


def test_an_older_copy_counts_where_the_file_itself_was_written_over_in_part() -> None:
    own = CheckpointPart("ckpt/model.pt", "torn", {"ckpt/model.pt": [5, 9]}, 9.0, settled=False)
    copy = CheckpointPart("ckpt/model.pt", "old", {"ckpt/model.pt": [10, 3]}, 3.0, [], True, "a", {"a": "old"})
    (whole,) = keeping.list_whole(know(a=[own], b=[copy]), HOSTS, quiet=True)
    assert (whole.at, whole.places["a"].host, whole.places["a"].is_copy) == (3.0, "b", True)


def test_what_tells_nothing_of_its_parts_has_those_of_as_many_hosts_as_the_last_one() -> None:
    def write(host: str, step: int, **more: Any) -> CheckpointPart:
        name = f"ckpt/{step}"
        return CheckpointPart(name, f"{host}{step}", {f"{name}/{host}.pt": [1, step]}, float(step), **more)

    marks = {"a": "a1", "b": "b1"}
    known = know(a=[write("a", 1), write("a", 2), write("b", 1, owner="b", marks=marks)])
    assert list_names(known, ("a",), quiet=True) == ["ckpt/1"]  # what b wrote of the second one is gone with it
    assert list_names(know(a=[write("a", 2)], b=[write("b", 2)]), ("a", "b"), quiet=True) == ["ckpt/2"]


def test_each_part_of_the_newest_is_copied_to_the_next_host_one_at_a_time() -> None:
    known = know(a=[make_part(1, 0), make_part(2, 0)], b=[make_part(2, 1)], c=[make_part(2, 2)])
    known, orders = keeping.plan_copies(known, HOSTS, KEEP)
    assert [(order.host, order.message.sources[0].host) for order in orders] == [("b", "a"), ("c", "b"), ("a", "c")]
    assert {order.message.part.marks["b"] for order in orders if order.message.part} == {"2(1,)"}
    assert keeping.plan_copies(known, HOSTS, KEEP)[1] == []
    for order in orders:
        known, notes = keeping.end_order(known, order.host, CheckpointTaken(order.message.number, "", 10, 1.0))
        assert [type(note) for note in notes] == [journal.CheckpointKept]
    assert keeping.plan_copies(known, HOSTS, KEEP)[1] == []
    assert list_names(known, ("a", "b")) == ["ckpt/step_2"]


def test_a_host_that_cannot_take_a_copy_is_told_once_and_another_one_gets_it() -> None:
    known = know(a=[make_part(1, 0, 1, 2)], b=[], c=[])
    for step in (1, 2):
        known = keeping.add_report(known, "a", CheckpointsFound(0, 4000, [make_part(step, 0, 1, 2)]))
        known, (order,) = keeping.plan_copies(known, HOSTS, KEEP)
        assert order.host == "b"
        full = CheckpointTaken(order.message.number, "no space left", 0, 1.0)
        known, notes = keeping.end_order(known, "b", full)
        assert [type(note) for note in notes] == [journal.CheckpointMissed] * (step == 1)
        known, (order,) = keeping.plan_copies(known, HOSTS, KEEP)
        assert order.host == "c"
        known, _ = keeping.end_order(known, "c", CheckpointTaken(order.message.number, "", 10, 1.0))


def choose(known: Keeping, hosts: tuple[str, ...] = HOSTS) -> tuple[Keeping, dict[str, TakeCheckpoint]]:
    known, orders = keeping.plan_resume(known, hosts, KEEP)
    return known, {order.host: order.message for order in orders}


def test_hosts_get_what_they_lack_and_newer_ones_are_put_aside() -> None:
    torn = make_part(2, 0, settled=False)
    known = know(a=[make_part(1, 0), torn], b=[], c=[make_part(1, 2), make_copy(1, "b", 1)])
    known, orders = choose(known)
    assert known.chosen is not None
    assert known.chosen.name == "ckpt/step_1"
    assert {host: order.aside for host, order in orders.items()} == {"a": ["ckpt/step_2"], "b": [], "c": []}
    sources = {host: {source.host: [*source.files] for source in order.sources} for host, order in orders.items()}
    assert sources["c"] == {
        "c": ["ckpt/step_1/__1_0.distcp"],
        "a": ["ckpt/step_1/__0_0.distcp", "ckpt/step_1/.metadata"],
    }
    assert sorted(sources["b"]) == ["a", "c"]


def test_an_older_one_is_taken_where_a_host_cannot_get_the_newest() -> None:
    known = know(a=[make_part(1, 0, 1, 2), make_part(2, 0, 1, 2)], b=[make_part(1, 0, 1, 2)])
    known, orders = choose(known, ("a", "b"))
    known, notes = keeping.end_order(known, "b", CheckpointTaken(orders["b"].number, "no space left", 0, 1.0))
    assert isinstance(notes[0], journal.CheckpointMissed)
    assert notes[0].needed
    assert known.due
    known, orders = choose(known, ("a", "b"))
    assert known.chosen is not None
    assert known.chosen.name == "ckpt/step_1"
    assert {host: order.sources for host, order in orders.items()} == {"a": []}


def test_ranks_that_each_write_the_same_file_go_on_from_what_was_written_last() -> None:
    def write(host: str, when: int) -> CheckpointPart:
        return CheckpointPart("ckpt/model.pt", host, {"ckpt/model.pt": [10, when]}, when)

    _known, orders = choose(know(a=[write("a", 5)], b=[write("b", 9)]), ("a", "b"))
    assert {host: [source.host for source in order.sources] for host, order in orders.items()} == {"a": ["b"]}


def test_orders_of_a_host_that_is_gone_are_over() -> None:
    known, orders = choose(know(a=[make_part(1, 0, 1, 2)], b=[], c=[]))
    assert sorted(orders) == ["b", "c"]
    known, _ = keeping.end_order(known, "b", CheckpointTaken(0, "lost", 0, 0.0))
    assert [order.host for order in known.orders.values()] == ["c"]


def test_a_host_that_had_nothing_to_report_gets_one_copy() -> None:
    known, (order,) = keeping.plan_copies(know(a=[make_part(1, 0, 1, 2)]), HOSTS, KEEP)
    known, _ = keeping.end_order(known, order.host, CheckpointTaken(order.message.number, "", 10, 1.0))
    assert keeping.plan_copies(known, HOSTS, KEEP)[1] == []


def test_what_a_restart_has_put_on_all_hosts_is_a_part_of_the_host_alone_that_writes_it() -> None:
    def write(step: int, **more: Any) -> CheckpointPart:
        return CheckpointPart("ckpt.pt", f"m{step}", {"ckpt.pt": [10, step * 10**9]}, float(step), **more)

    (both,) = keeping.list_whole(know(a=[write(1)], b=[write(1)], c=[write(1)]), HOSTS)
    assert both.marks == {"a": "m1"}
    known = know(a=[write(2)], b=[write(1)], c=[write(1)])
    known, (order,) = keeping.plan_copies(known, HOSTS, KEEP)
    assert order.message.part is not None
    assert order.message.part.marks == {"a": "m2"}
    known, _ = keeping.end_order(known, order.host, CheckpointTaken(order.message.number, "", 10, 1.0))
    for hosts in (("a", "b", "d"), ("b", "d")):  # c has gone, and then a with what it wrote
        (newest, *_) = keeping.list_whole(known, hosts, quiet=True)
        assert newest.at == 2.0


class CountedFiles(dict[str, list[int]]):
    """Counts how often all of them are looked through."""

    looks = 0

    def values(self) -> ValuesView[list[int]]:  # type: ignore[override]
        CountedFiles.looks += 1
        return super().values()


def test_files_that_all_hosts_have_are_looked_through_once_for_each_host() -> None:
    """After a restart of 32 hosts with 5,000 files each the keeper stood still for longer than the node lease."""
    files = {f"ckpt/step_1/{number}": [10, number] for number in range(100)}
    parts = {host: [CheckpointPart("ckpt/step_1", "m", CountedFiles(files), 1.0)] for host in HOSTS}
    assert list_names(know(**parts)) == ["ckpt/step_1"]
    assert CountedFiles.looks == len(HOSTS)
