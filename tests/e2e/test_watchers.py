"""Those who watch a run come and go, the run goes on: several at once, and the verbs of those who come later, from
another directory with nothing saved."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from ipexctl.store.masking import Masker
from ipexctl.store.saved_profile import read_profile
from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, GATE, LIGHT, ROOT, Group, Start, Workspace, find_orphans, open_gates
from tests.stock import over
from tests.waiting import wait

RUN = ("run", "--venv", LIGHT)
LEDGER = "/root/ledger"


def runs(workspace: Workspace) -> list[dict[str, object]]:
    result = workspace.succeed("ps", "--json")
    return list(result.answer["runs"])


def test_the_profile_of_a_detached_run_comes_at_attach(workspace: Workspace, hosts: Cluster, tmp_path: Path) -> None:
    """Also where the run has ended: its traces wait on each host."""
    workspace.succeed(*RUN, "--detach", "--profile", "3:4", ROOT / "tests/integration/ranks/profiled/train.py")
    other = Workspace(hosts, tmp_path / "other")
    wait(lambda: [one["state"] for one in runs(other)] == ["ended"], 60.0, pause=1.0)
    other.succeed("attach")
    profile = read_profile(other.records[-1], Masker({}))
    assert [(rank.rank, rank.host, rank.steps) for rank in profile.ranks] == [(n, f"node{n}", 2) for n in range(3)]
    assert not find_orphans(hosts)


def test_a_run_whose_files_are_removed_while_it_goes_on_is_ended_as_lost(workspace: Workspace, hosts: Cluster) -> None:
    """As by somebody who makes room on the head: the ranks went on, and the command took the run for over."""
    remove = "if os.environ['RANK'] == '0': shutil.rmtree(os.environ['IPEXCTL_DIR'])"
    (workspace.path / "gone.py").write_text(f"import os, shutil, time\n{remove}\ntime.sleep(600)\n")
    result = workspace(*RUN, "--ppn", "1", "gone.py")
    assert result.code == 6, result
    assert "its files on node0 were removed while it went on" in result.out
    assert "0 processes left on 3 hosts" in result.out
    assert not find_orphans(hosts)


def test_logs_gives_a_ranks_bytes_with_nothing_added(workspace: Workspace, hosts: Cluster, tmp_path: Path) -> None:
    assert workspace(*RUN, "--detach", ACTOR, "bytes", LEDGER).code == 0
    other = Workspace(hosts, tmp_path / "other")
    wait(lambda: [one["state"] for one in runs(other)] == ["ended"], 60.0, pause=1.0)
    for rank in range(3):
        ledgers = tuple(hosts.read(f"node{rank}", f"{LEDGER}/{rank}.{stream}") for stream in ("out", "err"))
        assert other.raw("logs", "--rank", str(rank)) == ledgers
    followed = other("logs", "--follow")
    assert followed.code == 0
    assert not other.records, "logs saves nothing"
    other.succeed("attach")
    for rank in range(3):
        for stream in ("out", "err"):
            assert other.written(rank, stream) == hosts.read(f"node{rank}", f"{LEDGER}/{rank}.{stream}")
    assert not find_orphans(hosts)


@over("none")
def test_stop_of_a_run_whose_guard_was_lost_is_done(workspace: Workspace, hosts: Cluster, group: Group) -> None:
    assert workspace("run", *group, "--detach", ACTOR, "wait").code == 0
    [guard] = [each.outer for each in hosts.processes("node2") if "guard" in each.argv[:8]]
    os.kill(guard, signal.SIGKILL)
    attached = workspace("attach")
    assert attached.code == 6, attached  # the run did not end well
    assert workspace("run", *group, "--detach", ACTOR, "wait").code == 0
    [guard] = [each.outer for each in hosts.processes("node2") if "guard" in each.argv[:8]]
    os.kill(guard, signal.SIGKILL)
    stopped = workspace.succeed("stop")
    assert "[node2] warning: lost (its guard ended)" in stopped.out + stopped.err
    assert "0 processes left on 3 hosts" in stopped.out
    assert not [p for host in hosts.names for p in hosts.processes(host) if "IPEXCTL_RUN" in p.environ]


def test_the_page_of_a_run_is_served_while_it_goes_on_and_left_in_its_record(
    workspace: Workspace, start: Start, hosts: Cluster, tmp_path: Path
) -> None:
    command = start(*RUN, ACTOR, "count", "40", GATE)
    command.until("0│tick 0", "1│tick 0", "2│tick 0")
    other = Workspace(hosts, tmp_path / "other")
    served = other.start("watch", "--serve")
    result = served.until("is shown at http://127.0.0.1:")
    address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", result.out + result.err)
    assert address
    url = address[0]
    fetch = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())"

    def look() -> str:
        """What a browser on the controller gets."""
        words = [*hosts.controller, sys.executable, "-c", fetch, url]
        return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout

    # Samples are drawn from the second one on.
    shown = ("tick 0", "3 ranks on 3 hosts, running", "CPU per rank")
    wait(lambda: all(words in page for page in [look()] for words in shown), 60.0)
    open_gates(hosts)
    result = command.end()
    assert result.code == 0, result
    assert served.end().code == 0
    assert not other.records, "watch saves nothing"
    [record] = workspace.records
    page = (record / "report.html").read_text()
    assert "3 ranks on 3 hosts ended well" in page
    for words in ("tick 39", "CPU per rank", "where each comes from", "NUMA"):
        assert words in page
    workspace.succeed("report", "-o", str(tmp_path / "page.html"))
    assert "tick 39" in (tmp_path / "page.html").read_text()
    assert not find_orphans(hosts)
