"""The session of an install on one host (see `install_state` for its states, `loop` for its requests).

It runs under any Python of the host from 3.6 on, standard library only. From `lock` on it holds the lock of the
environment; when the input ends (the controller is gone, the link is cut, the install is done) it stops what it
started, removes what is half-built, and exits, so that nothing is left that would block the next install.

On disk, for the environment ``/x/env``:

    /x/env            a symbolic link to the active environment, switched by rename
    /x/env.d/ID       a complete environment; its marker ``ipexctl.json`` was written last, after a sync
    /x/env.d/lock     locked (flock) during an install; its text names the holder
    /x/env.d/bin      uv
    /x/env.d/tokens   tokens by which hosts notice that they share this directory
    /x/env.d/tmp      incoming wheels and half-built environments; removed by the holder of the lock
"""

import base64
import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
import urllib.request
from typing import Any, Callable, Dict, List, Optional, Set, Tuple
from urllib.parse import quote

from ipexctl.protocol import session as messages
from ipexctl.protocol.session import SessionError
from ipexctl.remote.session import install_state
from ipexctl.remote.session.install_state import State
from ipexctl.remote.session.loop import ENDED, find_command, report_progress, send, serve_requests

Origin = List[Any]  # [host, port]
Watch = Optional[Callable[[int], Any]]  # takes the process id; returns something that changes with progress

MARKER = "ipexctl.json"
NOT_ENVIRONMENTS = ("lock", "bin", "cache", "tokens")  # beside the environments
KEEPALIVE = 2.0  # seconds between signs of life of a program without progress of its own
TOKEN_LIFETIME = 3600.0  # seconds after which a token belongs to no running install
DISK_TIMEOUT = 900.0  # seconds a command may be busy with the disk alone; then the signs of life end


# ------------------------------------------------------------------------------------------------- inspecting


def store(venv: str) -> str:
    return venv + ".d"


def inspect_place(
    venv: str, uv: Dict[str, Any], files: List[Dict[str, Any]], origins: List[Origin], **_: Any
) -> messages.Inspection:
    """What the host has at the place of the environment. Writes nothing."""
    base = store(venv)
    kind, why = "absent", ""
    active: Optional[str] = None
    if os.path.islink(venv):
        target = os.path.realpath(venv)
        if os.path.dirname(target) == os.path.realpath(base):
            kind, active = "ours", os.path.basename(target)
        else:
            kind, why = "foreign", "%s is a link to %s, which ipexctl did not make" % (venv, target)
    elif os.path.lexists(venv):
        kind, why = "foreign", "%s exists already, and ipexctl did not make it" % venv
    near = nearest_directory(base)
    if kind != "foreign" and not os.access(near, os.W_OK | os.X_OK):
        kind, why = "foreign", "%s cannot be written by %s" % (near, login())
    if os.path.lexists(base):
        info = os.lstat(base)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            kind, why = "foreign", "%s is not a directory of %s" % (base, login())
    space = os.statvfs(near)
    ids, incomplete = environments(base)
    leftovers = (
        [name for name in os.listdir(base) if name not in NOT_ENVIRONMENTS and name != active] if kind == "ours" else []
    )
    if leftovers:
        leftovers = sorted(set(leftovers) - set(find_used(venv).used), key=lambda name: (name == "tmp", name))
    return messages.Inspection(
        kind=kind,
        why=why,
        active=active,
        complete=ids,
        incomplete=incomplete,
        leftovers=leftovers,
        marker=read_marker(os.path.join(base, active)) if active else None,
        packages=list_packages(os.path.join(base, active)) if active else None,
        free=space.f_bavail * space.f_frsize,
        at=near,
        uv=find_uv(base, uv),
        visible=[item["path"] for item in files if size_of(item["path"]) == item["size"]],
        unreachable=["%s:%s" % tuple(origin) for origin in find_unreachable(origins)],
    )


def list_packages(environment: str) -> Dict[str, str]:
    """Names and versions of what is installed, from the directories' names."""
    versions: Dict[str, str] = {}
    library = os.path.join(environment, "lib")
    for python in os.listdir(library) if os.path.isdir(library) else []:
        site = os.path.join(library, python, "site-packages")
        for name in os.listdir(site) if os.path.isdir(site) else []:
            if name.endswith(".dist-info") and "-" in name:
                versions[name[: -len(".dist-info")].rpartition("-")[0]] = name[: -len(".dist-info")].rpartition("-")[2]
    return versions


def nearest_directory(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def login() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return "user %d" % os.getuid()


def environments(base: str) -> Tuple[List[str], int]:
    """Complete environments (they have a marker), and the number of other entries."""
    complete: List[str] = []
    incomplete = 0
    for name in sorted(os.listdir(base)) if os.path.isdir(base) else []:
        if name in NOT_ENVIRONMENTS:
            continue
        if read_marker(os.path.join(base, name)) is not None:
            complete.append(name)
        else:
            incomplete += 1
    return complete, incomplete


def read_marker(directory: str) -> Any:
    try:
        with open(os.path.join(directory, MARKER), "rb") as file:
            return json.loads(file.read(1 << 20).decode())
    except (OSError, ValueError):
        return None


def size_of(path: str) -> Optional[int]:
    try:
        return os.stat(path).st_size if os.access(path, os.R_OK) else None
    except OSError:
        return None


def find_uv(base: str, uv: Dict[str, Any]) -> Optional[str]:
    """The controller's own uv: at its path if this host sees it, or where an earlier install put it."""
    for path in (os.path.join(base, "bin", "uv-" + uv["version"]), uv["path"]):
        if size_of(path) == uv["size"] and hash_file(path) == uv["sha256"]:
            return path
    return None


def hash_file(path: str) -> str:
    sum_ = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            sum_.update(piece)
    return sum_.hexdigest()


def find_unreachable(origins: List[Origin]) -> List[Origin]:
    """Those of ``[[host, port], …]`` that take no connection within 4 seconds, all tried at once."""
    bad: List[Origin] = []
    if any(os.environ.get(name) for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")):
        return bad  # the proxy decides

    def attempt(origin: Origin) -> None:
        try:
            socket.create_connection((origin[0], origin[1]), 4).close()
        except OSError:
            bad.append(origin)

    threads = [threading.Thread(target=attempt, args=(origin,)) for origin in origins]
    for thread in threads:
        thread.daemon = True
        thread.start()
    end = time.time() + 5
    for thread in threads:
        thread.join(max(0.0, end - time.time()))
    slow = [origin for n, origin in enumerate(origins) if threads[n].is_alive()]
    return bad + [origin for origin in slow if origin not in bad]


def measure_rate(url: str, login: str, seconds: float, most: int, **_: Any) -> messages.DownloadRate:
    """Bytes a second at which this host downloads, from ``seconds`` or ``most`` bytes of a file; 0: it cannot."""
    request = urllib.request.Request(url, headers={"Range": "bytes=0-%d" % (most - 1), "User-Agent": "ipexctl"})
    if login:
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    begun, received = time.time(), 0
    try:
        with urllib.request.urlopen(request, timeout=seconds + 2) as answer:
            while received < most and time.time() - begun < seconds:
                piece = answer.read(64 << 10)
                if not piece:
                    break
                received += len(piece)
    except (OSError, ValueError):
        return messages.DownloadRate(0.0)
    return messages.DownloadRate(received / max(time.time() - begun, 1e-6))


def echo(data: str, **_: Any) -> messages.Nothing:
    """Takes data by which the controller measures its upload."""
    return messages.Nothing()


# --------------------------------------------------------------------------------------------- tokens and lock


TOKENS: List[str] = []  # of this session; removed at its end


def leave_token(venv: str, name: str, **_: Any) -> messages.Nothing:
    """Leaves a token, by which hosts that share a file system find each other."""
    folder = os.path.join(store(venv), "tokens")
    os.makedirs(folder, mode=0o755, exist_ok=True)
    path = os.path.join(folder, name)
    TOKENS.append(path)
    with open(path, "w") as file:
        file.write(name)
    return messages.Nothing()


def find_tokens(venv: str, names: List[str], **_: Any) -> messages.SeenTokens:
    """Those of these tokens that this host sees."""
    folder = os.path.join(store(venv), "tokens")
    return messages.SeenTokens([name for name in names if os.path.exists(os.path.join(folder, name))])


LOCK: List[int] = []  # the open lock file; kept until this process ends


def lock(venv: str, owner: Dict[str, Any], **_: Any) -> messages.Nothing:
    """Takes the lock for ``owner``. Raises `SessionError` ("busy") with the holder."""
    base = store(venv)
    os.makedirs(base, mode=0o755, exist_ok=True)
    path = os.path.join(base, "lock")
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            try:
                holder = json.loads(os.read(handle, 4096).decode())
            except ValueError:
                holder = {}
            os.close(handle)
            raise SessionError("busy", "another install holds this environment", holder=holder) from error
        try:
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        except OSError:
            pass  # an uninstall took it away between our two steps
        os.close(handle)
        os.makedirs(base, mode=0o755, exist_ok=True)
    LOCK.append(handle)
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(owner).encode(), 0)
    return messages.Nothing()


def clean(venv: str, **_: Any) -> messages.Cleaned:
    """Removes what is no complete environment, and old tokens. Only for the holder of the lock."""
    base = store(venv)
    tokens = os.path.join(base, "tokens")
    for name in os.listdir(tokens) if os.path.isdir(tokens) else []:
        path = os.path.join(tokens, name)
        if os.path.exists(path) and time.time() - os.stat(path).st_mtime > TOKEN_LIFETIME:  # its owner was killed
            discard(path)
    complete = environments(base)[0]
    removed = 0
    for name in os.listdir(base):
        if name not in complete and name not in NOT_ENVIRONMENTS:
            discard(os.path.join(base, name))
            removed += 1
    return messages.Cleaned(removed)


def discard(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        try:
            os.unlink(path)
        except OSError:
            pass


def make_room(venv: str, **_: Any) -> messages.Nothing:
    """Creates the directories for incoming wheels and for programs."""
    base = store(venv)
    for name in ("tmp/wheels", "bin"):
        os.makedirs(os.path.join(base, name), mode=0o755, exist_ok=True)
    return messages.Nothing()


# ---------------------------------------------------------------------------------------------- from host to host


def serve(venv: str, files: List[str], **_: Any) -> messages.Offer:
    """Serves these files (paths below the store) to other hosts over HTTP as long as this process lives.

    A request without the token gets nothing; the receiver checks the hash of each file.
    """
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from socketserver import ThreadingMixIn

    base = store(venv)
    token = base64.b16encode(os.urandom(16)).decode().lower()
    allowed = {"/%s/%s" % (token, quote(name)): os.path.join(base, name) for name in files}

    class Handler(BaseHTTPRequestHandler):
        timeout = 60

        def do_GET(self) -> None:
            path = allowed.get(self.path)
            if path is None or not os.path.isfile(path):
                self.send_error(404)
                return
            with open(path, "rb") as file:
                self.send_response(200)
                self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
                self.end_headers()
                shutil.copyfileobj(file, self.wfile, 1 << 20)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingMixIn, HTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            pass  # the receiver has gone away, and reports that to its own controller

    server = Server(("", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.daemon = True
    thread.start()
    return messages.Offer(server.server_address[1], token)


def fetch(venv: str, base: str, files: List[Dict[str, Any]], **_: Any) -> messages.Fetched:
    """Fetches files from another host, without proxies; it stops at the first that does not arrive whole."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    total, before, reported = sum(item["size"] for item in files), 0, time.time()
    fetched: List[str] = []
    why = ""
    for item in files:
        target = os.path.join(store(venv), item["target"])
        part = target + ".part"
        hashed = hashlib.sha256()
        size = 0
        try:
            with opener.open(base + "/" + quote(item["target"]), timeout=10) as answer, open(part, "wb") as file:
                for piece in iter(lambda: answer.read(1 << 20), b""):
                    file.write(piece)
                    hashed.update(piece)
                    size += len(piece)
                    if time.time() - reported > 0.5:
                        reported = time.time()
                        report_progress(before + size, total)
                    if ENDED.is_set():
                        raise SessionError("gone", "the controller is gone")
            if hashed.hexdigest() != item["sha256"]:
                raise ValueError("%s arrived damaged" % item["target"])
            os.chmod(part, item["mode"])
            os.rename(part, target)
            fetched.append(item["target"])
            before += size
        except (OSError, ValueError) as error:
            why = str(error)
            discard(part)
            break
    return messages.Fetched(fetched, why)


# ------------------------------------------------------------------------------------------------------ building


def tie_child() -> None:
    """In a new child: a process group of its own, killed when this process dies (Linux)."""
    os.setsid()
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (ImportError, OSError, AttributeError):
        pass


def execute(argv: List[str], env: Dict[str, str], watch: Watch, stall: float, timeout: float) -> Tuple[int, str, str]:
    """Runs a program to its end; returns (status, output, errors). Ended when the controller is gone, after
    ``timeout`` seconds, or when ``watch`` has seen no progress for ``stall`` seconds."""
    import tempfile

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=tie_child, close_fds=True
        )
        began = moved = beat = time.time()
        last = None
        reason = None
        while child.poll() is None:
            ENDED.wait(0.1)
            now = time.time()
            if watch and now - beat >= 0.5:
                beat, mark = now, watch(child.pid)
                if mark != last:
                    last, moved = mark, now
            elif not watch and now - beat >= KEEPALIVE:
                beat, moved = now, now
                send(messages.KeepAlive())
            if ENDED.is_set():
                reason = "gone"
            elif now - began > timeout:
                reason = "took more than %d s" % timeout
            elif now - moved > stall:
                reason = "no progress for %d s" % stall
            if reason:
                kill(child)
        texts = []
        for file in (out, err):
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 65536))
            texts.append(file.read().decode("utf-8", "replace"))
    if reason == "gone":
        raise SessionError("gone", "the controller is gone")
    if reason:
        raise SessionError("stalled", reason, errors=texts[1][-2000:])
    return child.returncode, texts[0], texts[1]


def kill(child: "subprocess.Popen[bytes]") -> None:
    for sign, wait in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(child.pid, sign)
        except OSError:
            pass
        end = time.time() + wait
        while child.poll() is None and time.time() < end:
            time.sleep(0.05)


def build(
    venv: str,
    id: str,
    python: str,
    uv: str,
    lock: str,
    need: int,
    unpacked: int,
    stall: float,
    keep: bool,
    timeout: float,
    repair: bool,
    **_: Any,
) -> messages.Nothing:
    """Makes the environment ``id`` beside the active one. It has no marker yet, so it does not count.

    ``lock`` is a pylock.toml of exact wheels with hashes; ``need`` bytes must be free; ``unpacked`` bytes are
    expected, for the bar; ``keep``: downloads stay in uv's cache. If another install has made the same environment
    since the inspection, it is taken as it is, unless it is to be repaired.
    """
    base = store(venv)
    target, tmp = os.path.join(base, id), os.path.join(base, "tmp")
    if read_marker(target) is not None and not repair:
        return messages.Nothing()
    if os.path.lexists(os.path.join(target, MARKER)):
        os.unlink(os.path.join(target, MARKER))
    discard(target)
    os.makedirs(tmp, mode=0o755, exist_ok=True)
    space = os.statvfs(tmp)
    free = space.f_bavail * space.f_frsize
    if free < need:
        raise SessionError("no-space", "no space left", need=need, free=free, at=base)
    cache = uv_cache(base) if keep else os.path.join(tmp, "uv")
    env = {
        "HOME": os.path.expanduser("~"),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "TMPDIR": tmp,
        "UV_CACHE_DIR": cache,
        "UV_NO_CONFIG": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_LINK_MODE": "hardlink",
        "UV_HTTP_TIMEOUT": str(int(max(1, stall / 3))),
        "UV_HTTP_RETRIES": "2",
        "NO_COLOR": "1",
    }
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        for key in (name, name.upper()):
            if key in os.environ:
                env[key] = os.environ[key]
    for bundle in ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"):
        if os.path.exists(bundle):  # the host's own authorities, as its administrator wants them
            env.update({"SSL_CERT_FILE": bundle, "UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"})
            break
    listing = os.path.join(tmp, "pylock.toml")
    handle = os.open(listing, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # its URLs may hold a password
    with os.fdopen(handle, "w") as file:
        file.write(lock)
    try:
        run_uv([uv, "venv", "--quiet", "--no-project", "--python", python, target], env, None, stall, 120)
        before = os.statvfs(tmp)
        state = {"done": -1}

        def watch(pid: int) -> Any:
            now = os.statvfs(tmp)
            done = max(0, (before.f_bavail - now.f_bavail) * now.f_frsize)
            if done > state["done"] + (256 << 10):
                state["done"] = done
            report_progress(min(max(0, done), unpacked), unpacked)
            return (state["done"], int(cpu_seconds(pid)))

        argv = [uv, "pip", "install", "--python", os.path.join(target, "bin", "python"), "--no-deps", "--no-build"]
        run_uv([*argv, "--require-hashes", "-r", listing], env, watch, stall, timeout)
        return messages.Nothing()
    except BaseException:
        discard(target)
        raise
    finally:
        discard(os.path.join(tmp, "uv"))


def run_uv(argv: List[str], env: Dict[str, str], watch: Watch, stall: float, timeout: float) -> None:
    status, _, errors = execute(argv, env, watch, stall, timeout)
    if status == 0:
        return
    code = "step"
    if "No space left" in errors or "os error 28" in errors:
        code = "no-space"
    elif "Hash mismatch" in errors or "hash mismatch" in errors:
        code = "hash"
    elif "Failed to fetch" in errors or "error sending request" in errors or "Failed to download" in errors:
        code = "index"
    raise SessionError(code, "uv %s failed (status %d)" % (" ".join(argv[1:3]), status), errors=errors[-4000:])


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            words = file.read().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / float(os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0


def uv_cache(base: str) -> str:
    """uv's own cache where hard links from it are possible (a second install costs nothing); else one of ours."""
    usual = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "uv")
    try:
        near = nearest_directory(usual)
        if os.access(near, os.W_OK) and os.stat(near).st_dev == os.stat(base).st_dev:
            return usual
    except OSError:
        pass
    return os.path.join(base, "cache")


# ---------------------------------------------------------------------------------------------------- verifying


def list_present(venv: str, id: str, paths: List[str], **_: Any) -> messages.Present:
    """Those of these paths below the environment that exist."""
    target = os.path.join(store(venv), id)
    return messages.Present([path for path in paths if os.path.exists(os.path.join(target, path))])


def check_imports(
    venv: str,
    id: str,
    script: str,
    arguments: Dict[str, Any],
    path: List[str],
    env: Dict[str, str],
    timeout: float,
    **_: Any,
) -> Dict[str, Any]:
    """Runs the import check in a fresh process of the environment's own Python."""
    target = os.path.join(store(venv), id)
    variables = {
        "HOME": os.path.expanduser("~"),
        "PATH": os.pathsep.join([*path, "/usr/local/bin", "/usr/bin", "/bin"]),
        "LC_ALL": "C.UTF-8",
    }
    variables.update(env)
    argv = [os.path.join(target, "bin", "python"), "-c", script, json.dumps(arguments)]
    status, output, errors = execute(argv, variables, None, timeout, timeout)
    for line in reversed(output.splitlines()):
        if line.startswith("ipexctl-verify "):
            report = json.loads(line.partition(" ")[2])  # the controller checks that it is an `ImportReport`
            return report if isinstance(report, dict) else {}
    how = "signal %d" % -status if status < 0 else "status %d" % status
    raise SessionError("import", "the import check ended with %s" % how, errors=errors[-4000:])


# ---------------------------------------------------------------------------------------------------- finishing


def mark(venv: str, id: str, marker: Dict[str, Any], **_: Any) -> messages.Nothing:
    """Syncs everything to disk, then writes the marker: from here on the environment is complete."""
    target = os.path.join(store(venv), id)
    os.sync()
    temporary = os.path.join(target, "." + MARKER)
    with open(temporary, "w") as file:
        json.dump(marker, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, os.path.join(target, MARKER))
    fsync_directory(target)
    fsync_directory(store(venv))
    return messages.Nothing()


def switch(venv: str, id: str, **_: Any) -> messages.Switched:
    """Makes ``id`` the active environment, in one step. Returns the previous one."""
    base = store(venv)
    if read_marker(os.path.join(base, id)) is None:
        raise SessionError("step", "environment %s is not complete" % id)
    if os.path.lexists(venv) and not os.path.islink(venv):
        raise SessionError("foreign", "%s exists already, and ipexctl did not make it" % venv)
    before = os.path.basename(os.path.realpath(venv)) if os.path.islink(venv) else None
    temporary = os.path.join(base, "tmp", "link")
    os.makedirs(os.path.dirname(temporary), exist_ok=True)
    discard(temporary)
    os.symlink(os.path.join(base, id), temporary)
    os.rename(temporary, venv)
    fsync_directory(os.path.dirname(venv))
    return messages.Switched(before)


def fsync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_used(venv: str, **_: Any) -> messages.Used:
    """Environments with files in the memory of a process of this host: a running job keeps its own. The kernel shows
    the real paths of these files, past all links (a home directory is one, on some clusters)."""
    base = os.path.realpath(store(venv))
    ids = environments(base)[0]
    ids_in_use: Set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/maps" % pid, "rb") as file:
                text = file.read()
        except OSError:
            continue
        ids_in_use.update(id for id in ids if os.fsencode(os.path.join(base, id) + "/") in text)
    return messages.Used(sorted(ids_in_use))


def remove_unused(venv: str, keep: List[str], **_: Any) -> messages.Removed:
    """Removes complete environments other than ``keep``, the cache of wheels and what is incomplete."""
    base = store(venv)
    removed = []
    for id in environments(base)[0]:
        if id not in keep:
            try:  # without its marker first: a removal that is cut short leaves no environment that looks complete
                os.unlink(os.path.join(base, id, MARKER))
            except OSError:
                continue
            removed.append(id)
    if removed:
        discard(os.path.join(base, "cache"))  # what uv kept for them; its own cache in the home is the user's
    clean(venv)
    return messages.Removed([], removed)


def remove(venv: str, **_: Any) -> messages.Removed:
    """Removes all that installs made here, unless a job still uses it."""
    base = store(venv)
    if not os.path.isdir(base):
        return messages.Removed([], [])
    lock(venv, {"verb": "uninstall", "since": time.time()})
    used = find_used(venv).used
    if used:
        return messages.Removed(used, [])
    if os.path.islink(venv) and os.path.dirname(os.path.realpath(venv)) == os.path.realpath(base):
        os.unlink(venv)
    ids = environments(base)[0]
    for id in ids:  # a removal that is cut short leaves no environment that looks complete
        os.unlink(os.path.join(base, id, MARKER))
    shutil.rmtree(base, ignore_errors=True)
    if os.path.lexists(base):
        raise SessionError("residue", "%s could not be removed" % base)
    return messages.Removed([], ids)


COMMANDS: Dict[str, Callable[..., Any]] = {
    "inspect": inspect_place,
    "measure_rate": measure_rate,
    "echo": echo,
    "leave_token": leave_token,
    "find_tokens": find_tokens,
    "lock": lock,
    "clean": clean,
    "make_room": make_room,
    "serve": serve,
    "fetch": fetch,
    "build": build,
    "list_present": list_present,
    "check_imports": check_imports,
    "mark": mark,
    "switch": switch,
    "find_used": find_used,
    "remove_unused": remove_unused,
    "remove": remove,
}


class InstallSession:
    """The state, and the environment it is about."""

    def __init__(self) -> None:
        self.state, self.venv = State.INSPECTING, ""

    def run(self, command: str, arguments: Dict[str, Any]) -> Any:
        """Does a command if the state allows it. Raises `SessionError`, `OSError`."""
        work = find_command(COMMANDS, command)
        if install_state.next(self.state, command) is None:
            raise SessionError("state", "%s is not allowed in state %s" % (command, self.state.value))
        self.venv = arguments["venv"]
        succeeded = False
        try:
            answer = work(**arguments)
            succeeded = True
            return answer
        finally:
            self.state = install_state.next(self.state, command, succeeded) or self.state

    def end(self) -> None:
        """Takes the tokens back, and removes what is half-built if the lock is ours."""
        for path in TOKENS:
            discard(path)
        if LOCK and install_state.must_clean(self.state) and os.path.isdir(store(self.venv)):
            clean(self.venv)


def main() -> None:
    os.umask(0o022)
    session = InstallSession()
    try:
        serve_requests(session.run, DISK_TIMEOUT)
    finally:
        session.end()


if __name__ == "__main__":
    main()
