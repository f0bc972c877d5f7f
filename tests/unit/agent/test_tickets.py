"""The queue of runs that wait for a host."""

import os
from pathlib import Path

import pytest

from ipexctl.protocol import messages, paths
from ipexctl.protocol.run_spec import encode_spec
from ipexctl.remote.agent import guard_start, host_lock
from tests.unit.agent.runs import SPEC

WAITING = SPEC._replace(share=False, wait=True)


def test_the_queue_has_an_order_and_forgets_who_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = str(tmp_path)
    for since, run in ((3.0, "r3"), (1.0, "r1"), (2.0, "r2")):
        host_lock.write_ticket(base, since, run, "ann")
    host_lock.remove_ticket(base, "r2")
    assert [ticket.run for ticket in host_lock.list_tickets(base)] == ["r1", "r3"]
    monkeypatch.setattr(host_lock, "LIFETIME", -1.0)
    host_lock.write_ticket(base, 1.0, "r1", "ann")
    assert [ticket.run for ticket in host_lock.list_tickets(base)] == ["r3"]
    (tmp_path / next(tmp_path.iterdir()).name).write_text("damaged")
    assert host_lock.list_tickets(base) == []


def test_a_host_is_taken_by_the_first_in_its_queue(tmp_path: Path) -> None:
    base = str(tmp_path)
    host_lock.write_ticket(base, 1.0, "first", "ann")
    host_lock.write_ticket(base, 2.0, "second", "bob")
    for run in ("second", "of nobody"):  # also who does not wait comes after those who do
        assert host_lock.take_host(base, WAITING._replace(run=run))[1] == messages.HostBusy("first", "ann", 1.0)
    lock, holder = host_lock.take_host(base, WAITING._replace(run="first", owner="ann", started=1.0))
    assert lock >= 0
    assert holder is None
    host_lock.remove_ticket(base, "first")
    assert host_lock.take_host(base, WAITING._replace(run="second"))[1] == messages.HostBusy("first", "ann", 1.0)
    os.close(lock)
    lock, holder = host_lock.take_host(base, WAITING._replace(run="second"))
    assert holder is None
    os.close(lock)


def test_a_host_that_was_taken_while_another_was_not_free_is_free_again(tmp_path: Path) -> None:
    base, reports, other = str(tmp_path), list[messages.HostWaits](), WAITING._replace(run="second")
    queue = host_lock.HostQueue(base, WAITING._replace(run="first", owner="ann", started=1.0), reports.append)
    queue.wait(100.0)
    queue.take()
    assert host_lock.take_host(base, other)[1] == messages.HostBusy("first", "ann", 1.0)
    queue.go_back()
    lock, holder = host_lock.take_host(base, other)
    assert (lock >= 0, holder) == (True, None)
    queue.wait(200.0)
    taken = messages.HostBusy("second", other.owner, other.started)
    assert [(each.taken, each.holder) for each in reports] == [(False, None), (True, None), (False, taken)]
    os.close(lock)


def test_a_run_whose_environment_was_removed_before_its_guard_began_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "r1-h0"
    place.mkdir()
    (place / paths.SPEC).write_bytes(encode_spec(SPEC._replace(environment="/gone/env.d/x")))
    umask = os.umask(0o022)
    try:
        assert guard_start.main([str(place), "127.0.0.1", "1"]) == 1
    finally:
        os.umask(umask)
    answer = messages.KINDS.read(capsys.readouterr().out.strip().encode())
    assert answer == messages.EnvironmentGone("/gone/env.d/x")
