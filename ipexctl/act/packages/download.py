"""Wheels over HTTP: probed, downloaded into the controller's cache and checked against their hashes."""

import fcntl
import io
import os
import queue
import socket
import ssl
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import urllib3

from ipexctl.act.context import Limits
from ipexctl.act.packages.sources import Sources
from ipexctl.act.threads import StallTimer, start_thread
from ipexctl.act.transfer.send import hash_file, hash_open_file
from ipexctl.model.errors import Exit, Failure, Kind, UsageError
from ipexctl.model.events import Event, HostFailed, Progress, StepStarted, Workflow
from ipexctl.model.text import parse_integer, pluralize, strip_credentials
from ipexctl.model.wheels import Wheel
from ipexctl.store.private_files import make_private_directories, open_regular_file

_UNKNOWN_SIZE_LIMIT = 8 << 30  # bytes of a wheel of which no index says the size
_LIST_LIMIT = 16 << 20  # bytes of the list of files in a wheel: 100,000 files

Tell = Callable[[int, int, str], None]  # (bytes done, bytes in all or 0, whence)


class _Http:
    """One connection pool; proxies and certificate authorities from the environment."""

    def __init__(self, sources: Sources) -> None:
        self.sources, self.limits = sources, sources.limits
        context = ssl.create_default_context()
        for file in (sources.certificate, sources.environ.get("SSL_CERT_FILE")):
            if file and Path(file).is_file():
                context.load_verify_locations(file)
        self._timeout = urllib3.Timeout(connect=self.limits.probe * 2, read=self.limits.stall / self.limits.tries)
        # One try: `_Download` repeats. Followed to another host, urllib3 leaves the login behind.
        once = urllib3.Retry(total=None, connect=0, read=0, other=0, redirect=5)
        self._options: dict[str, Any] = {"ssl_context": context, "maxsize": 8, "retries": once}
        self._direct = urllib3.PoolManager(**self._options)
        self._proxies = urllib.request.getproxies()
        self._proxied: dict[str, urllib3.ProxyManager] = {}

    def get(self, url: str, *, method: str = "GET", start: int = 0) -> urllib3.BaseHTTPResponse:
        parts = urlsplit(url)
        headers = {"Accept-Encoding": "identity", "User-Agent": "ipexctl"}
        if start:
            headers["Range"] = f"bytes={start}-"
        if login := self.sources.find_login(url):
            headers.update(urllib3.make_headers(basic_auth=unquote(login)))
        proxy, pool = self._proxies.get(parts.scheme), self._direct
        if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
            pool = self._proxied.setdefault(proxy, urllib3.ProxyManager(proxy, **self._options))
        request = partial(pool.request, method, strip_credentials(url), headers=headers, timeout=self._timeout)
        answer = start_thread(partial(request, preload_content=False))
        if not wait([answer], self.limits.stall).done:  # it sends its headers a byte at a time
            raise urllib3.exceptions.TimeoutError(f"timed out after {self.limits.stall:g} s")
        try:
            return answer.result()
        except ValueError as error:  # a redirect to what is no address
            raise urllib3.exceptions.HTTPError(str(error)) from None


def probe_index(url: str, sources: Sources) -> bool:
    """Returns whether an index answers within ``limits.probe`` seconds; for a local directory, whether it exists."""
    if "://" not in url or url.startswith("file:"):
        return Path(urlsplit(url).path).exists()
    try:
        probe = sources.limits.probe
        http = _Http(replace(sources, limits=Limits(stall=probe, tries=1, probe=probe / 2)))
        with closing(http.get(url)) as response:
            return response.status < 500
    except (urllib3.exceptions.HTTPError, OSError):
        return False


def measure_sizes(wheels: Sequence[Wheel], sources: Sources) -> tuple[Wheel, ...]:
    """Returns the wheels with their sizes (0 where the server does not tell): for the plan and for disk space."""
    http = _Http(sources)

    def measure(wheel: Wheel) -> Wheel:
        if wheel.size:
            return wheel
        try:
            if wheel.local:
                return replace(wheel, size=get_local_wheel_path(wheel).stat().st_size)
            with closing(http.get(wheel.url, method="HEAD")) as response:
                length = parse_integer(response.headers.get("Content-Length"))
                return replace(wheel, size=length or 0) if response.status == 200 else wheel
        except (urllib3.exceptions.HTTPError, OSError):
            return wheel

    with ThreadPoolExecutor(16) as pool:
        return tuple(pool.map(measure, wheels))


def get_local_wheel_path(wheel: Wheel) -> Path:
    """Returns the file of a wheel with a ``file:`` URL."""
    return Path(unquote(urlsplit(wheel.url).path))


def locate_wheel(cache: Path, wheel: Wheel) -> Path:
    """Returns where the controller keeps the file; a local one stays where it is."""
    if wheel.local:
        return get_local_wheel_path(wheel)
    return cache / "wheels" / wheel.sha256 / wheel.filename


def download_wheels(
    wheels: Sequence[Wheel], cache: Path, sources: Sources, stop: threading.Event, tell: Tell
) -> dict[str, Path]:
    """Downloads the wheels into the cache and checks their hashes; path by package name. Resumes an earlier download,
    tries ``limits.tries`` times, keeps no file with a wrong hash. Raises `UsageError` (exit 4) with all that failed."""
    http = _Http(sources)
    done: dict[str, int] = {}
    total = sum(wheel.size for wheel in wheels) if all(wheel.size for wheel in wheels) else 0
    lock = threading.Lock()

    def obtain(wheel: Wheel) -> str | None:
        def report(have: int) -> None:
            with lock:
                done[wheel.filename] = have
                tell(sum(done.values()), total, f"from {urlsplit(wheel.url).hostname or 'this machine'}")

        return _Download(http, wheel, locate_wheel(cache, wheel), report, stop).download()

    with ThreadPoolExecutor(4) as pool:
        problems = [problem for problem in pool.map(obtain, wheels) if problem]
    if problems:
        raise UsageError("some wheels could not be downloaded", reasons=problems, exit=Exit.STEP)
    return {wheel.name: locate_wheel(cache, wheel) for wheel in wheels}


class SourceArchive(NamedTuple):
    """The sources of a package on an index."""

    filename: str
    url: str
    sha256: str
    size: int
    local: bool = False


def download_archive(archive: SourceArchive, path: Path, sources: Sources) -> Path:
    """Downloads sources to ``path``, which it returns. Raises `UsageError` (exit 4)."""
    download = _Download(_Http(sources), archive, path, lambda _: None, threading.Event())
    if problem := download.download():
        raise UsageError("the sources of a package could not be downloaded", reasons=[problem], exit=Exit.STEP)
    return path


@dataclass(frozen=True)
class _Download:
    """One file on its way to ``path``. ``report`` gets the bytes that are there."""

    http: _Http
    wheel: Wheel | SourceArchive
    path: Path
    report: Callable[[int], None]
    stop: threading.Event

    def download(self) -> str | None:
        """None, or the error of the last try. Two processes that want the same wheel download it once."""
        name = self.wheel.filename
        try:
            if self._has_right_hash():
                return None
            if self.wheel.local:
                return f"{name}: {'changed since it was locked' if self.path.exists() else 'no longer exists'}"
            make_private_directories(self.path.parent)
            part = self.path.with_name(f".{name}.part")
            with _hold_part_lock(part, self.report, self.http.limits, self.stop):
                # Another process may just have finished it.
                return None if self._has_right_hash() else self._download_with_retries(part)
        except OSError as error:
            return f"{name}: {error.strerror or error}"

    def _has_right_hash(self) -> bool:
        whole = hash_wheel(self.path) == self.wheel.sha256
        if whole:
            self.report(self.path.stat().st_size)
        return whole

    def _download_with_retries(self, part: Path) -> str | None:
        wheel, problem = self.wheel, ""
        for attempt in range(self.http.limits.tries):
            if attempt:
                self.stop.wait(0.5 * attempt)
            if self.stop.is_set():
                return f"{wheel.filename}: stopped"
            try:
                problem = self._resume_download(part)
            except urllib3.exceptions.HTTPError as error:
                problem = _describe_http_error(error)
            if problem:
                continue
            sha256, size = hash_file(part), part.stat().st_size
            if sha256 == wheel.sha256:
                part.replace(self.path)
                return None
            os.truncate(part, 0)  # not removed: it carries the lock
            problem = f"damaged: sha256 {sha256[:16]}… of {pluralize(size, 'byte')}, expected {wheel.sha256[:16]}…"
            if wheel.size:
                problem += f" of {pluralize(wheel.size, 'byte')}"
            if attempt:  # damaged twice: the file on the index is wrong
                break
        return f"{wheel.filename} from {strip_credentials(wheel.url).partition(wheel.filename)[0]}: {problem}"

    def _resume_download(self, part: Path) -> str:
        """Appends what is missing to the part. Returns what went wrong, empty where it is complete."""
        start = part.stat().st_size
        with closing(self.http.get(self.wheel.url, start=start)) as response:
            if response.status == 416:  # the file is complete already: the hash decides
                return ""
            if response.status not in {200, 206}:
                withheld = self.http.sources.explain_withheld_login(self.wheel.url) if response.status == 401 else ""
                return f"HTTP {response.status}{'; ' if withheld else ''}{withheld}"
            if response.status == 200:
                start = 0
            length = parse_integer(response.headers.get("Content-Length"))
            have, counted, since = start, start, time.monotonic()
            limit = self.wheel.size or _UNKNOWN_SIZE_LIMIT
            patience = self.http.limits.stall / self.http.limits.tries

            # Python reads what comes behind the last piece to its end, which there may not be. The socket is the
            # response's: that of its connection is none for an answer with `Connection: close`, or may be one of TLS.
            connection = socket.socket(fileno=os.dup(response.fileno()))
            cut = partial(connection.shutdown, socket.SHUT_RDWR)
            with connection, part.open("ab" if start else "wb") as file, StallTimer(cut, patience + 1.0) as timer:
                while piece := response.read1(1 << 18):  # `read` waits until it has all of that
                    file.write(piece)
                    have += len(piece)
                    self.report(have)
                    now = time.monotonic()
                    if self.stop.is_set():
                        return "stopped"
                    if have > limit:
                        file.truncate(0)
                        return f"longer than {pluralize(limit, 'byte')}"
                    if have - counted >= 64 << 10:
                        counted, since = have, now
                        timer.reset(patience + 1.0)
                    elif now - since > patience:
                        return f"no progress for {patience:g} s"
            if timer.stalled:
                return f"no progress for {patience:g} s"
            if length is not None and have < start + length:
                return f"cut off: {have} of {pluralize(start + length, 'byte')}"
            return ""


@contextmanager
def _hold_part_lock(part: Path, report: Callable[[int], None], limits: Limits, stop: threading.Event) -> Iterator[None]:
    """Holds the lock of the unfinished file; while another ipexctl has it, waits and reports how many bytes it has. The
    kernel releases the lock of a killed process. Raises `OSError` when ``stop`` is set, and when the file has not grown
    for ``limits.stall`` seconds (its holder is frozen: it would have given up by itself)."""
    have, size, moved = 0, -1, time.monotonic()
    while (handle := _try_lock_part(part)) is None:
        with suppress(FileNotFoundError):  # it was finished just now
            have = part.stat().st_size
        if have != size:
            size, moved = have, time.monotonic()
            report(have)
        if time.monotonic() - moved > limits.stall:
            raise TimeoutError(f"another ipexctl that downloads it makes no progress for {limits.stall:g} s")
        if stop.wait(0.1):
            raise InterruptedError("stopped")
    try:
        yield
    finally:
        if not os.fstat(handle).st_size:
            part.unlink(missing_ok=True)
        os.close(handle)


def _try_lock_part(part: Path) -> int | None:
    """Returns a descriptor that holds the lock on the file, created if missing; None while another process holds it."""
    handle = os.open(part, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        return handle  # a file system without locks: the hash detects what two processes mixed up
    with suppress(FileNotFoundError):
        if os.path.samestat(part.stat(), os.fstat(handle)):
            return handle
    os.close(handle)  # it was finished between the two calls, and renamed to the wheel
    return None


def _describe_http_error(error: Exception) -> str:
    if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason:
        error = error.reason
    text = str(error)
    for word, reason in (
        ("timed out", "no answer in time"),
        ("refused", "connection refused"),
        ("resolve", "the host name does not resolve"),
        ("IncompleteRead", "the connection was closed before the end"),
    ):
        if word in text:
            return reason
    return strip_credentials(text)[:200]


def hash_wheel(path: Path) -> str:
    """Returns the SHA-256 of a wheel, in hex; "" for what is none: no regular file, one that cannot be read, or one
    with a hole, which may be terabytes that nobody wrote."""
    with suppress(OSError), open_regular_file(path, follow=True) as file:
        if os.lseek(file.fileno(), 0, os.SEEK_HOLE) == os.fstat(file.fileno()).st_size:
            file.seek(0)
            return hash_open_file(file)
    return ""


class BoundedFile(io.FileIO):
    """The file of a wheel: zipfile takes its list of files into memory, which may be all of it."""

    def read(self, size: int | None = -1) -> bytes:
        if (size or 0) > _LIST_LIMIT:
            raise ValueError("its list of files is too long")
        return super().read(size)


def read_unpacked_size(path: Path) -> int:
    """Returns bytes a wheel takes once unpacked; 0 for a file that is no archive that can be read."""
    try:
        with BoundedFile(path) as file, zipfile.ZipFile(file) as archive:
            return sum(info.file_size for info in archive.infolist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return 0


FETCH = "fetch the wheels"


def fetch_wheels(
    wheels: Sequence[Wheel], cache: Path, sources: Sources, stop: threading.Event
) -> Workflow[dict[str, Path] | Failure]:
    """Downloads wheels into the cache, as a step that the caller ends. Returns them by package, or the last failure.
    Sets ``stop`` when the generator is closed."""
    yield StepStarted("", FETCH)
    events = queue.SimpleQueue[Event | None]()
    last = 0.0

    def tell(done: int, total: int, name: str) -> None:
        """Passes the progress on, ten times a second."""
        nonlocal last
        if time.monotonic() - last >= 0.1:
            last = time.monotonic()
            events.put(Progress("", FETCH, done, total, "B", name))

    future = start_thread(lambda: download_wheels(wheels, cache, sources, stop, tell))
    future.add_done_callback(lambda _: events.put(None))
    try:
        while (event := events.get()) is not None:
            yield event
    except BaseException:
        stop.set()
        raise
    try:
        return future.result()
    except UsageError as error:
        failures = [Failure("", Kind.STEP, reason, code="wheel") for reason in error.reasons]
        yield from map(HostFailed, failures)
        return failures[-1]
