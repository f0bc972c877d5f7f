"""Hostfiles in every dialect, and what is said of bad ones."""

from pathlib import Path
from typing import Any

import pytest

from ipexctl.decide.parsing import parse_allocation, parse_inventory, parse_list, yaml_nodes
from ipexctl.decide.parsing.schedulers import find_node_file
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.tasks import Uninstall
from tests.tables import read_table

FILES = Path(__file__).parents[2] / "data" / "hostfiles"


def output(host: Host) -> tuple[object, ...]:
    """A host without where it was written."""
    return (host.name, host.address, host.user, host.port, host.slots, host.key, host.groups, dict(host.vars))


def hosts(inventory: Inventory) -> list[tuple[object, ...]]:
    return [output(host) for host in inventory]


def refusal(text: str, source: str = "hosts") -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse_inventory(text, source)
    assert caught.value.exit is Exit.INPUT
    return caught.value


def one(text: str) -> Host:
    (host,) = parse_inventory(text, "hosts")
    return host


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n" * (1 << 20) + "[1-4096]", "names of more than 1000 characters"),
        ("n[1-4096]" + "[1]" * 100_000, "names of more than 1000 characters"),
        ("n1 key=" + "{{'x'" * 60_000, "key is a template"),
        (f"n[1-4096] ansible_x=1 {' '.join(f'a{number}=1' for number in range(2000))}", "5,000,000 variables in all"),
        (f"n1 ansible_x=1 {' '.join(f'a{number}=1' for number in range(90_000))} slots=x", "slots must be"),
        ("[a" + " " * (1 << 20) + "x", "host"),
        ("[a]\nn1\n[b:children]\nx" + " " * (1 << 20) + "y", "group is not defined"),
    ],
    ids=["name", "brackets", "templates", "variables of all", "variables", "section", "children"],
)
def test_a_megabyte_of_a_stranger_takes_neither_minutes_nor_gigabytes(text: str, why: str) -> None:
    assert why in str(refusal(text))


def test_the_variables_of_groups_are_joined_once_for_their_hosts() -> None:
    """They were joined for each host: a megabyte took a minute."""
    own = "".join(f"a{number}=\n" for number in range(200))
    chain = "".join(f"[g{number + 1}:children]\ng{number}\n[g{number + 1}:vars]\n{own}" for number in range(1000))
    assert len(hosts(parse_inventory(f"[g0]\nn[1-4096]\n{chain}", "hosts"))) == 4096


def test_an_option_of_ssh_without_an_end_has_no_effect() -> None:
    inventory = parse_inventory(f"[g]\nn1 ansible_ssh_common_args='{'a' * (1 << 20)}'\n", "hosts")
    assert len(inventory.warnings) == 1


def test_options_of_ssh_are_read_once_for_all_hosts_of_a_group() -> None:
    """They were read for each host: 100 KB took an hour, and each option that has no effect was kept for each."""
    options = " ".join(f"-o A{number}=1" for number in range(8_000))
    inventory = parse_inventory(f"[g:vars]\nansible_ssh_common_args='{options}'\n[g]\nn[1-4096]\n", "hosts")
    assert len(inventory.warnings) == 50
    assert "-o" not in inventory.warnings[0]


@pytest.mark.parametrize(("line", "expected"), read_table("hostfiles/one_line_is_one_host"))
def test_one_line_is_one_host(line: str, expected: dict[str, Any]) -> None:
    assert output(one(line)) == output(Host(**expected))


def test_what_we_do_not_connect_with_is_kept_as_written() -> None:
    host = one("n1 slots=2 max_slots=4 venv='/opt/my env' workdir=~/w python=3.11 iface=eth1 binding=user:0,1 local=No")
    expected = {"max_slots": "4", "venv": "/opt/my env", "workdir": "~/w", "python": "3.11", "iface": "eth1"}
    assert dict(host.vars) == {**expected, "binding": "user:0,1", "local": "no"}
    assert (host.slots, one("n1 max-slots=3").slots) == (2, 3)


def test_nothing_in_a_value_is_expanded() -> None:
    assert one("n1 venv=/opt/env/").vars["venv"] == Uninstall(venv="/opt/env//").venv == "/opt/env"
    assert one("n1 venv='/$(touch pwned)/${HOME}/*/~'").vars["venv"] == "/$(touch pwned)/${HOME}/*/~"


def test_localhost_alone_is_a_hostfile() -> None:
    assert one("localhost").is_local
    assert one("localhost:4").is_local
    assert not one("bob@localhost").is_local
    assert one("me ansible_connection=local").is_local
    assert not one("n1 ansible_connection=ssh").is_local
    assert one("localhost ansible_connection=smart").is_local
    assert not one("localhost ansible_connection=ssh").is_local
    assert not one("localhost local=no").is_local
    assert one("[a]\nlocalhost ansible_connection=local\n[a:vars]\nansible_connection=ssh").is_local
    assert not one("[a]\nn1 ansible_connection=ssh\n[a:vars]\nansible_connection=local").is_local


@pytest.mark.fault("A3")
def test_the_untidy_file_is_the_tidy_one() -> None:
    tidy = parse_inventory((FILES / "tidy").read_text(), "hosts")
    untidy = parse_inventory((FILES / "untidy").read_bytes().decode(), "hosts")
    assert hosts(tidy) == hosts(untidy)
    assert tidy.names == ("node0", "node1", "node2", "10.0.0.7")
    assert tidy.head.slots == 4
    assert str(untidy.hosts[2].origin) == "hosts:6:2"


def test_ranges_are_hosts_in_order() -> None:
    inventory = parse_inventory("node[01-03,7]:2 port=22\nr[a-b]n[0:4:2]", "hosts")
    assert inventory.names == ("node01", "node02", "node03", "node7", "ran0", "ran2", "ran4", "rbn0", "rbn2", "rbn4")
    assert {host.slots for host in inventory.hosts[:4]} == {2}
    assert parse_inventory("n[1-9/2,12]", "hosts").names == ("n1", "n3", "n5", "n7", "n9", "n12"), (
        "as ClusterShell writes steps"
    )
    assert parse_inventory("n[01-10/4]", "hosts").names == ("n01", "n05", "n09")
    assert parse_inventory("n[8-11]", "hosts").names == ("n8", "n9", "n10", "n11")
    assert parse_inventory("n[08-11]", "hosts").names == ("n08", "n09", "n10", "n11")


@pytest.mark.parametrize(("text", "why"), read_table("hostfiles/a_bad_line_is_refused_with_its_reason"))
def test_a_bad_line_is_refused_with_its_reason(text: str, why: str) -> None:
    error = refusal(text)
    assert why in str(error)
    assert error.sentence.startswith("hosts")


def test_a_hostfile_has_at_most_1024_groups() -> None:
    text = "".join(f"[g{number}]\na{number}\n" for number in range(1024))
    assert len(parse_inventory(text, "hosts")) == 1024
    assert "inventory holds more than 1024 groups" in str(refusal(f"{text}[more]\nb\n"))


@pytest.mark.fault("A4")
def test_bad_slots_are_all_reported_with_line_column_and_text() -> None:
    lines = read_table("hostfiles/lines")
    error = refusal("\n".join(lines))
    assert error.sentence == "hosts has 9 errors"
    assert [reason.split(": ")[0] for reason in error.reasons] == [
        "hosts:1:9", "hosts:2:9", "hosts:3:9", "hosts:4:9", "hosts:5:7", "hosts:6:7", "hosts:7:11", "hosts:9:9",
        "hosts:10:9",
    ]  # fmt: skip
    for reason, result in zip(
        error.reasons, ["0", "-3", "abc", "99999999", "node1:abc", "node1:", "slots=8", "slots=", "٣"], strict=True
    ):
        assert f"found '{result}'" in reason


def test_a_port_written_as_slots_is_explained() -> None:
    assert refusal("node1:2222").hint == "write port=2222 for an SSH port"


def test_the_same_name_twice_is_refused_with_both_lines() -> None:
    error = refusal("node1\nnode2\n\nNODE1 slots=4\n")
    assert error.sentence == "hosts:4:1: NODE1 is listed twice, first in line 1, column 1"


def test_hosts_that_share_an_address_need_names() -> None:
    text = "a address=127.0.0.1 port=2201\nb address=127.0.0.1 port=2202"
    assert [host.port for host in parse_inventory(text, "hosts")] == [2201, 2202]


@pytest.mark.fault("A7")
@pytest.mark.fault("A6")
@pytest.mark.parametrize("line", read_table("hostfiles/what_is_not_allowed_is_refused_and_never_shown_raw"))
def test_what_is_not_allowed_is_refused_and_never_shown_raw(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_inventory(line + "\n", "hosts")
    shown = str(caught.value)
    assert all(char.isprintable() for char in shown.replace("\n", ""))
    with pytest.raises(UsageError):
        parse_list(line)


@pytest.mark.parametrize(("text", "where"), read_table("hostfiles/lookalikes"))
def test_a_character_that_looks_like_another_is_reported_by_code_point_and_column(text: str, where: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_inventory(text, "hosts")
    assert where in str([refused.value.sentence, refused.value.reasons])


def test_the_bad_character_is_shown_escaped() -> None:
    assert "\\x1b" in str(refusal("a\x1b[0m"))
    with pytest.raises(UsageError, match=r"\\x0a"):
        parse_list("a\nb")


@pytest.mark.fault("A7")
def test_a_flood_of_errors_is_cut() -> None:
    error = refusal("\n".join(f"n{i} slots=x" for i in range(500)))
    assert error.sentence == "hosts has 500 errors"
    assert error.reasons[-1] == "… and 450 more"
    assert refusal("-x\n" * 100_000).sentence == "hosts has 1000 errors and perhaps more"


def test_lists_split_at_commas_outside_brackets() -> None:
    inventory = parse_list("bob@a:4, node[01-02,5] ,[fe80::1]:2,c port=22")
    assert inventory.names == ("a", "node01", "node02", "node5", "fe80::1", "c")
    assert inventory.source == "--hosts"
    assert inventory["c"].port == 22
    assert str(inventory["fe80::1"].origin) == "--hosts:1:25"


@pytest.mark.parametrize("text", ["", ",", " , ,", "a,a", "a#b"])
def test_lists_that_name_no_host_or_a_bad_one_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_list(text)


@pytest.mark.parametrize("key", ["slots", "slot", "cpu", "cpus", "count"])
def test_open_mpi_has_several_names_for_slots(key: str) -> None:
    (host,) = parse_inventory(f"n1 {key}=4\n", "hostfile")
    assert (host.name, host.slots) == ("n1", 4)


@pytest.mark.parametrize(("scheduler", "environ", "nodefile", "expected"), read_table("hostfiles/jobs_of_schedulers"))
def test_the_job_of_a_scheduler_gives_hosts_and_slots(
    scheduler: str, environ: dict[str, str], nodefile: str, expected: list[list[str | int | None]]
) -> None:
    inventory = parse_allocation(scheduler, environ, nodefile)
    assert (inventory.source, [[host.name, host.slots] for host in inventory]) == (scheduler, expected)
    assert not nodefile or [find_node_file(scheduler, environ)] == [*environ.values()]


@pytest.mark.parametrize(
    ("scheduler", "environ", "nodefile", "why"),
    [
        *read_table("hostfiles/a_bad_job_is_refused"),
        *(("slurm", environ, "", why) for environ, why in read_table("hostfiles/a_bad_allocation_is_refused")),
    ],
)
def test_a_bad_job_is_refused(scheduler: str, environ: dict[str, str], nodefile: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_allocation(scheduler, environ, nodefile)
    assert why in str(caught.value)


def test_a_line_of_ansible_without_groups_may_have_variables_of_its_own() -> None:
    host = one("n1 ansible_host=10.0.0.1 rack=b api_token=abc")
    assert (host.address, dict(host.vars)) == ("10.0.0.1", {"rack": "b"})
    assert "unknown key 'rack'" in str(refusal("n1 ansible_host=10.0.0.1\nn2 rack=b"))


def test_the_interface_of_an_mpich_hostfile_is_kept() -> None:
    host = one("n1:4 binding=user:0,1 ifhn=192.0.2.7")
    assert (host.slots, dict(host.vars)) == (4, {"binding": "user:0,1", "ifhn": "192.0.2.7"})
    assert one("n1 ifhn=fe80::1").vars["ifhn"] == "fe80::1"


def test_ansible_ini_and_yaml_say_the_same() -> None:
    ini = parse_inventory((FILES / "inventory.ini").read_text(), "inventory.ini")
    yaml = parse_inventory((FILES / "inventory.yaml").read_text(), "inventory.yaml")
    assert hosts(ini) == hosts(yaml)
    assert ini.names == ("bastion", "xeon01", "xeon02", "xeon03", "epyc1")
    assert output(ini["bastion"]) == ("bastion", "192.0.2.1", None, None, None, None, (), {})
    groups = ("amx", "cpu", "lab")
    assert output(ini["xeon01"]) == ("xeon01", "xeon01", "train", None, 2, None, groups, {"venv": "/opt/my env"})
    assert output(ini["epyc1"])[2:] == ("train", 2200, 1, None, ("cpu", "lab"), {"rack": "b"})


def test_what_ansible_inventory_prints_can_be_read() -> None:
    text = """{"_meta": {"hostvars": {"n1": {"ansible_host": "10.0.0.1"}, "n2": {"slots": 2}}},
        "all": {"children": ["ungrouped", "cpu"]}, "cpu": {"hosts": ["n2", "n1"]}}"""
    inventory = parse_inventory(text, "inventory.json")
    assert hosts(inventory) == [
        ("n2", "n2", None, None, 2, None, ("cpu",), {}),
        ("n1", "10.0.0.1", None, None, None, None, ("cpu",), {}),
    ]


def test_yaml_is_recognised_by_its_first_lines() -> None:
    assert parse_inventory("all:\n  hosts:\n    n1:\n", "hosts").names == ("n1",)
    assert parse_inventory("---\nall: {hosts: {n1: }}\n", "hosts").names == ("n1",)
    assert parse_inventory('{"all": {"hosts": {"n1": {"slots": 2}}}}', "hosts")["n1"].slots == 2
    assert "slots must be" in str(refusal("node1:\nnode2:4\n"))


def test_deeper_groups_win_over_those_above() -> None:
    text = (
        "[low]\nn1\n[high:children]\nlow\n[all:vars]\nport=1\nvenv=/a\n[high:vars]\nport=2\niface=x\n[low:vars]\nport=3"
    )
    host = one(text)
    assert (host.port, dict(host.vars)) == (3, {"venv": "/a", "iface": "x"})


def test_the_value_of_a_group_variable_reaches_to_the_end_of_the_line() -> None:
    text = "[a]\nn1\n[a:vars]\nargs=-o X=y -v\nvenv = '/a #b'  # c\nworkdir=/w # d\nempty=\n"
    assert not one("[a]\nn1 ansible_port=2 venv=app\n[a:vars]\nvenv=/app/bin").vars, "another tool's"
    assert dict(one(text).vars) == {"args": "-o X=y -v", "venv": "/a #b", "workdir": "/w", "empty": ""}


def test_a_host_in_two_groups_is_one_host() -> None:
    inventory = parse_inventory("n1 port=22\n[a]\nn1\nn2\n[b]\nn1 slots=2", "hosts")
    assert inventory.names == ("n1", "n2")
    assert (inventory["n1"].port, inventory["n1"].slots, inventory["n1"].groups) == (22, 2, ("a", "b"))


@pytest.mark.parametrize(("text", "why"), read_table("hostfiles/a_bad_inventory_is_refused_with_its_reason"))
def test_a_bad_inventory_is_refused_with_its_reason(text: str, why: str) -> None:
    assert why in str(refusal(text))


def test_a_text_is_no_inventory() -> None:
    assert "inventory must be a mapping of groups, not a single value" in str(refusal("n1", "hosts.yaml"))


def test_what_an_inventory_leaves_empty_is_not_there_and_lists_of_others_are_theirs() -> None:
    host = one("all:\n  hosts: {n1: {rack: , port: 22, theirs: [1]}}\n  vars:\n  children:\n")
    assert (host.port, dict(host.vars), host.groups) == (22, {}, ())


def test_secrets_of_an_inventory_are_neither_kept_nor_shown() -> None:
    host = one("[a]\nn1 ansible_become_password=hunter2 api_token=abc rack=3")
    assert dict(host.vars) == {"rack": "3"}
    assert "hunter2" not in str(refusal("[a]\nn1 ansible_ssh_pass=hunter2"))


def test_a_variable_of_another_tool_needs_a_name_that_can_be_one() -> None:
    refused = str(refusal('all:\n  hosts:\n    n1:\n      "rack \\x1b[2J": 3\n', "hosts.yaml"))
    assert "key must be letters, digits, '_', '.', '-'" in refused
    assert "\x1b" not in refused


def test_many_groups_in_a_chain_are_bounded() -> None:
    text = "\n".join(f"[g{i}:children]\ng{i + 1}" for i in range(3000))
    assert "more than 1024 groups" in str(refusal(text + "\n[g3000]\nn1\n"))
    text = "\n".join(f"[g{i}:children]\ng{i + 1}" for i in range(1000))
    assert len(one(text + "\n[g1000]\nn1\n").groups) == 1001


def test_yaml_of_more_values_than_any_inventory_has_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_nodes, "MAX_NODES", 100)
    assert "larger than 100 values" in str(refusal(f"all: [{'x, ' * 300}]", "hosts.yaml"))


def test_the_account_of_a_domain_is_one_for_an_ssh_config() -> None:
    """As `ssh` does, the last @ ends the user; the host was corp.example@n1."""
    for user in ("me@corp.example", r"CORP\me", "Me"):
        error = refusal(f"{user}@n1")
        assert (
            f"user must be lower-case letters, digits, '_', '.', '-', and begin with a letter or '_', found '{user}"
            in str(error)
        )
        assert error.hint == f"write it into ~/.ssh/config, below the Host of this host: User {user}"
    assert refusal("a$(x)@n1").hint is None


def test_how_several_hosts_are_written_is_reported_as_it_is_where_they_stand() -> None:
    assert refusal("a b").hint == "write one host a line"
    for text in (
        "a, b, c",
        "a:2,b:2",
        "a:2 b:2",
        "10.0.0.1:2 10.0.0.2:2",
    ):  # as horovodrun and mpirun take them after -H
        assert refusal(text).hint == "write one host a line"
    for text in (
        "# mine\nHost a\n  User bob\n",
        "User ann\n\nHost *.lan b\n",
        "Host=a\n  HostName=10.0.0.1\n",
        "Match host n*\n",
    ):
        assert refusal(text).sentence == "hosts:1:1: the file is an ssh_config, not a hostfile"
    assert "ssh_config" not in str(refusal("host # mine\nmatch user=ann\ninclude slotz=4"))
    assert refusal("10.0.0.1 10.0.0.2").hint == "write one host a line"
    assert (
        refusal("127.0.0.1 localhost\n10.0.0.1 a a.lan\n").hint
        == "write a name and its address as NAME address=ADDRESS"
    )
    assert refusal("ssh://ann@a:22\nssh://ann@b:22\n").hint == "write user@host, and port=N after it"
    assert "all: {hosts: [node0" in str(refusal("hosts: [a, b]", "hosts.yaml").hint)
    for text in ("a b", "a b c", "10.0.0.1 10.0.0.2"):
        with pytest.raises(UsageError) as caught:
            parse_list(text)
        assert caught.value.hint == "separate hosts with commas"
    assert refusal("all: {hosts: [a b]}", "hosts.yaml").hint == "give each host an item of its own"
