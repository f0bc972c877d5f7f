"""Package indexes, asked from the controller: which exact wheels a stack needs (with uv), and the wheels themselves.

The user's own configuration counts: that of uv (read by uv itself) and that of pip (translated here). URLs may carry a
user name and a password; those reach uv through its environment, never through an argument list, and no message.
"""

from __future__ import annotations

import configparser
import fcntl
import hashlib
import json
import netrc
import os
import platform as os_platform
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.stack import Lock, Wheel
from ipexctl.model.text import without_secrets as without_secrets
from ipexctl.model.toml import parse_toml

if TYPE_CHECKING:
    import urllib3


@dataclass(frozen=True, slots=True)
class Limits:
    """``stall`` seconds without progress end an attempt, ``tries`` attempts are made; ``probe`` seconds for a look.
    Downloads of ``worth`` bytes or more are worth a measurement of who is faster."""

    stall: float = 60.0
    tries: int = 3
    probe: float = 5.0
    worth: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Tool:
    """A program to be carried to hosts."""

    path: str
    version: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Sources:
    """Where wheels may come from. ``index`` None is the default package index; ``only`` forbids any index.

    ``merged``: all indexes count alike, as with pip; else the first that knows a package is the only one for it.
    """

    index: str | None = None
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    only: bool = False
    merged: bool = False
    certificate: str | None = None

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """``environ`` with these sources as uv wants to be told."""
        env = dict(environ)
        if self.index:
            env.pop("UV_INDEX_URL", None)
            env["UV_DEFAULT_INDEX"] = self.index
        if self.extra:
            env["UV_INDEX"] = " ".join([*self.extra, *env.get("UV_INDEX", "").split()])
        if self.find_links:
            env["UV_FIND_LINKS"] = ",".join([*self.find_links, *filter(None, [env.get("UV_FIND_LINKS", "")])])
        if self.merged:
            env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
        if self.certificate:
            env.setdefault("SSL_CERT_FILE", self.certificate)
        return env

    def login(self, url: str, environ: Mapping[str, str]) -> str:
        """``user:password`` for this URL, as one of the index URLs says or else ``~/.netrc``; empty without one.
        (uv takes them out of the URLs of a lock, and rightly so.)"""
        parts = urlsplit(url)
        if parts.username:
            return f"{parts.username}:{parts.password or ''}"
        for place in (self.index or "", *self.extra, *self.find_links):
            known = urlsplit(place)
            if known.username and (known.scheme, known.hostname, known.port) == (
                parts.scheme,
                parts.hostname,
                parts.port,
            ):
                return f"{known.username}:{known.password or ''}"
        try:
            file = environ.get("NETRC") or str(Path(environ.get("HOME", "/")) / ".netrc")
            found = netrc.netrc(file).authenticators(parts.hostname or "")
        except (OSError, netrc.NetrcParseError):
            return ""
        return f"{quote(found[0], safe='')}:{quote(found[2] or '', safe='')}" if found and parts.hostname else ""

    def with_login(self, url: str, environ: Mapping[str, str]) -> str:
        """The URL as somebody must be told who is to fetch it by himself."""
        login = self.login(url, environ)
        return url.replace("://", f"://{login}@", 1) if login and not urlsplit(url).username else url

    def named(self) -> tuple[str, ...]:
        """What a message may call them: without user names and passwords."""
        places = [] if self.only else [*self.extra, self.index or "the default package index"]
        return tuple(redacted(place) for place in (*self.find_links, *places))


def pip_settings(environ: Mapping[str, str], files: Iterable[Path] | None = None) -> Sources:
    """What pip's configuration says about sources: files first, PIP_* variables over them (pip's own order)."""
    settings: dict[str, str] = {}
    for path in pip_files(environ) if files is None else files:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(path.read_text(encoding="utf-8"), source=str(path))
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue  # pip ignores what is not there; what is broken is pip's to complain about
        for section in ("global", "install"):
            if parser.has_section(section):
                settings.update({key.replace("_", "-"): value for key, value in parser.items(section)})
    for key, value in environ.items():
        if key.startswith("PIP_") and value:
            settings[key[4:].lower().replace("_", "-")] = value
    extra = tuple(settings.get("extra-index-url", "").split())
    links = settings.get("find-links", "").split()
    return Sources(
        index=settings.get("index-url", "").strip() or None,
        extra=extra,
        find_links=tuple(_absolute(link) for link in links),
        only=settings.get("no-index", "").strip().lower() in {"1", "true", "yes", "on"},
        merged=bool(extra),
        certificate=settings.get("cert", "").strip() or None,
    )


def pip_files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files, lowest first: site-wide, the user's, that of PIP_CONFIG_FILE."""
    home = Path(environ.get("HOME", "/"))
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    site = [
        Path(place) / "pip" / "pip.conf" for place in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if place
    ]
    user = [home / ".pip" / "pip.conf", Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"]
    return [*site, Path("/etc/pip.conf"), *user, Path(sys.prefix) / "pip.conf", *([Path(named)] if named else [])]


def _absolute(link: str) -> str:
    return link if "://" in link else str(Path(link).expanduser().absolute())


def redacted(url: str) -> str:
    """Without user name and password."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def find_uv() -> Tool:
    """uv of our own installation, for this machine. Raises `UsageError` where it is missing."""
    try:
        import uv
    except ImportError:
        raise UsageError("uv is not installed beside ipexctl", hint="pip install uv", exit=Exit.STEP) from None
    try:
        path = Path(uv.find_uv_bin())
    except FileNotFoundError:
        raise UsageError(
            "uv is installed without its program", hint="pip install --force-reinstall uv", exit=Exit.STEP
        ) from None
    said = subprocess.run(
        (str(path), "--version"), stdin=subprocess.DEVNULL, capture_output=True, timeout=20, text=True
    )
    words = said.stdout.split()
    version = words[1] if len(words) > 1 else "0"
    return Tool(str(path), version, path.stat().st_size, digest(path))


def uv_for_hosts(
    tool: Tool,
    cache: Path,
    sources: Sources,
    limits: Limits,
    environ: Mapping[str, str],
    machine: tuple[str, str] = (os_platform.system(), os_platform.machine()),
) -> Tool:
    """The same uv for x86-64 Linux: ours where the controller is such a ``machine`` itself, else out of its wheel.

    Raises `UsageError` (exit 4).
    """
    if machine == ("Linux", "x86_64"):
        return tool
    path = cache / "uv" / tool.version / "uv"
    if not path.is_file():
        wheels = resolve(tool, [f"uv=={tool.version}"], "3.11", "2.17", sources, limits, environ)
        found = fetch(wheels, cache, sources, environ, limits, lambda *_: None, threading.Event())["uv"]
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".uv.{os.getpid()}")
        with zipfile.ZipFile(found) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
            part.write_bytes(archive.read(name))
        part.chmod(0o755)
        part.replace(path)
    return Tool(str(path), tool.version, path.stat().st_size, digest(path))


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            hashed.update(piece)
    return hashed.hexdigest()


# --------------------------------------------------------------------------------------------------- resolving

_PLATFORMS = (
    (2, 40),
    (2, 39),
    (2, 38),
    (2, 37),
    (2, 36),
    (2, 35),
    (2, 34),
    (2, 33),
    (2, 32),
    (2, 31),
    (2, 28),
    (2, 17),
)


def platform(glibc: str) -> str:
    """uv's name of the newest manylinux platform that hosts with this glibc ("2.36", empty: not known) can take."""
    have = tuple(int(part) for part in glibc.split(".")[:2]) if glibc else (2, 28)
    return "x86_64-manylinux_{}_{}".format(*next((level for level in _PLATFORMS if level <= have), (2, 17)))


def resolve(
    tool: Tool,
    requirements: Sequence[str],
    python: str,
    glibc: str,
    sources: Sources,
    limits: Limits,
    environ: Mapping[str, str],
) -> tuple[Wheel, ...]:
    """The exact wheels, with hashes, for a Python ("3.11") and a glibc of the hosts.

    Raises `UsageError` (exit 4) that names the sources when they do not answer or do not have it.
    """
    env = sources.environment(environ)
    # Three tries of a third each stay within the limit; a server that only dribbles meets the limit of the whole.
    env.update(
        UV_HTTP_TIMEOUT=str(max(1, int(limits.stall / limits.tries))),
        UV_HTTP_RETRIES=str(limits.tries - 1),
        UV_NO_PROGRESS="1",
        NO_COLOR="1",
    )
    argv = [tool.path, "-v", "pip", "compile", "-", "--no-header", "--no-annotate", "--format", "pylock.toml"]
    argv += ["--generate-hashes", "--no-build", "--no-sources", "--python-version", python]
    argv += ["--no-index"] if sources.only else []
    argv += ["--python-platform", platform(glibc), "--python", sys.executable, "--no-python-downloads"]
    status, out, said = _watched(argv, "\n".join(requirements) + "\n", env, limits)
    if status is None:
        raise _unresolved(f"no progress for {limits.stall:g} s", "", sources)
    if status:
        raise _unresolved("", said, sources)
    return parse_lock(out)


def _watched(argv: Sequence[str], text: str, env: Mapping[str, str], limits: Limits) -> tuple[int | None, str, str]:
    """Runs uv; (status, output, what it finally said). Status None: it got nowhere for ``limits.stall`` seconds, that
    is, it wrote no line of its log and used no second of CPU. What a slow but honest index needs, it gets."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        given.write(text.encode())
        given.seek(0)
        child = subprocess.Popen(argv, stdin=given, stdout=out, stderr=log, env=dict(env), cwd=os.sep)
        try:
            moved, last = time.monotonic(), (0, 0)
            while True:
                try:
                    child.wait(0.2)
                    break
                except subprocess.TimeoutExpired:
                    now = (os.fstat(log.fileno()).st_size, _cpu_seconds(child.pid))
                    if now != last:
                        moved, last = time.monotonic(), now
                    if time.monotonic() - moved > limits.stall:
                        return None, "", ""
        finally:
            child.kill()
            child.wait()
        out.seek(0)
        log.seek(max(0, os.fstat(log.fileno()).st_size - (256 << 10)))
        said = log.read().decode("utf-8", "replace").splitlines()
        # The log's own lines come first; its last words begin with "error:" or, without a solution, with a cross.
        final = [n for n, line in enumerate(said) if line.startswith("error:") or line.lstrip().startswith("×")]
        return (
            child.returncode,
            out.read().decode("utf-8", "replace"),
            "\n".join(said[final[0] :] if final else said[-5:]),
        )


def _cpu_seconds(pid: int) -> int:
    """Whole seconds of CPU a process has used; 0 where that cannot be told (no /proc)."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0


def _unresolved(what: str, said: str, sources: Sources) -> UsageError:
    text = without_secrets(said)
    lines = [line.strip(" ×├─▶╰│\t") for line in text.splitlines()]
    lines = [line.removeprefix("error: ").removeprefix("cause: ") for line in lines if line]
    where = ", ".join(sources.named())
    closed = next((line for line in lines if "could not be queried" in line), "")
    network = re.search(r"Failed to fetch: `([^`]+)`|error sending request for url \(([^)]+)\)", text)
    if closed:
        return UsageError(
            f"the package index wants a login: {where}",
            reasons=[closed.removeprefix("hint: ")],
            hint="put it into the URL (https://user:password@host/simple) or into ~/.netrc",
            exit=Exit.STEP,
        )
    if what or network:
        asked = next((group for group in (network.groups() if network else ()) if group), "")
        where = next((place for place in sources.named() if asked.startswith(place.rstrip("/") + "/")), where)
        return UsageError(
            f"the package index does not answer: {where}",
            reasons=[what] if what else [f"{asked}: {lines[-1]}"],
            hint="another one: --index-url URL, or a directory with wheels: --wheels DIR",
            exit=Exit.STEP,
        )
    return UsageError(
        "the wheels of this stack cannot be put together",
        reasons=[*[line for line in lines if not line.startswith("hint:")][:6], f"looked in: {where}"],
        exit=Exit.STEP,
        code="no-mpi4py" if "mpi4py" in text else "unresolved",
    )


def parse_lock(text: str) -> tuple[Wheel, ...]:
    """The wheels of a pylock.toml. Raises `UsageError` for a package without a wheel or without a hash."""
    wheels = []
    bad = []
    for package in parse_toml(text).get("packages", ()):
        files = package.get("wheels") or ([package["archive"]] if package.get("archive") else [])
        name = package["name"]
        if not files or not files[0].get("hashes", {}).get("sha256"):
            bad.append(f"{name} {package.get('version', '')}: no wheel with a sha256")
            continue
        file = files[0]
        url = file.get("url") or Path(file["path"]).absolute().as_uri()
        version = package.get("version") or unquote(url.rpartition("/")[2]).split("-")[1]
        wheels.append(Wheel(name, version, url, file["hashes"]["sha256"], int(file.get("size") or 0)))
    if bad:
        raise UsageError("some packages have no wheels that could be checked", reasons=bad, exit=Exit.STEP)
    return tuple(sorted(wheels, key=lambda wheel: wheel.name))


# -------------------------------------------------------------------------------------------------- remembering


def remembered(cache: Path, inputs: str) -> Lock | None:
    """The lock that these inputs led to before."""
    try:
        lock = Lock.read(json.loads((cache / "locks" / f"{inputs}.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    there = all(_path_of(wheel).is_file() for wheel in lock.wheels if wheel.local)
    return lock if lock.inputs == inputs and there else None


def forget(cache: Path, lock: Lock) -> None:
    """The next install asks anew: what was locked is not to be had any more."""
    (cache / "locks" / f"{lock.inputs}.json").unlink(missing_ok=True)


def remember(cache: Path, lock: Lock) -> None:
    place = cache / "locks"
    place.mkdir(parents=True, exist_ok=True)
    temporary = place / f".{lock.inputs}.{os.getpid()}"
    temporary.write_text(json.dumps(lock.public(), indent=1), encoding="utf-8")
    temporary.replace(place / f"{lock.inputs}.json")


# --------------------------------------------------------------------------------------------------- downloading


class _Http:
    """One pool for all; the proxies and authorities of the environment."""

    def __init__(self, sources: Sources, environ: Mapping[str, str], limits: Limits) -> None:
        import urllib3

        self._sources, self._environ = sources, environ
        context = ssl.create_default_context()
        for file in (sources.certificate, environ.get("SSL_CERT_FILE")):
            if file and Path(file).is_file():
                context.load_verify_locations(file)
        self._timeout = urllib3.Timeout(connect=limits.probe * 2, read=limits.stall / limits.tries)
        self._options: dict[str, Any] = {"ssl_context": context, "maxsize": 8, "retries": False}
        self._direct = urllib3.PoolManager(**self._options)
        self._proxies = urllib.request.getproxies()
        self._proxied: dict[str, urllib3.ProxyManager] = {}
        self._lock = threading.Lock()

    def get(self, url: str, *, method: str = "GET", start: int = 0) -> urllib3.BaseHTTPResponse:
        import urllib3

        parts = urlsplit(url)
        headers = {"Accept-Encoding": "identity", "User-Agent": "ipexctl"}
        if start:
            headers["Range"] = f"bytes={start}-"
        if login := self._sources.login(url, self._environ):
            headers.update(urllib3.make_headers(basic_auth=unquote(login)))
        proxy = self._proxies.get(parts.scheme)
        pool: Any = self._direct
        if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
            with self._lock:
                pool = self._proxied.setdefault(proxy, urllib3.ProxyManager(proxy, **self._options))
        response: urllib3.BaseHTTPResponse = pool.request(
            method,
            redacted(url),
            headers=headers,
            timeout=self._timeout,
            preload_content=False,
            redirect=5,
        )
        return response


def answers(url: str, sources: Sources, environ: Mapping[str, str], limits: Limits) -> bool:
    """Whether an index answers within ``limits.probe`` seconds. Local directories answer if they are there."""
    import urllib3

    if "://" not in url or url.startswith("file:"):
        return Path(urlsplit(url).path).exists()
    try:
        http = _Http(sources, environ, replace(limits, stall=limits.probe, tries=1, probe=limits.probe / 2))
        response = http.get(url)
        response.close()
        return response.status < 500
    except (urllib3.exceptions.HTTPError, OSError):
        return False


def measured(
    wheels: Sequence[Wheel], sources: Sources, environ: Mapping[str, str], limits: Limits
) -> tuple[Wheel, ...]:
    """The wheels with their sizes, as far as they can be had (0 where not): for the plan and for disk space."""
    import urllib3

    http = _Http(sources, environ, limits)

    def size(wheel: Wheel) -> Wheel:
        if wheel.size:
            return wheel
        try:
            if wheel.local:
                return replace(wheel, size=_path_of(wheel).stat().st_size)
            response = http.get(wheel.url, method="HEAD")
            response.close()
            found = int(response.headers.get("Content-Length") or 0) if response.status == 200 else 0
            return replace(wheel, size=found)
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            return wheel

    with ThreadPoolExecutor(16) as pool:
        return tuple(pool.map(size, wheels))


def speed(url: str, sources: Sources, environ: Mapping[str, str], limits: Limits, seconds: float, most: int) -> float:
    """Bytes a second at which this machine gets a file, tried for ``seconds`` or ``most`` bytes; 0: not at all."""
    import urllib3

    begun, got = time.monotonic(), 0
    try:
        response = _Http(sources, environ, replace(limits, stall=seconds + 2, tries=1)).get(url)
        try:
            for piece in response.stream(64 << 10) if response.status == 200 else ():
                got += len(piece)
                if got >= most or time.monotonic() - begun > seconds:
                    break
        finally:
            response.close()
    except (urllib3.exceptions.HTTPError, OSError, ValueError):
        return 0.0
    return got / max(time.monotonic() - begun, 1e-6)


def _path_of(wheel: Wheel) -> Path:
    return Path(unquote(urlsplit(wheel.url).path))


def place(cache: Path, wheel: Wheel) -> Path:
    """Where the controller keeps the file; one on this machine stays where it is."""
    return _path_of(wheel) if wheel.local else cache / "wheels" / wheel.sha256 / wheel.filename


def fetch(
    wheels: Sequence[Wheel],
    cache: Path,
    sources: Sources,
    environ: Mapping[str, str],
    limits: Limits,
    progress: Callable[[int, int, str], None],
    stop: threading.Event,
) -> dict[str, Path]:
    """Every wheel, as a whole and with the right hash, in the cache; path by package name.

    Goes on where an earlier download stopped, tries again ``limits.tries`` times, and keeps nothing whose hash is
    wrong. ``progress`` is told (bytes done, bytes in all or 0, file name). Raises `UsageError` (exit 4) with every
    wheel that could not be had.
    """
    http = _Http(sources, environ, limits)
    done: dict[str, int] = {}
    total = sum(wheel.size for wheel in wheels) if all(wheel.size for wheel in wheels) else 0
    lock = threading.Lock()

    def told(wheel: Wheel, have: int) -> None:
        with lock:
            done[wheel.filename] = have
            progress(sum(done.values()), total, wheel.filename)

    def one(wheel: Wheel) -> str | None:
        path = place(cache, wheel)
        try:
            if path.is_file() and digest(path) == wheel.sha256:
                told(wheel, path.stat().st_size)
                return None
            if wheel.local:
                return f"{wheel.filename}: {'changed since it was locked' if path.exists() else 'not there any more'}"
            return _download(http, wheel, path, limits, told, stop)
        except OSError as error:
            return f"{wheel.filename}: {error.strerror or error}"

    with ThreadPoolExecutor(4) as pool:
        problems = [problem for problem in pool.map(one, wheels) if problem]
    if problems:
        raise UsageError("some wheels could not be downloaded", reasons=problems, exit=Exit.STEP)
    return {wheel.name: place(cache, wheel) for wheel in wheels}


def _download(
    http: _Http, wheel: Wheel, path: Path, limits: Limits, told: Callable[[Wheel, int], None], stop: threading.Event
) -> str | None:
    """None, or what is wrong after the last try. Two that want the same wheel load it once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with _alone(part, lambda have: told(wheel, have), limits, stop):
        if path.is_file() and digest(path) == wheel.sha256:  # somebody else has just finished it
            told(wheel, path.stat().st_size)
            return None
        return _completed(http, wheel, part, path, limits, told, stop)


@contextmanager
def _alone(part: Path, told: Callable[[int], None], limits: Limits, stop: threading.Event) -> Iterator[None]:
    """With the unfinished file for oneself; while another ipexctl has it, waits and tells how many bytes it has.

    The kernel holds the lock, so one whose holder was killed is free. Raises `OSError` when ``stop`` is set, and when
    the file has not grown for ``limits.stall`` seconds (its holder is frozen: it would have given up by itself).
    """
    size, moved = -1, time.monotonic()
    while (handle := _claimed(part)) is None:
        there = _found(part)
        have = there.st_size if there else 0
        if have != size:
            size, moved = have, time.monotonic()
            told(have)
        if time.monotonic() - moved > limits.stall:
            raise TimeoutError(f"another ipexctl that loads it makes no progress for {limits.stall:g} s")
        if stop.wait(0.1):
            raise InterruptedError("stopped")
    try:
        yield
    finally:
        if not os.fstat(handle).st_size:
            part.unlink(missing_ok=True)
        os.close(handle)


def _claimed(part: Path) -> int | None:
    """A descriptor that holds the lock on the file, made if need be; None while another holds it."""
    handle = os.open(part, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        return handle  # a file system without locks: the hash still tells what two have mixed up
    there = _found(part)
    if there and os.path.samestat(there, os.fstat(handle)):
        return handle
    os.close(handle)  # it was finished between the two calls, and has the name of a wheel now
    return None


def _found(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _completed(
    http: _Http,
    wheel: Wheel,
    part: Path,
    path: Path,
    limits: Limits,
    told: Callable[[Wheel, int], None],
    stop: threading.Event,
) -> str | None:
    import urllib3

    where = f"{wheel.filename} from {redacted(wheel.url).partition(wheel.filename)[0]}"
    problem = ""
    for attempt in range(limits.tries):
        if stop.is_set():
            return f"{wheel.filename}: stopped"
        if attempt:
            stop.wait(0.5 * attempt)
        try:
            problem = _attempt(http, wheel, part, limits, told, stop)
        except urllib3.exceptions.HTTPError as error:
            problem = _reason(error)
        if not problem:
            found = digest(part)
            if found == wheel.sha256:
                part.replace(path)
                return None
            got = part.stat().st_size
            os.truncate(part, 0)  # not removed: it bears the lock
            problem = f"damaged: sha256 {found[:16]}… of {got} bytes, expected {wheel.sha256[:16]}…" + (
                f" of {wheel.size} bytes" if wheel.size else ""
            )
            if attempt:  # once more, then it is the index that is wrong
                break
    return f"{where}: {problem}"


def _attempt(
    http: _Http, wheel: Wheel, part: Path, limits: Limits, told: Callable[[Wheel, int], None], stop: threading.Event
) -> str:
    start = part.stat().st_size
    response = http.get(wheel.url, start=start)
    try:
        if response.status == 416:  # nothing after what we have: the hash will tell
            return ""
        if response.status not in {200, 206}:
            return f"HTTP {response.status}"
        if response.status == 200:
            start = 0
        length = response.headers.get("Content-Length")
        have, mark, since = start, start, time.monotonic()
        with part.open("ab" if start else "wb") as file:
            for piece in response.stream(1 << 18):
                file.write(piece)
                have += len(piece)
                told(wheel, have)
                now = time.monotonic()
                if stop.is_set():
                    return "stopped"
                if have - mark >= 64 << 10:
                    mark, since = have, now
                elif now - since > limits.stall / limits.tries:
                    return f"no progress for {limits.stall / limits.tries:g} s"
        if length and have < start + int(length):
            return f"cut off: {have} of {start + int(length)} bytes"
        return ""
    finally:
        response.close()


def _reason(error: Exception) -> str:
    text = str(error)
    for word, said in (
        ("timed out", "no answer in time"),
        ("refused", "connection refused"),
        ("resolve", "the host's name is not known"),
        ("IncompleteRead", "the connection was closed before the end"),
    ):
        if word in text:
            return said
    return without_secrets(text)[:200]


def unpacked_size(path: Path) -> int:
    """Bytes a wheel takes once unpacked; 0 for what is no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(info.file_size for info in archive.infolist())
    except (OSError, zipfile.BadZipFile):
        return 0
