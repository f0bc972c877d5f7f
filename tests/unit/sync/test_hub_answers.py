"""What a hub says and sends, and a directory that another library fills while it is measured."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import huggingface_hub.utils._detect_agent
import pytest

from ipexctl.act.hub import _is_plain, describe_snapshot, download_files
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.hub import HubReference
from ipexctl.store.private_files import measure_tree
from ipexctl.verbs.files.hub import find_snapshot
from tests.hub import Hub

COMMIT = "a" * 40


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub("org/tiny", {COMMIT: {"model.bin": b"x" * 1000}}, {"main": COMMIT})
    with hub.serve(nullcontext()):
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub


def send(hub: Hub, handler: Any, status: int, pieces: int, piece: bytes, location: str = "") -> bool:
    handler.send_response(status)
    if location:
        handler.send_header("Location", location)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Connection", "close")
    handler.end_headers()
    with suppress(OSError):  # nobody reads it any more
        for _ in range(pieces):
            handler.wfile.write(piece)
            hub.sent += len(piece)
    return True


@pytest.mark.parametrize(
    ("status", "pieces", "piece", "reason"),
    [
        (500, 1, b"[]", "'list' object has no attribute 'get'"), (500, 1, b"[" * 200_000, "recursion"),
        (200, 1, b'{"sha": 3}', "`str`"), (200, 1, b"{}", "`sha`"), (200, 1, b'{"sha": "main"}', "malformed: main"),
        (200, 1, b'{"sha": "%b", "siblings": [{"rfilename": "a", "size": 1e400}]}' % COMMIT.encode(), "out of range"),
        (200, 200, bytes(1 << 20), "the hub's answer has more than 64 MiB"),
        (500, 200, bytes(1 << 20), "the hub's answer has more than 64 MiB"),
    ],
)  # fmt: skip
def test_a_hub_that_answers_nonsense_or_without_an_end_is_an_error_of_one_sentence(
    hub: Hub, status: int, pieces: int, piece: bytes, reason: str
) -> None:
    """It was exit 70, or took as much memory as the hub had to send."""
    hub.misbehave = lambda handler: send(hub, handler, status, pieces, piece)
    with pytest.raises(UsageError) as refused:
        describe_snapshot(HubReference("org/tiny"))
    assert refused.value.exit == Exit.STEP
    assert reason in refused.value.reasons[0]
    assert hub.sent < 100 << 20


def test_a_file_that_is_longer_than_the_hub_said_fills_no_disk(hub: Hub, tmp_path: Path) -> None:
    snapshot = describe_snapshot(HubReference("org/tiny"))

    def send_for_ever(handler: BaseHTTPRequestHandler) -> bool:
        return handler.command == "GET" and send(hub, handler, 200, 200, bytes(1 << 20))

    hub.misbehave = send_for_ever
    with pytest.raises(UsageError) as refused:
        download_files(HubReference("org/tiny"), snapshot, ["model.bin"], tmp_path)
    assert refused.value.reasons == ("the hub sends more than the 1000 bytes of the file",)
    assert hub.sent < 100 << 20
    assert measure_tree(tmp_path)[0] < 1 << 20


def test_a_redirect_without_an_end_is_followed_and_takes_no_memory(hub: Hub, tmp_path: Path) -> None:
    """httpx reads it whole first: 1.4 GiB in four seconds."""

    def redirect(handler: BaseHTTPRequestHandler) -> bool:
        moved = handler.command == "HEAD" or "moved" in handler.path
        return not moved and send(hub, handler, 302, 200, bytes(1 << 20), f"{hub.url}{handler.path}?moved")

    hub.misbehave = redirect
    snapshot = describe_snapshot(HubReference("org/tiny"))
    download_files(HubReference("org/tiny"), snapshot, ["model.bin"], tmp_path)
    assert (tmp_path / "model.bin").stat().st_size == 1000
    assert hub.sent < 100 << 20


def test_an_error_in_place_of_a_file_is_unpacked_within_a_bound(hub: Hub, tmp_path: Path) -> None:
    """7 KB took 9 GiB: packed twice."""
    snapshot = describe_snapshot(HubReference("org/tiny"))
    body = gzip.compress(gzip.compress(bytes(1 << 28)))

    def refuse(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command == "GET":
            handler.send_response(500)
            for name, value in (("Content-Encoding", "gzip, gzip"), ("Content-Length", str(len(body)))):
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(body)
        return handler.command == "GET"

    hub.misbehave = refuse
    with pytest.raises(UsageError) as refused:
        download_files(HubReference("org/tiny"), snapshot, ["model.bin"], tmp_path)
    assert refused.value.reasons == ("the hub's answer has more than 64 MiB",)


@pytest.mark.parametrize(
    ("status", "name", "value", "reason"),
    [
        (302, "Location", "http://127.0.0.1/\x7f", "Invalid non-printable ASCII character"),
        (302, "Location", f"http://127.0.0.1/{'a' * 70_000}", "URL too long"),
        (429, "Retry-After", "9" * 400, "An error happened"), (503, "Retry-After", "90000000", "An error happened"),
        (429, "RateLimit", f'"api";r=0;t={"9" * 400}', "An error happened"),
    ],
)  # fmt: skip
def test_an_address_that_is_none_and_a_wait_without_an_end_are_errors_of_one_sentence(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, name: str, value: str, reason: str
) -> None:
    """They were exit 70, by exceptions of httpx and of numbers, or held the command for years without a word."""
    snapshot, waits = describe_snapshot(HubReference("org/tiny")), list[float]()
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", waits.append)

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(status if handler.command == "HEAD" or status > 400 else 200)
        headers = {"X-Repo-Commit": COMMIT, "ETag": '"x"', "Content-Length": "0", name: value}
        for key, text in headers.items():
            handler.send_header(key, text)
        handler.end_headers()
        return True

    hub.misbehave = answer
    with pytest.raises(UsageError) as refused:
        download_files(HubReference("org/tiny"), snapshot, ["model.bin"], tmp_path)
    assert refused.value.exit == Exit.STEP
    assert reason in refused.value.reasons[0]
    assert max(waits, default=0) < 10


def test_notes_of_downloads_are_none_of_the_hubs_files(hub: Hub, tmp_path: Path) -> None:
    """What huggingface_hub reads there of a file counts in place of the hub's headers, and nothing of it is sent on."""
    hub.commits[COMMIT][".cache/huggingface/trees/x.json"] = b"{}"  # type: ignore[index]
    assert find_snapshot(HubReference("org/tiny"), (), tmp_path).names == ("model.bin",)


def test_an_etag_names_no_file_elsewhere(hub: Hub, tmp_path: Path) -> None:
    """It becomes a part of a name below a directory that another file of the hub makes."""

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(200)
        headers = {"X-Repo-Commit": COMMIT, "ETag": '"x/../../../../../evil"', "Content-Length": "1000"}
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        return True

    snapshot = describe_snapshot(HubReference("org/tiny"))
    hub.misbehave = answer
    with pytest.raises(UsageError) as refused:
        download_files(HubReference("org/tiny"), snapshot, ["model.bin"], tmp_path / "cache")
    assert refused.value.reasons == ("the hub's answer is malformed: an ETag with a slash",)


@pytest.mark.parametrize(("home", "own"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_file_of_xet_is_had_by_an_address_of_huggingface_alone(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: bool, own: bool
) -> None:
    """The token went to any address, and the answer of one without an end took 11 GiB."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    if home:
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_HOME", f"{hub.url}/")
    snapshot, asked, other = describe_snapshot(HubReference("org/tiny")), [], Hub("org/other", {}, {})

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        asked.append(handler.path)
        if handler.command == "HEAD":
            handler.send_response(200)
            link = f'<{hub.url if own else other.url}/auth>; rel="xet-auth"'
            headers = {"X-Repo-Commit": COMMIT, "ETag": '"x"', "Content-Length": "1000"}
            for name, value in {**headers, "X-Xet-Hash": "f" * 64, "Link": link}.items():
                handler.send_header(name, value)
            handler.end_headers()
        return handler.command == "HEAD"

    hub.misbehave = other.misbehave = answer
    with other.serve(nullcontext()), suppress(UsageError):
        download_files(HubReference("org/tiny"), snapshot, ["model.bin"], tmp_path)
    assert ("/auth" in asked) is (home and own)
    assert (tmp_path / "model.bin").is_file() is not (home and own)


def test_no_hub_is_asked_which_variables_of_the_user_to_look_for(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub did, and told it by the next request whether one of them has the value that it names."""
    monkeypatch.setattr(huggingface_hub.utils._detect_agent, "_registry", None)
    monkeypatch.setattr(huggingface_hub.constants, "AGENT_HARNESSES_PATH", str(tmp_path / "harnesses.json"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", False)
    asked = []

    def note(handler: BaseHTTPRequestHandler) -> bool:
        asked.append(handler.path)
        return False

    hub.misbehave = note
    describe_snapshot(HubReference("org/tiny"))
    assert [path for path in asked if not path.startswith("/api/models/")] == []


@pytest.mark.parametrize(
    ("name", "size", "plain"),
    [
        ("a/model.safetensors", 5_000_000_000, True), ("model.bin", 0, True), ("model.bin", -1, False),
        ("model.bin", 10**30, False), ("/etc/x", 1, False),
        ("a/../../x", 1, False), ("a//b", 1, False), ("x\n\x1b[2J", 1, False), ("x\u202e", 1, False), ("x\0", 1, False),
    ],
)  # fmt: skip
def test_names_and_sizes_are_those_of_files(name: str, size: int, plain: bool) -> None:
    assert _is_plain(name, size) is plain


def test_files_that_come_and_go_are_measured(tmp_path: Path) -> None:
    """Downloads are renamed when they are whole, and their directories removed."""
    (tmp_path / "whole").write_bytes(b"x" * 100)
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            for number in range(20):
                (tmp_path / f"d{number}").mkdir()
                (tmp_path / f"d{number}/part").write_bytes(b"")
            for number in range(20):
                (tmp_path / f"d{number}/part").unlink()
                (tmp_path / f"d{number}").rmdir()

    other = threading.Thread(target=churn)
    other.start()
    try:
        assert {measure_tree(tmp_path)[0] for _ in range(300)} == {100}
    finally:
        over.set()
        other.join()
