"""Whoever is on the path between two hosts passes on what he hears, and adds a line (case L2, decision 13)."""

import json
import select
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipexctl.decide.run.journal_events import JournalReader
from ipexctl.model.events import HostFailed
from ipexctl.model.launch import Running
from ipexctl.protocol import frames, journal, messages, rank_records
from ipexctl.protocol.messages import KINDS, AgentFailed, GuardReady, Message
from ipexctl.remote.agent import rpc
from tests.unit.agent.runs import PLAIN, TOKEN, Kept, keeping, remote
from tests.waiting import wait


class Relay:
    """Between a keeper and whoever connects to ``port``. ``to_keeper`` and ``to_caller`` are added to what passes."""

    def __init__(self, keeper: int, change: Callable[[bytes], bytes] = bytes) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.to_keeper, self.to_caller = b"", b""
        self.passed: list[bytes] = []
        self._keeper, self._change = keeper, change
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        caller, _ = self.listener.accept()
        keeper = socket.create_connection(("127.0.0.1", self._keeper))
        with caller, keeper:
            while True:
                for sock in select.select([caller, keeper], [], [], 0.05)[0]:
                    data = sock.recv(65536)
                    if not data:
                        return
                    self.passed.append(data)
                    (keeper if sock is caller else caller).sendall(self._change(data))
                keeper.sendall(self.to_keeper)
                caller.sendall(self.to_caller)
                self.to_keeper = self.to_caller = b""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with keeping(tmp_path) as kept:
        yield kept


def start_guard(kept: Kept, port: int) -> Message:
    """The host's real guard; what it says before it goes into the background."""
    words = remote("guard", str(kept.directory), "127.0.0.1", str(port))
    done = subprocess.run(words, env=PLAIN, stdout=subprocess.PIPE, timeout=60)
    message = KINDS.read(done.stdout)
    assert isinstance(message, GuardReady | AgentFailed)
    return message


def lost_hosts(kept: Kept) -> list[HostFailed]:
    """What the run's record makes of its journal."""
    log = JournalReader(kept.spec.nonce, Running("r1", "a", ("a",), {}, "train.py", "train.py"))
    events = list(log.read(frames.JOURNAL, (kept.directory / "journal.jsonl").read_bytes()))
    return [event for event in events if isinstance(event, HostFailed)]


def plant(command: Path) -> bytes:
    return KINDS.write(messages.StartProxy(["/bin/sh", "-c", f"'touch {command}'"])) + b"\n"


@pytest.mark.fault("L2")
def test_l2_a_command_that_a_relay_adds_is_not_executed_and_the_run_says_so(kept: Kept, tmp_path: Path) -> None:
    relay = Relay(kept.port)
    assert start_guard(kept, relay.port) == GuardReady()
    wait(lambda: kept.state().state == "running")
    kept.request_proxy("/bin/sh", "-c", f"'touch {tmp_path}/ours'")
    wait((tmp_path / "ours").exists)  # what the keeper itself asks for passes the relay
    relay.to_caller = plant(tmp_path / "theirs")
    wait(lambda: kept.over, 30.0)
    assert not (tmp_path / "theirs").exists()
    [failed] = lost_hosts(kept)
    assert (failed.failure.host, failed.failure.code) == ("a", "tampered")
    assert "not authentic" in failed.failure.what
    assert kept.end()["reason"] == journal.Reason.LOST
    assert kept.end()["detail"] == "a lost (a line on the connection to its guard is not authentic)"


@pytest.mark.fault("L2")
def test_l2_a_report_that_a_relay_adds_or_repeats_does_not_count(kept: Kept) -> None:
    relay = Relay(kept.port)
    assert start_guard(kept, relay.port) == GuardReady()
    wait(lambda: kept.state().state == "running" and len(relay.passed) > 6)
    relay.to_keeper = KINDS.write(rank_records.RankEnded(0, "a", 0)) + b"\n"
    wait(lambda: kept.over, 30.0)
    assert [failed.failure.code for failed in lost_hosts(kept)] == ["tampered"]
    assert b"RankEnded" not in (kept.directory / "journal.jsonl").read_bytes().split(b"HostLost")[0]


@pytest.mark.fault("L2")
def test_l2_a_line_that_is_added_to_the_greeting_is_not_executed(kept: Kept) -> None:
    """At the moment at which the keeper believes the caller, in one piece with his proof."""
    stop = KINDS.write(messages.StopRun("theirs")) + b"\n"
    relay = Relay(kept.port, lambda data: data + stop if b"Hello" in data else data)
    link = rpc.connect("127.0.0.1", relay.port, TOKEN, "tell", "test", 5.0)
    wait(lambda: not list(link.receive()) and not link.open)
    assert link.tampered
    assert kept.state().state == "gathering"
    assert b"MessageIgnored" in (kept.directory / "journal.jsonl").read_bytes()


@pytest.mark.fault("L2")
def test_l2_a_keeper_that_does_not_know_the_token_is_not_believed(kept: Kept, tmp_path: Path) -> None:
    def welcome(data: bytes) -> bytes:
        return KINDS.write(messages.Welcome("0" * 64)) + b"\n" if b"Welcome" in data else data

    refused = start_guard(kept, Relay(kept.port, welcome).port)
    assert isinstance(refused, AgentFailed)
    assert "does not prove to be this run's keeper" in refused.error


@pytest.mark.fault("L2")
def test_l2_a_changed_line_has_no_effect(kept: Kept) -> None:
    relay = Relay(kept.port, lambda data: data.replace(b"StopRun", b"KillRun"))
    link = rpc.connect("127.0.0.1", relay.port, TOKEN, "tell", "test", 60.0)
    link.send(messages.StopRun("ours"))
    assert link.wait(60.0) is None
    assert link.tampered
    assert kept.state().state == "gathering"
    assert json.loads((kept.directory / "journal.jsonl").read_text().splitlines()[-1])["kind"] == "MessageIgnored"
