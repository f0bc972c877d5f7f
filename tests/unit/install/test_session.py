"""Conversations with our program on a host, when the program or the host does not keep to them."""

import hashlib
import importlib.metadata
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request

import pytest

from ipexctl.act.context import Context
from ipexctl.act.sessions import RemoteError, Session, load_session_program
from ipexctl.act.ssh import Links
from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.model.hosts import Host, Inventory, LinkError
from ipexctl.protocol import http_bounds
from ipexctl.protocol.codec import decode
from ipexctl.protocol.paths import PART
from ipexctl.protocol.session import (
    Cleaned,
    Fetched,
    Inspection,
    LockOwner,
    Nothing,
    Offer,
    Present,
    Removed,
    SessionError,
    Used,
)
from ipexctl.remote.agent import guard_start, procs
from ipexctl.remote.session import confirmation, install, places, relay
from ipexctl.remote.session.relay import FileRelay
from ipexctl.remote.session.uv import find_uv
from ipexctl.verbs.install import install_sessions
from ipexctl.verbs.install.install_sessions import InstallSessions, describe_error
from tests.fakes import SingleByteChannel
from tests.stopwatch import Stopwatch
from tests.tables import read_table
from tests.unit.agent.test_full_disk import needs_mounts

REMOTE = Path(__file__).parents[3] / "ipexctl" / "remote" / "session"
PROGRAM = load_session_program("install")
_NO_UV = {"version": "0", "path": "/none", "size": 1, "sha256": ""}
HELLO = """
import json, sys, time
def say(kind, **fields): print(json.dumps(dict(fields, kind=kind)), flush=True)
say("Ready")
"""
Mount = Callable[[Path, str], None]


def start(program: str, silence: float = 30.0) -> Session:
    return Session.start(LocalLink(Host("node0", "localhost")), sys.executable, program, silence=silence)


def test_answers_come_back_and_troubles_are_reported(tmp_path: Path) -> None:
    with start(PROGRAM) as session:
        assert session.call("list_present", Present, venv=str(tmp_path / "env"), id="x", paths=["lib"]) == Present([])
        session.call("lock", Nothing, venv=str(tmp_path / "env"), owner={})
        with pytest.raises(RemoteError) as caught:
            session.call("switch", Nothing, venv=str(tmp_path / "env"), id="x", ask=None, address="")
        assert "not complete" in caught.value.what
        assert session.call("list_present", Present, venv=str(tmp_path / "env"), id="x", paths=[]) == Present([])


def test_an_answer_that_comes_by_single_bytes_costs_no_more_than_its_bytes() -> None:
    answer = json.dumps({"kind": "Done", "answer": {"paths": ["x" * 500_000]}}).encode()
    watch = Stopwatch()
    with Session("node0", SingleByteChannel(b"a banner\n" + answer + b"\n")) as session:
        assert session.call("list_present", Present) == Present(["x" * 500_000])
    assert watch.read() < 4.0


def test_a_host_that_falls_silent_is_lost() -> None:
    with start(HELLO + "sys.stdin.read()\n", silence=1.0) as session, pytest.raises(LinkError) as caught:
        session.call("inspect", Nothing, venv="/x")
    assert "no answer for 1 s" in caught.value.failure.what


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_host_that_writes_something_else_without_an_end_is_lost(stream: str) -> None:
    """It held the command for as long as it wrote."""
    flood = f"sys.stdin.readline()\nwhile True: print('x' * 999, file=sys.{stream}, flush=True)\n"
    with start(HELLO + flood, silence=2.0) as session, pytest.raises(LinkError, match="lost: "):
        session.call("inspect", Nothing, venv="/x")


def test_signs_of_life_keep_a_slow_host() -> None:
    program = (
        HELLO
        + "sys.stdin.readline()\nfor _ in range(4):\n  time.sleep(0.5)\n  say('KeepAlive')\nsay('Done', answer={})\n"
    )
    with start(program, silence=1.5) as session:
        assert session.call("inspect", Nothing, venv="/x") == Nothing()


def test_a_program_that_dies_is_lost_with_its_last_words() -> None:
    with start(HELLO + "sys.stdin.readline()\nsys.exit('out of luck')\n") as session:
        with pytest.raises(LinkError) as caught:
            session.call("inspect", Nothing, venv="/x")
        assert "out of luck" in caught.value.failure.what


def test_an_interpreter_that_is_none_is_reported() -> None:
    with pytest.raises(LinkError) as caught:
        Session.start(LocalLink(Host("node0", "localhost")), "/nonexistent/python3", PROGRAM)
    assert caught.value.failure.host == "node0"


def test_rubbish_between_answers_is_passed_over() -> None:
    program = HELLO + "sys.stdin.readline()\nprint('Welcome!')\nprint('[1')\nprint('3')\nsay('Done', answer={'a': 1})\n"
    with start(program) as session:
        assert session.call("inspect", dict[str, int], venv="/x") == {"a": 1}


@pytest.mark.parametrize("request_line", [b"", b'{"do": "find_used"}\n'], ids=["nothing asked", "no environment named"])
def test_a_session_without_an_environment_ends_with_its_input(request_line: bytes) -> None:
    done = subprocess.run(
        [sys.executable, str(REMOTE / "install.py")],
        input=request_line,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(REMOTE.parents[2])},
        timeout=60,
    )
    assert done.returncode == 0
    assert b"Ready" in done.stdout


def test_the_lock_is_given_back_when_the_input_ends(tmp_path: Path) -> None:
    venv = str(tmp_path / "env")
    owner = {"user": "me", "host": "here", "pid": 1, "since": 0.0, "machine": "", "session": 0}
    first, second = start(PROGRAM), start(PROGRAM)
    Path(f"{venv}.d").mkdir()
    Path(f"{venv}.d/lock").touch(0o644)
    first.call("lock", Nothing, venv=venv, owner=owner)
    assert Path(f"{venv}.d/lock").stat().st_mode & 0o777 == 0o600, "who can read it could hold it: any user did"
    with pytest.raises(RemoteError) as caught:
        second.call("lock", Nothing, venv=venv, owner={})
    holder = decode(dict[str, Any], caught.value.more["holder"])
    assert (caught.value.code, {**holder, "session": 0}) == ("busy", owner)
    with pytest.raises(RemoteError, match="another install"):  # another one has ended than the one that holds it
        second.call("lock", Nothing, venv=venv, owner=owner, ended={**holder, "since": 1.0})
    second.call("lock", Nothing, venv=venv, owner=owner, ended=holder)
    with pytest.raises(LinkError):
        first.call("find_used", Used, venv=venv)
    second.end()
    third = start(PROGRAM)
    third.call("lock", Nothing, venv=venv, owner=owner)
    third.end()


def test_a_living_install_is_none_that_has_ended_also_where_proc_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounted with hidepid=2, it does: the lock of another user's install was taken, and its session ended."""
    machine = install_sessions._hash_machine()
    gone = subprocess.Popen(["true"])
    gone.wait()

    def kill(pid: int, sign: int) -> None:
        raise {1: PermissionError, gone.pid: ProcessLookupError}[pid]

    owners = [(os.getpid(), machine), (0, machine), (-1, machine), (1 << 62, machine), (os.getppid(), machine)]
    ended = [install_sessions._has_ended(LockOwner("me", "here", pid, 0.0, of, 1)) for pid, of in owners]
    assert ended == [False, False, False, False, False]
    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    owners = [(1, machine), (gone.pid, machine), (gone.pid, "another")]
    ended = [install_sessions._has_ended(LockOwner("me", "here", pid, 0.0, of, 1)) for pid, of in owners]
    assert ended == [False, True, False]


def test_a_store_that_others_can_write_or_a_planted_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "link.d").symlink_to(tmp_path / "victim")
    (tmp_path / "real.d").mkdir()
    for store, mode, why in (
        ("real", 0o755, ""), ("real", 0o775, "can be written by others"), ("real", 0o757, "can be written by others"),
        ("link", 0o755, "link.d is a symbolic link"),
    ):  # fmt: skip
        (tmp_path / "real.d").chmod(mode)
        with start(PROGRAM) as session:
            seen = session.call("inspect", Inspection, venv=str(tmp_path / store), uv=_NO_UV, files=[], origins=[])
        assert (seen.kind, why in seen.why) == ("foreign" if why else "absent", True), (store, oct(mode))


@contextmanager
def in_process(venv: Path) -> Iterator[Callable[..., Any]]:
    """The session's own object in this process: a stranger can act between two of its commands."""
    session = install.InstallSession()
    try:
        yield lambda command, /, **arguments: session.run(command, {"venv": str(venv), **arguments})
    finally:
        session.end()


def test_an_uninstall_takes_its_empty_directories_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (".local/share/ipexctl/env.d/x", ".local/state/ipexctl/runs", ".local/state/ipexctl/agents/kept"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / ".local/share/ipexctl/env.d/x/ipexctl.json").write_text("{}")
    with in_process(tmp_path / ".local/share/ipexctl/env") as call:
        assert call("remove") == Removed([], ["x"])
    left = {str(path.relative_to(tmp_path)) for path in (tmp_path / ".local").rglob("*")}
    assert left == {".local/share", ".local/state", ".local/state/ipexctl", *(
        f".local/state/ipexctl/{name}" for name in ("agents", "agents/kept"))}  # fmt: skip


def test_places_for_an_environment_are_those_that_the_account_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, shared, open_to_all = tmp_path / "home", tmp_path / "shared", tmp_path / "open"
    for directory in (home, shared, open_to_all):
        directory.mkdir()
    shared.chmod(0o555 if os.getuid() else 0o755)
    open_to_all.chmod(0o777)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(install, "USUAL_PLACES", (str(shared), str(open_to_all), str(tmp_path / "none")))
    monkeypatch.setattr(install, "list_mounts", list)
    with in_process(tmp_path / "env") as call:
        places = call("find_places").places
    assert (str(home) in places, str(open_to_all) in places) == (True, False)
    assert places[str(home)] > 1 << 20


REFUSED = r"belongs to another user|is a symbolic link"


def plant_directory(store: Path) -> None:
    store.mkdir()
    os.chown(store, 65534, 65534)


def plant_link(store: Path) -> None:
    store.symlink_to(store.parent / "victim")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: files of another account")
@pytest.mark.parametrize("plant", [plant_directory, plant_link])
@pytest.mark.parametrize("first", ["lock", "leave_token", "remove"])
def test_a_store_that_was_exchanged_is_not_used(tmp_path: Path, plant: Callable[[Path], None], first: str) -> None:
    thesis = tmp_path / "victim/thesis"
    thesis.mkdir(parents=True)
    words: dict[str, dict[str, object]] = {"lock": {"owner": {}}, "leave_token": {"name": "t"}, "remove": {}}
    with in_process(tmp_path / "env") as call:
        assert call("inspect", uv=_NO_UV, files=[], origins=[]).kind == "absent"
        plant(tmp_path / "env.d")
        with pytest.raises(SessionError, match=REFUSED) as caught:
            call(first, **words[first])
        with pytest.raises(SessionError, match=REFUSED):  # between that check and the next step
            places.make_store(str(tmp_path / "env.d"))
    assert caught.value.code == "foreign"
    assert thesis.is_dir(), "the end of the session removed what lies behind the link"


@pytest.mark.parametrize("below", ["", "mine"])
@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o1777, False), (0o775, False)])
def test_a_place_in_which_everybody_can_replace_the_store_is_refused(
    tmp_path: Path, mode: int, refused: bool, below: str
) -> None:
    place = tmp_path / "shared" / below
    place.mkdir(parents=True)
    (tmp_path / "shared").chmod(mode)
    with in_process(place / "env") as call:
        seen = call("inspect", uv=_NO_UV, files=[], origins=[])
        assert (seen.kind == "foreign", "can be written by everybody" in seen.why) == (refused, refused)
        if refused:
            with pytest.raises(SessionError, match="can be written by everybody"):
                call("lock", owner={})
        else:
            call("lock", owner={})
    assert list(place.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: files of another account")
def test_a_uv_that_another_user_could_replace_is_not_executed(tmp_path: Path) -> None:
    program = tmp_path / "uv"
    program.write_bytes(b"#!/bin/sh\n")
    uv = {"path": str(program), "version": "1", "size": 10, "sha256": hashlib.sha256(b"#!/bin/sh\n").hexdigest()}
    result = []
    for uid, mode, above in ((0, 0o755, 0o755), (65534, 0o755, 0o755), (0, 0o775, 0o755), (0, 0o755, 0o777)):
        os.chown(program, uid, uid)
        program.chmod(mode)
        tmp_path.chmod(above)
        result.append(find_uv(str(tmp_path / "env.d"), uv))
    assert result == [str(program), None, None, None]


def test_wheels_that_arrive_are_read_by_nobody_else(tmp_path: Path) -> None:
    with in_process(tmp_path / "env") as call, socket.create_server(("127.0.0.1", 0)) as giver:
        call("lock", owner={})
        call("make_room", files=[])
        wheel = {"target": "wheels/a.whl", "sha256": hashlib.sha256(b"a" * 9).hexdigest(), "size": 9, "mode": 0o600}
        seen: list[int] = []

        def give() -> None:
            visitor, _ = giver.accept()
            with visitor:
                visitor.recv(1 << 16)
                visitor.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\naaaa")
                part = tmp_path / "env.d/wheels" / f"{PART}{wheel['sha256']}"
                seen.extend(stat.S_IMODE(path.stat().st_mode) for path in (part.parent, part))
                visitor.sendall(b"aaaaa")

        thread = threading.Thread(target=give)
        thread.start()
        base = f"http://127.0.0.1:{giver.getsockname()[1]}"
        assert call("fetch", base=base, token="t", files=[wheel]) == Fetched(["wheels/a.whl"], "")
        thread.join()
    assert seen == [0o700, 0o600]


def test_only_the_host_that_decides_can_confirm_a_switch(tmp_path: Path) -> None:
    """A stranger on the way answers whatever he likes; the token does not travel."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            for body in (b"", b"0" * 64, b"not HTTP at all"):
                visitor, _ = stranger.accept()
                with visitor:
                    asked.append(visitor.recv(1 << 16))
                    visitor.sendall(b"HTTP/1.0 200 OK\r\n\r\n" * (body[:3] != b"not") + body + b"\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        base = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        assert [confirmation.is_confirmed(base, "s3cr3t-token") for _ in range(3)] == [False, False, False]
        thread.join()
    assert len(asked) == 3
    assert not any(b"s3cr3t-token" in request for request in asked)


def test_an_answer_without_an_end_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waited for it with the lock of its environment."""
    monkeypatch.setattr(confirmation, "CONFIRM_TIMEOUT", 0.5)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_slowly() -> None:
            visitor, _ = listener.accept()
            question = visitor.recv(1 << 16).split()[1][1:].decode()
            visitor.sendall(b"HTTP/1.0 200 OK\r\nA: ")
            for _ in range(100):
                if not over.wait(0.1):
                    visitor.sendall(b"a")
            with suppress(OSError), visitor:
                visitor.sendall(b"\r\n\r\n" + confirmation.prove_token("t", "stays", question))

        thread = threading.Thread(target=answer_slowly, daemon=True)
        thread.start()
        assert not confirmation.is_confirmed(f"http://127.0.0.1:{listener.getsockname()[1]}", "t")
        over.set()
        thread.join()


def test_where_a_file_system_has_no_locks_an_install_does_not_begin(tmp_path: Path) -> None:
    """Some homes over NFS answer ENOLCK; two installs at once would spoil each other's environments."""
    without = (
        "import errno, fcntl\ndef flock(*_): raise OSError(errno.ENOLCK, 'No locks available')\nfcntl.flock = flock\n"
    )
    session = start(without + PROGRAM)
    with pytest.raises(RemoteError) as caught:
        session.call("lock", Nothing, venv=str(tmp_path / "env"), owner={})
    session.end()
    assert list(tmp_path.iterdir()) == []
    assert caught.value.code == "no-locks"
    assert "has no locks, which an install needs (No locks available)" in caught.value.what


def listening(port: int) -> set[str]:
    """The IPv4 addresses on which something listens at this port (proc(5), /proc/net/tcp)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    result = [row[1].partition(":")[0] for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == port]
    return {socket.inet_ntoa(bytes.fromhex(word)[::-1]) for word in result}


def test_a_host_that_gives_files_sends_nobody_elsewhere_and_fills_no_disk(tmp_path: Path) -> None:
    """Its answer made the other host ask where it liked, with the token."""
    visited: list[str] = []
    sent = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal sent
            visited.append(self.path)
            self.send_response(200 if self.path == "/endless" else 302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            with suppress(OSError):  # nobody takes it any more
                while self.path == "/endless" and sent < 1 << 28:
                    sent += self.wfile.write(bytes(1 << 20))

        def log_message(self, *_: object) -> None:
            pass

    taker = FileRelay()
    taker.base = str(tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as giver:
        threading.Thread(target=giver.serve_forever, daemon=True).start()
        file = {"target": "f", "sha256": "0" * 64, "size": 5, "mode": 0o600}
        answer = taker.fetch(f"http://127.0.0.1:{giver.server_port}", "token", [file])
        endless = taker.fetch(f"http://127.0.0.1:{giver.server_port}", "token", [{**file, "target": "endless"}])
        giver.shutdown()
    assert (answer.files, "302" in answer.why, visited) == ([], True, ["/f", "/endless"])
    assert (endless.why, sent < 1 << 27) == ("endless is longer than 5 bytes", True)


@pytest.mark.parametrize(
    ("head", "more"),
    [("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "T: a\r\n"), ("", "HTTP/1.1 100 C\r\n\r\n")],
)
def test_a_host_that_goes_on_and_on_keeps_no_other_one_after_the_end(tmp_path: Path, head: str, more: str) -> None:
    """Python reads what comes before an answer and behind it to an end that never came, also when nobody waited."""
    visited = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as giver:

        def answer() -> None:
            visitor, _ = giver.accept()
            with visitor, suppress(OSError):
                visitor.recv(1 << 16)
                visitor.sendall(head.encode())
                visited.set()
                while True:
                    visitor.sendall(more.encode() * 100)

        threading.Thread(target=answer, daemon=True).start()
        program = "import sys\nfrom ipexctl.remote.session import relay\nrelay.main()\n"
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as taker:
            assert taker.stdin
            store = json.dumps({"do": "open_store", "store": str(tmp_path / "a" / "store"), "earlier": []})
            file = {"target": "f", "sha256": "0" * 64, "size": 5, "mode": 0o600}
            base = f"http://127.0.0.1:{giver.getsockname()[1]}"
            fetch = json.dumps({"do": "fetch", "base": base, "token": "t", "files": [file]})
            taker.stdin.write(f"{store}\n{fetch}\n".encode())
            taker.stdin.flush()
            try:
                assert visited.wait(30)
                taker.stdin.close()
                assert taker.wait(15) == 0
            finally:
                taker.kill()


def test_a_store_stays_where_it_was_opened(tmp_path: Path) -> None:
    """Who may write above the project led the removal of the store to a directory of the account."""
    project, mine, store = tmp_path / "project", tmp_path / "mine", f"{PART}0123456789ab-0"
    mine.mkdir()
    (mine / "text").write_text("precious")
    keeper = FileRelay()
    keeper.open_store(str(project / store), [])
    project.rename(tmp_path / "aside")
    mine.rename(tmp_path / store)
    project.symlink_to(tmp_path)
    keeper.make_room([{"target": "a/f", "size": 1}])
    assert (tmp_path / "aside" / store / "a").is_dir()
    keeper.remove_store()
    assert [*(tmp_path / "aside").iterdir()] == []
    assert (tmp_path / store / "text").read_text() == "precious"


def test_the_uv_that_is_used_is_the_one_that_was_looked_at(tmp_path: Path) -> None:
    """Not a link that leads to it at that moment."""
    (tmp_path / "uv").write_text("uv")
    (tmp_path / "link").symlink_to("uv")
    uv = {"version": "0", "path": str(tmp_path / "link"), "size": 2, "sha256": hashlib.sha256(b"uv").hexdigest()}
    assert find_uv(str(tmp_path), uv) == str(tmp_path / "uv")


def test_visitors_that_prove_nothing_hold_no_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then kept all of them for as long as the session lived."""
    monkeypatch.setattr(http_bounds, "REQUEST_TIMEOUT", 0.5)
    giver = FileRelay()
    giver.base = str(tmp_path)
    (tmp_path / "f").write_text("contents")
    offer = giver.serve("127.0.0.1", ["f"])
    slow = [socket.create_connection(("127.0.0.1", offer.port)) for _ in range(http_bounds.VISITOR_LIMIT)]
    for connection in slow:
        connection.send(b"G")
        assert connection.recv(1) == b"", "its time is over"
    request = Request(f"http://127.0.0.1:{offer.port}/f", headers={"Authorization": f"Bearer {offer.token}"})
    with relay.open_directly(request, 10) as answer:
        assert answer.read() == b"contents"
    for connection in slow:
        connection.close()


def test_a_visitor_beyond_the_limit_is_sent_away_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_bounds, "VISITOR_LIMIT", 1)
    monkeypatch.setattr(http_bounds, "REQUEST_TIMEOUT", 300.0)
    with http_bounds.BoundedServer(("127.0.0.1", 0), http_bounds.BoundedHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = ("127.0.0.1", server.server_port)
        try:
            with socket.create_connection(address, 30) as first, socket.create_connection(address, 30) as second:
                assert second.recv(1) == b""
                first.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert b" 501 " in first.recv(100), "it is heard: there is no such method"
        finally:
            server.shutdown()


def test_hosts_give_files_to_each_other_and_what_comes_damaged_is_not_kept(tmp_path: Path) -> None:
    giver, taker = tmp_path / "giver", tmp_path / "taker"
    for store in (giver, taker):
        (store / "env.d/wheels").mkdir(parents=True)
    data = {"wheels/a+cpu.whl": b"a" * 3_000_000, "wheels/b.whl": b"b", "wheels/c.whl": b"c"}
    for name, content in data.items():
        (giver / "env.d" / name).write_bytes(content)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in data.items()}
    hashes["wheels/b.whl"] = "0" * 64
    wanted = [{"target": n, "sha256": hashes[n], "size": len(data[n]), "mode": 0o600} for n in data]
    with start(PROGRAM) as one, start(PROGRAM) as two:
        for session, store in ((one, giver), (two, taker)):
            session.call("lock", Nothing, venv=str(store / "env"), owner={})
        offer = one.call("serve", Offer, venv=str(giver / "env"), address="127.0.0.1", files=list(data))
        assert listening(offer.port) == {"127.0.0.1"}, "not on every address of the host"

        def fetch(files: Sequence[object], token: str = offer.token) -> Fetched:
            base = f"http://127.0.0.1:{offer.port}"
            return two.call("fetch", Fetched, venv=str(taker / "env"), base=base, token=token, files=[*files])

        stranger = fetch(wanted, "guess")
        assert (stranger.files, "403" in stranger.why) == ([], True)
        longer = fetch([{**wanted[0], "size": 1_000_000}])
        assert (longer.files, "longer than 1000000 bytes" in longer.why) == ([], True)
        answer = fetch(wanted)
        one.end()
        gone = fetch(wanted[2:])
        assert [path.name for path in (taker / "env.d/wheels").iterdir()] == ["a+cpu.whl"]
    assert answer.files == ["wheels/a+cpu.whl"]
    assert "b.whl arrived damaged" in answer.why
    assert (gone.files, "refused" in gone.why) == ([], True)


def test_uninstall_takes_away_what_install_made_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    store = tmp_path / "env.d" / "one"
    store.mkdir(parents=True)
    (store / "ipexctl.json").write_text("{}")
    (tmp_path / "env").symlink_to(store)
    with start(PROGRAM) as session:
        session.call("remove", Removed, venv=str(tmp_path / "env"))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_link_that_another_user_puts_in_place_of_a_directory_leads_no_removal_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He may write one in an environment; `uninstall` by root removed the files of a directory of his choice."""
    (tmp_path / "theirs/in").mkdir(parents=True)
    (tmp_path / "theirs/in/data").write_text("x")
    (tmp_path / "env.d/share/open/in").mkdir(parents=True)
    list_directories = procs.list_directories

    def list_then_swap(top: str) -> list[str]:
        listed = list_directories(top)
        (tmp_path / "env.d/share/open").rename(tmp_path / "aside")
        (tmp_path / "env.d/share/open").symlink_to(tmp_path / "theirs")
        return listed

    monkeypatch.setattr(procs, "list_directories", list_then_swap)
    relay.remove_path(str(tmp_path / "env.d"))
    assert (tmp_path / "theirs/in/data").is_file()
    assert not (tmp_path / "env.d").exists()


ON_A_HOST_WITHOUT_SHM = """
import os
from ipexctl.remote.session.relay import FileRelay, remove_path
relay = FileRelay()
relay.base = "."
os.makedirs("env/lib")
remove_path("env")
print(os.path.exists("env"), relay.fetch("http://127.0.0.1:1", "t", [{"size": 1, "target": "x", "sha256": "0"}]))
"""


@needs_mounts
def test_a_host_whose_shared_memory_cannot_be_written_takes_and_removes_files(tmp_path: Path) -> None:
    """Pools of ``multiprocessing`` have a semaphore there."""
    words = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o ro none /dev/shm && exec "$@"', "sh"]
    program = [*words, sys.executable, "-c", ON_A_HOST_WITHOUT_SHM]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith("False Fetched(files=[], why='<urlopen error [Errno 111]"), done.stderr


def test_what_is_deeper_than_pythons_stack_is_removed(tmp_path: Path) -> None:
    base, venv = tmp_path / "env.d", str(tmp_path / "env")
    try:
        for name in ("one", "half"):
            subprocess.run(["mkdir", "-p", f"{base}/{name}/{'a/' * 1500}"], check=True)
        (base / "one/ipexctl.json").write_text("{}")
        with start(PROGRAM) as session:
            session.call("lock", Nothing, venv=venv, owner={})
            assert session.call("clean", Cleaned, venv=venv) == Cleaned(1)
            session.end()
        with start(PROGRAM) as session:
            assert session.call("remove", Removed, venv=venv) == Removed([], ["one"])
        assert not base.exists()
    finally:
        subprocess.run(["rm", "-rf", base], check=True)


def test_a_disk_that_takes_its_time_is_not_taken_for_a_lost_host(tmp_path: Path) -> None:
    slow = tmp_path / "slow"  # reading it waits for a writer, as a cold network file system might
    os.mkfifo(slow)
    uv = {"version": "0", "path": str(slow), "size": 0, "sha256": ""}
    written = threading.Event()

    def write() -> None:
        written.set()
        slow.write_bytes(b"")

    writer = threading.Timer(5, write)
    with start(PROGRAM, silence=3.5) as session:
        writer.start()
        assert session.call("inspect", Inspection, venv=str(tmp_path / "env"), uv=uv, files=[], origins=[]).uv is None
    assert written.is_set(), "the answer had to wait for it"
    writer.join()


def test_an_uninstall_that_is_cut_short_leaves_no_environment_that_looks_whole(tmp_path: Path) -> None:
    store = tmp_path / "env.d" / "one"
    for part in range(400):
        (store / f"lib/{part}").mkdir(parents=True)
        for name in range(20):
            (store / f"lib/{part}/{name}").touch()
    (store / "ipexctl.json").write_text("{}")
    (tmp_path / "env").symlink_to(store)
    with subprocess.Popen([sys.executable, str(REMOTE / "install.py")], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(json.dumps({"do": "remove", "venv": str(tmp_path / "env")}).encode() + b"\n")
        child.stdin.flush()
        while sum(1 for _ in (store / "lib").iterdir()) == 400:
            assert child.poll() is None, "it ended before it removed anything"
            time.sleep(0.001)
        child.kill()
    assert store.exists(), "it was too quick for this test"
    with start(PROGRAM) as session:
        seen = session.call("inspect", Inspection, venv=str(tmp_path / "env"), uv=_NO_UV, files=[], origins=[])
        assert (seen.active, seen.complete) == (None, [])
        session.call("remove", Removed, venv=str(tmp_path / "env"))
    assert list(tmp_path.iterdir()) == []


def test_what_an_uninstall_cannot_remove_is_reported(tmp_path: Path, mount: Mount) -> None:
    (tmp_path / "env.d").mkdir()
    mount(tmp_path / "env.d", "mode=0755")
    with start(PROGRAM) as session, pytest.raises(RemoteError, match=r"env\.d could not be removed") as caught:
        session.call("remove", Removed, venv=str(tmp_path / "env"))
    assert caught.value.code == "residue"


@pytest.mark.parametrize("name", ["one", "one/the data", "tmp/uv"])
def test_where_something_is_mounted_nothing_is_removed(tmp_path: Path, mount: Mount, name: str) -> None:
    """An uninstall emptied what was mounted there, and then reported that it could not remove it."""
    data = tmp_path / "env.d" / name
    data.mkdir(parents=True)
    mount(data, "mode=0755")
    for file in (data / "keep", tmp_path / "env.d/one/ipexctl.json"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}")
    with start(PROGRAM) as session:
        with pytest.raises(RemoteError, match="something is mounted at") as caught:
            session.call("remove", Removed, venv=str(tmp_path / "env"))
        session.call("remove_unused", Removed, venv=str(tmp_path / "env"), keep=[])
    assert caught.value.code == "residue"
    assert (data / "keep").exists()


def test_the_import_check_reports_what_is_wrong_and_survives_packages_that_exit(tmp_path: Path) -> None:
    torch = "import os\n__version__ = '2.9.0+cpu' if os.environ['KERAS_BACKEND'] == 'torch' else ''\n"
    (tmp_path / "torch.py").write_text(torch)
    (tmp_path / "intel_extension_for_pytorch.py").write_text("import sys; print('ERROR! wrong torch'); sys.exit(127)\n")
    wanted = '{"torch": "2.8.0", "ipex": "2.8.0", "step": false, "added": ["rich"]}'
    done = subprocess.run(
        [sys.executable, str(REMOTE / "verify.py"), wanted],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path)},
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("ipexctl-verify "))
    assert "import intel_extension_for_pytorch: SystemExit: 127" in line
    assert "torch is 2.9.0, 2.8.0 was asked for" in line
    assert f'"rich": "{importlib.metadata.version("rich")}"' in line, "its module has no __version__"


@pytest.mark.parametrize("answer", read_table("session/hostile_answers"))
def test_whatever_a_host_answers_becomes_a_harmless_failure_of_that_host(answer: str) -> None:
    host = Host("node0", "localhost", vars={"local": "yes"})
    context = Context(Links(config=None), Path("/nonexistent"), Path("/nonexistent"))
    crew = InstallSessions(Inventory((host,)), context, {}, "/x/env", "id")
    crew.sessions["node0"] = start(HELLO + "sys.stdin.readline()\n" + answer + "\n")
    list(crew.request(["node0"], "inspect", "inspect", Inspection))
    crew.close()
    failure = crew.failed["node0"]
    assert failure.code
    assert "\x1b" not in failure.what


@pytest.mark.parametrize("code", ["no-space", "no-locks"])
def test_a_place_that_does_not_do_while_unpacking_has_a_command_that_shows_others(code: str) -> None:
    failure = describe_error("a", RemoteError(code, "write failed", {}), "/full/env")
    assert failure.hint
    assert failure.hint.splitlines() == [
        "another path for the environment (install --venv PATH); of each host:", "ipexctl exec 'df -hT'"
    ]  # fmt: skip


def test_an_environment_that_a_process_uses_is_known_by_a_link_to_it_too(tmp_path: Path) -> None:
    real, home = tmp_path / "data" / "u", tmp_path / "u"
    environment = real / "env.d" / "x"
    (environment / "bin").mkdir(parents=True)
    (environment / "ipexctl.json").write_text("{}")
    begins = real / "env.d" / "y"  # a guard of a run whose ranks are yet to come has its marker in its memory
    begins.mkdir()
    (begins / "ipexctl.json").write_text("{}")
    home.symlink_to(real)
    program = environment / "bin" / "sleep"
    shutil.copy(shutil.which("sleep") or "sleep", program)
    process = subprocess.Popen([home / "env.d" / "x" / "bin" / "sleep", "60"], env={"IPEXCTL_RUN": "r1"})
    try:
        with start(PROGRAM) as session, guard_start.map_file(str(home / "env.d/y/ipexctl.json")):
            assert session.call("find_used", Used, venv=str(home / "env")) == Used(["x", "y"], ["r1"])
            assert session.call("remove", Removed, venv=str(home / "env")) == Removed(["x", "y"], [])
        assert program.exists()
    finally:
        process.kill()
        process.wait()


MANY_FILES = """
import ctypes, mmap, time
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
for number in range(16000):  # not beside each other, or they would be one
    libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, 0, 2 * number * mmap.PAGESIZE)
print(flush=True)
time.sleep(60)
"""
LOOK = """
from ipexctl.remote.session.install import InstallSession
InstallSession().run("find_used", {"venv": "/nonexistent/env"})
print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])  # ru_maxrss has that of who started it
"""


def test_the_files_in_the_memory_of_anothers_process_do_not_fill_that_of_root(tmp_path: Path) -> None:
    """A path may be as long as a stranger likes: 60,000 of 10 KiB took 1.2 GiB."""
    deep = tmp_path.joinpath(*12 * ["d" * 250])
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"x")
    stranger = (sys.executable, "-c", MANY_FILES)
    with (deep / "f").open() as file, subprocess.Popen(stranger, stdin=file, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        look = subprocess.run((sys.executable, "-c", LOOK), stdout=subprocess.PIPE, check=True)
        process.kill()
    assert int(look.stdout) < 90 << 10  # KiB


def test_an_exception_of_our_program_is_a_failure_of_its_host(caplog: pytest.LogCaptureFixture) -> None:
    """A host that said so ended the command of all hosts with 70."""
    with start(PROGRAM) as session, pytest.raises(RemoteError, match=r"^KeyError: 'venv'$") as caught:
        session.call("find_used", Used)
    assert (caught.value.code, "in run" in caplog.text) == ("internal", True)


def test_nothing_is_changed_without_the_lock(tmp_path: Path) -> None:
    with start(PROGRAM) as session, pytest.raises(RemoteError, match="clean is not allowed without the lock") as caught:
        session.call("clean", Nothing, venv=str(tmp_path / "env"))
    assert caught.value.code == "state"


UV = """#!{python}
import pathlib, sys, time
if sys.argv[1] == "venv":
    pathlib.Path(sys.argv[-1], "bin").mkdir(parents=True)
else:
    environment = pathlib.Path(sys.argv[sys.argv.index("--python") + 1]).parents[1]
    for number in range(2):
        environment.joinpath(str(number)).write_bytes(bytes({half}))
        time.sleep(0.9)
"""


@pytest.mark.parametrize("known", [True, False])
def test_unpacking_tells_the_bytes_of_the_wheels_only(tmp_path: Path, known: bool) -> None:
    half, total = 4 << 20, (8 << 20) * known
    uv, disk = tmp_path / "uv", tmp_path / "other"
    uv.write_text(UV.format(python=sys.executable, half=half))
    uv.chmod(0o755)
    reported: list[tuple[int, int]] = []

    def note(done: int, of: int) -> None:
        reported.append((done, of))
        disk.write_bytes(bytes(4 * half))  # of somebody else, meanwhile

    numbers = {"unpacked": 1, "total": total, "stall": 60.0}
    more: dict[str, Any] = {"origin": sys.executable, "removed": [], "uv": str(uv), "lock": "x", **numbers}
    with start(PROGRAM) as session:
        place: dict[str, Any] = {"venv": str(tmp_path / "env"), "id": "new"}
        session.call("lock", Nothing, **place, owner={})
        session.call("build", Nothing, **place, **more, keep=False, repair=False, progress=note)
    done = [bytes_done for bytes_done, _ in reported]
    assert {of for _, of in reported} == {total}
    assert done == sorted(done)
    # Each look is before or after one of the two files; what the interpreter writes of its own is some KiB.
    assert all(bytes_done % half < 1 << 20 for bytes_done in done)
    assert {1, 2} <= {bytes_done // half for bytes_done in done}
    assert not known or done[-1] == total, "never more than there is"


@pytest.mark.parametrize("fails", [False, True])
def test_a_repair_keeps_its_interpreter_and_brings_the_environment_back_if_it_fails(
    tmp_path: Path, fails: bool
) -> None:
    uv, made = tmp_path / "uv", tmp_path / "env.d" / "x"
    uv.write_text(f'#!/bin/sh\ntest {int(not fails)} = 1 && test -x "$5" && mkdir "$6" && : > "$6/new"\n')
    uv.chmod(0o755)
    (made / "bin").mkdir(parents=True)
    (made / "bin/python").symlink_to(sys.executable)
    (made / "ipexctl.json").write_text("{}")
    more = {"removed": [], "uv": str(uv), "lock": "", "unpacked": 1, "total": 0, "stall": 60.0, "keep": False}
    with in_process(tmp_path / "env") as call:
        call("lock", owner={})
        with pytest.raises(SessionError) if fails else nullcontext():
            call("build", id="x", origin=str(made / "bin/python"), repair=True, **more)
            call("mark", id="x", marker={})
    assert sorted(path.name for path in made.iterdir()) == (
        ["bin", "ipexctl.json"] if fails else ["ipexctl.json", "new"]
    )
    assert sorted(path.name for path in (tmp_path / "env.d").iterdir()) == ["lock", "x"]


def test_a_link_to_an_environment_that_is_gone_is_no_environment(tmp_path: Path) -> None:
    (tmp_path / "env").symlink_to(tmp_path / "env.d/x")
    with start(PROGRAM) as session:
        seen = session.call("inspect", Inspection, venv=str(tmp_path / "env"), uv=_NO_UV, files=[], origins=[])
    assert (seen.kind, seen.active) == ("ours", None)


class Store:
    """The environments of one host, and an install there that has come to the switch."""

    def __init__(self, path: Path, old: str = "old") -> None:
        self.venv, self.session = path / "env", start(PROGRAM)
        for id in filter(None, (old, "new")):
            (path / "env.d" / id).mkdir(parents=True)
            (path / "env.d" / id / "ipexctl.json").write_text("{}")
        if old:
            self.venv.symlink_to(path / "env.d" / old)
        self.call("lock", owner={})
        self.call("mark", marker={})

    def call(self, do: str, kind: type[Any] = Nothing, **arguments: Any) -> Any:
        return self.session.call(do, kind, venv=str(self.venv), id="new", **arguments)

    def switch(self, ask: object = None, address: str = "") -> Offer:
        offer: Offer = self.call("switch", Offer, ask=ask, address=address)
        return offer

    def active(self) -> str:
        """After the end of the session."""
        self.session.end()
        return os.readlink(self.venv).rpartition("/")[2] if self.venv.is_symlink() else ""


@pytest.mark.parametrize("old", ["old", ""])
def test_a_switch_that_nobody_confirmed_is_taken_back_at_the_end(tmp_path: Path, old: str) -> None:
    first = Store(tmp_path, old)
    first.switch()
    assert os.readlink(first.venv).endswith("/new")
    assert first.active() == old
    assert sorted(path.name for path in (tmp_path / "env.d").iterdir()) == sorted({"lock", "new", old} - {""})


def test_a_switch_that_was_cut_short_leaves_a_store_that_can_be_used(tmp_path: Path) -> None:
    """The link that was to be put in the place of the other one was taken for an environment, and put into the store,
    which every later install and uninstall refused for that link."""
    store = Store(tmp_path)
    (tmp_path / "env.d/tmp").mkdir()
    (tmp_path / "env.d/tmp/link").symlink_to(tmp_path / "env.d/new")
    assert store.active() == "old"
    assert sorted(path.name for path in (tmp_path / "env.d").iterdir()) == ["lock", "new", "old"]


def test_a_confirmed_switch_stays_and_can_be_taken_back_while_the_old_environment_exists(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.switch()
    store.call("confirm")
    store.call("go_back", before="old")
    assert os.readlink(store.venv).endswith("/old")
    store.switch()
    store.call("confirm")
    assert store.active() == "new"


@contextmanager
def child_after(venv: Path, *requests: Mapping[str, object]) -> Iterator[subprocess.Popen[bytes]]:
    """A session's process that has done these requests."""
    program = PROGRAM.encode()
    read = f"import sys;exec(sys.stdin.buffer.read({len(program)}))"  # it is too long for an argument
    with subprocess.Popen([sys.executable, "-c", read], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(program)
        for request in requests:
            child.stdin.write(json.dumps({"venv": str(venv), "id": "new", **request}).encode() + b"\n")
            child.stdin.flush()
            while b'"Done"' not in child.stdout.readline():
                assert child.poll() is None
        yield child


SIGNALLED = """
import os, signal
from ipexctl.protocol.session import Nothing
from ipexctl.remote.session import loop

def run(command, arguments):
    with loop._REQUESTS.mutex, loop.ENDED._cond:
        os.kill(os.getpid(), getattr(signal, command))
    return Nothing()

loop.serve_requests(run, lambda: os.write(1, b"cleared"))
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_ends_a_session_whatever_it_does_at_that_moment(number: str) -> None:
    """A handler that takes the loop's locks would wait for ever for the thread that it interrupts."""
    request = b'{"do": "%s"}\n' % number.encode()
    argv = [sys.executable, "-c", SIGNALLED]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(request)
        child.stdin.flush()
        try:
            assert child.wait(60) == 0
        finally:
            child.kill()
        assert child.stdout.read().endswith(b"cleared")


@pytest.mark.parametrize("decision", ["confirmed", "none", "lost"])
def test_a_host_that_has_lost_the_controller_does_what_the_first_host_does(tmp_path: Path, decision: str) -> None:
    """The controller dies between two confirmations."""
    first, second = Store(tmp_path / "a"), Store(tmp_path / "b")
    offer = first.switch(address="127.0.0.1")
    second.switch({"base": f"http://127.0.0.1:{offer.port}", "token": offer.token})
    if decision == "confirmed":
        first.call("confirm")
    if decision == "lost":
        first.session.end()
    ending = threading.Thread(target=second.active)
    ending.start()
    if decision == "none":
        ending.join(1.0)
        assert ending.is_alive(), "it waits as long as the first host can still be confirmed"
        first.session.end()
    ending.join()
    assert second.active() == ("new" if decision == "confirmed" else "old")
    if decision == "confirmed":
        first.call("remove_unused", Removed, keep=["new"])  # all know: nobody asks any more
    assert first.active() == second.active()


@pytest.mark.fault("K2")
@pytest.mark.parametrize(
    ("options", "kind", "what"),
    [
        ("ro", "foreign", "no environment can be in {at}: {at} is mounted read-only"),
        ("noexec", "foreign", "no environment can be in {at}: {at} is mounted noexec"),
        ("size=3m,nr_inodes=90", "absent", ""),
    ],
)
def test_a_place_that_holds_no_environment_is_known(
    tmp_path: Path, mount: Mount, options: str, kind: str, what: str
) -> None:
    mount(tmp_path, options)
    with start(PROGRAM) as session:
        venv = str(tmp_path / "share/env")
        seen = session.call("inspect", Inspection, venv=venv, uv=_NO_UV, files=[], origins=[])
        session.end()
    assert (seen.kind, seen.why) == (kind, what.format(at=tmp_path))
    assert kind == "foreign" or (seen.free, seen.files) == (3 << 20, 89)
    assert list(tmp_path.iterdir()) == []


def test_the_quota_of_the_account_counts_where_it_is_less_than_the_room(tmp_path: Path) -> None:
    """As the quota of quota-tools 4 prints it: blocks of 1 KiB, a star at what is over its soft limit."""
    (tmp_path / "quota").write_text(
        "#!/bin/sh\ncat <<'END'\nDisk quotas for user me (uid 1000): \n"
        "     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace\n"
        "server:/export/home/me 1030* 1000 2054 1700000000 940 0 1000 0\nEND\n"
    )
    (tmp_path / "quota").chmod(0o755)
    link = LocalLink(Host("node0", "localhost"), env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)})
    with Session.start(link, sys.executable, PROGRAM) as session:
        seen = session.call("inspect", Inspection, venv=str(tmp_path / "env"), uv=_NO_UV, files=[], origins=[])
    assert (seen.free, seen.files, seen.at.startswith(f"{tmp_path} (quota of ")) == (1 << 20, 60, True)


def test_a_mount_of_the_same_disk_is_named_where_it_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that was bound read-only was laid to /, which is not."""
    home = tmp_path.resolve() / "home"
    (home / "below").mkdir(parents=True)
    flags = {True: os.ST_RDONLY, False: 0}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flags[str(path).startswith(str(home))]))
    assert places.find_obstacle(str(home / "below")).endswith(f": {home} is mounted read-only")
