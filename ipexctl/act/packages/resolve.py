"""The exact wheels of a stack: resolved by uv on the controller, and the locks of earlier resolutions."""

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.pylock import Package, Pylock, PylockValidationError
from packaging.utils import canonicalize_name
from packaging.version import Version

from ipexctl.act.context import Limits
from ipexctl.act.packages.download import (
    BoundedFile,
    SourceArchive,
    download_archive,
    download_wheels,
    get_local_wheel_path,
    hash_wheel,
)
from ipexctl.act.packages.sources import Sources, find_uv_cache
from ipexctl.act.transfer.send import hash_file
from ipexctl.model.errors import Exit, UsageError, advise
from ipexctl.model.json_values import Record, parse_json, to_json
from ipexctl.model.stack import Arch
from ipexctl.model.text import format_size, printable, strip_credentials
from ipexctl.model.toml import parse_toml
from ipexctl.model.wheels import Lock, Wheel, parse_wheel_name
from ipexctl.store.private_files import measure_room, read_regular_file, refuse_os_errors, write_private_file


class WheelTarget(NamedTuple):
    """The hosts that wheels are for: their Python ("3.11"), glibc ("2.36"; empty: not known) and architecture."""

    python: str
    glibc: str
    arch: Arch = "x86_64"

    @property
    def platform(self) -> str:
        """uv's name of the newest manylinux platform that they support."""
        have = Version(self.glibc).release[:2] if self.glibc else (2, 28)
        return f"{self.arch}-manylinux_2_{next((minor for minor in _MANYLINUX if (2, minor) <= have), 17)}"


class Tool(Record):
    """A program to send to hosts."""

    path: str
    version: str
    size: int
    sha256: str


def find_uv() -> Tool:
    """Returns the uv installed with ipexctl, for the controller. Raises `UsageError` where it is missing."""
    try:
        import uv

        version = metadata.version("uv")
        path = Path(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        hint = "pip install --force-reinstall uv"
        raise UsageError("uv is not installed beside ipexctl", hint=hint, exit=Exit.STEP) from None
    return Tool(str(path), version, path.stat().st_size, hash_file(path))


def find_uv_for_hosts(
    tool: Tool,
    cache: Path,
    sources: Sources,
    arch: Arch,
    machine: tuple[str, str] = (platform.system(), platform.machine()),
) -> Tool:
    """Returns the same uv for Linux on ``arch``: the controller's own if it is such a ``machine``, else from its wheel.
    Raises `UsageError` (exit 4)."""
    if machine == ("Linux", arch):
        return tool
    # What the index of a playbook or a lock file has is executed on the hosts of this install alone.
    places = hashlib.sha256(" ".join(sources.list_names()).encode()).hexdigest()[:16]
    path = cache / "uv" / f"{tool.version}-{arch}-{places}" / "uv"
    if not path.is_file():
        wheels = resolve_wheels(tool, [f"uv=={tool.version}"], WheelTarget("3.11", "2.17", arch), sources)
        wheel = download_wheels(wheels, cache, sources, threading.Event(), lambda *_: None)["uv"]
        try:
            with BoundedFile(wheel) as file, zipfile.ZipFile(file) as archive:
                found = [info for info in archive.infolist() if info.filename.endswith(".data/scripts/uv")]
                data = b"".join(archive.read(info) for info in found[:1] if info.file_size <= _UV_SIZE_LIMIT)
        except (ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error):
            data = b""
        if not data:
            raise UsageError(f"{wheel.name} has no uv in it that can be used", exit=Exit.STEP)
        write_private_file(path, data, 0o700)
    return Tool(str(path), tool.version, path.stat().st_size, hash_file(path))


_LOCK_SIZE_LIMIT = 1 << 24  # bytes
_UV_SIZE_LIMIT, _UV_MEMORY_LIMIT = 1 << 28, 1 << 31  # bytes of its file, and of what it may hold in memory
_UV_LOG_LIMIT, _BUILD_LOG_LIMIT = 1 << 18, 1 << 22  # bytes of the end of what it, or a build, prints
_UV_DISK_LIMIT = 1 << 35  # bytes that it may write, or half of the room: it unpacks a wheel without a hash on the index
_MANYLINUX = (*range(40, 30, -1), 28, 17)  # the minor versions of glibc 2 that uv knows


def resolve_wheels(
    tool: Tool, requirements: Sequence[str], target: WheelTarget, sources: Sources, *, deps: bool = True
) -> tuple[Wheel, ...]:
    """Returns the exact wheels, with hashes; without ``deps`` only of these packages themselves. Raises `UsageError`
    (exit 4) if a source does not answer or lacks a wheel."""
    return parse_pylock(_lock_packages(tool, requirements, [] if deps else ["--no-deps"], target, sources))


def build_sources(
    tool: Tool, names: Sequence[str], requirements: Sequence[str], target: WheelTarget, sources: Sources, cache: Path
) -> list[Path]:
    """Builds wheels of the sources of these packages, in the versions that the requirements take: each is a program of
    its author, run by this machine's account. Raises `UsageError` (exit 4)."""
    options, built = [word for name in names for word in ("--no-binary", name)], []
    for package in _read_pylock(_lock_packages(tool, requirements, options, target, sources)):
        if package.name not in names or not package.sdist:
            continue
        url = package.sdist.url or Path(package.sdist.path or "").absolute().as_uri()
        path = Path(unquote(urlsplit(url).path))
        with tempfile.TemporaryDirectory() as folder:
            if not url.startswith("file:"):
                archive = SourceArchive(path.name, url, package.sdist.hashes.get("sha256", ""), package.sdist.size or 0)
                path = download_archive(archive, Path(folder, path.name), sources)
            built.append(build_wheel(tool, path, cache, sources))
    return built


def _lock_packages(
    tool: Tool, requirements: Sequence[str], options: Sequence[str], target: WheelTarget, sources: Sources
) -> str:
    """Returns uv's pylock.toml. Raises `UsageError` (exit 4)."""
    options = ["--format", "pylock.toml", "--generate-hashes", *options]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pylock.toml")  # uv keeps to the versions of the lock that it is to replace
        if sources.preferred:
            held = (f"{{name = {json.dumps(n)}, version = {json.dumps(v)}}}" for n, v in sources.preferred.items())
            path.write_text(f'lock-version = "1.0"\ncreated-by = "ipexctl"\npackages = [{", ".join(held)}]\n')
            options += ["--output-file", str(path)]
        pages = _write_hash_pages(sources, Path(folder))
        status, output, errors = _run_pip_compile(tool, requirements, options, target, pages)
    if status != 0:
        asked = {canonicalize_name(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for text in requirements}
        raise _explain_uv_error(errors if status is None else "", errors, sources, asked)
    return output


def _write_hash_pages(sources: Sources, folder: Path) -> Sources:
    """The sources with a page of hashes for each local directory: to hash them, uv would unpack whole wheels."""
    links = list(sources.find_links)
    for number, link in enumerate(links):
        if (directory := Path(unquote(link.removeprefix("file://"))).absolute()).is_dir():
            # Source distributions stand there so that uv says that they are no wheels; none is used.
            sums = {path: hash_wheel(path) for path in directory.glob("*.whl") if path.name.isprintable()}
            urls = {path.name: f"{path.as_uri()}#sha256={sum_}" for path, sum_ in sums.items() if sum_}
            urls |= {path.name: path.as_uri() for path in directory.glob("*.tar.gz") if path.name.isprintable()}
            text = "".join(f'<a href="{url}">{name}</a>\n' for name, url in urls.items())
            links[number] = (folder / f"{number}.html").as_uri()
            (folder / f"{number}.html").write_text(text)
    return replace(sources, find_links=tuple(links))


def find_newest_versions(
    tool: Tool, requirements: Sequence[str], target: WheelTarget, sources: Sources
) -> dict[str, str]:
    """Returns the newest version of each package that the sources have as a wheel for these hosts; none where one of
    them has no wheel."""
    lines = _run_pip_compile(tool, requirements, ["--no-deps"], target, sources)[1].splitlines()
    return {name: version for name, equal, version in (line.partition("==") for line in lines) if equal}


def _run_pip_compile(
    tool: Tool, requirements: Sequence[str], options: Sequence[str], target: WheelTarget, sources: Sources
) -> tuple[int | None, str, str]:
    """`uv pip compile`; the result of `_run_uv`."""
    env, limits = sources.select_environment(), sources.limits
    # Three tries of a third each stay within the limit; a server that only trickles meets the limit of the whole.
    env.update(
        UV_HTTP_TIMEOUT=str(max(1, int(limits.stall / limits.tries))),
        UV_HTTP_RETRIES=str(limits.tries - 1),
        UV_NO_PROGRESS="1",
        NO_COLOR="1",
    )
    argv = [tool.path, "-v", "pip", "compile", "-", "--no-header", "--no-annotate", *options]
    argv += ["--only-binary", ":all:", "--no-sources", "--python-version", target.python]
    if sources.no_index:
        argv.append("--no-index")
    argv += ["--python-platform", target.platform, "--python", sys.executable, "--no-python-downloads"]
    return _run_uv(argv, "\n".join([*sources.list_options(), *requirements]) + "\n", env, limits)


def _run_uv(argv: Sequence[str], text: str, env: Mapping[str, str], limits: Limits) -> tuple[int | None, str, str]:
    """Runs uv; (status, output, final error lines). Status None, with the reason: it was ended after ``limits.stall``
    seconds without a line of its log and a second of CPU, a slow index gets the time it needs; or for its memory, or
    for what it writes. What it was unpacking then goes."""
    cache = Path(os.path.realpath(find_uv_cache(env)))
    room = min(_UV_DISK_LIMIT, measure_room(cache) // 2)
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        stdin.write(text.encode())
        stdin.seek(0)
        # Its cache, and ~/.cache, may have to be made: for nobody else. One that the user names may be shared.
        umask = -1 if env.get("UV_CACHE_DIR") else 0o077
        child = subprocess.Popen(argv, stdin=stdin, stdout=out, stderr=log, env=dict(env), cwd=os.sep, umask=umask)
        try:
            moved, last = time.monotonic(), (0, 0)
            while child.poll() is None:
                seconds, memory, written = _measure_process(child.pid)
                now = (os.fstat(log.fileno()).st_size, seconds)
                if now != last:
                    moved, last = time.monotonic(), now
                if time.monotonic() - moved > limits.stall:
                    return None, "", f"no progress for {limits.stall:g} s"
                if memory > _UV_MEMORY_LIMIT:
                    return None, "", f"a page of it takes more than {_UV_MEMORY_LIMIT >> 30} GiB of memory"
                if written > room:
                    return None, "", f"its wheels take more than {format_size(room)} of the disk of {cache}"
                with suppress(subprocess.TimeoutExpired):
                    child.wait(0.2)
        finally:
            unfinished = _find_unfinished(child.pid, cache) if child.returncode is None else set[str]()
            child.kill()
            child.wait()
            for name in unfinished:
                shutil.rmtree(cache / name, ignore_errors=True)
        out.seek(0)
        lines = _read_tail(log, _UV_LOG_LIMIT).splitlines()
        # The log's own lines come first; its last words begin with "error:" or, without a solution, with a cross.
        final = [n for n, line in enumerate(lines) if line.startswith("error:") or line.lstrip().startswith("×")]
        errors = "\n".join(lines[final[0] :] if final else lines[-5:])
        return child.returncode, out.read().decode("utf-8", "replace"), errors


def _read_tail(log: BinaryIO, size: int) -> str:
    log.seek(max(0, os.fstat(log.fileno()).st_size - size))
    return log.read(size).decode("utf-8", "replace")


def _measure_process(pid: int) -> tuple[int, int, int]:
    """Whole seconds of CPU, bytes of memory, and bytes written by a process; 0 where that is not known (no /proc)."""
    written = 0
    with suppress(OSError, ValueError, IndexError):  # some kernels show it to root alone
        written = int(Path(f"/proc/{pid}/io").read_text().split()[3])
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds = (int(words[11]) + int(words[12])) // os.sysconf("SC_CLK_TCK")
        return seconds, int(words[21]) * os.sysconf("SC_PAGE_SIZE"), written
    except (OSError, ValueError, IndexError):
        return 0, 0, 0


def _find_unfinished(pid: int, cache: Path) -> set[str]:
    """Names in uv's cache of what this process is unpacking there: it leaves them when it is killed."""
    names = set[str]()
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError, ValueError, IndexError):  # it is closed now, or elsewhere
            names.add(file.readlink().relative_to(cache).parts[0])
    return {name for name in names if name.startswith(".tmp")}


_BUILD_ERROR = re.compile(
    r"CMake Error\b|[^:]{1,300}(?::\d+){1,2}: (?:fatal )?error: |ld(?:\.\w+)?: |error: (?!subprocess-exited)"
)


def read_uv_errors(text: str) -> list[str]:
    """Returns the lines of uv's errors, without secrets and the branches of its tree."""
    return [line for raw in strip_credentials(text).splitlines() if (line := raw.strip(" ×├─▶╰│\t"))]


def strip_error_prefix(line: str) -> str:
    """Returns a line of uv's errors without the word that it begins with."""
    return line.removeprefix("error: ").removeprefix("cause: ")


def _explain_uv_error(what: str, errors: str, sources: Sources, asked: Collection[str]) -> UsageError:
    text = strip_credentials(errors)
    lines = [strip_error_prefix(line) for line in read_uv_errors(text)]
    where = ", ".join(sources.list_names())
    closed = next((line for line in lines if "could not be queried" in line), "")
    network = re.search(r"Failed to fetch: `([^`]+)`|error sending request for url \(([^)]{1,4000})\)", text)
    if closed:
        return UsageError(
            f"the package index wants a login: {where}",
            reasons=[closed.removeprefix("hint: ")],
            hint="put it into the URL (https://user:password@host/simple) or into ~/.netrc",
            exit=Exit.STEP,
        )
    if what or network:
        url = next((group for group in (network.groups() if network else ()) if group), "")
        where = next((name for name in sources.list_names() if url.startswith(name.rstrip("/") + "/")), where)
        return UsageError(
            f"the package index does not answer: {where}",
            reasons=[what] if what else [f"{url}: {lines[-1]}"],
            hint="another one: --index-url URL, or a directory with wheels: --wheels DIR",
            exit=Exit.STEP,
        )
    # An index that has the package hides those after it; uv names it in a hint, which advises against its own rule.
    hiding = [line.removeprefix("hint: ").partition(". ")[0] for line in lines if " was found on " in line]
    reasons = [line for line in lines if not line.startswith("hint:")]
    if len(reasons) > 8:  # the last ones have the conclusion
        reasons[2:-5] = ["…"]
    # uv has no codes. It comes to the newest releases last, and to old ones, without wheels, of what is asked for.
    hinted = re.search(r"Wheels are required for `([\w.-]+)`", text)
    only = (
        re.findall(r"(?<![\w.-])([\w.-]{1,99})(?:[<=>]\S{0,99})? ha(?:s|ve) no usable wheels", text) if hinted else []
    )
    source = next((name for name in only[::-1] if name not in asked), hinted[1] if hinted else "")
    return UsageError(
        f"{source} has no fitting wheel, only its source, and nothing is built"
        if source
        else "the wheels of this stack cannot be resolved",
        reasons=[*reasons, *hiding[:1], f"looked in: {where}"],
        hint=advise("install", "--build", source) if source else None,
        exit=Exit.STEP,
        code="no-mpi4py" if "mpi4py" in text else "unresolved",
    )


def parse_pylock(text: str) -> tuple[Wheel, ...]:
    """Returns the wheels of a pylock.toml. Raises `UsageError` (exit 4) for text that is none, and with each package
    without a wheel that can be checked."""
    wheels, reasons = [], []
    for package in _read_pylock(text):
        try:
            wheels.append(_build_wheel(package))
        except ValueError as error:
            reasons.append(str(error))
    if reasons:
        raise UsageError("some packages have no wheels that could be checked", reasons=reasons, exit=Exit.STEP)
    return tuple(sorted(wheels, key=lambda wheel: wheel.name))


def _read_pylock(text: str) -> Sequence[Package]:
    try:
        return Pylock.from_dict(parse_toml(text)).packages
    except (ValueError, PylockValidationError) as error:
        raise UsageError("uv wrote a lock that cannot be read", reasons=[str(error)], exit=Exit.STEP) from None


def _build_wheel(package: Package) -> Wheel:
    """Returns the first wheel of a package. Raises `ValueError` if it has none with a hash."""
    file = package.wheels[0] if package.wheels else package.archive
    if file is None or "sha256" not in file.hashes:
        raise ValueError(f"{package.name} {package.version or ''}: no wheel with a sha256")
    url = file.url or Path(file.path or "").absolute().as_uri()
    version = package.version or parse_wheel_name(unquote(urlsplit(url).path.rpartition("/")[2]))[1]
    return Wheel(package.name, str(version), url, file.hashes["sha256"], file.size or 0)


def build_wheel(tool: Tool, project: Path, cache: Path, sources: Sources) -> Path:
    """Builds the wheel of a directory or an archive and returns its place in ``cache``, by its contents. What its build
    needs comes from ``sources``. Raises `UsageError` (exit 4) with the last lines of a build that fails."""
    # Of the same sources the same bytes: else each install would send it again.
    env = {"SOURCE_DATE_EPOCH": "315532800", **sources.build_environment(), "NO_COLOR": "1", "UV_NO_PROGRESS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        argv = [tool.path, "build", "--wheel", "--out-dir", folder, "--python", sys.executable, "--no-python-downloads"]
        argv += [*(["--no-index"] if sources.no_index else []), "--", str(project)]
        with tempfile.TemporaryFile() as log:
            child = subprocess.Popen(
                argv, env=env, cwd=os.sep, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            try:
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # not collected: the group stays its own
            finally:
                with suppress(OSError):  # also what uv has started, which goes on without it
                    os.killpg(child.pid, signal.SIGKILL)
                status = child.wait()
            output = _read_tail(log, _BUILD_LOG_LIMIT)
        wheels = [*Path(folder).glob("*.whl")]
        if status or len(wheels) != 1:
            lines = choose_build_errors(read_uv_errors(output))
            what = f"the wheel of {printable(str(project), 200)} could not be built: exit code {status}"
            raise UsageError(what, reasons=[printable(line, 300) for line in lines], exit=Exit.STEP, code="build")
        path = cache / "built" / hash_file(wheels[0])[:16] / wheels[0].name
        write_private_file(path, wheels[0].read_bytes())
        return path


def choose_build_errors(lines: Sequence[str]) -> list[str]:
    """Returns the first errors of compilers and of CMake, each with the line below it, and the last lines of a build
    that failed: what builds ends with a traceback of its own, which has none of them."""
    errors = [at for at, line in enumerate(lines[:-8]) if _BUILD_ERROR.match(line)][:2]
    return [*(line for at in errors for line in lines[at : min(at + 2, len(lines) - 8)]), *lines[-8:]]


def load_lock(cache: Path, inputs: str) -> Lock | None:
    """Returns the lock that was saved for these inputs; None without one, or if a local wheel of it is gone."""
    try:
        lock = parse_json(Lock, read_regular_file(_get_lock_path(cache, inputs), _LOCK_SIZE_LIMIT, own=True))
    except (OSError, ValueError):
        return None
    complete = all(get_local_wheel_path(wheel).is_file() for wheel in lock.wheels if wheel.local)
    return lock if lock.inputs == inputs and complete else None


def forget_lock(cache: Path, lock: Lock) -> None:
    """Removes the saved lock, so that the next install resolves again."""
    _get_lock_path(cache, lock.inputs).unlink(missing_ok=True)


def save_lock(cache: Path, lock: Lock) -> None:
    """Saves the lock under its inputs, unless a wheel's URL has a login. Raises `UsageError` (exit 4)."""
    if any(wheel.url != strip_credentials(wheel.url) for wheel in lock.wheels):
        return
    lock = replace(lock, requested=tuple(map(strip_credentials, lock.requested)))
    path = _get_lock_path(cache, lock.inputs)
    with refuse_os_errors(path, "cannot be written"):
        write_private_file(path, json.dumps(to_json(lock), indent=1).encode())


def _get_lock_path(cache: Path, inputs: str) -> Path:
    return cache / "locks" / f"{inputs}.json"
