"""`--persist`, `IPEXCTL_PERSIST` and `hosts --disconnect`, by the real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ipexctl.act.ssh.holder import end_connections, list_connections
from tests.contract.holders import holder_directory
from tests.contract.sshd import sshd
from tests.contract.test_holders import count_logins


def test_the_command_line_keeps_shows_and_ends_connections(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd") as server, holder_directory() as holders:
        home = holders.parent
        (home / "hostfile").write_text(
            f"node1 address=127.0.0.1 port={server.port} user={server.host().user} key={server.key}"
            f" known_hosts={server.known_hosts}\n"
        )
        env = {key: value for key, value in os.environ.items() if not key.startswith("XDG_")}
        env |= {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "IPEXCTL_PERSIST": "10m"}

        def ipexctl(*words: str) -> str:
            line = [sys.executable, "-c", "from ipexctl.cli import main; main()", *words, "-f", str(home / "hostfile")]
            return subprocess.run(line, env=env, cwd=home, capture_output=True, text=True, check=True).stdout

        def list_processes() -> list[int | None]:
            return [host.get("holder_pid") for host in json.loads(ipexctl("hosts", "--json"))["hosts"]]

        try:
            ipexctl("ps")
            ipexctl("ps", "--persist", "1h")
            assert count_logins(server) == 1
            ((_, pid),) = list_connections(home / "ipexctl").values()
            assert list_processes() == [pid]
            ipexctl("hosts", "--disconnect")
            assert list_processes() == [None]
            ipexctl("ps", "--persist", "off")
            assert list_processes() == [None]
            assert count_logins(server) == 2
            line = [sys.executable, "-c", "from ipexctl.cli import main; main()", "ps", "--persist", "soon"]
            assert subprocess.run(line, env=env, cwd=home, capture_output=True).returncode == 2
        finally:
            end_connections(home / "ipexctl", [*list_connections(home / "ipexctl")])
