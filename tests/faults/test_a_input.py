"""Section A: hostfiles and playbooks that are wrong, odd or hostile."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, LIGHT, Desk
from tests.faults.checks import expect
from tests.faults.tools import call, nobody_asked

WITHOUT_ROOTS_EYES = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")  # a mode counts for us, too


@pytest.mark.fault("A1")
@pytest.mark.parametrize("words", [("doctor",), ("install",), ("sync", "."), ("run", ACTOR)], ids=lambda w: w[0])
def test_a1_a_hostfile_that_is_not_there_is_refused_and_nobody_is_contacted(
    controller: Desk, hosts: Cluster, words: tuple[str, ...]
) -> None:
    with nobody_asked(hosts):
        told = controller(words[0], "--hostfile", "hosts.tyop", *words[1:])
    expect(told, 2, "hosts.tyop", "does not exist")
    assert len(told.err.strip().splitlines()) <= 3, told
    assert not controller.records


@pytest.mark.fault("A2")
@pytest.mark.parametrize("kind", ["directory", "fifo", "device", "unreadable", "endless"])
def test_a2_what_is_no_readable_file_is_refused_at_once(controller: Desk, hosts: Cluster, kind: str) -> None:
    place, why = controller.path / "hosts", ""
    match kind:
        case "directory":
            place.mkdir()
            why = "is a directory"
        case "fifo":
            os.mkfifo(place)
            why = "not a regular file"
        case "device":
            place = Path("/dev/zero")
            why = "not a regular file"
        case "unreadable":
            place.write_text("node0\n")
            place.chmod(0)
            why = "ermission denied"
        case "endless":
            place.write_bytes(b"node0\n" * (1 << 18))
            why = "1 MiB"
    with nobody_asked(hosts):
        begun = time.monotonic()
        told = call(controller, WITHOUT_ROOTS_EYES, "doctor", "--hostfile", place, timeout=20.0)
        assert time.monotonic() - begun < 15.0
    expect(told, 2, place.name, why)
    assert not controller.records


@pytest.mark.fault("A2")
def test_a2_no_other_file_that_is_named_is_waited_for_or_read_without_an_end(controller: Desk, hosts: Cluster) -> None:
    pipe = controller.path / "pipe"
    os.mkfifo(pipe, 0o600)
    at = f"address={hosts.address('node1')} user=root"
    place = controller.path / "hosts"
    for endless in (pipe, Path("/dev/zero")):
        place.write_text(f"node1 {at} key={endless} known_hosts={hosts.known_hosts}\n")
        expect(controller("ps", "--hostfile", place, timeout=30.0), 3, "node1")
        place.write_text(f"node1 {at} key={hosts.key} known_hosts={endless}\n")
        expect(controller("ps", "--hostfile", place, timeout=30.0), 3, "unknown host key")
        with nobody_asked(hosts):
            expect(controller("install", "--locked", "--lock", endless, timeout=30.0), 2, "not a regular file")
            expect(controller("play", endless, timeout=30.0), 2, "not a regular file")


def untidy(text: str) -> bytes:
    """The same hosts, as several editors left them."""
    lines = text.splitlines()
    lines[0] = f"  {lines[0]}\t # the first"
    lines[1:1] = ["", "# a line of words", "   \t"]
    lines[-1] = lines[-1].replace(" ", "\t ", 1) + "   "
    return b"\xef\xbb\xbf" + "\r\n".join(lines).encode()


@pytest.mark.fault("A3")
def test_a3_an_untidy_hostfile_means_what_the_tidy_one_means(controller: Desk) -> None:
    text = "".join(line + f" slots={n + 1}\n" for n, line in enumerate(controller.hostfile.read_text().splitlines()))
    answers = []
    for name, content in (("tidy", text.encode()), ("untidy", untidy(text))):
        (controller.path / name).write_bytes(content)
        listed = controller("hosts", "--json", "--hostfile", name)
        expect(listed, 0)
        told = controller("doctor", "--json", "--pairwise", "off", "--hostfile", name)
        assert told.code in (0, 4), told  # what else it finds on this machine is not this case's
        hosts = [{k: v for k, v in host.items() if k != "origin"} for host in listed.answer["hosts"]]
        answers.append((hosts, told.code, summary(told.answer)))
    assert answers[0] == answers[1]
    assert [host["slots"] for host in answers[0][0]] == [1, 2, 3, 4]


def summary(answer: dict[str, Any]) -> Any:
    """What doctor said of the hosts, without what changes between two looks."""
    findings = sorted((f["code"], f.get("level", "")) for f in answer.get("findings", ()))
    return [host.get("name", host.get("host")) for host in answer["hosts"]], findings


@pytest.mark.fault("A4")
def test_a4_all_bad_slots_are_told_with_their_lines(controller: Desk, hosts: Cluster) -> None:
    bad = ["slots=0", "slots=-3", "slots=abc", "slots=99999999", ":abc", ":", "slots=4 slots=8"]
    lines = [f"node{n}{each if each[0] == ':' else ' ' + each}" for n, each in enumerate(bad, 1)]
    (controller.path / "hosts").write_text("\n".join(lines) + "\n")
    with nobody_asked(hosts):
        told = controller("doctor", "--hostfile", "hosts")
    expect(told, 2, "0", "-3", "abc", "99999999")
    for number in range(1, len(lines) + 1):
        assert f"hosts:{number}:" in told.err, (number, told)


@pytest.mark.fault("A5")
def test_a5_a_machine_that_is_listed_twice_gets_no_ranks(controller: Desk, mpi: Cluster) -> None:
    one = mpi.hostfile.read_text().splitlines()[1]
    more = one.removeprefix("node1 ")
    place = controller.path / "hosts"

    place.write_text(f"{one}\nnode2 {more}\n{one}\n".replace("node2 address=10.77.0.11", "node2 address=10.77.0.12"))
    with nobody_asked(mpi):
        told = controller("doctor", "--hostfile", "hosts")
    expect(told, 2, "node1", "hosts:3", "line 1")

    other = more.partition(" ")[2]
    for name, text in (("address", f"{one}\n10.77.0.11 {other}\n"), ("alias", f"{one}\nlogin1 {more}\n")):
        place.write_text(text)
        second = "10.77.0.11" if name == "address" else "login1"
        told = controller("doctor", "--hostfile", "hosts", "--pairwise", "off")
        expect(told, 4, "node1", second, "same machine")
        told = controller("run", "--hostfile", "hosts", "--venv", LIGHT, ACTOR, "say")
        expect(told, 4, "node1", second, "one machine")
        assert "rank 0 of" not in told.out
        assert not mpi.path("node1", "/root/ipexctl").exists()
    told = controller("run", "--hostfile", "hosts", "--venv", LIGHT, "--allow-duplicates", ACTOR, "say")
    expect(told, 0, "rank 1 of 2")


DASHES = ["-oProxyCommand=touch${IFS}pwned", "-F./evil", "node1 user=-oProxyCommand=touch${IFS}pwned"]


@pytest.mark.fault("A6")
@pytest.mark.parametrize("line", DASHES)
def test_a6_a_name_that_looks_like_an_option_is_refused_wherever_it_stands(
    controller: Desk, hosts: Cluster, line: str
) -> None:
    (controller.path / "evil").write_text("ProxyCommand touch pwned\n")
    (controller.path / "hosts").write_text(f"node0\n{line}\n")
    (controller.path / "book.yaml").write_text(f"hosts:\n  - {json.dumps(line)}\nsteps:\n  - doctor:\n")
    (controller.path / "step.yaml").write_text(f"steps:\n  - doctor:\n    limit: {json.dumps(line)}\n")
    ways: list[tuple[str, ...]] = [
        ("doctor", "--hostfile", "hosts"),
        ("doctor", f"--limit={line}"),
        ("doctor", f"--hosts={line}"),
        ("play", "book.yaml"),
        ("play", "step.yaml"),
    ]
    with nobody_asked(hosts):
        for words in ways:
            expect(controller(*words), 2)


HOSTILE = {
    "$(touch pwned)": "$", "`touch pwned`": "`", "a;touch pwned": ";", "a|touch pwned": "|", "a\ntouch pwned": "\\x0a",
    "a\0b": "\\x00", "%h": "%", "a\\b": "\\", "a\x1b]0;x\x07": "\\x1b", "x" * 300: "",
}  # fmt: skip


@pytest.mark.fault("A7")
def test_a7_characters_that_a_name_cannot_have_are_refused_and_shown_escaped(controller: Desk, hosts: Cluster) -> None:
    book = controller.path / "book.yaml"
    mapping = {"all": {"hosts": dict.fromkeys(HOSTILE)}}
    settings = ["port='22;id'", "port=0", "port=70000", "user='a$b'", "user='a\\b'", "user='A;touch pwned'"]
    forms: list[tuple[Any, int, list[str]]] = [
        (list(HOSTILE), len(HOSTILE), list(HOSTILE.values())),
        (mapping, len(HOSTILE), list(HOSTILE.values())),
        ([f"node{n} {words}" for n, words in enumerate(settings)], len(settings), []),
    ]
    with nobody_asked(hosts):
        for form, count, shown in forms:
            book.write_text(json.dumps({"hosts": form, "steps": [{"doctor": None}]}, indent=1))
            told = controller("play", "book.yaml")
            expect(told, 2, *shown)
            raw = {char for char in told.err if ord(char) < 32} - {"\n"}
            assert not raw, (raw, told)
            assert len(set(re.findall(r"book\.yaml:(\d+):", told.err))) == count, told


@pytest.mark.fault("A8")
@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!mine"])
@pytest.mark.parametrize("option", ["play", "hosts"])
def test_a8_a_tag_builds_nothing_and_is_named(controller: Desk, hosts: Cluster, tag: str, option: str) -> None:
    if option == "play":
        text, words = f"steps:\n  - doctor:\n    name: {tag} ['touch pwned']\n", ["play", "book.yaml"]
    else:
        text, words = f"all:\n  hosts:\n    x: {tag} ['touch pwned']\n", ["doctor", "--hostfile", "book.yaml"]
    (controller.path / "book.yaml").write_text(text)
    with nobody_asked(hosts):
        expect(controller(*words), 2, "book.yaml:3", tag.removeprefix("!!"))


BOOK = """\
host: [node0]
steps:
  - doctor:
    serial: two
  - doctor:
    max_fail_percentage: 130
  - doctor:
    sync: {source: .}
  - dance:
"""


@pytest.mark.fault("A9")
def test_a9_every_mistake_of_a_playbook_is_told_at_once(controller: Desk, hosts: Cluster) -> None:
    (controller.path / "book.yaml").write_text(BOOK)
    with nobody_asked(hosts):
        told = controller("play", "book.yaml")
    expect(told, 2, "book.yaml:1:", "hosts", "book.yaml:4:", "book.yaml:6:", "book.yaml:8:", "book.yaml:9:")
