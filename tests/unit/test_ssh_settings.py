"""What is read of ssh_config, held against `ssh -G` of the real one, and that many threads may ask at once."""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ipexctl.act.ssh.settings import Settings, SSHSettings
from ipexctl.model.errors import UsageError
from ipexctl.model.hosts import Host
from tests.tables import read_table

with_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")

# As RHEL 9 has them, but for the place of the crypto policy.
REDHAT = """
# The options in this file are included in the system's, before anything else is read.
Match final all
\t# Follow system-wide Crypto Policy, if defined:
\tInclude policy.config

\tGSSAPIAuthentication yes
\tForwardX11Trusted yes
\tConnectTimeout 9
"""


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def written(place: Path, files: Mapping[str, str]) -> Path:
    """Files of ssh_config in one directory, where their Include lines find one another; the first is answered."""
    for name, text in files.items():
        lines = [
            re.sub(r"(?<=\w )(\S)", rf"{place}/\1", line) if "Include" in line else line for line in text.split("\n")
        ]
        (place / name).write_text("\n".join(lines))
        (place / name).chmod(0o600)
    return place / next(iter(files))


def ours(config: Path, host: str, system: Path = Path("/none")) -> Settings:
    return SSHSettings(config, system).find_settings(Host(host, host))


def theirs(config: Path, host: str) -> dict[str, str]:
    """What ssh itself would do."""
    asked = ["ssh", "-G", "-F", str(config), host]
    output = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    return dict(line.split(" ", 1) for line in output.stdout.splitlines() if " " in line)


def compared(config: Path, host: str, system: Path = Path("/none"), *, as_one: Path | None = None) -> Settings:
    """Our settings, equal to those of ssh, which gets both files as the one ``as_one`` (-F leaves the system's out)."""
    result, real = ours(config, host, system), theirs(as_one or config, host)
    assert (result.address, result.user, result.port) == (real["hostname"], real["user"], int(real["port"]))
    assert result.timeout == (None if real["connecttimeout"] == "none" else float(real["connecttimeout"]))
    assert ",".join(jumps(result)) == real.get("proxyjump", "")
    return result


def jumps(settings: Settings) -> tuple[str, ...]:
    """The names of the jump hosts, the first one first."""
    return (*jumps(settings.jump), settings.jump.name) if settings.jump else ()


def test_many_threads_may_ask_at_once(tmp_path: Path, hasty_threads: None) -> None:
    config = tmp_path / "config"
    config.write_text("Host n*\n  User someone\n  Port 2200\n")
    config.chmod(0o600)
    configuration = SSHSettings(config)
    with ThreadPoolExecutor(16) as pool:
        result = list(pool.map(lambda n: configuration.find_settings(Host(f"n{n}", f"n{n}")), range(320)))
    assert [(one.address, one.user, one.port) for one in result] == [(f"n{n}", "someone", 2200) for n in range(320)]


# -- Match -------------------------------------------------------------------------------------------------------------


@with_ssh
def test_the_system_file_of_red_hat_is_read(tmp_path: Path) -> None:
    system = written(
        tmp_path,
        {
            "ssh_config": "Include redhat.conf\nHost *\n  User someone\n",
            "redhat.conf": REDHAT,
            "policy.config": "Ciphers aes256-ctr\n",
        },
    )
    text = "Host node?\n  HostName 10.0.0.1\n  Port 2200\nHost other\n  ConnectTimeout 3\n"
    config = written(tmp_path, {"config": text})
    both = written(tmp_path, {"both": "Include config\nInclude ssh_config\n"})
    result = compared(config, "node1", system, as_one=both)
    assert (result.address, result.user, result.port, result.timeout) == ("10.0.0.1", "someone", 2200, 9)
    assert compared(config, "other", system, as_one=both).timeout == 3, "what was set before counts"


@with_ssh
def test_final_asks_for_a_second_pass_against_the_name_that_was_found(tmp_path: Path) -> None:
    text = "Host 10.*\n  User ten\nMatch canonical\n  Port 7\nHost n1\n  HostName 10.0.0.1\nMatch user ten\n  Port 8\n"
    once = compared(written(tmp_path, {"once": text}), "n1")
    assert (once.user, once.port) == (getpass.getuser(), 22)
    more = {"twice": f"{text}Host never\n  Include more\n", "more": "Match final all\n"}
    twice = compared(written(tmp_path, more), "n1")
    assert (twice.user, twice.port) == ("ten", 7)


@with_ssh
@pytest.mark.parametrize(
    ("match", "holds"),
    read_table("ssh_settings/a_match_line_holds_where_it_does_for_ssh"),
)
def test_a_match_line_holds_where_it_does_for_ssh(tmp_path: Path, match: str, holds: bool) -> None:
    config = written(tmp_path, {"config": f"Host n1\n  HostName 10.0.0.1\nMatch {match}\n  Port 77\n"})
    assert (compared(config, "n1").port == 77) is holds


@pytest.mark.parametrize(
    "match",
    [
        "localnetwork 0.0.0.0/0", "tagged here", "version OpenSSH_*", "sessiontype exec", "command *", "!command x",
        "new-one x", "new-one", "host n1 sessiontype=exec", "sessiontype exec final all",
    ],
)  # fmt: skip
def test_a_match_line_with_a_criterion_that_cannot_be_judged_never_holds(tmp_path: Path, match: str) -> None:
    config = written(tmp_path, {"config": f"Match {match}\n  Port 77\nMatch all\n  User someone\n"})
    result = ours(config, "n1")
    assert (result.user, result.port) == ("someone", 22)


def test_a_command_of_match_does_not_read_our_input(tmp_path: Path) -> None:
    config = written(tmp_path, {"config": "Match exec cat\n  Port 77\n"})
    asking = f"""
import sys, pathlib
from ipexctl.act.ssh.settings import SSHSettings
from ipexctl.model.hosts import Host
print(SSHSettings(pathlib.Path({str(config)!r})).find_settings(Host("n1", "n1")).port, sys.stdin.read())
"""
    output = subprocess.run([sys.executable, "-c", asking], input="the answer", capture_output=True, text=True)
    assert output.stdout == "77 the answer\n", output.stderr


@with_ssh
def test_a_comment_may_stand_behind_a_value(tmp_path: Path) -> None:
    lines = [
        "Port 2222  # the head's",
        "User a#b",
        'HostKeyAlias "a # b" # c',
        "ProxyCommand nc %h # %p",
        "ConnectTimeout 3",
    ]
    config = written(tmp_path, {"config": "\n".join(lines)})
    result, real = compared(config, "n1"), theirs(config, "n1")
    assert (result.port, result.user, result.alias, result.command) == (2222, "a#b", "a # b", "nc n1 # 2222")
    assert (real["hostkeyalias"], real["proxycommand"]) == ("a # b", "nc %h # %p")
    assert jumps(compared(written(tmp_path, {"jump": "ProxyJump b # the bastion\n"}), "n1")) == ("b",)


# -- Include -----------------------------------------------------------------------------------------------------------


@with_ssh
def test_what_stands_below_an_include_is_in_the_scope_above_it(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        {
            "config": "Include *.conf\nUser alice\nPort 2222\nHost node*\n  ConnectTimeout 5\n",
            "a.conf": "Host bastion\n  User bob\n",
            "b.conf": "ProxyJump bastion\n",  # not for bastion alone: each file begins where the Include line stands
        },
    )
    node = compared(config, "node1")
    assert (node.user, node.port, node.timeout, jumps(node)) == ("alice", 2222, 5, ("bastion",))
    assert ours(config, "bastion").user == theirs(config, "bastion")["user"] == "bob"


@with_ssh
def test_an_include_in_a_scope_is_for_that_scope_only(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        {
            "config": "Host n*\n  Include inner\n  Port 9\nUser someone\n",
            "inner": "ConnectTimeout 4\nHost n1 m1\n  User one\nMatch all\n  ProxyJump bastion\n",
        },
    )
    one, two, other = (compared(config, host) for host in ("n1", "n2", "m1"))
    assert (one.user, one.port, one.timeout, jumps(one)) == ("one", 9, 4, ("bastion",))
    assert (two.user, two.port, two.timeout, jumps(two)) == ("someone", 9, 4, ("bastion",))
    assert (other.user, other.port, other.timeout, jumps(other)) == (getpass.getuser(), 22, None, ())


@with_ssh
def test_a_scope_holds_on_although_an_included_file_changed_what_it_asked_for(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        {
            "config": f"Match user {getpass.getuser()} host n1\n  Include inner\n  Port 9\n",
            "inner": "HostName 10.0.0.1\nUser bob\n",
        },
    )
    result = compared(config, "n1")
    assert (result.address, result.user, result.port) == ("10.0.0.1", "bob", 9)


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    config = written(tmp_path, {"config": "Include config\nInclude config\n"})
    with pytest.raises(UsageError, match="nested more than 16 deep"):
        SSHSettings(config)


@pytest.mark.parametrize("line", ["Port", 'Host "a', "Match host", "Match user 'a"])
def test_a_line_that_cannot_be_read_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    config = written(tmp_path, {"config": f"Include inner\n{line}\n", "inner": "User a\n"})
    with pytest.raises(UsageError, match=f"{config}:2"):
        SSHSettings(config)


# -- homes that do not exist -------------------------------------------------------------------------------------------


@with_ssh
@pytest.mark.parametrize("keyword", ["UserKnownHostsFile", "GlobalKnownHostsFile", "IdentityFile", "CertificateFile"])
def test_a_file_in_the_home_of_nobody_is_refused_with_its_place_as_by_ssh(tmp_path: Path, keyword: str) -> None:
    config = written(tmp_path, {"config": f"User someone\n{keyword} ~nosuchuser/x\n"})
    words = ["ssh", "-F", str(config), "-oProxyCommand=false", "-oBatchMode=yes", "n1"]
    refused = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert refused.returncode == 255
    assert "No such user nosuchuser" in refused.stderr
    with pytest.raises(UsageError, match=f"{config}:2: ~nosuchuser/x cannot be found: there is no user nosuchuser$"):
        ours(config, "n1")


@with_ssh
def test_an_include_from_the_home_of_nobody_includes_nothing_as_with_ssh(tmp_path: Path) -> None:
    config = written(tmp_path, {"config": "Host *\n"})
    config.write_text("Include ~nosuchuser/x ~nosuchuser\nUser someone\n")
    assert compared(config, "n1").user == "someone"


def test_the_system_s_known_hosts_may_be_in_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = written(tmp_path, {"config": "GlobalKnownHostsFile ~/known /etc/x%h\nUserKnownHostsFile none\n"})
    assert ours(config, "n1").known_hosts == (Path("/dev/null"), tmp_path / "known", Path("/etc/x%h"))
