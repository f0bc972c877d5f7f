"""Between hosts: who tries whom, what the attempts mean, and the program that makes them, on loopback."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context
from ipexctl.act.sessions import load_session_program
from ipexctl.decide.checks.cluster import CheckHit, Cluster
from ipexctl.decide.checks.connectivity import (
    ConnectivityReport,
    Pair,
    check_connectivity,
    pick_target,
    plan_connections,
)
from ipexctl.decide.checks.network import choose_interfaces
from ipexctl.model.hosts import Command, Completed, Host, Inventory
from ipexctl.protocol.session import KINDS as SESSION_MESSAGES
from ipexctl.protocol.session import Attempts, ConnectionAttempt, Done, Ports, Ready, SeenMarkerFiles
from ipexctl.verbs.doctor.network_check import check_network
from tests.fakes import FakeOpener
from tests.unit.doctor.test_findings import TABLE, healthy

NAMES = ("a", "b", "c", "d")
TOKEN = "0123456789abcdef0123456789abcdef"


def hits(*failed: tuple[str, str], names: tuple[str, ...] = NAMES, **changes: Any) -> list[CheckHit]:
    """What is said when exactly these directions fail with "no answer"."""
    facts = {name: healthy(n, ports=(32768, 60999)) for n, name in enumerate(names, 1)}
    pairs = tuple(
        Pair(source, target, "no answer")
        if (source, target) in failed
        else replace(Pair(source, target, None, 1e-4, facts[source].ssh_address, True, 1500, 1e8), **changes)
        for source in names
        for target in names
        if source != target
    )
    cluster = Cluster(Inventory(tuple(Host(name, name) for name in names)), facts, {}, TABLE)
    return list(check_connectivity(cluster, ConnectivityReport(pairs, choose_interfaces(facts))))


def output(result: list[CheckHit]) -> dict[tuple[str, str], str]:
    return {(hit.code, hit.host): f"{hit.values.get('what', '')}|{hit.evidence}" for hit in result}


def test_hosts_that_all_reach_each_other_have_no_findings() -> None:
    assert hits() == []


def test_shared_directories_and_hosts_that_could_not_be_tested_are_reported_each_host() -> None:
    report = ConnectivityReport(shared=(("/home", ("a", "b")),), untried={"c": "its Python is too old"})
    result = list(check_connectivity(Cluster(Inventory(()), {}, {}, TABLE), report))
    assert [(hit.code, hit.host, hit.evidence) for hit in result] == [
        ("DSK003", "a", ""),
        ("DSK003", "b", ""),
        ("NET012", "c", "its Python is too old"),
    ]


def test_one_direction_is_reported_at_the_host_that_cannot_connect() -> None:
    result = output(hits(("b", "c")))
    assert list(result) == [("NET007", "b")]
    assert "b → c (10.0.0.3): no answer, ports 32768-60999" in result["NET007", "b"]


def test_both_directions_are_one_line_at_both_hosts() -> None:
    result = output(hits(("b", "c"), ("c", "b")))
    assert list(result) == [("NET007", "b"), ("NET007", "c")]
    assert result["NET007", "b"] == result["NET007", "c"]
    assert "b ↔ c" in result["NET007", "b"]


def test_a_missing_way_back_to_the_head_has_a_code_of_its_own() -> None:
    assert list(output(hits(("c", "a")))) == [("NET008", "c")]
    assert list(output(hits(("c", "a"), ("a", "c")))) == [("NET008", "c")]


def test_a_host_that_nobody_can_connect_to_is_reported_once_and_not_by_all_others() -> None:
    result = output(hits(*((name, "c") for name in "abd")))
    assert list(result) == [("NET007", "c")]
    assert "no other host can connect to it" in result["NET007", "c"]


def test_a_host_that_can_connect_to_nobody_is_reported_once() -> None:
    found = hits(*(("d", name) for name in "abc"))
    result = output(found)
    assert list(result) == [("NET007", "d")]
    assert [hit.values["subnet"] for hit in found] == ["10.0.0.0/24"]  # which is to be let through
    assert "it can connect to no other host" in result["NET007", "d"]


def test_of_two_hosts_nobody_can_tell_whose_firewall_it_is() -> None:
    assert list(output(hits(("b", "a"), names=("a", "b")))) == [("NET008", "b")]
    assert list(output(hits(("a", "b"), names=("a", "b")))) == [("NET007", "a")]


def test_connections_that_lose_large_packets_are_found() -> None:
    result = hits(large=False, mtu=1400)
    assert {hit.code for hit in result} == {"NET009"}
    assert "1400 bytes pass" in result[0].evidence


def test_a_detour_is_found() -> None:
    assert {hit.code for hit in hits(local="10.99.0.1")} == {"NET010"}


def test_a_link_at_less_than_half_of_the_usual_rate_is_found() -> None:
    facts = {name: healthy(n) for n, name in enumerate(NAMES, 1)}
    rates = {"a": 100e6, "b": 100e6, "c": 20e6, "d": 110e6}
    pairs = tuple(
        Pair(name, pick_target(NAMES, name), None, local=facts[name].ssh_address, rate=rates[name]) for name in NAMES
    )
    cluster = Cluster(Inventory(tuple(Host(name, name) for name in NAMES)), facts, {}, TABLE)
    result = list(check_connectivity(cluster, ConnectivityReport(pairs, choose_interfaces(facts))))
    assert [(hit.code, hit.host, hit.evidence) for hit in result] == [
        ("NET011", "c", "to d 20 MB/s, the others 100 MB/s")
    ]


def test_up_to_32_hosts_all_pairs_are_tried() -> None:
    names = [f"n{n}" for n in range(32)]
    assert sum(map(len, plan_connections(names, False).values())) == 32 * 31


def test_beyond_that_a_ring_and_a_star_are_tried_and_everybody_takes_part() -> None:
    names = [f"n{n}" for n in range(256)]
    tries = plan_connections(names, False)
    assert sum(map(len, tries.values())) < 4 * 256
    assert {name for targets in tries.values() for name in targets} == set(names)
    assert all(pick_target(names, name) in tries[name] for name in names)
    assert all("n0" in tries[name] for name in names[1:])
    assert all(name not in targets for name, targets in tries.items())
    assert sum(map(len, plan_connections(names, True).values())) == 256 * 255


# --- the program -----------------------------------------------------------------------------------------------------


class Program:
    """`remote/session/netcheck.py` in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", load_session_program("netcheck")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.hear() == {"kind": "Ready"}

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self) -> int:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(60)


@pytest.fixture
def program() -> Iterator[Program]:
    running = Program()
    yield running
    if running.process.poll() is None:
        assert running.end() == 0


def test_two_programs_measure_the_way_between_them(program: Program) -> None:
    other = Program()
    ports = other.ask("listen", address="127.0.0.2", token=TOKEN)["answer"]
    target = {"host": "b", "address": "127.0.0.2", **ports, "rate": True}
    result = program.ask("try_targets", targets=[target], patience=60, token=TOKEN, mtu=9000)["answer"]["attempts"][0]
    assert (result["host"], result["error"], result["large"], result["mtu"]) == ("b", None, True, 9000)
    assert 0 < result["rtt"] < 60
    assert result["rate"] > 1e6
    assert other.end() == 0
    refused = program.ask("try_targets", targets=[target], patience=60, token=TOKEN, mtu=9000)["answer"]["attempts"][0]
    assert (refused["error"], refused["rtt"]) == ("refused", None)


def test_who_does_not_know_the_token_gets_nothing_and_disturbs_nobody(program: Program) -> None:
    ports = program.ask("listen", address="127.0.0.3", token=TOKEN)["answer"]
    strangers = [socket.create_connection(("127.0.0.3", ports["tcp"]), 60) for _ in range(100)]
    with socket.create_connection(("127.0.0.3", ports["tcp"]), 60) as wrong:
        wrong.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.3\r\n\r\n")
        answer = b""
        try:
            answer = wrong.recv(100)
        except ConnectionResetError:  # what it had not read yet is thrown away with the connection
            pass
        assert answer == b""
    target = {"host": "me", "address": "127.0.0.3", **ports}
    assert (
        program.ask("try_targets", targets=[target], patience=60, token=TOKEN, mtu=1500)["answer"]["attempts"][0][
            "error"
        ]
        is None
    )
    for stranger in strangers:
        stranger.close()


def test_an_address_that_is_not_here_is_a_failure_and_not_the_end(program: Program) -> None:
    assert program.ask("listen", address="203.0.113.1", token=TOKEN)["code"] == "os"
    assert program.ask("listen", address="127.0.0.4", token=TOKEN)["kind"] == "Done"


def test_marker_files_are_seen_by_others_and_gone_at_the_end(program: Program, tmp_path: Path) -> None:
    other = Program()
    paths = [str(tmp_path / ".mark-b"), str(tmp_path / ".mark-c")]
    for path in ("/nonexistent/mark", paths[0]):
        other.ask("leave_marker_file", path=path)
    assert program.ask("find_marker_files", paths=paths)["answer"]["paths"] == paths[:1]
    assert other.end() == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ports", "tried", "untried"),
    [
        (Ports(1, 2), "x", {}),
        (Ports(1, 2), "a", {}),
        (Ports(1, 70_000), "a", {"b": "unexpected response from the host to listen"}),
    ],
)
def test_a_host_that_lies_ends_no_check(tmp_path: Path, ports: Ports, tried: str, untried: dict[str, str]) -> None:
    """A host that was not asked for, or one many times, and a port that no other host can try."""
    lies = [ConnectionAttempt(tried, f"no answer {number}") for number in range(3)]
    attempts = {"a": Attempts([ConnectionAttempt("b")]), "b": Attempts(lies)}

    def answer(host: Host, _: Command) -> Completed:
        answers = [ports if host.name == "b" else Ports(1, 2), attempts[host.name], SeenMarkerFiles([])]
        messages: list[Any] = [Ready(), *map(Done, answers)]
        return Completed(0, b"".join(SESSION_MESSAGES.write(message) + b"\n" for message in messages))

    hosts = Inventory((Host("a", "a"), Host("b", "b")))
    context = Context(FakeOpener(answer), tmp_path / "state", tmp_path / "cache")
    check = check_network(hosts, {name: healthy(n) for n, name in enumerate("ab", 1)}, context)
    try:
        while True:
            next(check)
    except StopIteration as end:
        report = end.value
    targets = [pair.target for pair in report.pairs]
    assert len(targets) == len({*targets} & {"a", "b"})
    assert report.untried == untried
