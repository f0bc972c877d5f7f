"""The session of an install on one host: one process that reads commands and answers, JSON lines both ways.

It runs under any Python of the host from 3.6 on, standard library only. While its input is open it may hold the lock
of the environment; when the input ends (the controller is gone, the link is cut, the install is done) it stops what it
started, removes what is half-built, and exits, so that nothing is left that would block the next install.

On disk, for the environment ``/x/env``:

    /x/env            a symbolic link to the active environment, switched by rename
    /x/env.d/ID       a complete environment; its marker ``ipexctl.json`` was written last, after a sync
    /x/env.d/lock     locked (flock) while somebody installs; holds who
    /x/env.d/bin      uv
    /x/env.d/tokens   signs by which hosts notice that they share this directory
    /x/env.d/tmp      wheels on their way and half-built things; removed by whoever holds the lock
"""

import base64
import errno
import fcntl
import hashlib
import json
import os
import queue
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any, Callable, Dict, List, Optional, Set, Tuple
from urllib.parse import quote

Origin = List[Any]  # [host, port]
Watch = Optional[Callable[[int], Any]]  # given the process id; returns something that changes with progress

MARKER = "ipexctl.json"
KEPT = ("lock", "bin", "cache", "tokens")  # beside the environments
BEAT = 2.0  # seconds between signs of life during a long command
OLD = 3600.0  # seconds after which a token belongs to nobody who still looks for it
DISK = 900.0  # seconds a command may be busy with the disk alone; then its signs of life end, and it counts as lost
COMMANDS: "queue.Queue[Optional[Dict[str, Any]]]" = queue.Queue()  # None when the input has ended
GONE = threading.Event()
SPEAKING = threading.Lock()


class SessionError(Exception):
    """Why a command could not be done. ``code`` is a stable word; ``more`` are further facts for the controller."""

    def __init__(self, code: str, what: str, **more: Any) -> None:
        Exception.__init__(self, what)
        self.code, self.what, self.more = code, what, more


def say(**message: Any) -> None:
    data = (json.dumps(message) + "\n").encode()
    with SPEAKING:
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            GONE.set()


class Alive:
    """Signs of life while a command is at work: a slow disk takes minutes to remove or to sync a big environment."""

    def __enter__(self) -> None:
        self.over = threading.Event()
        thread = threading.Thread(target=self.beat)
        thread.daemon = True
        thread.start()

    def beat(self) -> None:
        for _ in range(int(DISK / BEAT)):
            if self.over.wait(BEAT):
                return
            say(beat=True)

    def __exit__(self, *_: Any) -> None:
        self.over.set()


def listen() -> None:
    for line in sys.stdin.buffer:
        COMMANDS.put(json.loads(line.decode()))
    GONE.set()
    COMMANDS.put(None)


# ---------------------------------------------------------------------------------------------------- looking


def store(venv: str) -> str:
    return venv + ".d"


def look(venv: str, uv: Dict[str, Any], files: List[Dict[str, Any]], origins: List[Origin], **_: Any) -> Dict[str, Any]:
    """What is there. Writes nothing."""
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
        kind, why = "foreign", "%s is there already, and ipexctl did not make it" % venv
    near = existing(base)
    if kind != "foreign" and not os.access(near, os.W_OK | os.X_OK):
        kind, why = "foreign", "%s cannot be written by %s" % (near, login())
    if os.path.lexists(base):
        info = os.lstat(base)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            kind, why = "foreign", "%s is not a directory of %s" % (base, login())
    space = os.statvfs(near)
    ids, debris = environments(base)
    left = [name for name in os.listdir(base) if name not in KEPT and name != active] if kind == "ours" else []
    return {
        "kind": kind,
        "why": why,
        "active": active,
        "complete": ids,
        "debris": debris,
        "left": sorted(set(left) - set(used(venv)["used"]), key=lambda name: (name == "tmp", name)) if left else [],
        "marker": marker_of(os.path.join(base, active)) if active else None,
        "packages": packages(os.path.join(base, active)) if active else None,
        "free": space.f_bavail * space.f_frsize,
        "at": near,
        "uv": find_uv(base, uv),
        "visible": [item["path"] for item in files if size_of(item["path"]) == item["size"]],
        "unreachable": unreachable(origins),
        "same": [os.lstat(near).st_dev, os.lstat(near).st_ino],
    }


def packages(environment: str) -> Dict[str, str]:
    """Names and versions of what is really there, from the directories' names."""
    found: Dict[str, str] = {}
    library = os.path.join(environment, "lib")
    for python in os.listdir(library) if os.path.isdir(library) else []:
        site = os.path.join(library, python, "site-packages")
        for name in os.listdir(site) if os.path.isdir(site) else []:
            if name.endswith(".dist-info") and "-" in name:
                found[name[: -len(".dist-info")].rpartition("-")[0]] = name[: -len(".dist-info")].rpartition("-")[2]
    return found


def existing(path: str) -> str:
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
    """Complete environments (they have a marker), and how many other things lie about."""
    complete: List[str] = []
    debris = 0
    for name in sorted(os.listdir(base)) if os.path.isdir(base) else []:
        if name in KEPT:
            continue
        if marker_of(os.path.join(base, name)) is not None:
            complete.append(name)
        else:
            debris += 1
    return complete, debris


def marker_of(directory: str) -> Any:
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
    """The very program the controller has, where it is on this host too, or where an earlier install put it."""
    for path in (os.path.join(base, "bin", "uv-" + uv["version"]), uv["path"]):
        if size_of(path) == uv["size"] and digest(path) == uv["sha256"]:
            return path
    return None


def digest(path: str) -> str:
    sum_ = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            sum_.update(piece)
    return sum_.hexdigest()


def unreachable(origins: List[Origin]) -> List[Origin]:
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


def speed(url: str, login: str, seconds: float, most: int, **_: Any) -> Dict[str, Any]:
    """Bytes a second at which this host gets a file, tried for ``seconds`` or ``most`` bytes; 0 where it does not."""
    request = urllib.request.Request(url, headers={"Range": "bytes=0-%d" % (most - 1), "User-Agent": "ipexctl"})
    if login:
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    begun, got = time.time(), 0
    try:
        with urllib.request.urlopen(request, timeout=seconds + 2) as answer:
            while got < most and time.time() - begun < seconds:
                piece = answer.read(64 << 10)
                if not piece:
                    break
                got += len(piece)
    except (OSError, ValueError) as error:
        return {"rate": 0.0, "why": str(error)}
    return {"rate": got / max(time.time() - begun, 1e-6), "why": ""}


def receive(data: str, **_: Any) -> Dict[str, Any]:
    """What the controller sends to learn how fast it can."""
    return {"got": len(data)}


# --------------------------------------------------------------------------------------------- tokens and lock


TOKENS: List[str] = []  # those we left; taken away at the end


def token(venv: str, name: str, **_: Any) -> Dict[str, Any]:
    """Leaves a token, by which hosts with one file system find each other."""
    place = os.path.join(store(venv), "tokens")
    os.makedirs(place, mode=0o755, exist_ok=True)
    path = os.path.join(place, name)
    TOKENS.append(path)
    with open(path, "w") as file:
        file.write(name)
    return {}


def tokens(venv: str, names: List[str], **_: Any) -> Dict[str, Any]:
    return {"seen": [name for name in names if os.path.exists(os.path.join(store(venv), "tokens", name))]}


LOCK: List[int] = []  # the open lock file; kept until this process ends


def lock(venv: str, owner: Dict[str, Any], **_: Any) -> Dict[str, Any]:
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
    return {}


def clean(venv: str, **_: Any) -> Dict[str, Any]:
    """Removes what is no complete environment, and old tokens. Only the holder of the lock may."""
    base = store(venv)
    signs = os.path.join(base, "tokens")
    for name in os.listdir(signs) if os.path.isdir(signs) else []:
        path = os.path.join(signs, name)
        if os.path.exists(path) and time.time() - os.stat(path).st_mtime > OLD:  # its owner was killed
            discard(path)
    complete = environments(base)[0]
    removed = 0
    for name in os.listdir(base):
        if name not in complete and name not in KEPT:
            discard(os.path.join(base, name))
            removed += 1
    return {"removed": removed}


def discard(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        try:
            os.unlink(path)
        except OSError:
            pass


def room(venv: str, **_: Any) -> Dict[str, Any]:
    """A directory for wheels on their way here, and one for programs."""
    base = store(venv)
    for name in ("tmp/wheels", "bin"):
        os.makedirs(os.path.join(base, name), mode=0o755, exist_ok=True)
    return {"wheels": os.path.join(base, "tmp", "wheels"), "bin": os.path.join(base, "bin")}


# ---------------------------------------------------------------------------------------------- from host to host


def serve(venv: str, files: List[str], **_: Any) -> Dict[str, Any]:
    """Lets other hosts fetch these files (paths below the store) over HTTP as long as this process lives.

    Who does not know the token gets nothing; what is got is checked against its hash by who asked.
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
            pass  # who asked has gone away, and tells its own controller

    server = Server(("", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.daemon = True
    thread.start()
    return {"port": server.server_address[1], "token": token}


def get(venv: str, base: str, files: List[Dict[str, Any]], **_: Any) -> Dict[str, Any]:
    """Fetches files from another host; what does not come whole is left to the controller. Proxies are not for this."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    total, before, beat = sum(item["size"] for item in files), 0, time.time()
    got: List[str] = []
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
                    if time.time() - beat > 0.5:
                        beat = time.time()
                        say(progress=before + size, total=total)
                    if GONE.is_set():
                        raise SessionError("gone", "the controller is gone")
            if hashed.hexdigest() != item["sha256"]:
                raise ValueError("%s came damaged" % item["target"])
            os.chmod(part, item["mode"])
            os.rename(part, target)
            got.append(item["target"])
            before += size
        except (OSError, ValueError) as error:
            why = str(error)
            discard(part)
            break
    return {"got": got, "why": why}


# ------------------------------------------------------------------------------------------------------ building


def child_of_ours() -> None:
    """In a new child: a group of its own, and dead when we are (Linux)."""
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
            argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=child_of_ours, close_fds=True
        )
        began = moved = beat = time.time()
        last = None
        reason = None
        while child.poll() is None:
            GONE.wait(0.1)
            now = time.time()
            if watch and now - beat >= 0.5:
                beat, mark = now, watch(child.pid)
                if mark != last:
                    last, moved = mark, now
            elif not watch and now - beat >= BEAT:
                beat, moved = now, now
                say(beat=True)
            if GONE.is_set():
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
        raise SessionError("stalled", reason, said=texts[1][-2000:])
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
) -> Dict[str, Any]:
    """Makes the environment ``id`` beside the active one. It has no marker yet, so it does not count.

    ``lock`` is a pylock.toml of exact wheels with hashes; ``need`` bytes must be free; ``unpacked`` bytes are
    expected, for the bar; ``keep`` tells whether what was downloaded stays in uv's cache. Somebody may have made the
    same one since we looked: then it is taken as it is, unless it is to be repaired.
    """
    base = store(venv)
    target, tmp = os.path.join(base, id), os.path.join(base, "tmp")
    if marker_of(target) is not None and not repair:
        return {"already": True}
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
        call([uv, "venv", "--quiet", "--no-project", "--python", python, target], env, None, stall, 120)
        before = os.statvfs(tmp)
        state = {"done": -1}

        def watch(pid: int) -> Any:
            now = os.statvfs(tmp)
            done = max(0, (before.f_bavail - now.f_bavail) * now.f_frsize)
            if done > state["done"] + (256 << 10):
                state["done"] = done
            say(progress=min(max(0, done), unpacked), total=unpacked)
            return (state["done"], int(cpu(pid)))

        argv = [uv, "pip", "install", "--python", os.path.join(target, "bin", "python"), "--no-deps", "--no-build"]
        call([*argv, "--require-hashes", "-r", listing], env, watch, stall, timeout)
        return {"cache": cache if keep else None}
    except BaseException:
        discard(target)
        raise
    finally:
        discard(os.path.join(tmp, "uv"))


def call(argv: List[str], env: Dict[str, str], watch: Watch, stall: float, timeout: float) -> None:
    status, _, said = execute(argv, env, watch, stall, timeout)
    if status == 0:
        return
    code = "step"
    if "No space left" in said or "os error 28" in said:
        code = "no-space"
    elif "Hash mismatch" in said or "hash mismatch" in said:
        code = "hash"
    elif "Failed to fetch" in said or "error sending request" in said or "Failed to download" in said:
        code = "index"
    raise SessionError(code, "uv %s failed (status %d)" % (" ".join(argv[1:3]), status), said=said[-4000:])


def cpu(pid: int) -> float:
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
        near = existing(usual)
        if os.access(near, os.W_OK) and os.stat(near).st_dev == os.stat(base).st_dev:
            return usual
    except OSError:
        pass
    return os.path.join(base, "cache")


# ---------------------------------------------------------------------------------------------------- verifying


def present(venv: str, id: str, paths: List[str], **_: Any) -> Dict[str, Any]:
    target = os.path.join(store(venv), id)
    return {"seen": [path for path in paths if os.path.exists(os.path.join(target, path))]}


def check(
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
    status, out, said = execute(argv, variables, None, timeout, timeout)
    for line in reversed(out.splitlines()):
        if line.startswith("ipexctl-verify "):
            return {"found": json.loads(line.partition(" ")[2]), "said": said[-2000:]}
    how = "signal %d" % -status if status < 0 else "status %d" % status
    raise SessionError("import", "the import check ended with %s" % how, said=said[-4000:])


# ---------------------------------------------------------------------------------------------------- finishing


def mark(venv: str, id: str, marker: Dict[str, Any], **_: Any) -> Dict[str, Any]:
    """Everything to disk, then the marker, last: from here on the environment is complete."""
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
    return {}


def switch(venv: str, id: str, **_: Any) -> Dict[str, Any]:
    """Makes ``id`` the active environment, in one step. Returns which one was."""
    base = store(venv)
    if marker_of(os.path.join(base, id)) is None:
        raise SessionError("step", "environment %s is not complete" % id)
    if os.path.lexists(venv) and not os.path.islink(venv):
        raise SessionError("foreign", "%s is there already, and ipexctl did not make it" % venv)
    before = os.path.basename(os.path.realpath(venv)) if os.path.islink(venv) else None
    temporary = os.path.join(base, "tmp", "link")
    os.makedirs(os.path.dirname(temporary), exist_ok=True)
    discard(temporary)
    os.symlink(os.path.join(base, id), temporary)
    os.rename(temporary, venv)
    fsync_directory(os.path.dirname(venv))
    return {"before": before}


def fsync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def used(venv: str, **_: Any) -> Dict[str, Any]:
    """Environments that processes of this host have files of in memory: a running job keeps its own. The kernel tells
    where these files really are, past all links (a home directory is one, on some clusters)."""
    base = os.path.realpath(store(venv))
    ids = environments(base)[0]
    found: Set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/maps" % pid, "rb") as file:
                text = file.read()
        except OSError:
            continue
        found.update(id for id in ids if os.fsencode(os.path.join(base, id) + "/") in text)
    return {"used": sorted(found)}


def tidy(venv: str, keep: List[str], **_: Any) -> Dict[str, Any]:
    """Removes complete environments other than ``keep``, the store of wheels and the debris."""
    base = store(venv)
    removed = []
    for id in environments(base)[0]:
        if id not in keep:
            try:  # without its marker first: a removal that is cut short leaves debris, no environment
                os.unlink(os.path.join(base, id, MARKER))
            except OSError:
                continue
            removed.append(id)
    if removed:
        discard(os.path.join(base, "cache"))  # what uv kept for them; its own cache in the home is the user's
    clean(venv)
    return {"removed": removed}


def remove(venv: str, **_: Any) -> Dict[str, Any]:
    """Takes away all that installs made here, but for what a job still uses."""
    base = store(venv)
    if not os.path.isdir(base):
        return {"used": [], "removed": []}
    lock(venv, {"verb": "uninstall", "since": time.time()})
    busy = used(venv)["used"]
    if busy:
        return {"used": busy, "removed": []}
    if os.path.islink(venv) and os.path.dirname(os.path.realpath(venv)) == os.path.realpath(base):
        os.unlink(venv)
    ids = environments(base)[0]
    for id in ids:  # a removal that is cut short leaves debris, no environment
        os.unlink(os.path.join(base, id, MARKER))
    shutil.rmtree(base, ignore_errors=True)
    if os.path.lexists(base):
        raise SessionError("left", "%s could not be removed" % base)
    return {"used": [], "removed": ids}


DOES: Dict[str, Callable[..., Dict[str, Any]]] = {
    "look": look,
    "speed": speed,
    "receive": receive,
    "token": token,
    "tokens": tokens,
    "lock": lock,
    "clean": clean,
    "room": room,
    "serve": serve,
    "get": get,
    "build": build,
    "present": present,
    "check": check,
    "mark": mark,
    "switch": switch,
    "used": used,
    "tidy": tidy,
    "remove": remove,
}


def told_to_end(*_: Any) -> None:
    GONE.set()
    COMMANDS.put(None)


def main() -> None:
    os.umask(0o022)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for sign in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(sign, told_to_end)
    thread = threading.Thread(target=listen)
    thread.daemon = True
    thread.start()
    say(ready=True, python=sys.version.split()[0], host=socket.gethostname())
    venv = None
    while not GONE.is_set():
        command = COMMANDS.get()
        if command is None:
            break
        venv = command["venv"]
        try:
            with Alive():
                answer = DOES[command["do"]](**command)
            say(done=answer)
        except SessionError as problem:
            if problem.code == "gone":
                break
            say(failed=problem.code, what=problem.what, more=problem.more)
        except OSError as error:
            code = "no-space" if error.errno == errno.ENOSPC else "step"
            say(failed=code, what="%s: %s" % (error.filename or "host", error.strerror), more={})
    for path in TOKENS:
        discard(path)
    if LOCK and venv and os.path.isdir(store(venv)):
        clean(venv)  # what is half-built is nobody's


if __name__ == "__main__":
    main()
