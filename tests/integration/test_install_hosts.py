"""Install over SSH on separate hosts: own disks, no way out but to the controller. Only the wheels are doubles."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context, Limits
from ipexctl.act.ssh import Links
from ipexctl.decide.diagnosis.known_errors import ErrorMatch, make_diagnosis
from ipexctl.decide.parsing import limit_inventory
from ipexctl.model.errors import Exit, Hint, UsageError
from ipexctl.model.events import Event, FindingReported, Progress, StepEnded
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.tasks import Doctor, Install
from ipexctl.model.text import format_size
from ipexctl.verbs.doctor.doctor import doctor
from ipexctl.verbs.install.install import install
from tests import wheels
from tests.cluster import Cluster
from tests.e2e.workspace import kill
from tests.integration.test_install import Played
from tests.unit.test_hints import ERRORS, parse
from tests.wheels import Index, serving

VENV = "/root/share/env"
BALLAST = 8 << 20
CONTROLLER = "10.77.0.1"


class Site:
    """The controller of two hosts of a cluster, with a cache of its own."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.cluster, self.path, self.names = cluster, path, ("node0", "node2")
        (path / "home").mkdir()
        hosts = (Host(name, cluster.address(name), user="root", key=str(cluster.key)) for name in self.names)
        self.inventory = Inventory(tuple(hosts))
        self.on_event: Callable[[Event], None] = lambda _: None
        self.limits = Limits(stall=20.0, probe=1.0)

    def play(self, index: Index, **wish: Any) -> Played:
        asked = {"venv": VENV, "torch": "2.8.0", "track": "native", "backend": "gloo", "python": "/usr/bin/python3"}
        task = Install(**{**asked, "index_url": index.url, **wish})
        environ = {"HOME": str(self.path / "home"), "PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null"}
        links = Links(known_hosts=self.cluster.known_hosts, config=None)
        places = self.path / "state", self.path / "cache"
        context = Context(links, *places, environ=environ, limits=self.limits)
        events: list[Event] = []
        try:
            story = install(task, self.inventory, context)
            for event in story:
                self.on_event(event)
                events.append(event)
        except UsageError as refusal:
            return Played(events, refusal)
        finally:
            links.close()
        return Played(events)

    def succeed(self, index: Index, **wish: Any) -> Played:
        """Plays an install that must end well."""
        played = self.play(index, **wish)
        assert played.exit == Exit.OK, (played.refusal, played.failures())
        return played

    def ids(self) -> list[str]:
        """The active environment of each host, "" for none."""
        result = []
        for name in self.names:
            output = self.cluster.exec(name, ["cat", f"{VENV}/ipexctl.json"])
            result.append(json.loads(output.stdout)["id"] if output.returncode == 0 else "")
        return result

    def left(self, host: str) -> list[str]:
        """What lies beside the environments."""
        output = self.cluster.exec(host, ["ls", f"{VENV}.d"]).stdout.split()
        return [name for name in output if name not in {"lock", "tokens", "bin", "cache"}]


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    with cluster.inside():
        yield Site(cluster, tmp_path)
    for name in cluster.names:
        cluster.power_on(name)
        cluster.exec(name, ["rm", "-rf", VENV, f"{VENV}.d", "/root/.cache"])


def test_hosts_that_reach_the_index_fetch_by_themselves_and_each_has_its_own_environment(site: Site) -> None:
    with serving(Index(wheels.stack()), CONTROLLER) as index:
        played = site.succeed(index)
        assert sorted(played.ended("install")) == ["node0", "node2"]
        assert len(set(site.ids())) == 1
        fetching = {
            client for client, path in index.asked if path.startswith("GET /files/torch") and "meta" not in path
        }
        assert fetching == {site.cluster.address(name) for name in site.names}
        asked = len(index.asked)
        again = site.play(index)
        assert again.answer["changed"] == []
        assert len(index.asked) == asked


@pytest.mark.fault("D2")
def test_a_host_that_loses_power_while_unpacking_leaves_the_others_as_they_were_and_is_healed(site: Site) -> None:
    with serving(Index(wheels.stack()), CONTROLLER) as index:
        assert site.play(index).exit == Exit.OK
        before = site.ids()
        index.wheels[:] = [wheels.torch("2.9.0", ballast=8 << 20), wheels.impi(), wheels.numpy()]
        victim = site.cluster.address("node2")
        asked = threading.Event()

        def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
            if client == victim and path.startswith("/files/torch") and path.endswith(".whl"):
                asked.set()
                threading.Event().wait(4)
            return False

        def on_event(event: Event) -> None:
            if asked.is_set() and isinstance(event, Progress) and event.host == "node2":
                asked.clear()
                site.cluster.power_off("node2")

        index.misbehave, site.on_event = misbehave, on_event
        played = site.play(index, torch="2.9.0")
        assert played.exit == Exit.UNREACHABLE, (played.failures(), played.refusal)
        assert played.failures()[0].startswith("node2: ")
        index.misbehave, site.on_event = None, lambda _: None
        site.cluster.power_on("node2")
        assert site.ids() == before
        healed = site.succeed(index, torch="2.9.0")
        assert len(set(site.ids())) == 1
        assert site.left("node2") == [healed.answer["id"]]


def test_a_link_that_is_cut_ends_what_was_going_on_at_the_host(site: Site) -> None:
    """Our program there notices, stops uv, and gives the lock back."""
    with serving(Index(wheels.stack()), CONTROLLER) as index:
        gate = threading.Event()

        def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
            if path.startswith("/files/torch") and path.endswith(".whl") and client != CONTROLLER:
                gate.wait(60)
            return False

        class Broken(Exception):
            pass

        def on_event(event: Event) -> None:
            if isinstance(event, Progress) and event.host:
                raise Broken

        index.misbehave, site.on_event = misbehave, on_event
        with pytest.raises(Broken):
            site.play(index)
        gate.set()
        for name in site.names:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                ours = [process.argv for process in site.cluster.processes(name) if "uv" in " ".join(process.argv)]
                if not ours and not site.left(name):
                    break
                time.sleep(0.1)
            assert site.left(name) == []
            assert ours == []
        index.misbehave, site.on_event = None, lambda _: None
        assert site.play(index).exit == Exit.OK


@pytest.mark.fault("B1")
def test_a_host_that_refuses_connections_is_reported_and_the_others_are_looked_at_but_not_changed(site: Site) -> None:
    hosts = list(site.inventory)
    hosts[1] = Host("node2", hosts[1].address, user="root", port=9, key=hosts[1].key)
    site.inventory = Inventory(tuple(hosts))
    with serving(Index(wheels.stack()), CONTROLLER) as index:
        looked = site.play(index, check=True)
        assert looked.exit == Exit.UNREACHABLE
        assert "node2: " in looked.failures()[0]
        assert looked.answer["changed"] == ["node0"]
        stopped = site.play(index)
        assert stopped.exit == Exit.UNREACHABLE
        assert "nothing was changed" in stopped.output()
        assert site.ids() == ["", ""]
        partial = site.play(index, partial=True)
        assert partial.exit == Exit.UNREACHABLE
        assert partial.answer["changed"] == ["node0"]
        assert [bool(id) for id in site.ids()] == [True, False]


@pytest.mark.fault("D8")
def test_of_two_controllers_at_once_on_all_hosts_one_set_wins_everywhere(site: Site, tmp_path: Path) -> None:
    with serving(Index([*wheels.stack(), wheels.torch("2.9.0")]), CONTROLLER) as index:
        (tmp_path / "other").mkdir()
        other = Site(site.cluster, tmp_path / "other")
        played: dict[str, Played] = {}

        def second() -> None:
            with site.cluster.inside():
                played["2.9.0"] = other.play(index, torch="2.9.0")

        thread = threading.Thread(target=second)
        thread.start()
        played["2.8.0"] = site.play(index, torch="2.8.0")
        thread.join()
        exits = sorted(one.exit for one in played.values())
        assert exits in ([Exit.OK, Exit.OK], [Exit.OK, Exit.BUSY]), [one.failures() for one in played.values()]
        ids = set(site.ids())
        assert len(ids) == 1
        assert ids <= {one.answer.get("id") for one in played.values() if one.exit == Exit.OK}
        for name in site.names:
            assert site.left(name) == sorted(ids)


@pytest.mark.fault("D7")
def test_a_host_that_is_served_another_wheel_stops_the_switch_everywhere(site: Site) -> None:
    other = wheels.torch("2.9.0", note="not the one that was locked")
    victim = site.cluster.address("node2")

    def misbehave(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        served = client == victim and path.startswith("/files/torch-2.9.0") and path.endswith(".whl")
        if served:
            wheels.reply(handler, 200, other.data)
        return served

    with serving(Index([*wheels.stack(), wheels.torch("2.9.0")]), CONTROLLER) as index:
        assert site.play(index).exit == Exit.OK
        before = site.ids()
        index.misbehave = misbehave
        played = site.play(index, torch="2.9.0", wheels_from="hosts")
        assert played.exit == Exit.STEP
        assert "is not the one that was locked" in played.failures()[0]
        assert site.ids() == before
        partial = site.play(index, torch="2.9.0", wheels_from="hosts", partial=True)
        assert partial.answer["changed"] == ["node0"]
        assert site.ids()[1] == before[1]
        index.misbehave = None
        healed = site.play(index, torch="2.9.0")
        assert (healed.exit, healed.answer["changed"]) == (Exit.OK, ["node2"])


@pytest.mark.fault("K3")
def test_when_the_switch_fails_on_one_host_all_go_back_and_the_next_install_sends_nothing(site: Site) -> None:
    with serving(Index([*wheels.stack(), wheels.torch("2.9.0")])) as index:
        assert site.play(index).exit == Exit.OK
        before = site.ids()
        active = site.cluster.exec("node2", ["readlink", VENV]).stdout.strip()

        def on_event(event: Event) -> None:
            if isinstance(event, StepEnded) and (event.step, event.host) == ("mark", "node2"):
                site.cluster.exec("node2", ["sh", "-c", f"rm {VENV} && mkdir {VENV}"])

        site.on_event = on_event
        played = site.play(index, torch="2.9.0")
        site.cluster.exec("node2", ["sh", "-c", f"rmdir {VENV} && ln -s {active} {VENV}"])
        site.on_event = lambda _: None
        assert played.exit == Exit.STEP
        assert played.failures()[0] == f"node2: {VENV} exists already, and ipexctl did not make it"
        assert sorted(played.ended("go back")) == ["node0", "node2"]
        assert played.answer["changed"] == []
        assert "no host was switched" in played.output()
        assert site.ids() == before
        again = site.play(index, torch="2.9.0")
        assert (again.exit, again.answer["changed"]) == (Exit.OK, ["node0", "node2"])
        assert again.ended("send the wheels") == again.ended("install") == []
        assert len(set(site.ids())) == 1


def test_wheels_that_have_arrived_stay_and_the_next_install_sends_only_what_is_missing(site: Site) -> None:
    """node2 fails its check: nobody is switched. The second install has other ballast besides."""
    broken = "import os; assert os.uname().nodename != 'node2'\n"
    bad = wheels.wheel("numpy", "1.26.4", {"numpy/__init__.py": broken})
    torch = wheels.torch(ballast=BALLAST)
    source = broken + wheels.TORCH.replace("{version}", "2.8.0")
    bad_torch = wheels.wheel("torch", "2.8.0", {"torch/__init__.py": source}, requires=("numpy",))
    with serving(Index([bad_torch, wheels.impi(), bad])) as index:
        played = site.play(index)
        assert (played.exit, played.failures()) == (Exit.STEP, ["node2: import torch: AssertionError: torch"])
        assert played.answer["changed"] == []
        assert [site.left(name) for name in site.names] == [["wheels"]] * 2
        again = site.play(index)
        assert again.exit == Exit.STEP
        sent = [event.detail for event in again.events if isinstance(event, StepEnded) and "send" in event.step]
        assert sent == ["they have arrived before"] * 2
        index.wheels[:] = [torch, wheels.impi(), wheels.numpy()]
        cured = site.succeed(index, with_=("numpy",))
        impi = wheels.impi().filename
        assert cured.answer["changed"] == ["node0", "node2"]
        total = sum(len(built.data) for built in index.wheels if built.filename != impi)
        details = [event.detail for event in cured.events if isinstance(event, StepEnded) and "send" in event.step]
        assert details[0] == f"{format_size(total)} from here", "impi-rt had arrived"
        assert [site.left(name) for name in site.names] == [[cured.answer["id"]]] * 2


@pytest.mark.parametrize("step", ["switch", "confirm"])
def test_a_host_whose_session_dies_in_the_switch_does_what_the_others_do(site: Site, step: str) -> None:
    """Before the first host is confirmed all go back; after it, all go forward."""
    with serving(Index([*wheels.stack(), wheels.torch("2.9.0")])) as index:
        assert site.play(index).exit == Exit.OK
        before = site.ids()
        seen: list[str] = []

        def on_event(event: Event) -> None:
            if isinstance(event, StepEnded) and event.step == step and not seen:
                seen.append(event.host)
                for process in site.cluster.processes("node2"):
                    if "<ipexctl>" in " ".join(process.argv):
                        kill(process.outer)

        site.on_event = on_event
        played = site.play(index, torch="2.9.0")
        site.on_event = lambda _: None
        ids = site.ids()
        assert len({*ids}) == 1
        assert (played.exit, "node2: " in played.failures()[0]) == (Exit.UNREACHABLE, True)
        assert played.answer["changed"] == ([] if ids == before else ["node0", "node2"])
        assert (ids == before) == (step == "switch")
        assert site.play(index, torch="2.9.0").exit == Exit.OK
        assert {*site.ids()} != {*before}


@pytest.mark.fault("M6")
def test_an_install_that_a_known_error_advises_keeps_the_torch_of_the_hosts(site: Site) -> None:
    """Each is read by the real command line, and planned on hosts whose torch is not the newest of the index."""
    versions = {"plain": "1.0", "torchvision": "0.23", "tensorboard": "2.0", "setuptools": "80.0", "numpy": "2.0"}
    versions |= {"protobuf": "3.20", "datasets": "3.0", "sentencepiece": "0.2", "tiktoken": "0.9", "accelerate": "1.0"}
    versions |= {"opencv-python": "4.0", "opencv-python-headless": "4.0", "pysocks": "1.0", "socksio": "1.0"}
    both = [*versions.items(), ("datasets", "4.0")]
    more = [wheels.wheel(name, version, {f"{name}/__init__.py": ""}) for name, version in both]
    with serving(Index([*wheels.stack(), *more]), CONTROLLER) as index:
        first = site.succeed(index)
        index.wheels.append(wheels.torch("2.9.0"))
        site.inventory = Inventory((site.inventory["node0"],))  # they are alike
        commands, groups = (
            {},
            {"least": "1.0", "torch": "2.8.0", **dict.fromkeys(("module", "need", "package"), "plain")},
        )
        for known in ERRORS:
            command = make_diagnosis(ErrorMatch(known, groups), "node0").command
            if isinstance(command, Hint) and command.words[0] == "install":
                commands[command.words] = known.code
        refused = []
        for words, code in commands.items():
            [task] = [model for model in parse([*words]) if isinstance(model, Install)]
            wish = {each.name: getattr(task, each.name) for each in fields(task)}
            ours = dict.fromkeys(("venv", "python", "index_url", "check"))
            played = site.play(index, check=True, **{name: value for name, value in wish.items() if name not in ours})
            if played.refusal:
                refused.append(code)
                continue
            assert re.match(r"torch 2\.8\.0 \+ ", played.plan), (words, played.plan)
            assert not re.search(r"torch 2\.8\.0 →|removes", played.plan), (words, played.plan)
        assert len(commands) >= 12
        # The index has not what they need, or the environment not what goes; nothing was changed.
        assert refused == ["no-ccl", "no-mpi", "opencv-screen", "mpi4py-futures"]
        assert set(site.ids()) == {first.answer["id"]}


@pytest.mark.fault("M6")
def test_the_advised_install_gives_a_host_what_the_others_have_and_changes_nothing_else(site: Site) -> None:
    def advised() -> list[str]:
        links = Links(known_hosts=site.cluster.known_hosts, config=None)
        context = Context(links, site.path / "state", site.path / "cache")
        try:
            found = [*doctor(Doctor(venv=VENV, pairwise="off"), site.inventory, context)]
        finally:
            links.close()
        fixes = [each.finding.fix for each in found if isinstance(each, FindingReported)]
        return [fix.splitlines()[-1] for fix in fixes if "ipexctl install" in fix]

    with serving(Index([*wheels.stack(), wheels.wheel("plain", "1.0", {"plain.py": ""})]), CONTROLLER) as index:
        first = site.succeed(index, with_=("plain",))
        index.wheels += [wheels.torch("2.9.0"), wheels.wheel("plain", "2.0", {"plain.py": ""})]
        site.cluster.exec("node2", ["rm", "-rf", VENV, f"{VENV}.d"])
        inode = site.cluster.exec("node0", ["stat", "-Lc", "%i %Z", VENV]).stdout
        assert advised() == [f"ipexctl install --like node0 --limit node2 --venv {VENV}"]
        whole, site.inventory = site.inventory, limit_inventory(site.inventory, "node2")
        newest = {"torch": None, "track": None, "backend": "auto"}
        second = site.succeed(index, like="node0", **newest)
        assert (second.answer["changed"], site.ids()) == (["node2"], [first.answer["id"]] * 2)
        assert "--limit" not in second.answer["next"], "the others have had it"
        assert site.cluster.exec("node0", ["stat", "-Lc", "%i %Z", VENV]).stdout == inode
        refused = site.play(index, like="node0", with_=("plain>1",), **newest)
        assert "hosts left out would keep another one" in str(refused.refusal)
        assert "'nod0' is not among the hosts of this command (did you mean node0" in str(
            site.play(index, like="nod0").refusal
        )
        site.inventory = whole
        assert advised() == []
