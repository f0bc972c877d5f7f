"""Inventories are read as ansible-core reads them: groups, their children and variables, ranges, what wins."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipexctl.decide.parsing import parse_inventory
from ipexctl.model.errors import UsageError
from ipexctl.verbs.common.select import read_hostfile
from tests.tables import read_table

Read = dict[str, tuple[list[str], dict[str, str]]]
Reader = Callable[..., Read]
OURS = {"address": "ansible_host", "user": "ansible_user", "port": "ansible_port"}
CONNECTIONS = {"local": "yes", "ssh": "no"}
NOTHING: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def ansible() -> Iterator[Reader]:
    program = [sys.executable, str(Path(__file__).with_name("ansible_reader.py"))]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        requests, answers = process.stdin, process.stdout

        def read(suffix: str, text: str, beside: Mapping[str, str] = NOTHING) -> Read:
            print(json.dumps([f"inventory{suffix}", {f"inventory{suffix}": text, **beside}]), file=requests, flush=True)
            return {name: (groups, variables) for name, (groups, variables) in json.loads(answers.readline()).items()}

        yield read
        requests.close()


def read_ours(suffix: str, text: str, beside: Mapping[str, str] = NOTHING) -> Read:
    """The same of ours, with Ansible's names for what both know."""
    answer: Read = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, words in {f"inventory{suffix}": text, **beside}.items():
            Path(directory, name).parent.mkdir(parents=True, exist_ok=True)
            Path(directory, name).write_text(words)
        inventory = read_hostfile(f"inventory{suffix}", cwd=Path(directory))
    for host in inventory:
        known = {"slots": host.slots, "ansible_ssh_private_key_file": host.key}
        known |= {OURS[key]: getattr(host, key) for key in OURS}
        if host.address == host.name:
            del known["ansible_host"]
        variables = {key: str(value) for key, value in known.items() if value is not None}
        answer[host.name] = sorted(host.groups), variables | dict(host.vars)
    return answer


def agree(ansible: Reader, suffix: str, text: str, beside: Mapping[str, str] = NOTHING) -> Read:
    theirs, ours = ansible(suffix, text, beside), read_ours(suffix, text, beside)
    for _, variables in theirs.values():
        for name, later in {"ansible_user": "ansible_ssh_user", "ansible_host": "ansible_ssh_host"}.items():
            if later in variables:  # of two names of one thing ssh gets the value of this one
                variables[name] = variables.pop(later)
        if connection := variables.pop("ansible_connection", ""):
            variables["local"] = CONNECTIONS[connection]
    assert ours == theirs, text
    return ours


@pytest.mark.parametrize("text", read_table("ansible/an_ini_inventory_is_read_as_ansible_reads_it"))
def test_an_ini_inventory_is_read_as_ansible_reads_it(ansible: Reader, text: str) -> None:
    assert agree(ansible, ".ini" if "[" in text else "", text)


@pytest.mark.parametrize("text", read_table("ansible/a_yaml_inventory_is_read_as_ansible_reads_it"))
def test_a_yaml_inventory_is_read_as_ansible_reads_it(ansible: Reader, text: str) -> None:
    assert agree(ansible, ".yaml", text)


BESIDE = read_table("ansible/beside")


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("", "n1\nn2 slots=2\n"),
        (".ini", "n0\n[low]\nn1\nn2 rack=own\n[top:children]\nlow\n[low:vars]\nrack=inside\n[all:vars]\nrack=every\n"),
        (".yaml", "top: {children: {low: {hosts: {n1: , n2: {rack: own}}, vars: {rack: inside}}}}\n"),
    ],
)
def test_variables_beside_an_inventory_are_read_as_ansible_reads_them(
    ansible: Reader, suffix: str, text: str, beside: Mapping[str, str]
) -> None:
    agree(ansible, suffix, text, beside)


VALUES = {
    "ansible_user": st.sampled_from(["bob", "train"]),
    "ansible_port": st.integers(1, 65535).map(str),
    "slots": st.integers(1, 8).map(str),
    "venv": st.sampled_from(["/opt/a", "/opt/my env", "~/v"]),
    "rack": st.text("abc_-", min_size=1, max_size=3),
    "ansible_connection": st.sampled_from(["ssh", "local"]),
}
VARIABLES = st.fixed_dictionaries({}, optional=VALUES)
HOSTS = st.sampled_from(["n1", "n2", "n[1:3]", "n[01:03]", "m[a:c]", "m[1:5:2]x", "head.lan", "10.0.0.1"])
GROUPS = ("g0", "z1", "a2", "m3")
GROUP = st.tuples(st.lists(HOSTS, max_size=2, unique=True), VARIABLES, st.sets(st.integers(1, 3), max_size=2))
"""Its hosts, its variables, and how much further down in `GROUPS` its children stand: so no group is its ancestor."""


def quote(value: str) -> str:
    return f'"{value}"' if " " in value else value


@st.composite
def inventories(draw: st.DrawFn) -> tuple[str, str]:
    """One inventory as INI and as YAML."""
    # A host's own variables stand at its first mention: two values of one variable are an error for ipexctl.
    own: dict[str, dict[str, str]] = {}
    ini: list[str] = []
    tree: dict[str, dict[str, dict[str, object]]] = {"all": {"vars": dict(draw(VARIABLES))}}

    def mention(name: str) -> dict[str, str]:
        first = not any(set(expand(name)) & set(expand(other)) for other in own)
        return own.setdefault(name, draw(VARIABLES)) if first else {}

    def expand(name: str) -> tuple[str, ...]:
        return parse_inventory(name, "x").names

    no_variables: dict[str, str] = {}
    sections = [("ungrouped", draw(st.lists(HOSTS, max_size=2, unique=True)), no_variables, set[int]())]
    sections += [(name, *draw(GROUP)) for name in draw(st.permutations(GROUPS))]
    for name, hosts, variables, below in sections:
        children = [GROUPS[at + step] for step in sorted(below) if (at := GROUPS.index(name)) + step < len(GROUPS)]
        distinct = [host for i, host in enumerate(hosts) if not any({*expand(host)} & {*expand(h)} for h in hosts[:i])]
        of_hosts = {host: mention(host) for host in distinct}
        ini.append(f"[{name}]")
        ini += [" ".join([host, *(f"{k}={quote(v)}" for k, v in words.items())]) for host, words in of_hosts.items()]
        ini += [f"[{name}:vars]", *(f"{key}={value}" for key, value in variables.items())] if variables else []
        ini += [f"[{name}:children]", *children] if children else []
        tree[name] = {"hosts": dict(of_hosts), "vars": dict(variables), "children": dict.fromkeys(children)}
    ini += ["[all:vars]", *(f"{key}={value}" for key, value in tree["all"]["vars"].items())]
    return "\n".join(ini) + "\n", json.dumps(tree)


@given(inventories())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_random_inventories_are_read_as_ansible_reads_them(ansible: Reader, texts: tuple[str, str]) -> None:
    ini, yaml = texts
    if not ansible(".ini", ini):
        return  # no hosts: an error for ipexctl
    read = agree(ansible, ".ini", ini)
    assert agree(ansible, ".yaml", yaml) == read


def test_what_ansible_would_read_otherwise_is_refused() -> None:
    """A port after a colon, and two values for one variable of a host, of which Ansible takes the last."""
    for text in ("[a]\nn1:2222\n", "[a]\nn1 rack=1\n[b]\nn1 rack=2\n"):
        with pytest.raises(UsageError, match=r"port in an Ansible|contradicts"):
            parse_inventory(text, "inventory.ini")
