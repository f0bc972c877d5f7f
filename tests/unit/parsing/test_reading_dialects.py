"""Inventories written, and read back."""

import re
import string
from dataclasses import replace

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipexctl.decide.parsing import parse_inventory
from ipexctl.decide.parsing.dialects import write_inventory, write_machine_file
from ipexctl.decide.parsing.validators import TEMPLATE
from ipexctl.decide.parsing.yaml_nodes import quote_yaml
from ipexctl.model.answers.hosts import HostsAnswer
from ipexctl.model.errors import Exit
from ipexctl.model.events import Answer, Ended, Message, Started
from ipexctl.model.hosts import Host, Inventory
from ipexctl.verbs.hosts import hosts as verb

LABEL = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)
NAME = st.one_of(
    st.builds("{}{}".format, st.sampled_from(string.ascii_lowercase), LABEL),
    st.builds("{}.{}.lan".format, LABEL, LABEL),
    st.ip_addresses().map(str),
)
TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20).filter(
    lambda text: text.isprintable() and not text.startswith("-") and not TEMPLATE.search(text)
)
USER = st.from_regex(r"[a-z_][a-z0-9_.-]{0,10}", fullmatch=True)
NUMBER = st.integers(1, 1024)
VARS = st.fixed_dictionaries(
    {},
    optional={
        # A path that ends with /bin is refused, and Hypothesis takes constants of loaded modules, "/bin" among them.
        "venv": TEXT.map(lambda text: f"/env-{text.replace('/', '-')}"),
        "python": TEXT,
        "workdir": TEXT,
        "known_hosts": TEXT,
        "iface": st.just("eth0.4"),
        "max_slots": st.just("1024"),
        "local": st.sampled_from(["yes", "no"]),
        "binding": TEXT,
        "rack": TEXT,
        "ansible_python_interpreter": TEXT,
    },
)
HOST = st.builds(
    Host,
    name=NAME,
    address=NAME,
    user=st.none() | USER,
    port=st.none() | st.integers(1, 65535),
    slots=st.none() | NUMBER,
    key=st.none() | TEXT,
    groups=st.sets(st.sampled_from(["amx", "cpu", "rack_1"])).map(lambda groups: tuple(sorted(groups))),
    vars=VARS,
).map(lambda host: replace(host, slots=host.slots or 1024) if "max_slots" in host.vars else host)
INVENTORY = st.lists(HOST, min_size=1, max_size=5, unique_by=lambda host: host.name).map(
    lambda hosts: Inventory(tuple(hosts), "hosts")
)


@pytest.mark.parametrize("text", ["a\x7f\x85b", "\u2028\ufeff", "\U000e0001", 'é "\\" \n', ""])
def test_what_cannot_be_printed_is_read_back_from_an_inventory(text: str) -> None:
    quoted = quote_yaml(text)
    assert quoted.isprintable()
    assert yaml.safe_load(quoted) == text


def bare(inventory: Inventory) -> list[Host]:
    return [replace(host, origin=None, vars=dict(host.vars)) for host in inventory]


@given(INVENTORY)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_hostfile_loses_nothing(inventory: Inventory) -> None:
    assert bare(parse_inventory(write_inventory(inventory), "again")) == bare(inventory)


@given(st.lists(HOST, min_size=1, max_size=5, unique_by=lambda host: host.address))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_machine_file_carries_what_it_can_and_says_the_rest(hosts: list[Host]) -> None:
    text, warnings = write_machine_file(Inventory(tuple(hosts), "hosts"))
    again = parse_inventory(text, "again")
    assert [(host.address, host.slots, host.user) for host in again] == [
        (host.address, host.slots, host.user) for host in hosts
    ]
    for host in hosts:
        about = " ".join(warning for warning in warnings if warning.startswith(f"{host.name}: "))
        assert host.key is None or f"key={host.key}" in about
        assert host.port is None or f"port={host.port}" in about
        assert ":" not in host.address or "IPv6" in about


def test_each_file_in_its_own_words() -> None:
    text = "node0 address=10.0.0.1 slots=4 user=bob\nnode1 slots=2 port=2222\n[amx]\nnode1\n"
    inventory = parse_inventory(text, "hosts")
    assert write_machine_file(inventory)[0] == (
        "# node0\n10.0.0.1:4 user=bob\n# node1: no field of Intel MPI and MPICH holds port=2222\nnode1:2\n"
    )
    assert write_inventory(inventory) == (
        "node0 address=10.0.0.1 slots=4 user=bob\nnode1 slots=2 port=2222\n\n[amx]\nnode1\n"
    )


def test_no_file_tells_to_write_over_the_one_the_hosts_are_read_from() -> None:
    inventory = parse_inventory("n0\nn1 slots=2", "hostfile")
    for text in (write_inventory(inventory), write_machine_file(inventory)[0]):
        assert not re.search(r"> *(\./)?hostfile\b", text)


def test_the_verb_answers_with_hosts_and_text() -> None:
    inventory = parse_inventory("[a]\nnode0 slots=4\nnode1 local=yes jump=x", "hosts")
    started, second, answer, ended = list(verb(inventory, machine_file=True))
    assert started == Started("hosts", "2 hosts from hosts (node0 = node0)", ("node0", "node1"))
    assert isinstance(second, Message)
    assert "local=yes" in second.text
    assert "jump=x" in second.text
    assert isinstance(answer, Answer)
    assert isinstance(answer.value, HostsAnswer)
    first, second_host = answer.value.hosts
    assert (first.host, first.slots, second_host.host, second_host.local) == ("node0", 4, "node1", True)
    assert answer.value.text.startswith("node0:4\n")
    assert ended == Ended("hosts", Exit.OK)


def test_a_variable_that_looks_like_a_slip_is_reported() -> None:
    output = [
        event.text
        for event in verb(parse_inventory("[a]\nn1 slot=4 rack=b\nn2 slot=4", "hosts"))
        if isinstance(event, Message)
    ]
    assert output == ["slot of n1 and 1 more is not a key of ipexctl: did you mean slots?"]
