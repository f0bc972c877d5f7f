"""Downloads from a Hugging Face hub, by huggingface_hub, which reads the hub's address, proxies and the token from the
environment and from the account's files."""

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ipexctl.act.threads import start_thread
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.hub import HubReference
from ipexctl.model.json_values import Record, parse_json
from ipexctl.model.text import pluralize, printable, strip_credentials

_FILE_SIZE_LIMIT = 1 << 50  # bytes of a file
_UNKNOWN_SIZE_LIMIT = 64 << 30  # bytes of a file of which the hub does not say the size
_SLACK = 16 << 20  # bytes beyond a file that its transport may take
_ANSWER_LIMIT = 64 << 20  # bytes of a description
_TIMEOUT = 30.0  # seconds in which the hub sends something of it


class Snapshot(Record):
    """A commit of a repository: its files with their sizes."""

    commit: str
    files: Mapping[str, int]
    address: str  # of the hub


class _HubFile(Record):
    rfilename: str
    size: int | None = None


class _Description(Record):
    """The part of a hub's answer that is used."""

    sha: str
    siblings: tuple[_HubFile, ...] = ()


def describe_snapshot(reference: HubReference) -> Snapshot:
    """Asks the hub what a revision is. Raises `UsageError`, also where huggingface_hub is not installed."""
    hub = _import_hub()
    with _explain_errors(hub, reference):
        endpoint = hub.HfApi().endpoint
        place = f"api/{reference.kind}s/{reference.repository}/revision/{quote(reference.revision, safe='')}"
        future = start_thread(lambda: _ask(hub, f"{endpoint}/{place}"))
        if not wait([future], 2 * _TIMEOUT).done:
            raise ValueError(f"no answer within {2 * _TIMEOUT:g} s")
        info = future.result()
        files = {file.rfilename: file.size or 0 for file in info.siblings}
        strange = [name for name, size in files.items() if not _is_plain(name, size)]
        if strange or not re.fullmatch("[0-9a-f]{40}", info.sha):
            raise ValueError(f"the hub's answer is malformed: {printable(', '.join(strange) or info.sha, 200)}")
    return Snapshot(info.sha, files, strip_credentials(endpoint))


def _ask(hub: Any, url: str) -> _Description:
    """Asks as `HfApi.repo_info` does, which reads whatever comes."""
    headers, data = {**hub.utils.build_hf_headers(), "Accept-Encoding": "identity"}, bytearray()
    session = hub.utils.get_session()
    with session.stream("GET", url, params={"blobs": True}, headers=headers, timeout=_TIMEOUT) as response:
        for piece in response.iter_raw():
            data += piece
            if len(data) > _ANSWER_LIMIT:
                raise ValueError(f"the hub's answer has more than {_ANSWER_LIMIT >> 20} MiB")
    reasons = {name: value for name, value in response.headers.items() if name.startswith("x-")}
    whole = type(response)(response.status_code, headers=reasons, content=bytes(data), request=response.request)
    hub.utils.hf_raise_for_status(whole)
    return parse_json(_Description, bytes(data))


def _is_plain(name: str, size: int) -> bool:
    """Returns whether this is a path below a directory, that a line can show, and a size."""
    return not {"", ".", ".."} & {*name.split("/")} and name.isprintable() and 0 <= size < _FILE_SIZE_LIMIT


def download_files(reference: HubReference, snapshot: Snapshot, names: Sequence[str], directory: Path) -> None:
    """Downloads what of a commit is not in ``directory`` yet; goes on where a download ended. Raises `UsageError`."""
    hub = _import_hub()
    with _explain_errors(hub, reference):
        for name in names:
            bar = _limit_progress(hub, snapshot.files[name] or _UNKNOWN_SIZE_LIMIT)
            commit = {"repo_type": reference.kind, "revision": snapshot.commit}
            hub.hf_hub_download(reference.repository, name, **commit, local_dir=directory, tqdm_class=bar)


def _limit_progress(hub: Any, size: int) -> type:
    """Returns a progress bar that draws nothing, and ends a download of more than twice the size: no transport has a
    limit of its own."""

    def update(bar: Any, count: float = 1) -> None:
        bar.received = getattr(bar, "received", 0) + count
        if bar.received > 2 * size + _SLACK:
            raise ValueError(f"the hub sends more than the {pluralize(size, 'byte')} of the file")

    return type("Progress", (hub.utils.tqdm,), {"update": update})


def _import_hub() -> Any:
    """Returns huggingface_hub, which draws and says nothing by itself."""
    try:
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        what = "sync hf: downloads with huggingface_hub, which is not installed beside ipexctl"
        raise UsageError(what, hint="pip install 'ipexctl[hub]', or uv tool install 'ipexctl[hub]'") from None
    hub: Any = huggingface_hub
    hub.utils.disable_progress_bars()
    hub.utils.logging.set_verbosity_error()
    # Else it asks the hub which variables to look for, and its next request says which of them are set.
    hub.constants.HF_HUB_DISABLE_TELEMETRY = True
    hub.set_client_factory(partial(_make_client, hub))
    return hub


def _make_client(hub: Any) -> Any:
    client = hub.utils._http.default_client_factory()
    client.event_hooks["response"] += [partial(_check_headers, hub), _bound_answer]
    return client


def _check_headers(hub: Any, response: Any) -> None:
    """An ETag becomes a part of a file's name. The token goes to the address by which a file of Xet is had, and what
    comes then is read without a bound: from another hub than huggingface.co, the file is had as others are. How long to
    wait is no hub's to say beyond 999 s."""
    headers = response.headers
    for name in ("Retry-After", "RateLimit"):
        if re.search(r"\d{4}", headers.get(name, "")):
            del headers[name]
    if any("/" in headers.get(name, "").removeprefix("W/") for name in ("ETag", "X-Linked-ETag")):
        raise ValueError("the hub's answer is malformed: an ETag with a slash")
    route = response.links.get("xet-auth", {}).get("url") or headers.get("X-Xet-Refresh-Route", "")
    home = hub.constants.HUGGINGFACE_CO_URL_HOME.rstrip("/")
    if hub.constants.ENDPOINT.rstrip("/") != home or not route.startswith(f"{home}/"):
        headers.pop("X-Xet-Hash", None)


def _bound_answer(response: Any) -> None:
    """What is no file is read whole and unpacked: an error, an address. A redirect is, too, before it is followed."""
    if response.has_redirect_location and response.request.method != "HEAD":
        response.read = response.close
    unpack = response.iter_bytes

    def iterate(chunk_size: int | None = None) -> Iterator[bytes]:
        size = 0
        for piece in unpack(chunk_size):
            size += len(piece)
            if chunk_size is None and size > _ANSWER_LIMIT:
                raise ValueError(f"the hub's answer has more than {_ANSWER_LIMIT >> 20} MiB")
            yield piece

    response.iter_bytes = iterate


@contextmanager
def _explain_errors(hub: Any, reference: HubReference) -> Iterator[None]:
    name, errors = printable(reference.repository, 200), hub.errors
    reasons, hint = ["no host gets a token"], "hf auth login"
    try:
        yield
        return
    except errors.GatedRepoError:
        what = f"{name} is gated: its owner grants access on its page"
    except errors.RevisionNotFoundError:
        what, reasons, hint = f"{name} has no revision {printable(reference.revision, 100)}", [], ""
    except errors.RepositoryNotFoundError:
        what = f"the hub has no {reference.kind} {name}, or it is private"
    except Exception as error:  # whatever an answer makes huggingface_hub raise, also of addresses and numbers
        lines = [printable(strip_credentials(line), 300) for line in str(error).splitlines() if line.strip()]
        what, reasons, hint = f"{name} cannot be downloaded from the hub", lines[:3], ""
    raise UsageError(what, reasons=reasons, hint=hint or None, exit=Exit.STEP, code="hub")
