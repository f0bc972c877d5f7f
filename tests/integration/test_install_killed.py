"""The controller, the installer on a host, or both die (SIGKILL) at one point of an install after the other.

What was installed before goes on working on every host, and the next install needs no hand. Only wheels are doubles.
Three points are met, each by another death, and 2 moments of the switch between two that are held; in `make drills`
all points by all three, and 20 moments.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from ipexctl.model.errors import Exit
from ipexctl.model.events import Event
from ipexctl.model.hosts import Inventory
from tests import wheels
from tests.cluster import Cluster, Process
from tests.integration.test_install_hosts import VENV, Site
from tests.integration.test_install_hosts import site as site
from tests.tables import read_table
from tests.waiting import wait
from tests.wheels import Index, serving

ROOT = Path(__file__).parents[2]
BALLAST = 8 << 20
BEFORE = "before"  # every host must still have the old one
CLOSE = (
    "close"  # as before, but a controller that lives may have told the other host to switch, not knowing of the death
)
EITHER = "either"  # the switch has begun: old or new, each of them complete

POINTS = read_table("install_killed/points")

WHOM = ["controller", "installer", "both"]
UNHEARD = "a controller that is cut off"
OTHERS = [wheels.impi(), wheels.numpy()]
DOOMED = """
import json, sys, threading, time
asked, hosts, known_hosts, path, kind, step, after = json.loads(sys.argv[1])
from pathlib import Path
from ipexctl.act.ssh import Links
from ipexctl.act.context import Context
from ipexctl.model.events import Ended
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.tasks import Install
from ipexctl.verbs.install.install import install
inventory = Inventory(tuple(Host(name, address, user="root", key=key) for name, address, key in hosts))
links = Links(known_hosts=Path(known_hosts), config=None)
environ = {"HOME": path + "/home", "PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null"}
context = Context(links, Path(path, "state"), Path(path, "cache"), environ=environ)
met = False
for event in install(Install(**asked), inventory, context):
    if not met and (type(event).__name__, getattr(event, "step", "")) == (kind, step):
        met = True
        if after < 0:
            threading.Timer(-after, print, ("here",), {"flush": True}).start()
            continue
        time.sleep(after)
        print("here", flush=True)
        sys.stdin.readline()
    if isinstance(event, Ended):
        code = int(event.exit)
sys.exit(code)
"""


def struck(site: Site, index: Index, version: str, point: tuple[str, str, float], whom: str) -> int:
    """The exit status of an install in which ``whom`` is killed at ``point``: seconds behind the first event of a kind
    and step. Work on the hosts goes on meanwhile; negative seconds: the controller's, too."""
    hosts = [(host.name, host.address, host.key) for host in site.inventory]
    asked = {"venv": VENV, "torch": version, "track": "native", "backend": "gloo", "python": "/usr/bin/python3"}
    asked["index_url"] = index.url
    reported = json.dumps([asked, hosts, str(site.cluster.known_hosts), str(site.path), *point])
    words = [*site.cluster.controller, sys.executable, "-c", DOOMED, reported]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == "here\n", f"{point} never came"
        if whom in ("installer", "both"):  # first: without a controller it would not start any more
            assert _kill_installer(site.cluster), f"{point}: no installer on node0"
        with site.cluster.cut() if whom == UNHEARD else nullcontext():
            if whom != "installer":
                child.kill()
            time.sleep(7 if whom == UNHEARD else 0)  # the hosts hear of it 6 s after the cable is back
        try:
            child.communicate("\n", timeout=60)
        except BrokenPipeError:
            child.wait(timeout=60)
    return child.returncode


def _kill_installer(cluster: Cluster) -> bool:
    """On node0; it may be about to start."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        ours = [result.outer for result in cluster.processes("node0") if "<ipexctl>" in " ".join(result.argv)]
        for pid in ours:
            with suppress(ProcessLookupError):  # it may end by itself meanwhile
                os.kill(pid, signal.SIGKILL)
        if ours:
            return True
        time.sleep(0.02)
    return False


def works(cluster: Cluster, host: str) -> str:
    """The version of torch that the active environment of a host imports."""
    output = cluster.exec(host, [f"{VENV}/bin/python", "-c", "import torch; print(torch.__version__)"])
    return output.stdout.strip() or output.stderr


@pytest.mark.fault("D1")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("whom", WHOM)
def test_wherever_an_install_dies_the_old_environment_works_and_the_next_install_heals(site: Site, whom: str) -> None:
    old, new = "2.8.0", "2.9.0"
    with serving(Index([wheels.torch(old, ballast=BALLAST), wheels.torch(new, ballast=BALLAST), *OTHERS])) as index:
        assert site.play(index, torch=old).exit == Exit.OK
        points = POINTS if os.environ.get("IPEXCTL_DRILLS") else [POINTS[4 + 2 * WHOM.index(whom)]]
        for kind, step, after, promise in points:
            point = f"{kind} of {step!r}"
            status = struck(site, index, new, (kind, step, after), whom)
            allowed = {int(Exit.UNREACHABLE)} | ({0} if promise == EITHER else set())
            assert status in ({-signal.SIGKILL} if whom != "installer" else allowed), point
            result = {works(site.cluster, host) for host in site.names}
            still = promise == BEFORE or (promise == CLOSE and whom != "installer")
            assert result <= ({old} if still else {old, new}), point
            played = site.play(index, torch=new)
            assert played.exit == Exit.OK, (point, played.failures(), played.refusal)
            assert {works(site.cluster, host) for host in site.names} == {new}, point
            for host in site.names:
                assert site.left(host) == [played.answer["id"]], (point, "what was left is gone")
            assert site.play(index, torch=new).answer["changed"] == [], point
            old, new = new, old


def test_what_a_death_after_the_switch_left_is_reported_and_taken_away_by_the_same_install(site: Site) -> None:
    site.inventory = Inventory((site.inventory["node0"],))
    with serving(Index([wheels.torch(), wheels.torch("2.9.0"), *OTHERS])) as index:
        first = site.play(index)
        assert struck(site, index, "2.9.0", ("StepEnded", "confirm", 0.0), "both") == -signal.SIGKILL
        assert works(site.cluster, "node0") == "2.9.0"
        assert first.answer["id"] in site.left("node0")
        looked = site.play(index, torch="2.9.0", check=True)
        assert f"node0  tidy: an install that was cut short left {first.answer['id']}" in looked.plan
        assert looked.answer["changed"] == ["node0"]
        assert first.answer["id"] in site.left("node0")
        again = site.play(index, torch="2.9.0")
        assert (again.exit, again.answer["changed"]) == (Exit.OK, ["node0"])
        assert site.left("node0") == [again.answer["id"]]
        assert again.ended("tidy") == ["node0"]
        assert again.ended("verify") == []


def test_the_lock_of_a_controller_whose_end_the_hosts_have_not_heard_of_is_taken_over(site: Site) -> None:
    with serving(Index([wheels.torch(), *OTHERS])) as index:
        assert struck(site, index, "2.8.0", ("StepEnded", "lock", 0.0), UNHEARD) == -signal.SIGKILL
        played = site.play(index)
        assert (played.exit, len(played.answer["changed"])) == (Exit.OK, 2), played.failures()


def free_of_installers(cluster: Cluster) -> None:
    """Waits until no session of a killed install lives."""

    def find_installers() -> list[Process]:
        every = (process for host in cluster.names for process in cluster.processes(host))
        return [process for process in every if "<ipexctl>" in " ".join(process.argv)]

    wait(lambda: not find_installers(), pause=0.1)


@pytest.mark.timeout(900)
def test_killed_at_any_moment_of_the_switch_all_hosts_have_the_old_environment_or_all_the_new(site: Site) -> None:
    """Nothing is done before the hosts are looked at: what a killed controller leaves must be right by itself."""
    versions = ["2.8.0", "2.9.0"]
    times = 20 if os.environ.get("IPEXCTL_DRILLS") else 2
    parts = random.Random(16)
    result: list[str] = []
    with serving(Index([*map(wheels.torch, versions), *OTHERS])) as index:
        assert site.play(index, torch=versions[0]).exit == Exit.OK
        begun: dict[str, float] = {}

        def note_step(event: Event) -> None:
            begun.setdefault(getattr(event, "step", ""), time.monotonic())

        site.on_event = note_step
        assert site.play(index, torch=versions[1]).exit == Exit.OK
        decided, whole = begun["tidy"] - begun["mark"], time.monotonic() - begun["mark"]
        # In turns a moment up to the decision and one behind it, one in each part of either time. How long they take
        # differs: the first and the last controller are held where it is certain what the hosts will have.
        shares = [2 * (turn // 2 + parts.random()) / times for turn in range(times)]
        moments = [
            decided + (whole - decided) * share if turn % 2 else decided * share for turn, share in enumerate(shares)
        ]
        running = [("StepStarted", "mark", -max(0.001, moment)) for moment in moments]
        for point in [("StepStarted", "mark", 0.0), *running, ("StepStarted", "tidy", 0.0)]:
            (old,) = {works(site.cluster, host) for host in site.names}
            (new,) = {*versions} - {old}
            status = struck(site, index, new, point, "controller")
            free_of_installers(site.cluster)
            now = {works(site.cluster, host) for host in site.names}
            assert len(now) == 1, (point, now)
            assert status in {-signal.SIGKILL, 0}, point
            result.append("new" if now == {new} else "old")
    assert (result[0], result[-1]) == ("old", "new"), result
