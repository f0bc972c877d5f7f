"""The page of a run that goes on: for this machine, for those who know the token, and at no cost for the run."""

import contextlib
import http.client
import os
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ipexctl.act.context import Context
from ipexctl.act.page_server import serve_page
from ipexctl.act.ssh import Links
from ipexctl.decide.parsing.amounts import parse_loopback, parse_ports
from ipexctl.loop import log_event
from ipexctl.model import events as e
from ipexctl.model.errors import UsageError
from ipexctl.model.events import Stamped
from ipexctl.model.hosts import Command, Completed, Host, Inventory
from ipexctl.model.page import RunPage
from ipexctl.protocol import http_bounds
from ipexctl.protocol.messages import KINDS, RunDescription, RunListing, RunRow
from ipexctl.protocol.paths import RUNS
from ipexctl.protocol.run_spec import NodeSpec
from ipexctl.show.page import render
from ipexctl.store.debug_log import DebugLog
from ipexctl.store.masking import SECRETS, Masker
from ipexctl.verbs.common.known_errors import read_known_errors
from ipexctl.verbs.run import serve
from ipexctl.verbs.run.report import MaskedFold
from ipexctl.verbs.run.serve import LivePage
from tests.fakes import FakeOpener
from tests.tables import read_table
from tests.unit.page.runs import fold_page, make_run
from tests.unit.show.streams import START


@pytest.mark.parametrize(("text", "address"), read_table("serve/addresses_of_loopback_are_taken", frozen=True))
def test_addresses_of_loopback_are_taken(text: str, address: tuple[str, int]) -> None:
    assert parse_loopback(text) == address


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "xeon01:80", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "", "*:1"],
)
def test_every_other_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--serve"):
        parse_loopback(text)


@pytest.mark.parametrize(("text", "ports"), [("6006", (6006, 6006)), ("8888:80", (8888, 80)), ("1:65535", (1, 65535))])
def test_a_port_here_is_that_of_the_host_unless_it_has_another(text: str, ports: tuple[int, int]) -> None:
    assert parse_ports(text) == ports


@pytest.mark.parametrize("text", ["", "0", "65536", "80:", ":80", "80:0", "80:x", "1:2:3", "٨٠", "x\x1b"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a port is a number from 1 to 65535") as refused:
        parse_ports(text)
    assert "\x1b" not in refused.value.sentence


@pytest.fixture
def url() -> Iterator[str]:
    with serve_page(("127.0.0.1", 0), lambda: "<main>whole</main>") as served:
        yield served


def ask(url: str, path: str | None = None, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    split = urlsplit(url)
    connection = http.client.HTTPConnection(split.hostname or "", split.port, timeout=60)
    connection.request(method, split.path if path is None else path, headers=headers)
    response = connection.getresponse()
    response.body = response.read()  # type: ignore[attr-defined]
    connection.close()
    return response


def body(response: http.client.HTTPResponse) -> bytes:
    return response.body  # type: ignore[attr-defined, no-any-return]


def test_who_knows_the_token_gets_the_page(url: str) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url)
    response = ask(url)
    assert (response.status, body(response)) == (200, b"<main>whole</main>")
    assert (response.headers["Cache-Control"], response.headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert response.headers["X-Frame-Options"] == "DENY"


def test_without_the_token_there_is_nothing(url: str) -> None:
    token = urlsplit(url).path
    for path in ("/", "//", token[:-2] + "/", token + "x", token.upper(), "/%2e/" + token):
        response = ask(url, path)
        assert (response.status, body(response)) == (404, b""), path
    assert ask(url, method="POST").status == 501
    assert ask(url, method="OPTIONS").status == 501


def test_a_name_that_was_pointed_at_loopback_is_refused_even_with_the_token(url: str) -> None:
    port = urlsplit(url).port
    for name in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1.evil.example:{port}",
        "localhost",
        "",
    ):
        response = ask(url, Host=name)
        assert (response.status, body(response)) == (421, b""), name
    assert ask(url, Host=f"localhost:{port}").status == 200
    assert ask(url, Host=f"LocalHost:{port}").status == 200


def test_a_viewer_that_says_nothing_holds_up_nobody_and_the_server_ends(url: str) -> None:
    split = urlsplit(url)
    silent = [socket.create_connection((split.hostname or "", split.port or 0)) for _ in range(8)]
    assert ask(url).status == 200
    for connection in silent:
        connection.close()


def test_a_viewer_that_sends_slowly_gives_its_place_back(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """A limit on each read let a few such viewers hold all places until the run ended."""
    monkeypatch.setattr(http_bounds, "REQUEST_TIMEOUT", 1.0)
    split = urlsplit(url)
    slow = [socket.create_connection((split.hostname or "", split.port or 0)) for _ in range(70)]
    ended = 0
    for _ in range(300):
        for connection in slow:
            with contextlib.suppress(OSError):
                connection.send(b"G")
        ended = sum(bool(select.select([connection], [], [], 0)[0]) for connection in slow)
        if ended == len(slow):
            break
        time.sleep(0.1)
    assert ended == len(slow)
    assert ask(url).status == 200
    for connection in slow:
        connection.close()


def test_a_viewer_that_goes_away_while_the_page_is_drawn_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of its time printed a traceback over the screen of `watch`."""
    monkeypatch.setattr(http_bounds, "REQUEST_TIMEOUT", 0.5)
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    drawing, gone = threading.Event(), threading.Event()

    def draw() -> str:
        drawing.set()
        gone.wait(10)
        return "page"

    with serve_page(("127.0.0.1", 0), draw) as address:
        split = urlsplit(address)
        with socket.create_connection((split.hostname or "", split.port or 0)) as viewer:
            viewer.send(f"GET {split.path} HTTP/1.0\r\nHost: {split.netloc}\r\n\r\n".encode())
            assert drawing.wait(10)
            viewer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends by a reset
        timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
        for timer in timers:
            timer.join(10)
        gone.set()
    assert timers
    assert raised == []


def test_a_browser_gets_a_file_for_its_user_alone_and_not_the_token(tmp_path: Path) -> None:
    """Every user of the machine can read the words of its command line, and one who did got the page."""
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\nfile=${1#file://}\necho "$@"; stat -c %a "$file"; cat "$file"\n')
    browser.chmod(0o755)
    program = (
        "import pathlib, sys\nfrom ipexctl.verbs.common.pages import open_page, write_redirect\n"
        "with write_redirect(sys.stdin.read(), pathlib.Path(sys.argv[1])) as page: print(list(open_page(page)))"
    )
    url = "http://127.0.0.1:8000/S3CR3T/"
    env = {**os.environ, "BROWSER": str(browser)}
    argv = [sys.executable, "-c", program, str(tmp_path / "state")]
    out = subprocess.run(argv, env=env, input=url, capture_output=True, text=True, check=True, timeout=60).stdout
    words, mode, page, *rest = out.splitlines()
    assert words.startswith("file:///")
    assert "S3CR3T" not in words
    assert (mode, rest) == ("600", ["[]"])
    assert f"url={url}" in page
    assert not [*(tmp_path / "state").iterdir()], "it is gone with the server"


def test_watch_opens_that_file_and_not_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    place = f"/home/u/{RUNS}/r1-h0"
    about = RunDescription("r1", "t", "a", {"a": NodeSpec("l0", [0], place, "python3")}, "nonce")
    row = RunRow("r1", "t", "me", 1.0, 1, "running", ["a"], place)

    def answer(_: Host, command: Command) -> Completed:
        value: Any = RunListing([row]) if command.argv[0] == "ipexctl-list_runs.sh" else about
        return Completed(0, KINDS.write(value) + b"\n")

    context = Context(FakeOpener(answer), tmp_path, tmp_path)
    page = LivePage(MaskedFold(Masker({}), read_known_errors), context)
    hosts = Inventory((Host("a", "a"),), "test")
    watching = serve.watch(None, hosts, context, page, ("127.0.0.1", 0), show=True)
    with contextlib.closing(watching):
        [shown] = [event for event in islice(watching, 5) if isinstance(event, e.Message) and event.code == "serving"]
    token = urlsplit(shown.text.split()[5]).path
    assert token.count("/") == 2
    assert [address.startswith("file:///") and token not in address for address in opened] == [True]


def test_the_address_is_shown_and_not_logged(tmp_path: Path) -> None:
    with DebugLog(tmp_path / "debug.log", write=print, environ={}) as log:
        log.set_directory(tmp_path)
        log_event(e.Message("run k7 is shown at http://127.0.0.1:8000/S3CR3T/", code="serving"))
        log_event(e.Message("something else"))
    text = (tmp_path / "debug.log").read_text()
    assert "S3CR3T" not in text
    assert "something else" in text


def test_after_its_end_nothing_listens() -> None:
    with serve_page(("127.0.0.1", 0), str) as url:
        pass
    with pytest.raises(OSError, match="refused"):
        ask(url)


def test_a_port_in_use_is_an_error_and_not_another_port(url: str) -> None:
    port = urlsplit(url).port or 0
    with pytest.raises(UsageError, match=f"127.0.0.1 port {port} cannot be listened on"):
        serve_page(("127.0.0.1", port), str).__enter__()


# what is served ---------------------------------------------------------------------------------------------------


@pytest.fixture
def page(tmp_path: Path) -> LivePage:
    masked = MaskedFold(Masker({"MY_TOKEN": "hunter2!"}), read_known_errors)
    return LivePage(masked, Context(Links(), tmp_path, tmp_path))


def test_many_viewers_are_one_drawing(page: LivePage, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bool] = []

    def render_run(value: RunPage, *, renew: bool) -> str:
        drawn.append(renew)
        return render.render_run(value, renew=renew)

    monkeypatch.setattr(serve, "render_run", render_run)
    monkeypatch.setattr(serve, "_DRAW_INTERVAL_FACTOR", 1e9)
    for stamped in make_run("good"):
        if stamped.at > START + 20:
            break
        page.handle_event(stamped.event)
    with ThreadPoolExecutor(20) as viewers:
        for _ in range(20):
            viewers.submit(page.draw)
    assert drawn == [True]


def test_the_page_follows_the_run(page: LivePage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_DRAW_INTERVAL_FACTOR", 0)
    assert "Nothing of the run was read yet" in page.draw()
    pages = []
    for number, stamped in enumerate(make_run("good")):
        page.handle_event(stamped.event)
        if number % 60 == 50:
            pages.append(page.draw())
    assert len(set(pages)) == len(pages) > 3
    assert all('data-renew="' in text for text in pages)


def test_the_end_of_the_run_stops_its_renewal_and_secrets_are_masked(page: LivePage) -> None:
    *stream, end = make_run("good")
    for stamped in stream:
        page.handle_event(stamped.event)
    page.handle_event(e.Output(0, "xeon01", "out", b"with hunter2!\n"))
    page.draw()
    page.handle_event(end.event)
    served = page.draw()
    assert 'data-renew="' not in served
    assert "ended well" in served
    assert "with ***" in served
    assert "hunter2" not in served


def test_no_card_of_the_page_has_a_secret(tmp_path: Path) -> None:
    """The card of the verdict had a token: the fold got events before the masker."""
    kept = Masker({})
    kept.add_secrets(["hunter2! of --pass-env"])
    (tmp_path / SECRETS).write_bytes(kept.dump_kept())
    masker = Masker({})
    masker.add_kept(tmp_path)
    page = LivePage(MaskedFold(masker, read_known_errors), Context(Links(), tmp_path, tmp_path, masker=masker))
    leak = "ValueError: hf_abcdefghijklmnopqrst and hunter2! of --pass-env, password=geheim1"
    for stamped in make_run("failed"):
        event = stamped.event
        if isinstance(event, e.RankEnded):
            text = f"Traceback\n{leak}\n"
            event = replace(event, error=leak, traceback=text, kernel=leak, line=leak)
        page.handle_event(event)
    served = page.draw()
    assert "ValueError: *** and ***, password=***" in served
    for secret in ("hf_abc", "hunter2", "geheim1"):
        assert secret not in served


def test_earlier_lines_whose_time_is_known_are_drawn_there() -> None:
    begun, came = START, START + 600
    stream = [Stamped(came, e.RunStarted("k7", "a", ("a",), "train.py", begun, "train.py"))]
    lines = [e.Output(0, "a", "out", b"step %d loss 0.5\n" % n, written=begun + 30 * n) for n in range(20)]
    stream += [Stamped(e.get_event_time(line, came), line) for line in lines]
    stream += [Stamped(came, e.CaughtUp())]
    page = fold_page(stream)
    (pace,) = (figure for figure in page.figures if figure.key == "pace")
    points = pace.curves[0].points
    assert [round(at) for at, _ in points] == [30 * n for n in range(1, 20)]
    assert {round(30 * value) for _, value in points} == {1}


def test_lines_of_before_the_watch_are_not_drawn_as_figures_of_now() -> None:
    begun, came = START, START + 600
    stream = [Stamped(came, e.RunStarted("k7", "a", ("a",), "train.py", begun, "train.py"))]
    stream += [Stamped(came + n / 100, e.Output(0, "a", "out", b"step %d loss 9.5\n" % n)) for n in range(100)]
    stream += [Stamped(came + 1, e.CaughtUp())]
    stream += [Stamped(came + 1.1 + n, e.Output(0, "a", "out", b"step %d loss 0.5\n" % (200 + n))) for n in range(5)]
    page = fold_page(stream)
    assert page.watched_from == pytest.approx(600)
    early = fold_page([Stamped(came, e.CaughtUp()), *stream])
    assert early.watched_from is None, "the run began under the eyes of its watcher"
    (loss,) = (figure for figure in page.figures if figure.key == "loss")
    assert {value for _, value in loss.curves[0].points} == {0.5}
    assert len(page.logs[0].lines) == 105
