"""Carrying directories where rsync helps: over a real sshd, with the same promises as the stream."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context
from ipexctl.act.ssh import Links
from ipexctl.act.transfer import rsync
from ipexctl.model.commands import Command, Completed
from ipexctl.model.errors import Failure, Kind, UsageError
from ipexctl.model.events import Event, HostFailed, Message, Planned, Progress
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.links import NO_TALK, Channel, LinkError, Talk
from ipexctl.model.tasks import Sync
from ipexctl.verbs.files.sync import sync
from tests.contract.sshd import Server, sshd
from tests.integration.test_sync import carried, debris, known, local, over_ssh, picture, relay, said

MB = 1_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A project with one big file in a directory."""
    place = tmp_path / "proj"
    (place / "data").mkdir(parents=True)
    (place / "data" / "big").write_bytes(random.Random(1).randbytes(8 * MB))
    (place / "train.py").write_text("print('hello')\n")
    return place


def push(server: Server, source: Path, there: Path, tmp_path: Path, **keys: Any) -> list[Event]:
    links = Links(known_hosts=known(server, server.port, tmp_path), config=None)
    task = Sync(source=str(source), **keys)
    return carried(task, Inventory((over_ssh(server, server.port, there),)), links)[1]


def failed(events: list[Event]) -> Failure:
    [failure] = [event.failure for event in events if isinstance(event, HostFailed)]
    return failure


def warnings(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Message) and event.level == "warning"]


def change(path: Path, size: int, *, seed: int = 2) -> None:
    """Writes new bytes into the middle of a file, and some more at its end."""
    middle = path.stat().st_size // 2
    with path.open("r+b") as file:
        file.seek(middle)
        file.write(random.Random(seed).randbytes(size))
        file.seek(0, os.SEEK_END)
        file.write(b"the end")


def rsyncs(below: Path) -> list[int]:
    """Processes of rsync that work below a directory, on either side."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            where = (process / "cwd").readlink()
        except OSError:
            continue
        if words[0].endswith(b"rsync") and where.is_relative_to(below):
            found.append(int(process.name))
    return found


def soon(holds: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def looks(place: Path) -> list[tuple[Path, int, int, int, int]]:
    """Everything there and how it is, but for when it was read."""
    found = [(path, path.lstat()) for path in (place, *sorted(place.rglob("*")))]
    return [(path, one.st_mode, one.st_size, one.st_mtime_ns, one.st_ino) for path, one in found]


def toolbox(place: Path, rsync: str | None) -> Path:
    """A directory with all programs of this machine, but another rsync, or none."""
    place.mkdir()
    for name in [*os.environ["PATH"].split(":"), "/usr/bin", "/bin"]:
        for program in Path(name).glob("*"):
            if program.name != "rsync" and not (place / program.name).exists():
                (place / program.name).symlink_to(program)
    if rsync is not None:
        (place / "rsync").write_text(rsync)
        (place / "rsync").chmod(0o755)
    return place


def test_of_a_big_file_that_changed_in_part_only_the_part_travels(server: Server, source: Path, tmp_path: Path) -> None:
    there, big = tmp_path / "there", source / "data" / "big"
    big.write_bytes(random.Random(1).randbytes(64 * MB))
    push(server, source, there, tmp_path)
    change(big, MB)
    big.chmod(0o755)
    (source / "new.py").write_text("new")
    with relay(server.port) as cable:
        links = Links(known_hosts=known(server, cable.port, tmp_path), config=None)
        _, events = carried(Sync(source=str(source)), Inventory((over_ssh(server, cable.port, there),)), links)
        assert MB < cable.up < 3 * MB
    [plan] = [event.text for event in events if isinstance(event, Planned)]
    assert "send data/big (61 MiB) by rsync\n  send new.py (3 B)" in plan
    outcome, detail = said(events)["node1"]
    assert outcome == "changed"
    assert detail.startswith("2 files, 61 MiB (rsync saved ")
    assert picture(there) == picture(source)
    found = (there / "data" / "big").stat()
    assert (stat.S_IMODE(found.st_mode), int(found.st_mtime)) == (0o700, int(big.stat().st_mtime))
    assert debris(there) == []
    assert rsyncs(tmp_path) == []
    assert said(push(server, source, there, tmp_path)) == {"node1": ("ok", "nothing to do")}


def test_progress_only_rises_and_ends_at_its_total(server: Server, source: Path, tmp_path: Path) -> None:
    push(server, source, tmp_path / "there", tmp_path)
    change(source / "data" / "big", MB)
    events = push(server, source, tmp_path / "there", tmp_path)
    steps = [event for event in events if isinstance(event, Progress)]
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[-1].done == steps[-1].total == 8 * MB + 7


def test_a_file_that_only_looks_unchanged_is_sent(server: Server, source: Path, tmp_path: Path) -> None:
    there, big = tmp_path / "there", source / "data" / "big"
    push(server, source, there, tmp_path)
    before = big.stat()
    big.write_bytes(big.read_bytes()[::-1])
    os.utime(big, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "by rsync" in str(push(server, source, there, tmp_path))
    assert picture(there) == picture(source)


@pytest.mark.parametrize("way", ["ssh", "local"])
def test_hard_names_arrive_and_nothing_is_executed(
    server: Server, source: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        b"two words", b"new\nline", b"-rf", b"--rsync-path=touch pwned", b";touch pwned", b"#no comment",
        b"'", b'"', b"\\", b"\\#012", b"\xff\xfe not utf-8", "漢字".encode(), b"x" * 240, b"*", b"~", b"{}", b"!",
        b"%s", b"$(touch pwned)",
        b"there:x", b"::x", b"-", b" ", b"...", b".x", b"+ *", b"merged", b"sum", b"delta", b"x.AbCdEf",
    ]  # fmt: skip
    top = os.fsencode(source)
    for name in names:
        os.mkdir(top + b"/d" + name)
        for path in (top + b"/" + name, top + b"/d" + name + b"/" + name):
            with open(path, "wb") as file:
                file.write(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    there = tmp_path / "there here's"
    for _ in range(2):
        if way == "ssh":
            events = push(server, source, there, tmp_path, transfer="rsync")
        else:
            _, events = carried(Sync(source=str(source), transfer="rsync"), local("n1", n1=str(there)))
        assert not warnings(events)
        assert not [event for event in events if isinstance(event, HostFailed)]
        assert picture(there) == picture(source)
        for name in names:
            with open(top + b"/" + name, "ab") as file:
                file.write(b"more")
    assert not list(tmp_path.rglob("pwned"))
    assert debris(there) == []


def test_files_of_every_mode_end_private(server: Server, source: Path, tmp_path: Path) -> None:
    for number, mode in enumerate((0o644, 0o755, 0o700, 0o666, 0o4755, 0o400, 0o511)):
        (source / f"f{number}").write_text("x")
        (source / f"f{number}").chmod(mode)
    push(server, source, tmp_path / "there", tmp_path, transfer="rsync")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "there").glob("f*")}
    assert modes == {f"f{number}": 0o700 if number in {1, 2, 4, 6} else 0o600 for number in range(7)}
    assert said(push(server, source, tmp_path / "there", tmp_path)) == {"node1": ("ok", "nothing to do")}


# -- what is in the way ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["file", "directory"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_planted_links_are_refused_and_their_victims_untouched(
    server: Server, source: Path, tmp_path: Path, what: str, when: str
) -> None:
    there, victim = tmp_path / "there", tmp_path / "victim"
    push(server, source, there, tmp_path)
    shutil.copytree(there / "data", victim)
    (victim / "precious").write_text("keep")
    change(source / "data" / "big", 1000)

    def plant() -> None:
        if what == "file":
            (there / "data" / "big").unlink()
            (there / "data" / "big").symlink_to(victim / "big")
        else:
            shutil.rmtree(there / "data")
            (there / "data").symlink_to(victim)

    if when == "before":
        plant()
    before = looks(victim)
    links = Links(known_hosts=known(server, server.port, tmp_path), config=None)
    events = []
    inventory = Inventory((over_ssh(server, server.port, there),))
    for event in sync(Sync(source=str(source)), inventory, Context(links, Path("s"), Path("c"))):
        events.append(event)
        if isinstance(event, Planned) and when == "meanwhile":
            plant()
    links.close()
    assert not warnings(events), "rsync itself was tried, not the stream instead"
    if when == "before" or what == "directory":
        failure = failed(events)
        assert failure.kind is Kind.STEP
        assert "is a symbolic link" in failure.what
    else:  # a link in the place of a file is replaced by the file
        assert picture(there) == picture(source)
    assert looks(victim) == before
    assert debris(there) == []


@pytest.mark.parametrize("how", ["cut", "closed"])
def test_broken_off_in_the_middle_it_leaves_the_old_file_and_no_rsync_and_the_next_sync_cleans_up(
    server: Server, source: Path, tmp_path: Path, how: str
) -> None:
    there, big = tmp_path / "there", source / "data" / "big"
    push(server, source, there, tmp_path)
    old = hashlib.sha256(big.read_bytes()).digest()
    big.write_bytes(random.Random(3).randbytes(60 * MB))
    with relay(server.port) as cable:
        links = Links(known_hosts=known(server, cable.port, tmp_path), config=None)
        inventory = Inventory((over_ssh(server, cable.port, there),))
        story = sync(Sync(source=str(source)), inventory, Context(links, Path("s"), Path("c")))
        for event in story:
            if isinstance(event, Progress) and event.done > 5 * MB:
                assert rsyncs(source)
                assert rsyncs(there)
                if how == "cut":
                    cable.cut.set()
                story.close()
                break
        links.close()
        assert soon(lambda: not rsyncs(source))
        if how == "closed":
            assert soon(lambda: not rsyncs(there))
            assert soon(lambda: not debris(there))
        assert hashlib.sha256((there / "data" / "big").read_bytes()).digest() == old
        push(server, source, there, tmp_path)
        assert picture(there) == picture(source)
    assert soon(lambda: not rsyncs(tmp_path))
    assert soon(lambda: not debris(there))


def test_a_source_that_changes_meanwhile_is_named_and_nothing_takes_effect(
    server: Server, source: Path, tmp_path: Path
) -> None:
    there, big = tmp_path / "there", source / "data" / "big"
    push(server, source, there, tmp_path)
    before = picture(there)
    for how in ("grow", "vanish"):
        big.write_bytes(random.Random(4).randbytes(9 * MB))
        links = Links(known_hosts=known(server, server.port, tmp_path), config=None)
        events = []
        inventory = Inventory((over_ssh(server, server.port, there),))
        for event in sync(Sync(source=str(source)), inventory, Context(links, Path("s"), Path("c"))):
            events.append(event)
            if isinstance(event, Planned):
                if how == "grow":
                    change(big, MB)
                else:
                    big.unlink()
        links.close()
        assert not warnings(events)
        assert failed(events).code == "source-changed"
        assert "data/big" in failed(events).what
        assert picture(there) == before
        assert soon(lambda: not debris(there))


# -- several hosts with the same old files -----------------------------------------------------------------------------


class Hosts:
    """Three hosts on one sshd, with a directory each and an rsync that writes down how it is called."""

    def __init__(self, tmp_path: Path, server: Server, log: Path) -> None:
        self.places = [tmp_path / f"there{number}" for number in range(3)]
        self._tmp_path, self._server, self._log = tmp_path, server, log

    def push(self, source: Path, **keys: Any) -> list[Event]:
        self._log.write_text("")
        hosts = [replace(over_ssh(self._server, self._server.port, place), name=place.name) for place in self.places]
        links = Links(known_hosts=known(self._server, self._server.port, self._tmp_path), config=None)
        return carried(Sync(source=str(source), **keys), Inventory(tuple(hosts)), links)[1]

    def count_rsyncs(self) -> tuple[int, int]:
        """How many times rsync was run on a host: to talk to the local one, and to apply a record."""
        words = self._log.read_text().split()
        return words.count("--server"), words.count("--read-batch=../record")


@pytest.fixture
def hosts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    log = tmp_path / "log"
    before = getattr(request, "param", "")
    script = f'#!/bin/sh\necho "$@" >>{log}\n{before}\nexec {shutil.which("rsync")} "$@"\n'
    (tmp_path / "sshd").mkdir()
    env = {"PATH": str(toolbox(tmp_path / "bin", script)), "RSYNC_ICONV": "latin1,utf-8"}
    with sshd(tmp_path / "sshd", env=env) as server:
        yield Hosts(tmp_path, server, log)


def test_the_changes_are_computed_once_for_hosts_with_the_same_old_files(hosts: Hosts, source: Path) -> None:
    hosts.push(source)
    assert hosts.count_rsyncs() == (0, 0)
    change(source / "data" / "big", MB)
    (source / "data" / "big").chmod(0o755)
    (source / "new.py").write_text("new")
    events = hosts.push(source)
    assert hosts.count_rsyncs() == (1, 2)
    assert not warnings(events)
    assert {detail.partition("(rsync saved 6.")[0] for _, detail in said(events).values()} == {"2 files, 7.6 MiB "}
    for place in hosts.places:
        assert picture(place) == picture(source)
        found = (place / "data" / "big").stat()
        assert (stat.S_IMODE(found.st_mode), int(found.st_mtime)) == (
            0o700,
            int((source / "data" / "big").stat().st_mtime),
        )
        assert debris(place) == []
        steps = [event for event in events if isinstance(event, Progress) and event.host == place.name]
        assert [step.done for step in steps] == sorted(step.done for step in steps)
        assert steps[-1].done == steps[-1].total
    assert set(said(hosts.push(source)).values()) == {("ok", "nothing to do")}


def test_new_files_and_hard_names_of_several_hosts_arrive_by_rsync(hosts: Hosts, source: Path) -> None:
    for name in ("two words", "new\nline", "-rf", "$(touch pwned)", "'", "record", "漢字"):
        (source / f"d{name}").mkdir()
        (source / f"d{name}" / name).write_text(name)
    for _ in range(2):
        events = hosts.push(source, transfer="rsync")
        assert hosts.count_rsyncs() == (3, 0) or hosts.count_rsyncs() == (1, 2)
        assert not warnings(events)
        assert [picture(place) for place in hosts.places] == [picture(source)] * 3
        for path in [*source.rglob("d*/*")]:
            with path.open("a") as file:
                file.write("more")
    assert hosts.count_rsyncs() == (1, 2)


def test_a_host_whose_old_file_only_looks_the_same_gets_the_new_one(hosts: Hosts, source: Path) -> None:
    hosts.push(source)
    for number, place in enumerate(hosts.places):  # each differs where the others do not
        before = (place / "data" / "big").stat()
        with (place / "data" / "big").open("r+b") as file:
            file.seek(number * MB)
            file.write(bytes(MB))
        os.utime(place / "data" / "big", ns=(before.st_atime_ns, before.st_mtime_ns))
    change(source / "data" / "big", 1000)
    events = hosts.push(source)
    assert hosts.count_rsyncs() == (3, 2)
    assert not warnings(events)
    assert set(said(events)) == {"there0", "there1", "there2"}
    for name in said(events):
        steps = [event.done for event in events if isinstance(event, Progress) and event.host == name]
        assert steps == sorted(steps)
        assert steps[-1] == (source / "data" / "big").stat().st_size
    assert [picture(place) for place in hosts.places] == [picture(source)] * 3
    assert not [debris(place) for place in hosts.places if debris(place)]


def test_hosts_with_different_old_files_are_sent_the_changes_each(hosts: Hosts, source: Path) -> None:
    hosts.push(source)
    os.utime(hosts.places[0] / "data" / "big", (1, 1))
    change(source / "data" / "big", 1000)
    hosts.push(source)
    assert hosts.count_rsyncs() == (2, 1)
    assert [picture(place) for place in hosts.places] == [picture(source)] * 3


def test_a_record_nearly_as_large_as_the_file_is_not_applied(hosts: Hosts, source: Path) -> None:
    hosts.push(source)
    (source / "data" / "big").write_bytes(random.Random(9).randbytes(8 * MB))
    assert not warnings(hosts.push(source))
    assert hosts.count_rsyncs() == (3, 0)
    assert [picture(place) for place in hosts.places] == [picture(source)] * 3


@pytest.mark.parametrize("hosts", ['case "$*" in *xxh128*) echo "unknown checksum" >&2; exit 4 ;; esac'], indirect=True)
def test_an_old_rsync_on_the_hosts_works_without_a_record(hosts: Hosts, source: Path) -> None:
    hosts.push(source)
    change(source / "data" / "big", 1000)
    events = hosts.push(source, transfer="rsync")
    assert not warnings(events)
    assert hosts.count_rsyncs() == (4, 0)
    assert [picture(place) for place in hosts.places] == [picture(source)] * 3


@pytest.mark.parametrize("hosts", ['case "$*" in *read-batch*) : >data/.big.AbCdEf ;; esac'], indirect=True)
def test_what_applying_a_record_leaves_beside_the_files_is_not_installed(hosts: Hosts, source: Path) -> None:
    hosts.push(source)
    change(source / "data" / "big", 1000)
    assert not warnings(hosts.push(source))
    assert hosts.count_rsyncs() == (3, 2)
    assert [picture(place) for place in hosts.places] == [picture(source)] * 3


@pytest.mark.parametrize("hosts", ['case "$*" in *read-batch*) kill -9 $PPID; exit 1 ;; esac'], indirect=True)
def test_hosts_that_die_while_they_apply_a_record_keep_the_old_file(hosts: Hosts, source: Path) -> None:
    hosts.push(source)
    before = picture(source)
    change(source / "data" / "big", 1000)
    events = hosts.push(source)
    failures = [event.failure for event in events if isinstance(event, HostFailed)]
    assert len(failures) == 2
    pictures = [picture(place) for place in hosts.places if place.name not in {each.host for each in failures}]
    assert pictures == [picture(source)]
    for failure in failures:
        [place] = [place for place in hosts.places if place.name == failure.host]
        assert hashlib.sha256((place / "data" / "big").read_bytes()).hexdigest() == before[b"data/big"][1]


# -- a side that has no rsync, or a bad one ----------------------------------------------------------------------------


def test_where_the_host_has_no_rsync_the_stream_carries_all(source: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (tmp_path / "sshd").mkdir()
    with sshd(tmp_path / "sshd", env={"PATH": str(toolbox(tmp_path / "bin", None))}) as server:
        push(server, source, there, tmp_path)
        change(source / "data" / "big", 1000)
        events = push(server, source, there, tmp_path, transfer="rsync")
        assert failed(events).what == "there is no rsync, or no cksum, on the host"
        events = push(server, source, there, tmp_path)
    assert said(events) == {"node1": ("changed", "1 file, 7.6 MiB")}
    assert picture(there) == picture(source)


def test_where_this_machine_has_no_rsync_the_stream_carries_all(
    server: Server, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    push(server, source, there, tmp_path)
    change(source / "data" / "big", 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="rsync"):
        push(server, source, there, tmp_path, transfer="rsync")
    assert said(push(server, source, there, tmp_path)) == {"node1": ("changed", "1 file, 7.6 MiB")}
    assert picture(there) == picture(source)


def test_where_rsync_fails_the_stream_carries_all_and_it_is_told(source: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (tmp_path / "sshd").mkdir()
    broken = toolbox(tmp_path / "bin", "#!/bin/sh\necho 'libpopt.so.0: cannot open' >&2\nexit 127\n")
    with sshd(tmp_path / "sshd", env={"PATH": str(broken)}) as server:
        push(server, source, there, tmp_path)
        before = picture(there)
        change(source / "data" / "big", 1000)
        events = push(server, source, there, tmp_path, transfer="rsync")
        assert failed(events).code == "rsync"
        assert "libpopt.so.0: cannot open" in failed(events).what
        assert picture(there) == before
        events = push(server, source, there, tmp_path)
    [told] = warnings(events)
    assert "libpopt.so.0: cannot open; sent without rsync" in told
    assert picture(there) == picture(source)
    assert soon(lambda: not debris(there))


def test_what_rsync_leaves_beside_the_files_is_not_installed(source: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (tmp_path / "sshd").mkdir()
    untidy = f'#!/bin/sh\n{shutil.which("rsync")} "$@"\ns=$?\n: >data/.big.AbCdEf\nexit $s\n'
    with sshd(tmp_path / "sshd", env={"PATH": str(toolbox(tmp_path / "bin", untidy))}) as server:
        push(server, source, there, tmp_path)
        before = picture(there)
        change(source / "data" / "big", 1000)
        events = push(server, source, there, tmp_path)
    assert failed(events).what == "what rsync brought is not what was sent"
    assert picture(there) == before


@pytest.mark.parametrize("files", [1, 2])
def test_what_rsync_brought_is_checked(source: Path, tmp_path: Path, files: int) -> None:
    there = tmp_path / "there"
    big = [source / "data" / name for name in ("big", "second")[:files]]
    big[-1].write_bytes(random.Random(3).randbytes(2 * MB))
    (tmp_path / "sshd").mkdir()
    damaging = f'#!/bin/sh\n{shutil.which("rsync")} "$@"\ns=$?\nfor f in data/*; do echo x >>"$f"; done\nexit $s\n'
    with sshd(tmp_path / "sshd", env={"PATH": str(toolbox(tmp_path / "bin", damaging))}) as server:
        push(server, source, there, tmp_path)
        before = picture(there)
        for path in big:
            change(path, 1000)
        events = push(server, source, there, tmp_path)
    assert failed(events).what == "what rsync brought is not what was sent"
    assert picture(there) == before
    assert soon(lambda: not debris(there))


class OneSession:
    """A link to a host that opens no session beside the one that is open."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def notes(self) -> tuple[str, ...]:
        return ()

    def run(self, command: Command, _: Talk = NO_TALK) -> Completed:
        raise AssertionError(command)

    def stream(self, command: Command) -> Channel:
        assert command.argv[:2] == ("rsync", "--server")
        raise LinkError(Failure(self.host.name, Kind.STEP, "the host opens no further session", code="sessions"))

    def close(self) -> None:
        pass


def test_a_host_that_opens_no_second_session_is_unfit_for_rsync_and_nothing_is_left(source: Path) -> None:
    with pytest.raises(rsync.RsyncError, match="no further session"):
        rsync.send_files(OneSession(Host("n1", "n1")), source, ["train.py"], "/nowhere", lambda size: None)
    assert rsyncs(source) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rsync")]


def test_a_program_here_that_is_no_rsync_is_told_with_its_words(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, why in (
        ("echo unknown option >&2; exit 1", "rsync ended with status 1: unknown option"),
        (
            'while [ "$1" != --rsh ]; do shift; done; eval "$2 there rm -rf x"',
            "the local rsync wants to run an unknown command",
        ),
        ('while [ "$1" != --rsh ]; do shift; done; eval "$2 there rsync --server \\;x"', "to run an unknown command"),
    ):
        box = tmp_path / hashlib.sha256(words.encode()).hexdigest()[:8]
        monkeypatch.setenv("PATH", str(toolbox(box, f"#!/bin/sh\n{words}\n")))
        with pytest.raises(rsync.RsyncError, match=why):
            rsync.send_files(OneSession(Host("n1", "n1")), source, ["train.py"], "/nowhere", lambda size: None)
