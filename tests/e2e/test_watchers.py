"""Those who watch a run come and go, the run goes on: several at once, and the verbs of those who come later, from
another directory with nothing saved."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl.show.saved_profile import read_profile
from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, GATE, LIGHT, ROOT, Desk, Started, Terminal, open_gates, residue, wait

RUN = ("run", "--venv", LIGHT)
LEDGER = "/root/ledger"
Start = Callable[..., Started]


def ticks(count: int) -> bytes:
    return b"".join(b"tick %d\n" % number for number in range(count))


def write_hook(directory: Path) -> tuple[str, Path]:
    """A command for ``--notify``, and the file that gets what the command is given, a line each."""
    hook, heard = directory / "hook.py", directory / "heard"
    hook.write_text("import sys\nopen(sys.argv[1], 'a').write(sys.stdin.read())\n")
    return f"{sys.executable} {hook} {heard}", heard


def runs(desk: Desk) -> list[dict[str, object]]:
    told = desk("ps", "--json")
    assert told.code == 0, told
    return list(told.answer["runs"])


def test_a_detached_run_is_watched_by_another_desk_to_its_end_without_a_missing_byte(
    desk: Desk, hosts: Cluster, tmp_path: Path
) -> None:
    told = desk(*RUN, "--detach", ACTOR, "count", "40", GATE)
    assert told.code == 0, told
    other = Desk(hosts, tmp_path / "other")
    [one] = runs(other)
    assert one["state"] == "running"
    assert one["hosts"] == ["node0", "node1", "node2"]
    assert one["watchers"] == 0
    open_gates(hosts)
    hook, heard = write_hook(tmp_path)
    attached = other("attach", "--notify", hook)
    assert attached.code == 0, attached
    assert "0 processes left on 3 hosts" in attached.out
    for rank in range(3):
        assert other.written(rank) == ticks(40)
    start, end = map(json.loads, heard.read_text().splitlines())
    assert start["text"] == "actor.py: watched, 3 ranks on 3 hosts"
    assert (end["event"], end["result"], end["exit"]) == ("end", "ok", 0)
    assert runs(other) == []
    assert not residue(hosts)


def test_the_profile_of_a_detached_run_comes_to_who_attaches(desk: Desk, hosts: Cluster, tmp_path: Path) -> None:
    """Also where the run has ended: its traces wait on each host."""
    told = desk(*RUN, "--detach", "--profile", "3:4", ROOT / "tests/integration/ranks/profiled/train.py")
    assert told.code == 0, told
    other = Desk(hosts, tmp_path / "other")
    wait(lambda: [one["state"] for one in runs(other)] == ["ended"], 60.0)
    attached = other("attach")
    assert attached.code == 0, attached
    profile = read_profile(other.records[-1])
    assert [(rank.rank, rank.host, rank.steps) for rank in profile.ranks] == [(n, f"node{n}", 2) for n in range(3)]
    assert not residue(hosts)


def test_logs_gives_a_ranks_bytes_with_nothing_added(desk: Desk, hosts: Cluster, tmp_path: Path) -> None:
    assert desk(*RUN, "--detach", ACTOR, "bytes", LEDGER).code == 0
    other = Desk(hosts, tmp_path / "other")
    wait(lambda: [one["state"] for one in runs(other)] == ["ended"], 60.0)
    for rank in range(3):
        ledgers = tuple(hosts.read(f"node{rank}", f"{LEDGER}/{rank}.{stream}") for stream in ("out", "err"))
        assert other.raw("logs", "--rank", str(rank)) == ledgers
    followed = other("logs", "--follow")
    assert followed.code == 0
    assert not other.records, "logs saves nothing"
    attached = other("attach")
    assert attached.code == 0, attached
    for rank in range(3):
        for stream in ("out", "err"):
            assert other.written(rank, stream) == hosts.read(f"node{rank}", f"{LEDGER}/{rank}.{stream}")
    assert not residue(hosts)


def test_stop_ends_a_run_from_elsewhere_and_its_output_can_still_be_fetched(
    desk: Desk, start: Start, hosts: Cluster, tmp_path: Path
) -> None:
    going = start(*RUN, ACTOR, "wait")
    going.until("0│waiting", "1│waiting", "2│waiting")
    other = Desk(hosts, tmp_path / "other")
    stopped = other("stop")
    assert stopped.code == 0, stopped
    assert "0 processes left on 3 hosts" in stopped.out
    told = going.end()
    assert told.code == 6, told  # whoever watched it did not get what was asked for
    assert "stopped" in told.out
    assert not [p for host in hosts.names for p in hosts.processes(host) if "IPEXCTL_RUN" in p.environ]


def test_stacks_of_all_ranks_on_request_while_the_run_goes_on(
    desk: Desk, start: Start, hosts: Cluster, tmp_path: Path
) -> None:
    going = start(*RUN, ACTOR, "wait")
    going.until("0│waiting", "1│waiting", "2│waiting")
    other = Desk(hosts, tmp_path / "other")
    told = other("logs", "--stacks")
    assert told.code == 0, told
    assert "all 3 ranks are at the same place" in told.out
    assert "actor.py:" in told.out
    assert other("logs", "--stacks", "--rank", "9").code == 2
    assert [run["state"] for run in runs(other)] == ["running"]
    going.until("stacks are in the record, on request")
    assert other("stop").code == 0
    assert going.end().code == 6
    assert other("logs", "--stacks").code == 4


def test_a_command_is_told_of_the_start_the_stall_and_the_end_of_a_run(
    desk: Desk, hosts: Cluster, tmp_path: Path
) -> None:
    hook, heard = write_hook(tmp_path)
    notify = ("--notify", hook, "--notify", "false")
    told = desk(*RUN, *notify, "--stall-warn", "2", "--stall", "kill", ACTOR, "wait")
    assert told.code == 6, told  # whatever becomes of those who are told
    assert told.err.count("--notify false: exit status 1; the command goes on") == 1
    sent = [json.loads(line) for line in heard.read_text().splitlines()]
    # On a busy machine a rank is silent for two seconds before the last one begins: a stall of some, then one of all.
    assert [event for event, _ in itertools.groupby(each["event"] for each in sent)] == ["start", "stall", "end"]
    assert "all 3 ranks are at the same place" in sent[-2]["text"]
    assert sent[-2]["hosts"] == ["node0", "node1", "node2"]
    assert (sent[-1]["result"], sent[-1]["exit"]) == ("limit", 6)
    assert not residue(hosts)


def test_stop_of_a_run_that_a_lost_guard_has_ended_is_done_when_nothing_of_it_is_left(
    desk: Desk, hosts: Cluster
) -> None:
    assert desk(*RUN, "--detach", ACTOR, "wait").code == 0
    [guard] = [each.outer for each in hosts.processes("node2") if "guard" in each.argv[:8]]
    os.kill(guard, signal.SIGKILL)
    attached = desk("attach")
    assert attached.code == 6, attached  # the run did not end well
    assert desk(*RUN, "--detach", ACTOR, "wait").code == 0
    [guard] = [each.outer for each in hosts.processes("node2") if "guard" in each.argv[:8]]
    os.kill(guard, signal.SIGKILL)
    stopped = desk("stop")
    assert stopped.code == 0, stopped  # all that was asked for is done
    assert "[node2] warning: lost (its guard ended)" in stopped.out + stopped.err
    assert "0 processes left on 3 hosts" in stopped.out
    assert not [p for host in hosts.names for p in hosts.processes(host) if "IPEXCTL_RUN" in p.environ]


def test_two_watchers_at_once_see_the_same(desk: Desk, start: Start, hosts: Cluster, tmp_path: Path) -> None:
    going = start(*RUN, ACTOR, "count", "40", GATE)
    going.until("0│tick 5\n")
    other = Desk(hosts, tmp_path / "other")
    attached = other.start("attach")
    attached.until("0│tick 5\n")
    open_gates(hosts)
    assert attached.end().code == 0, attached.said
    assert going.end().code == 0
    for rank in range(3):
        assert desk.written(rank) == other.written(rank) == ticks(40)
    assert not residue(hosts)


def test_reap_takes_away_what_a_killed_keeper_left(desk: Desk, start: Start, hosts: Cluster) -> None:
    assert desk(*RUN, "--detach", ACTOR, "wait").code == 0
    for process in hosts.processes("node0"):
        if "IPEXCTL_RUN" in process.environ and "keeper" in process.argv:
            os.kill(process.outer, signal.SIGKILL)
    wait(lambda: not any("IPEXCTL_RUN" in p.environ for host in hosts.names for p in hosts.processes(host)), 60.0)
    told = desk("reap")
    assert told.code == 0, told
    assert not residue(hosts)
    assert runs(desk) == []


def test_reap_of_a_run_that_never_was_says_so(desk: Desk) -> None:
    told = desk("reap", "1120-000000-none")
    assert told.code == 4, told
    assert "no run 1120-000000-none is kept on these hosts" in told.err


@pytest.mark.parametrize("words", [("attach",), ("attach", "1120-nosuch"), ("logs", "1120-nosuch"), ("stop",)])
def test_a_look_up_that_finds_nothing_says_so_and_is_not_saved(desk: Desk, words: tuple[str, ...]) -> None:
    told = desk(*words)
    assert told.code == 4, told
    assert f"no run {'1120-nosuch ' if words[1:] else ''}is kept on these hosts" in told.err
    assert not desk.records


def test_the_page_of_a_run_is_served_while_it_goes_on_and_left_in_its_record(
    desk: Desk, start: Start, hosts: Cluster, tmp_path: Path
) -> None:
    going = start(*RUN, ACTOR, "count", "40", GATE)
    going.until("0│tick 0", "1│tick 0", "2│tick 0")
    other = Desk(hosts, tmp_path / "other")
    served = other.start("watch", "--serve")
    told = served.until("is shown at http://127.0.0.1:")
    address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", told.out + told.err)
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
    told = going.end()
    assert told.code == 0, told
    assert served.end().code == 0
    assert not other.records, "watch saves nothing"
    [record] = desk.records
    page = (record / "report.html").read_text()
    assert "3 ranks on 3 hosts ended well" in page
    for words in ("tick 39", "CPU per rank", "where each comes from", "NUMA"):
        assert words in page
    again = desk("report", "-o", str(tmp_path / "page.html"))
    assert again.code == 0, again
    assert "tick 39" in (tmp_path / "page.html").read_text()
    assert not residue(hosts)


TRAINED = """
import os, sys, time
print("[W416 23:24:57 s.cpp:204] [c10d] The hostname of the client socket cannot be retrieved", file=sys.stderr)
step = 0
while not os.path.exists(sys.argv[1]):
    step += 1
    print(f"step {step} loss {1 / step:.4f}", flush=True)
    time.sleep(0.25)
"""


def test_the_screen_of_a_run_shows_figures_samples_and_harmless_lines(desk: Desk, hosts: Cluster) -> None:
    """On a terminal, of ranks on three hosts; the clocks of its header and of its end card are the same."""
    script = desk.path / "project/train.py"
    script.parent.mkdir()
    script.write_text(TRAINED)
    terminal = Terminal(desk, *RUN, "--metrics-every", "1", script, GATE, columns=140)

    def shows(*patterns: str) -> Callable[[], bool]:
        return lambda: all(re.search(pattern, terminal.show().decode(), re.MULTILINE) for pattern in patterns)

    try:
        wait(
            shows(
                r"^train\.py   3 ranks on 3 hosts · \w+ · .*\d{4}-\d{6}-\w{4}  00:00:\d\d$",
                r"^ rank  host +isa +stage +step +loss +it/s .*pace +cpu +memory",
                r"^›0     node0 .* running \d+ s +\d+ +0\.\d+ +\d\.\d\d .* \d+ % +[\d.]+ MiB",
                r"── 3 known harmless lines hidden \[w\] ─$",
            ),
            60.0,
            lambda: terminal.show().decode(),
        )
        terminal.type(b"\x1b[Bw")
        wait(shows("^›1 .* node1 ", "c10d-host-name  ranks 0-2"), 60.0, lambda: terminal.show().decode())
        open_gates(hosts)
        assert terminal.end(60) == 0
        shown = terminal.look()
        [header] = re.findall(r"^train\.py +(\d[\d.]* s)$", shown, re.MULTILINE)
        assert re.findall(r"ended well after (.*)$", shown, re.MULTILINE) == [header]
    finally:
        terminal.kill()
    assert not residue(hosts)
