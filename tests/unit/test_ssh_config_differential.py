"""ssh_config and known_hosts as OpenSSH reads them: each case is asked of `ssh -G` and `ssh-keygen -F` as well.

docs/ssh.md names the differences; they are not among the cases here.
"""

import base64
import hashlib
import hmac
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ipexctl.act.ssh import sshconfig
from ipexctl.act.ssh.hostkeys import KnownHosts, format_known_host_name
from ipexctl.act.ssh.settings import SSHSettings
from ipexctl.act.ssh.sshconfig import Hop, find_options, read_config
from ipexctl.act.ssh.transport import change_algorithms
from ipexctl.model.errors import UsageError
from ipexctl.model.hosts import Host
from tests.tables import read_table

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")

USER = pwd.getpwuid(os.getuid())
DEFAULT_KNOWN = tuple(f"{USER.pw_dir}/.ssh/known_hosts{number}" for number in ("", "2"))
DEFAULT_GLOBAL = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


@pytest.fixture(autouse=True)
def _own_home() -> None:
    """Nothing: ssh takes the home of the account."""


@pytest.fixture(autouse=True, scope="module")
def same_account() -> Iterator[None]:
    """OpenSSH takes home and name from the user database, ipexctl from the environment: here they are the same."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HOME": USER.pw_dir, "LOGNAME": USER.pw_name, "USER": USER.pw_name}.items():
            patch.setenv(name, value)
        patch.setenv("IPEXCTL_CASE", "a value")
        patch.setenv("SHELL", "/bin/sh")
        yield


@dataclass(frozen=True)
class Question:
    """A host, and what was given beside it."""

    host: str = "n1"
    user: str | None = None
    port: int | None = None

    @property
    def words(self) -> list[str]:
        user = ["-l", self.user] if self.user else []
        return [*user, *(["-p", str(self.port)] if self.port else []), self.host]


Answer = dict[str, object]


def ask_ssh(config: Path, question: Question) -> Answer | None:
    """What ssh would do; None if it refuses the file."""
    words = ["ssh", "-G", "-F", str(config), *question.words]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        return None
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    one = {name: value for name, _, value in lines}
    files = [value for name, _, value in lines if name == "identityfile"]
    return {
        "host": one["hostname"],
        "user": one["user"],
        "port": one["port"],
        "timeout": one["connecttimeout"].replace("none", "0"),
        "jumps": one.get("proxyjump", "").replace("none", ""),
        "command": one.get("proxycommand", ""),
        "keys": [] if "~/.ssh/id_ed25519" in files else files,
        "certificates": [value for name, _, value in lines if name == "certificatefile"],
        "known": one["userknownhostsfile"],
        "global": one["globalknownhostsfile"],
        "alias": one.get("hostkeyalias", ""),
        "only": one["identitiesonly"],
        "agent": one.get("identityagent", ""),
        "dots": one["canonicalizemaxdots"],
        "fallback": one["canonicalizefallbacklocal"].replace("true", "yes").replace("false", "no"),
        "strict": one["stricthostkeychecking"].replace("true", "yes").replace("false", "no"),
    }


def ask_ipexctl(config: Path, question: Question) -> Answer | None:
    """The same of ours."""
    try:
        file = read_config(config, config.parent)
        options = find_options(file, question.host, question.user, question.port)
        known = [str(Path(name).expanduser()) for name in options.get_paths("userknownhostsfile")]
        return {
            "host": options.host,
            "user": options.user,
            "port": options.get_word("port", "22"),
            "timeout": options.get_word("connecttimeout", "0"),
            "jumps": ",".join(normal_hop(word) for word in options.get_words("proxyjump") if word != "none"),
            "command": options.get_word("proxycommand") if options.get_proxy("proxycommand") else "",
            "keys": list(options.get_words("identityfile")),
            "certificates": list(options.get_words("certificatefile")),
            "known": " ".join(known or DEFAULT_KNOWN),
            "global": " ".join(options.get_words("globalknownhostsfile") or DEFAULT_GLOBAL),
            "alias": options.get_word("hostkeyalias"),
            "only": options.get_word("identitiesonly", "no"),
            "agent": "".join(str(Path(name).expanduser()) for name in options.get_paths("identityagent")),
            "dots": options.get_word("canonicalizemaxdots", "1"),
            "fallback": options.get_word("canonicalizefallbacklocal", "yes"),
            "strict": options.get_word("stricthostkeychecking", "ask"),
        }
    except UsageError:
        return None


def normal_hop(text: str) -> str:
    hop = Hop.parse(text)
    host = f"[{hop.host}]" if ":" in hop.host else hop.host
    return (f"{hop.user}@" if hop.user else "") + host + (f":{hop.port}" if hop.port else "")


def compare(directory: Path, text: str, question: Question) -> Answer | None:
    config = directory / "config"
    config.write_text(text)
    config.chmod(0o600)
    answer = ask_ipexctl(config, question)
    assert answer == ask_ssh(config, question), text
    return answer


# written cases: each keyword, each kind of quoting, each token -------------------------------------------------------

READ = [text.replace("@USER@", USER.pw_name) for text in read_table("ssh_config_differential/read")]

REFUSED = read_table("ssh_config_differential/refused")


@pytest.mark.parametrize("text", READ)
def test_a_written_configuration_is_read_as_ssh_reads_it(tmp_path: Path, text: str) -> None:
    assert compare(tmp_path, text + "\n", Question()) is not None


@pytest.mark.parametrize("text", REFUSED)
def test_a_line_that_ssh_refuses_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    assert compare(tmp_path, f"# a comment\n{text}\n", Question()) is None
    number = 3 if "\n" in text else 2
    with pytest.raises(
        UsageError, match=re.escape(f"the SSH configuration cannot be read: {tmp_path}/config:{number}: ")
    ):
        SSHSettings(tmp_path / "config", Path("/none"))


@pytest.mark.parametrize(
    "data", [b"User b\xfcrger", b"HostName a\xff", b"UserKnownHostsFile a\0b", b"ProxyCommand nc \xe9"]
)
def test_bytes_that_are_no_text_are_refused_with_their_place(tmp_path: Path, data: bytes) -> None:
    config = tmp_path / "config"
    config.write_bytes(b"# caf\xe9: a comment may be anything\nSetEnv A=\xe9\n" + data + b"\n")
    with pytest.raises(UsageError, match=r"config:3: bytes that are not UTF-8 text in 'User|config:3: bytes"):
        SSHSettings(config, Path("/none"))


@pytest.mark.parametrize("text", read_table("ssh_config_differential/given_users_and_ports"))
def test_a_user_and_a_port_that_were_given_count_everywhere(tmp_path: Path, text: str) -> None:
    answer = compare(tmp_path, f"{text}\n", Question("n1", "bob", 77))
    assert answer
    assert (answer["user"], answer["port"]) == ("bob", "77")


@pytest.mark.parametrize("text", ["%z", "%", "%T", "${IPEXCTL_NONE}"])
def test_a_token_without_a_value_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    assert compare(tmp_path, f"{'HostName' if text == '%T' else 'UserKnownHostsFile'} a{text}\n", Question()) is None
    with pytest.raises(UsageError, match=f"{tmp_path}/config:1: .* has no value"):
        SSHSettings(tmp_path / "config", Path("/none")).find_settings(Host("n1", "n1"))


def test_tokens_in_identity_and_certificate_files_are_those_of_ssh(tmp_path: Path) -> None:
    """`ssh -G` does not replace these; `ssh -v` names the files that it looks for."""
    tokens = "%d/%h-%n-%r-%p-%u-%i-%k-%l-%L-%C-%%"
    lines = [
        f"IdentityFile {tokens}",
        'IdentityFile "${HOME}/${IPEXCTL_CASE} %n"',
        "IdentityFile ~/%h",
        "HostName 10.0.0.1",
    ]
    lines += [f"CertificateFile {tokens}c", "CertificateFile '${HOME}/b %r'", "User bob", "Port 77"]
    config = tmp_path / "config"
    config.write_text("".join(f"{line}\n" for line in lines))
    words = ["ssh", "-v", "-F", str(config), "-oProxyCommand=false", "-oBatchMode=yes", "n1"]
    output = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True).stderr
    result = SSHSettings(config, Path("/none")).find_settings(Host("n1", "n1"))
    keys = [str(Path(name).expanduser()) for name in result.keys]
    assert keys == re.findall(r"identity file (.*) type", output)
    assert list(result.certificates) == re.findall(r"certificate file (.*) type", output)
    assert (len(keys), len(result.certificates)) == (3, 2)


ALGORITHM_LINES = [
    "Ciphers aes128-ctr,aes256-ctr", "Ciphers 'aes128-ctr' # no other", "Ciphers=aes128-ctr\nCiphers aes256-ctr",
    "Ciphers +aes128-cbc,3des-cbc", "Ciphers ^aes256-ctr", "Ciphers -aes128-ctr", "Ciphers -aes128*,chacha20*",
    "Ciphers -bogus", "Host x\n Ciphers aes128-ctr\nHost n1\n Ciphers aes192-ctr", "Ciphers aes128-ctr,,aes256-ctr,",
    "MACs hmac-sha1", "MACs +hmac-md5", "MACs ^hmac-sha1,hmac-sha2-512", "MACs -umac*,hmac-sha1*", "MACs -",
    "KexAlgorithms curve25519-sha256", "KexAlgorithms +diffie-hellman-group1-sha1", "KexAlgorithms -*nistp*",
    "KexAlgorithms ^ecdh-sha2-nistp521", "KexAlgorithms -diffie-*,ecdh-sha2-nistp25?",
    "HostKeyAlgorithms ssh-ed25519", "HostKeyAlgorithms +ssh-rsa", "HostKeyAlgorithms -ecdsa*,sk-*",
    "HostKeyAlgorithms ^rsa-sha2-512", "HostKeyAlgorithms ssh-ed25519\nHostKeyAlgorithms ssh-rsa",
]  # fmt: skip


@pytest.mark.parametrize("text", ALGORITHM_LINES)
def test_lists_of_algorithms_change_those_before_as_with_ssh(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config"
    config.write_text(f"{text}\n")
    config.chmod(0o600)
    keyword = re.findall(r"\w*(?:algorithms|ciphers|macs)", text.lower())[0]
    value = find_options(read_config(config, tmp_path), "n1").get_word(keyword)
    usual = list_algorithms(Path("/dev/null"), keyword)
    assert change_algorithms(usual, value) == list_algorithms(config, keyword)


def list_algorithms(config: Path, keyword: str) -> list[str]:
    """What ssh would offer."""
    output = subprocess.run(["ssh", "-G", "-F", config, "n1"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    (value,) = re.findall(rf"^{keyword} (.*)$", output.stdout, re.MULTILINE)
    return str(value).split(",")


# files at random ------------------------------------------------------------------------------------------------------

SCOPES = [
    "Host n1", "Host n? !n2", "Host 10.*", "Host *", "Host a 'n1'", "Match all", "Match final all",
    "Match host N1,10.*",
    "Match originalhost n*", "Match user bob", "Match !user bob", "Match canonical", "Match final user alice",
    f"Match localuser {USER.pw_name}", "Match host=10.0.0.* !user bob", 'Match exec "test %p = 2"',
]  # fmt: skip
OPTIONS = read_table("ssh_config_differential/options")
ANY_LINE = st.sampled_from([*SCOPES, *OPTIONS[:-2], *OPTIONS[:-2]])
LINES = st.lists(
    st.one_of(ANY_LINE, ANY_LINE, st.sampled_from(["Include b", "Include c", "Include b c", "Include none*"])),
    max_size=12,
)
QUESTIONS = st.builds(
    Question,
    st.sampled_from(["n1", "N1", "n2", "10.0.0.7"]),
    st.sampled_from([None, "bob"]),
    st.sampled_from([None, 2]),
)


@settings(max_examples=300, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@example(["Host 10.*", "User bob", "Match canonical", "Port 1", "Host n1", "HostName 10.0.0.7"], [], [], "", Question())
@example(["Host 10.*", "User bob", "Host n1", "HostName 10.0.0.7", "Host x", "Include b"], ["Match final all"], [], "",
         Question())  # fmt: skip
@example(["Include b c", "User alice", "Port 2", "Host n*", "ConnectTimeout 3"], ["Host b", "User bob"],
         ["ProxyJump b"], "", Question())  # fmt: skip
@example(["Host n*", "Include b", "Port 2", "User alice"],
         ["ConnectTimeout 4", "Host n1 m1", "User bob", "Match all", "ProxyJump b"], [], "",
         Question("n2"))  # fmt: skip
@example(["Host n*", "Include b", "Port 2", "User alice"], ["Host n1 m1", "User bob"], [], "", Question("m1"))
@example([f"Match user {USER.pw_name} host n1", "Include b", "Port 9"], ["HostName 10.0.0.1", "User bob"], [], "",
         Question())  # fmt: skip
@given(LINES, LINES, st.lists(ANY_LINE, max_size=6), st.sampled_from(["", "", "", *OPTIONS[-2:]]), QUESTIONS)
def test_files_at_random_mean_what_they_mean_to_ssh(
    top: list[str], b: list[str], c: list[str], last: str, question: Question
) -> None:
    b = [line.replace("Include b", "Include c") for line in b]
    with tempfile.TemporaryDirectory() as place:
        for name, lines in {"b": b, "c": c}.items():
            Path(place, name).write_text(place_includes(lines, place))
            Path(place, name).chmod(0o600)
        compare(Path(place), place_includes([*top, last], place), question)


def place_includes(lines: list[str], place: str) -> str:
    """The text of a file whose Include lines name files in a directory."""
    text = "".join(f"{line}\n" for line in lines)
    return re.sub(r"^Include .*$", lambda match: re.sub(r" (\S)", rf" {place}/\1", match[0]), text, flags=re.MULTILINE)


def test_the_page_names_every_keyword_that_is_read() -> None:
    page = (Path(__file__).parents[2] / "docs/ssh.md").read_text("utf-8")
    section = page.partition("## What is read")[2].partition("\n## ")[0]
    assert {word.lower() for word in re.findall(r"`([A-Za-z]+)`", section)} >= sshconfig._KEYWORDS


# who may write a file -------------------------------------------------------------------------------------------------


@pytest.mark.fault("L4")
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o646, 0o666, 0o400])
def test_an_included_file_that_others_can_write_is_refused_as_by_ssh(tmp_path: Path, mode: int) -> None:
    included = tmp_path / "my file"
    included.write_text("ProxyCommand touch /none\n")
    included.chmod(mode)
    config = tmp_path / "config"
    config.write_text(f'Include "{included}"\n')
    config.chmod(0o600)
    refused_by_ssh = ask_ssh(config, Question()) is None  # some builds let a group write that has no other members
    assert (ask_ipexctl(config, Question()) is None) is bool(mode & 0o022)
    assert refused_by_ssh is bool(mode & 0o022) or mode & 0o022 == 0o020
    if mode & 0o022:
        with pytest.raises(UsageError, match=f"my file can be written by others \\(mode {mode:04o}\\)") as refused:
            SSHSettings(tmp_path / "config", Path("/none"))
        subprocess.run(["sh", "-c", str(refused.value.hint)], check=True)  # as it is printed
        assert SSHSettings(tmp_path / "config", Path("/none"))


@pytest.mark.fault("L4")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_an_included_file_of_another_user_is_refused_as_by_ssh(tmp_path: Path) -> None:
    included = tmp_path / "included"
    included.write_text("ProxyCommand touch /none\n")
    included.chmod(0o600)
    os.chown(included, 12345, 12345)
    assert compare(tmp_path, f"Include {included}\n", Question()) is None
    with pytest.raises(UsageError, match="included belongs to another user") as refused:
        SSHSettings(tmp_path / "config", Path("/none"))
    assert str(refused.value.hint).startswith(f"sudo chown {USER.pw_name} {included} && ")


@pytest.mark.fault("L4")
@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_the_users_own_file_is_held_to_the_same(tmp_path: Path, mode: int) -> None:
    config = tmp_path / "config"
    config.write_text("")
    config.chmod(mode)
    with pytest.raises(UsageError, match="config can be written by others") as refused:
        SSHSettings(config, Path("/none"))
    assert refused.value.hint == f"chmod go-w {config}"
    assert "read it before you trust it" in refused.value.reasons[0]


# jump hosts -----------------------------------------------------------------------------------------------------------


def list_way(directory: Path, text: str, host: str) -> list[str]:
    """The jump hosts on the way to a host, the nearest to us first."""
    config = directory / "config"
    config.write_text(text)
    config.chmod(0o600)
    step = SSHSettings(config, Path("/none")).find_settings(Host(host, host)).jump
    way: list[str] = []
    while step:
        way.insert(0, f"{step.user}@{step.address}:{step.port}")
        step = step.jump
    return way


def test_the_own_jump_of_a_jump_host_counts_unless_one_was_named_for_it(tmp_path: Path) -> None:
    text = "User u\nHost n1\n ProxyJump b\nHost n2\n ProxyJump x,bob@b:7\n"
    text += "Host b\n HostName 10.0.0.9\n ProxyJump a\nHost a\n Port 8\n"
    assert list_way(tmp_path, text, "n1") == ["u@a:8", "u@10.0.0.9:22"]
    assert list_way(tmp_path, text, "n2") == ["u@x:22", "bob@10.0.0.9:7"], "as with ssh -J x bob@b:7"
    assert list_way(tmp_path, text, "a") == []


def test_a_jump_host_for_all_hosts_is_reached_directly(tmp_path: Path) -> None:
    assert list_way(tmp_path, "User u\nProxyJump bastion\n", "n1") == ["u@bastion:22"]
    assert list_way(tmp_path, "User u\nProxyJump bastion\n", "bastion") == []
    assert list_way(tmp_path, "User u\nProxyJump gate-of-%h,b\n", "n1")[-2:] == ["u@gate-of-n1:22", "u@b:22"]


# known_hosts ----------------------------------------------------------------------------------------------------------


def make_line(hosts: str, seed: int) -> str:
    kind = b"ssh-ed25519"
    body = hashlib.sha256(str(seed).encode()).digest()
    data = len(kind).to_bytes(4, "big") + kind + len(body).to_bytes(4, "big") + body
    return f"{hosts} {kind.decode()} {base64.b64encode(data).decode()}"


def hash_name(name: str) -> str:
    salt = hashlib.sha1(name.encode()).digest()
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


HOSTS = [
    "n1", "n1,10.0.0.1", "N2", "n3,n4 comment", "[n1]:2200", "[10.0.0.1]:2200,[n5]:22", "[n6]:22", "*.cluster", "n?",
    "*.cluster,!bad.cluster", "!n1,*", "n[1]", "[n*]:2200", "[*]:77", "::1", "[::1]:2200", "fe80::1,FE80::2",
    hash_name("n1"), hash_name("n2"), hash_name("[n1]:2200"), hash_name("10.0.0.1"), hash_name("[::1]:2200"),
    "@revoked *", "@revoked n1", f"@revoked {hash_name('n3')}", "@cert-authority *.cluster", "@cert-authority n4,!n1",
]  # fmt: skip


def test_known_hosts_are_found_as_by_ssh_keygen(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    lines = [
        make_line(hosts, number) if "comment" not in hosts else make_line("n3,n4", 3) + " x"
        for number, hosts in enumerate(HOSTS)
    ]
    path.write_text("\n".join(["# a comment", "", *lines]) + "\n")
    known = KnownHosts([path])
    assert known.problems == []
    names = read_table("ssh_config_differential/names")
    result = 0
    for host, port in [*((name, 22) for name in names), *((name, 2200) for name in names), ("n1", 77), ("n6", 2222)]:
        name = format_known_host_name(host, port)
        output = subprocess.run(["ssh-keygen", "-F", name, "-f", path], capture_output=True, text=True).stdout
        real = {(int(line), marker) for line, marker in re.findall(r"found: line (\d+) (\w*)", output)}
        markers = {"@revoked": "REVOKED", "@cert-authority": "CA", "": ""}
        assert {(entry.line, markers[entry.marker]) for entry in known.find_entries(name)} == real, name
        result += len(real)
    assert result > 60


def test_the_hash_of_a_connection_is_that_of_ssh(tmp_path: Path) -> None:
    answer = compare(tmp_path, "UserKnownHostsFile %C\n", Question("n1", "bob", 77))
    words = f"{socket.gethostname()}n177bob".encode()
    assert answer
    assert answer["known"] == hashlib.sha1(words).hexdigest()
