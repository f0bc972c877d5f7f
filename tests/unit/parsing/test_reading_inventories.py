"""What inventories of Ansible hold beside hosts: templates, options of ssh, vaults, plugins, files of variables."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from ipexctl.decide.parsing import parse_inventory, parse_list
from ipexctl.decide.parsing.dialects import write_inventory, write_machine_file
from ipexctl.decide.parsing.ssh_arguments import read_ssh_arguments
from ipexctl.model.errors import UsageError
from ipexctl.model.hosts import Host, Inventory
from ipexctl.verbs.common.select import read_hostfile
from tests.tables import read_table
from tests.unit.parsing.test_reading_hostfiles import refusal


def write(place: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


# templates ------------------------------------------------------------------------------------------------------------

KEYS = [
    "ansible_host", "ansible_ssh_host", "ansible_port", "ansible_user", "ansible_ssh_user", "ansible_connection",
    "ansible_private_key_file", "ansible_ssh_private_key_file", "ansible_ssh_common_args", "ansible_ssh_extra_args",
    "ansible_ssh_args", "address", "user", "port", "key", "known_hosts", "venv", "workdir", "python", "iface", "slots",
]  # fmt: skip
TEMPLATES = [
    "{{ x }}",
    "~/.ssh/{{ project }}.pem",
    "{{ lookup('env', 'X') | default('~/y', true) }}",
    "{% if x %}1{% endif %}",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_refused_at_its_place_wherever_it_would_count(tmp_path: Path, key: str, template: str) -> None:
    what = f"{key} is a template, and templates are not evaluated, found '{template}'"
    texts = {
        "inv.ini": (f'[a]\nn1 {key}="{template}"\n', f"inv.ini:2:{len(key) + 5}: {what}"),
        "all.ini": (f"[a]\nn1\n[a:vars]\n{key} = {template}\n", f"all.ini:4:{len(key) + 4}: {what}"),
        "a.yml": (f'all:\n  hosts:\n    n1:\n      {key}: "{template}"\n', f"a.yml:4:{len(key) + 9}: {what}"),
        "b.yml": (f'all:\n  hosts: n1\n  vars:\n    {key}: "{template}"\n', f"b.yml:4:{len(key) + 7}: {what}"),
        "c.json": (
            f'{{"all": {{"hosts": ["n1"], "vars": {{"{key}": "{template}"}}}}}}',
            f"c.json:1:{len(key) + 40}: {what}",
        ),
    }
    for name, (text, expected) in texts.items():
        assert refusal(text, name).sentence == expected
        assert refusal(text, name).hint == "write the value itself"
    write(tmp_path, {"hosts": "n1\n", "group_vars/all.yml": f'---\n{key}: "{template}"\n'})
    with pytest.raises(UsageError) as caught:
        read_hostfile("hosts", cwd=tmp_path)
    assert caught.value.sentence == f"group_vars/all.yml:2:{len(key) + 3}: {what}"


@pytest.mark.parametrize("template", [template for template in TEMPLATES if '"' not in template])
def test_a_template_without_quotation_marks_is_one_error(template: str) -> None:
    line = f"n1 venv={template}" if template.startswith("{{") else f"n1 venv='{template}'"
    assert "templates are not evaluated" in refusal(line).sentence
    assert not refusal(line).reasons
    yaml = refusal(f"all:\n  hosts:\n    n1:\n      ansible_host: {template}\n", "a.yml")
    assert (yaml.sentence.count("templates are not evaluated"), yaml.reasons) == (1, ())
    assert yaml.sentence.startswith("a.yml:4:")


def test_a_host_that_is_a_template_is_one_error() -> None:
    for text in ("{{ host }} ansible_user=x\n", "[a]\n{{ groups['b'] }}\n", "all: {hosts: {'{{ h }}': }}"):
        error = refusal(text)
        assert "templates are not evaluated" in error.sentence
        assert not error.reasons
    with pytest.raises(UsageError, match="templates are not evaluated"):
        parse_list("{{ host }}")


def test_a_template_in_a_variable_of_another_tool_is_kept_as_it_is() -> None:
    (host,) = parse_inventory("[a]\nn1\n[a:vars]\nurl=http://{{ inventory_hostname }}/\n", "inv")
    assert host.vars == {"url": "http://{{ inventory_hostname }}/"}
    assert parse_inventory(write_inventory(Inventory((host,))), "a").head.vars == host.vars


# names of one thing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "user", "port", "address"), read_table("inventories/names_of_ansible"))
def test_of_several_names_of_one_thing_those_of_ansible_count(text: str, user: str, port: int, address: str) -> None:
    (host,) = parse_inventory(text, "inv")
    assert (host.user, host.port, host.address) == (user, port, address)
    assert not {"ansible_user", "ansible_ssh_user", "ansible_port", "user"} & host.vars.keys()


@pytest.mark.parametrize(("name", "local"), read_table("inventories/connections"))
def test_connections_of_ansible_that_are_ssh_or_this_machine(name: str, local: bool) -> None:
    (host,) = parse_inventory(f"[a]\nlocalhost ansible_connection={name}\n", "inv")
    assert host.is_local is local


@pytest.mark.parametrize("name", ["docker", "community.docker.docker", "winrm", "network_cli", "ansible.builtin.x", ""])
def test_another_connection_is_refused(name: str) -> None:
    assert (
        "inv:2:23: ansible_connection must be ssh or local"
        in refusal(f'[a]\nn1 ansible_connection="{name}"\n', "inv").sentence
    )


# options of ssh -------------------------------------------------------------------------------------------------------

ARGUMENTS = [
    "-o ProxyJump=b", "-oProxyJump=b", "-J b", "-Jbob@b:2222", "-J bob@b,c:22", "-o 'ProxyJump b'",
    "-o ProxyJump=[::1]:22",
    "-C -o ControlMaster=auto -o ControlPersist=60s -J b", "-p 2222 -l bob -i /etc/passwd",
    "-o Port=22 -o User=bob -p 9",
    "-o IdentityFile=/etc/passwd -o IdentitiesOnly=yes", "-qvC -p22", "-o ServerAliveInterval=30 -A -X", "",
    "-o ProxyJump=b -o ProxyJump=c", "-4 -o TCPKeepAlive=yes -o ConnectTimeout=3",
]  # fmt: skip


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")
@pytest.mark.parametrize("text", ARGUMENTS)
def test_options_mean_what_they_mean_to_ssh(text: str) -> None:
    words = ["ssh", "-F", "none", "-G", *shlex.split(text), "n1"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    theirs = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    names = {"jump": "proxyjump", "user": "user", "port": "port", "key": "identityfile"}
    values, ignored = read_ssh_arguments(text)
    assert not ignored
    assert values == {key: theirs[names[key]] for key in values}
    assert ("jump" in values) is ("proxyjump" in theirs)
    assert ("port" in values) or theirs["port"] == "22"
    assert ("user" in values) is (theirs["user"] == "bob")


@pytest.mark.parametrize(("command", "jump"), read_table("inventories/proxy_commands"))
def test_a_proxy_command_that_is_ssh_is_a_jump_host_and_no_other_is_started(command: str, jump: str) -> None:
    values, ignored = read_ssh_arguments(f"-o ProxyCommand={shlex.quote(command)}")
    assert values == ({"jump": jump} if jump else {})
    assert ignored == (() if jump else ("ProxyCommand",))


def test_what_an_inventory_says_of_ssh_counts_for_each_host() -> None:
    text = """
[a]
n1 ansible_user=own
n2 ansible_ssh_extra_args='-p 2222' jump=other
n3 ansible_ssh_private_key_file=/own
[a:vars]
ansible_ssh_common_args='-o ProxyCommand="ssh -W %h:%p -q bob@bastion" -l common -i /common'
"""
    inventory = parse_inventory(text, "inv")
    assert inventory.warnings == ()
    assert [(host.user, host.port, host.key, dict(host.vars)) for host in inventory] == [
        ("own", None, "/common", {"jump": "bob@bastion"}),
        ("common", 2222, "/common", {"jump": "other"}),
        ("common", None, "/own", {"jump": "bob@bastion"}),
    ]


def test_options_without_effect_are_named_with_their_hosts() -> None:
    keys = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    args = f"{keys} -F ./ssh.cfg -o ProxyCommand='nc %h %p' -o User=Root -J b"
    inventory = parse_inventory(
        f"[a]\nn1\nn2\n[a:vars]\nansible_ssh_common_args={args}\nansible_ssh_executable=/bin/x", "inv"
    )
    checked = "host keys are always checked (--accept-new-host-keys records new ones)"
    assert inventory.warnings == (
        f"StrictHostKeyChecking for n1 and 1 more has no effect: {checked}",
        "-F for n1 and 1 more has no effect: put it into ~/.ssh/config",
        "ProxyCommand for n1 and 1 more has no effect: put it into ~/.ssh/config",
        "user in ansible_ssh_common_args for n1 and 1 more has no effect: put it into ~/.ssh/config",
        "ansible_ssh_executable for n1 and 1 more has no effect: put it into ~/.ssh/config",
    )
    assert inventory.head.vars["jump"] == "b"
    inner = parse_inventory("n1 ansible_ssh_common_args='-o ProxyCommand=\"ssh -i /k -W %h:%p b\"'", "inv")
    assert inner.warnings == ("IdentityFile of its ProxyCommand for n1 has no effect: put it into ~/.ssh/config",)
    assert inner.head.vars["jump"] == "b"
    assert parse_inventory("n1 ansible_ssh_common_args='-o \"'", "inv").warnings


@pytest.mark.parametrize(
    ("value", "known_hosts"),
    [("/k/known", "/k/known"), ("~/known", "~/known"), ("/dev/null", ""), ("none", ""), ("a b", ""), ("%d/known", "")],
)
def test_the_known_hosts_that_an_inventory_names_are_used_unless_they_are_none(value: str, known_hosts: str) -> None:
    inventory = parse_inventory(f"n1 ansible_ssh_common_args='-o \"UserKnownHostsFile={value}\"'", "inv")
    assert inventory.head.vars.get("known_hosts", "") == known_hosts
    checked = "host keys are always checked (--accept-new-host-keys records new ones)"
    warning = f"UserKnownHostsFile for n1 has no effect: {checked}"
    assert inventory.warnings == (() if known_hosts else (warning,))


def test_a_host_of_a_range_gets_variables_from_a_line_of_its_own() -> None:
    inventory = parse_inventory("[w]\nn[0:1] ansible_user=root\nn0 ansible_host=10.0.0.1\nn1 slots=2\n", "inv")
    assert [(host.name, host.address, host.user, host.slots, host.groups) for host in inventory] == [
        ("n0", "10.0.0.1", "root", None, ("w",)),
        ("n1", "n1", "root", 2, ("w",)),
    ]
    assert "user of n0 contradicts line 2" in str(refusal("[w]\nn0 user=a\nn0 user=b\n"))


@pytest.mark.parametrize("jump", ["b", "bob@b:22", "a,bob@b:22", "[::1]:22", "bob@[fe80::1]"])
def test_a_jump_host_is_written_and_read_again(jump: str) -> None:
    inventory = parse_inventory(f"n1 jump={jump}\n", "hosts")
    assert inventory.head.vars == {"jump": jump}
    assert parse_inventory(write_inventory(inventory), "x").head.vars == {"jump": jump}
    assert "jump=" in write_machine_file(inventory)[1][0]


@pytest.mark.parametrize(
    "jump", ["-oProxyCommand=x", "a b", "b:0", "Bob@b", "a,,b", "b:22:23", "[b", "x@", "::1", "ssh://b"]
)
def test_what_is_no_jump_host_is_refused(jump: str) -> None:
    assert "jump" in refusal(f"n1 jump='{jump}'").sentence


# what only Ansible can read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "source", "what"),
    read_table("inventories/an_inventory_that_only_ansible_can_read_is_one_error_with_the_way_out"),
)
def test_an_inventory_for_ansible_alone_is_one_error(text: str, source: str, what: str) -> None:
    error = refusal(text, source)
    assert what in error.sentence
    assert error.sentence.startswith(f"{source}:")
    assert error.reasons == ()
    assert error.hint == f"ansible-inventory -i {source} --list > hosts.json"


def test_values_that_are_not_looked_into_do_not_matter_where_they_are_nobodys_business() -> None:
    text = """
all:
  hosts:
    n1: {db: !vault "x", other: *base, list: [!unsafe a, *base], map: {<<: *base, x: !custom {a: 1}}}
  vars:
    motd: !unsafe "{{ x }}"
    secret_thing: !vault |
      $ANSIBLE_VAULT;1.1;AES256
      3161
    rack: 3
"""
    (host,) = parse_inventory(text, "a.yml")
    assert host.vars == {"rack": "3"}


def test_a_text_of_several_lines_is_of_another_tool_unless_it_is_our_own(tmp_path: Path) -> None:
    write(tmp_path, {"inv/hosts": "[a]\nn1 rack=3\n", "inv/group_vars/all.yml": "motd: |\n  a\n  b\n"})
    (host,) = read_hostfile("inv/hosts", cwd=tmp_path)
    assert host.vars == {"rack": "3"}
    for key in ("iface", "ansible_user", "ansible_ssh_common_args"):
        text = f"all:\n  hosts:\n    n1:\n      {key}: |\n        a\n        b\n"
        assert refusal(text, "a.yml").sentence.startswith("a.yml:4:")


def test_lines_below_a_section_are_no_yaml_whatever_the_file_is_called() -> None:
    assert parse_inventory("# of ours\n[mons]\nn1 ansible_port=2222\n", "single-machine.yml").head.port == 2222
    assert parse_inventory("[n1]\n", "a.yml").names == ("n1",)
    assert parse_inventory('[\n"n1"\n]\n', "a.json").names == ("n1",)


@pytest.mark.parametrize(("text", "what"), read_table("inventories/values_that_count"))
def test_values_that_are_not_looked_into_are_refused_where_they_count(text: str, what: str) -> None:
    error = refusal(text, "a.yml")
    assert what in error.sentence
    assert not error.reasons


# group_vars and host_vars ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "text", "what"), read_table("inventories/unusable_files"))
def test_a_file_of_variables_that_cannot_be_used_is_named(tmp_path: Path, name: str, text: str, what: str) -> None:
    write(
        tmp_path, {"inv/hosts": "[a]\nn1\n", f"inv/{name}": text, "inv/host_vars/n2.yml": "$ANSIBLE_VAULT;1.1;AES256\n"}
    )
    with pytest.raises(UsageError) as caught:
        read_hostfile("inv/hosts", cwd=tmp_path)
    assert caught.value.sentence.startswith(f"inv/{name}{what}")
    with pytest.raises(UsageError) as absolute:
        read_hostfile(str(tmp_path / "inv/hosts"), cwd=Path("/"))
    assert absolute.value.sentence.startswith(f"{tmp_path}/inv/{name}{what}")


def test_keys_beside_an_inventory_start_at_its_directory(tmp_path: Path) -> None:
    write(
        tmp_path, {"inv/hosts": "[a]\nn1\n", "inv/group_vars/a.yml": "ansible_ssh_private_key_file: keys/a\nslots: 3\n"}
    )
    (host,) = read_hostfile("inv/hosts", cwd=tmp_path)
    assert (host.key, host.slots) == (str(tmp_path / "inv/keys/a"), 3)


def test_a_file_of_variables_that_others_can_write_is_a_warning(tmp_path: Path) -> None:
    write(tmp_path, {"hosts": "n1\n", "group_vars/all.yml": "slots: 3\n"})
    (tmp_path / "group_vars/all.yml").chmod(0o666)
    warnings = read_hostfile("hosts", cwd=tmp_path).warnings
    assert [warning for warning in warnings if "group_vars/all.yml can be written by others (mode 0666)" in warning]


def test_variables_that_would_take_minutes_to_read_are_refused(tmp_path: Path) -> None:
    """16 MiB of mappings take half a minute; 64 took two, of each of ``group_vars`` and ``host_vars``."""
    write(tmp_path, {"hosts": "n1\n"} | {f"group_vars/all/{number}": " " * (1 << 20) for number in range(17)})
    with pytest.raises(UsageError, match="group_vars is larger than 16 MiB"):
        read_hostfile("hosts", cwd=tmp_path)


def test_directories_in_a_circle_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"hosts": "n1\n", "group_vars/all/a/b.yml": "slots: 3\n"})
    assert read_hostfile("hosts", cwd=tmp_path).head.slots == 3
    (tmp_path / "group_vars/all/a/again").symlink_to(tmp_path / "group_vars/all", target_is_directory=True)
    with pytest.raises(UsageError, match="more than 16 directories in one another"):
        read_hostfile("hosts", cwd=tmp_path)


def test_directories_to_which_many_links_lead_are_read_so_many_times_and_no_more(tmp_path: Path) -> None:
    """Ten links in each of sixteen directories are 10^16 ways to the last one."""
    write(tmp_path, {"hosts": "n1\n", "group_vars/all/d0/b": "slots: 3\n"})
    for number in range(1, 16):
        (tmp_path / f"group_vars/d{number}").mkdir()
        for link in range(10):
            above = "all/d0" if number == 1 else f"d{number - 1}"
            (tmp_path / f"group_vars/{above}/l{link}").symlink_to(tmp_path / f"group_vars/d{number}")
    with pytest.raises(UsageError, match="more than 20000 files and directories"):
        read_hostfile("hosts", cwd=tmp_path)


def test_a_directory_is_refused_with_the_name_of_the_file_in_it(tmp_path: Path) -> None:
    write(tmp_path, {"prod/hosts.ini": "n1\n", "prod/group_vars/all.yml": ""})
    with pytest.raises(UsageError, match="prod is a directory") as caught:
        read_hostfile("prod", cwd=tmp_path)
    assert caught.value.hint == "name the file: -f prod/hosts.ini"


def test_hosts_from_a_pipe_are_to_be_written_into_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "63")
    for name in ("-", "63"):
        with pytest.raises(UsageError, match=f"{name} is not a regular file") as caught:
            read_hostfile(name, cwd=tmp_path)
        assert caught.value.hint == "write the list of hosts into a file: later commands read it again"


def test_hosts_of_a_list_have_no_files_beside_them() -> None:
    assert parse_list("n1").head == Host("n1", "n1", origin=parse_list("n1").head.origin)
