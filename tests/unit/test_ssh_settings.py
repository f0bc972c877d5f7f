"""Settings of hosts from the user's ssh_config and the system's; `test_ssh_config_differential` compares with ssh."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ipexctl.act.ssh.settings import Settings, SSHSettings
from ipexctl.model.errors import UsageError
from ipexctl.model.hosts import Host
from tests.stopwatch import Stopwatch
from tests.tables import read_table

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


def write_config(place: Path, text: str, **more: str) -> Path:
    """A configuration, beside files that it includes; its path."""
    for name, content in {"config": text, **more}.items():
        (place / name).write_text(content)
        (place / name).chmod(0o600)
    return place / "config"


def find_settings(config: Path, host: str = "n1", system: Path = Path("/none")) -> Settings:
    return SSHSettings(config, system).find_settings(Host(host, host))


def test_many_threads_may_ask_at_once(tmp_path: Path, hasty_threads: None) -> None:
    configuration = SSHSettings(write_config(tmp_path, "Host n*\n  User someone\n  Port 2200\n"))
    with ThreadPoolExecutor(16) as pool:
        result = list(pool.map(lambda n: configuration.find_settings(Host(f"n{n}", f"n{n}")), range(320)))
    assert [(one.address, one.user, one.port) for one in result] == [(f"n{n}", "someone", 2200) for n in range(320)]


def test_the_system_file_of_red_hat_is_read_behind_the_users(tmp_path: Path) -> None:
    text = "Host node?\n  HostName 10.0.0.1\n  Port 2200\nHost other\n  ConnectTimeout 3\n"
    system = f"Include {tmp_path}/redhat\nHost *\n  User someone\n"
    redhat = REDHAT.replace("policy.config", f"{tmp_path}/policy")
    config = write_config(tmp_path, text, system=system, redhat=redhat, policy="Ciphers aes256-ctr\n")
    result = find_settings(config, "node1", tmp_path / "system")
    assert (result.address, result.user, result.port, result.timeout) == ("10.0.0.1", "someone", 2200, 9)
    assert find_settings(config, "other", tmp_path / "system").timeout == 3, "what was set before counts"


@pytest.mark.parametrize("match", read_table("ssh_settings/criteria_that_cannot_be_judged"))
def test_a_match_line_with_a_criterion_that_cannot_be_judged_never_holds(tmp_path: Path, match: str) -> None:
    result = find_settings(write_config(tmp_path, f"Match {match}\n  Port 77\nMatch all\n  User someone\n"))
    assert (result.user, result.port) == ("someone", 22)


def test_a_time_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    """Thirty digits and a letter were tried in 2^30 ways."""
    watch = Stopwatch()
    with pytest.raises(UsageError, match="not a time"):
        find_settings(write_config(tmp_path, f"ConnectTimeout {'9' * 27}x\n"))
    assert watch.read() < 1


def test_a_command_of_match_does_not_read_our_input(tmp_path: Path) -> None:
    config = write_config(tmp_path, "Match exec cat\n  Port 77\n")
    asking = f"""
import sys, pathlib
from ipexctl.act.ssh.settings import SSHSettings
from ipexctl.model.hosts import Host
print(SSHSettings(pathlib.Path({str(config)!r})).find_settings(Host("n1", "n1")).port, sys.stdin.read())
"""
    output = subprocess.run([sys.executable, "-c", asking], input="the answer", capture_output=True, text=True)
    assert output.stdout == "77 the answer\n", output.stderr


def test_a_command_has_its_tokens_also_in_what_its_shell_takes_for_a_comment(tmp_path: Path) -> None:
    assert find_settings(write_config(tmp_path, "Port 2222\nProxyCommand nc %h # %p\n")).command == "nc n1 # 2222"


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, f"Include {tmp_path}/config\n" * 2)
    with pytest.raises(UsageError, match="nested more than 16 deep"):
        SSHSettings(config)


@pytest.mark.parametrize("line", ["Port", 'Host "a', "Match host", "Match user 'a"])
def test_a_line_behind_an_include_is_refused_with_its_own_place(tmp_path: Path, line: str) -> None:
    config = write_config(tmp_path, f"Include {tmp_path}/inner\n{line}\n", inner="User a\n")
    with pytest.raises(UsageError, match=f"{re.escape(str(config))}:2"):
        SSHSettings(config)


# -- homes that do not exist -------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")
@pytest.mark.parametrize("keyword", ["UserKnownHostsFile", "GlobalKnownHostsFile", "IdentityFile", "CertificateFile"])
def test_a_file_in_the_home_of_nobody_is_refused_with_its_place_as_by_ssh(tmp_path: Path, keyword: str) -> None:
    config = write_config(tmp_path, f"User someone\n{keyword} ~nosuchuser/x\n")
    words = ["ssh", "-F", str(config), "-oProxyCommand=false", "-oBatchMode=yes", "n1"]
    refused = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert refused.returncode == 255
    assert "No such user nosuchuser" in refused.stderr
    with pytest.raises(UsageError, match=f"{config}:2: ~nosuchuser/x cannot be found: there is no user nosuchuser$"):
        find_settings(config)


def test_the_system_s_known_hosts_may_be_in_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = write_config(tmp_path, "GlobalKnownHostsFile ~/known /etc/x%h\nUserKnownHostsFile none\n")
    assert find_settings(config).known_hosts == (Path("/dev/null"), tmp_path / "known", Path("/etc/x%h"))
