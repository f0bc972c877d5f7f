"""The session of an install on one host: its requests (see `loop` too).

It runs under any Python of the host from 3.6 on, standard library only. From `lock` on it holds the lock of the
environment; when the input ends (the controller is gone, the link is cut, the install is done) it stops what it
started, undoes what is half-done, and exits, so that nothing is left that would block the next install.

On disk, for the environment ``/x/env``:

    /x/env            a symbolic link to the active environment, switched by rename
    /x/env.d/ID       a complete environment; its marker ``ipexctl.json`` was written last, after a sync
    /x/env.d/lock     locked (flock) during an install; its text names the holder
    /x/env.d/bin      uv
    /x/env.d/tokens   tokens by which hosts notice that they share this directory
    /x/env.d/wheels   wheels that have arrived, kept for another try until an install has succeeded
    /x/env.d/tmp      half-built environments; removed by the holder of the lock"""

import errno
import fcntl
import glob
import hashlib
import hmac
import io
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Set, Tuple

from ipexctl.protocol import session as messages
from ipexctl.protocol.paths import AGENTS, MARKER, RUNS
from ipexctl.protocol.session import SessionError
from ipexctl.remote.agent import procs
from ipexctl.remote.session import relay
from ipexctl.remote.session.loop import ENDED, end_session, report_progress, serve_requests

Origin = List[Any]  # [host, port]
Watch = Optional[Callable[[int], Any]]  # takes the process id; returns something that changes with progress

NOT_ENVIRONMENTS = ("lock", "bin", "cache", "tokens", "wheels")  # beside the environments
TOKEN_LIFETIME = 3600.0  # seconds after which a token belongs to no running install
BUILD_TIMEOUT = 3600.0  # seconds that unpacking everything may take
CONFIRM_TIMEOUT = 60.0  # seconds between a switch and its confirmation, after which the controller counts as gone
LINGER_SECONDS = 10.0  # seconds for which the host that decides can be asked after the controller has gone
# Requests that change something: only for the holder of the lock.
CHANGES = ("make_room", "serve", "fetch", "clean", "build", "mark", "switch", "confirm", "go_back", "remove_unused")
CONFIRMED = "tmp/confirmed"  # below the store of the host that decides: all hosts stay with the new environment


# requests.


class InstallSession(relay.FileRelay):
    """One environment on this host, and how far its install has come. All requests name the same one."""

    def __init__(self) -> None:
        relay.FileRelay.__init__(self)
        self.venv = self.target = ""  # the link, whose ".d" is the store of environments; the one to be made in it
        self.lock_file = -1  # open while this process lives, once it holds the lock
        self.switched = False  # the link leads to it, and that is not confirmed: the end goes back
        self.active = False  # it was confirmed, and stays
        self.before = ""  # the environment that was active before the switch
        self.ask: Optional[Dict[str, str]] = None  # base and token of the host that decides whether a switch stays
        self.decides = False  # this host does, and others may still ask
        self.timer = threading.Timer(CONFIRM_TIMEOUT, end_session)

    def run(self, name: str, arguments: Dict[str, Any]) -> Any:
        """Does what is asked. Raises `SessionError`, `OSError`."""
        self.venv = arguments.pop("venv")
        self.base = self.venv + ".d"
        self.target = os.path.join(self.base, arguments.pop("id", ""))
        if name in CHANGES and self.lock_file < 0:
            raise SessionError("state", "%s is not allowed without the lock" % name)
        if name not in ("inspect", "find_places"):  # which tell of it
            check_store(self.base)
        return getattr(self, name)(**arguments)

    def end(self) -> None:
        """Takes the tokens back, and undoes what is half-done if the lock is ours. Leaves no empty directories."""
        if not self.base or find_store_fault(self.base):  # nothing was asked for, or nothing there is ours
            return
        self.take_tokens_back()
        if self.active and self.decides:
            time.sleep(LINGER_SECONDS)
        if self.switched and not (self.ask and is_confirmed(**self.ask)):
            self.go_back(self.before)
        if self.lock_file >= 0 and os.path.isdir(self.base):
            self.clean()
        for name in ("tokens", "wheels", "") if self.tokens or self.lock_file >= 0 else ():
            if self.lock_file >= 0 and list_directory(self.base) == ["lock"]:
                relay.remove_path(os.path.join(self.base, "lock"))
            with suppress(OSError):  # it is not empty
                os.rmdir(os.path.join(self.base, name))

    # -- inspecting

    def inspect(self, uv: Dict[str, Any], files: List[Dict[str, Any]], origins: List[Origin]) -> messages.Inspection:
        """Returns what the host has at the place of the environment. Writes nothing."""
        venv, base = self.venv, self.base
        kind, why = "absent", ""
        active: Optional[str] = None
        if self.is_linked():
            kind = "ours"
            active = os.path.basename(os.path.realpath(venv)) if os.path.isdir(venv) else None
        elif os.path.islink(venv):
            kind, why = "foreign", "%s is a link to %s, which ipexctl did not make" % (venv, os.path.realpath(venv))
        elif os.path.lexists(venv):
            kind, why = "foreign", "%s exists already, and ipexctl did not make it" % venv
        near = find_nearest_directory(base)
        if kind != "foreign" and find_obstacle(near):
            kind, why = "foreign", find_obstacle(near)
        fault = find_store_fault(base)
        if fault:
            kind, why = "foreign", fault
        names: Set[str] = set(list_directory(base)) if kind == "ours" else set()
        leftovers = names - {*NOT_ENVIRONMENTS, active} | names & {"wheels"}
        arrived = [os.path.join(base, "wheels", name) for name in list_directory(os.path.join(base, "wheels"))]
        free, count, at = measure_room(near)
        if leftovers:
            leftovers -= set(self.find_used().used)
        return messages.Inspection(
            kind=kind,
            why=why,
            active=active,
            complete=list_environments(base) if kind != "foreign" else [],
            leftovers=sorted(leftovers, key=lambda name: (name == "tmp", name)),
            packages=list_packages(venv) if active and os.path.exists(os.path.join(venv, "bin", "python")) else None,
            free=free + sum(map(os.path.getsize, arrived)),
            files=count,
            at=at,
            uv=find_uv(base, uv),
            visible=[item["path"] for item in files if relay.get_readable_size(item["path"]) == item["size"]],
            unreachable=["%s:%s" % tuple(origin) for origin in find_unreachable(origins)],
        )

    def find_places(self) -> messages.RoomyPlaces:
        """Returns where this account can make environments: at its home, and in directories of its own on disks."""
        home = os.path.realpath(os.path.expanduser("~"))
        places: Dict[str, int] = {}
        for directory in [home, *USUAL_PLACES, *list_mounts()]:
            if not os.path.isdir(directory):
                continue
            is_own = os.stat(directory).st_uid == os.getuid()
            place = directory if is_own else os.path.join(directory, get_user_name())
            near = find_nearest_directory(place)
            if not find_obstacle(near) and not find_store_fault(os.path.join(place, "ipexctl.d")):
                places[place] = measure_room(near)[0]
        return messages.RoomyPlaces(places)

    def is_linked(self) -> bool:
        """Returns whether the link leads to an environment of ours."""
        return os.path.islink(self.venv) and os.path.dirname(os.path.realpath(self.venv)) == os.path.realpath(self.base)

    # -- lock

    def lock(self, owner: Dict[str, Any], ended: Optional[Dict[str, Any]] = None) -> None:
        """Takes the lock for ``owner``. Raises `SessionError` ("busy") with the holder. ``ended`` is one whose
        controller has ended, which its session here may not have heard of: that is ended and waited for."""
        path = os.path.join(self.base, "lock")
        limit = time.monotonic() + LINGER_SECONDS + 5.0
        while True:
            make_store(self.base)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.fchmod(handle, 0o600)  # of earlier versions: whoever can read it could hold it
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    os.close(handle)
                    relay.remove_path(path)
                    with suppress(OSError):
                        os.rmdir(self.base)
                    what = "the file system of %s has no locks, which an install needs (%s)"
                    raise SessionError("no-locks", what % (self.base, error.strerror)) from error
                try:
                    holder = json.loads(os.read(handle, 4096).decode())
                except ValueError:
                    holder = {}
                os.close(handle)
                if holder and holder == ended and time.monotonic() < limit:
                    end_holder(holder["session"], path)
                    time.sleep(0.2)
                    continue
                raise SessionError("busy", "another install holds this environment", holder=holder) from error
            with suppress(OSError):  # an uninstall took it away between our two steps
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    break
            os.close(handle)
        self.lock_file = handle
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(dict(owner, session=os.getpid())).encode(), 0)

    def leave_token(self, name: str) -> None:
        make_store(self.base)
        relay.FileRelay.leave_token(self, name)

    def make_room(self, files: List[Dict[str, Any]]) -> messages.Present:
        for name, mode in (("wheels", 0o700), ("bin", 0o755)):
            os.makedirs(os.path.join(self.base, name), mode=mode, exist_ok=True)
            os.chmod(os.path.join(self.base, name), mode)
        return relay.FileRelay.make_room(self, files)

    def clean(self, wheels: Optional[List[str]] = None) -> messages.Cleaned:
        """Removes what is no complete environment, old tokens, and of the wheels that have arrived those that are not
        these. An environment whose repair failed comes back. Only for the holder of the lock."""
        tmp = os.path.join(self.base, "tmp")
        for name in list_environments(tmp):
            if read_marker(os.path.join(self.base, name)) is None:
                relay.remove_path(os.path.join(self.base, name))
                os.rename(os.path.join(tmp, name), os.path.join(self.base, name))
        arrived = os.path.join(self.base, "wheels")
        for name in set(list_directory(arrived)) - set(list_directory(arrived) if wheels is None else wheels):
            relay.remove_path(os.path.join(arrived, name))
        tokens = os.path.join(self.base, "tokens")
        for name in list_directory(tokens):
            path = os.path.join(tokens, name)
            if os.path.exists(path) and procs.read_age(path) > TOKEN_LIFETIME:  # its owner was killed
                relay.remove_path(path)
        incomplete = set(os.listdir(self.base)) - {*NOT_ENVIRONMENTS, *list_environments(self.base)}
        for name in incomplete:
            relay.remove_path(os.path.join(self.base, name))
        return messages.Cleaned(len(incomplete))

    def serve_confirmation(self, address: str) -> messages.Offer:
        """Tells other hosts, like `serve`, whether all stay with the new environment (see `is_confirmed`). The token
        does not travel: each side proves by the other's question that it knows it."""
        token, confirmed = relay.make_token(), os.path.join(self.base, CONFIRMED)

        def find_answer(path: str) -> Optional[BinaryIO]:
            return io.BytesIO(prove_token(token, "stays", path[1:])) if os.path.isfile(confirmed) else None

        return messages.Offer(
            relay.start_server(address, lambda path: prove_token(token, "asks", path[1:]), find_answer), token
        )

    # -- building

    def build(
        self,
        origin: str,
        removed: List[str],
        uv: str,
        lock: str,
        unpacked: int,
        total: int,
        stall: float,
        keep: bool,
        repair: bool,
    ) -> None:
        """Makes the environment beside the active one. It has no marker yet, so it does not count. ``origin`` is an
        interpreter, or an environment to be taken without the packages ``removed``. ``lock`` is a pylock.toml of exact
        wheels with hashes (empty: none); ``unpacked`` bytes must be free, the wheels hold ``total`` (0: not known);
        ``keep``: downloads stay in uv's cache. If another install has made the same environment since the inspection,
        it is taken as it is, unless it is to be repaired."""
        target, tmp = self.target, os.path.join(self.base, "tmp")
        if read_marker(target) is not None and not repair:
            return
        if os.path.realpath(os.path.dirname(os.path.dirname(origin))) == os.path.realpath(target):
            origin = os.path.realpath(origin)  # the environment's own, which goes with it
        os.makedirs(tmp, mode=0o755, exist_ok=True)
        if read_marker(target) is not None:
            aside = os.path.join(tmp, os.path.basename(target))  # from there `clean` brings it back, if we fail
            relay.remove_path(aside)
            os.rename(target, aside)
        relay.remove_path(target)
        before = shutil.disk_usage(tmp).free
        if before < unpacked:
            raise SessionError("no-space", "no space left", need=unpacked, free=before, at=self.base)
        env = build_uv_environment(tmp, choose_uv_cache(self.base) if keep else os.path.join(tmp, "uv"), stall)
        listing = os.path.join(tmp, "pylock.toml")
        handle = os.open(listing, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # its URLs may hold a password
        with os.fdopen(handle, "w") as file:
            file.write(lock)
        try:
            if os.path.isabs(origin):
                run_uv([uv, "venv", "--quiet", "--no-project", "--python", origin, target], env, None, stall, 120)
            else:
                link_environment(os.path.join(self.base, origin), target, tmp)
            own = ["--python", os.path.join(target, "bin", "python")]
            if removed:
                run_uv([uv, "pip", "uninstall", *own, *removed], env, None, stall, 120)

            def watch(pid: int) -> Any:
                io = procs.read_file("/proc/%d/io" % pid).split()  # what it writes are the files of the wheels
                done = int(io[3]) if io[2:3] == [b"wchar:"] else 0
                report_progress(min(done, total or done), total)
                process = procs.find_process(pid)
                return done >> 18, process and int(process.seconds)

            if lock:
                argv = [uv, "pip", "install", *own, "--no-deps", "--no-build", "--require-hashes", "-r", listing]
                run_uv(argv, env, watch, stall, BUILD_TIMEOUT)
        except BaseException as error:
            relay.remove_path(target)
            if isinstance(error, SessionError) and error.code == "hash":
                relay.remove_path(os.path.join(self.base, "wheels"))
            raise
        finally:
            relay.remove_path(os.path.join(tmp, "uv"))

    # -- verifying

    def list_present(self, paths: List[str]) -> messages.Present:
        """Returns those of these paths below the environment that exist."""
        return messages.Present([path for path in paths if os.path.exists(os.path.join(self.target, path))])

    def check_imports(
        self, script: str, arguments: Dict[str, Any], path: List[str], env: Dict[str, str], timeout: float
    ) -> Dict[str, Any]:
        """Runs the import check in a fresh process of the environment's own Python."""
        search = os.pathsep.join([*path, "/usr/local/bin", "/usr/bin", "/bin"])
        variables = {"HOME": os.path.expanduser("~"), "PATH": search, "LC_ALL": "C.UTF-8", **env}
        argv = [os.path.join(self.target, "bin", "python"), "-c", script, json.dumps(arguments)]
        status, output, errors = execute(argv, variables, None, timeout, timeout)
        for line in reversed(output.splitlines()):
            if line.startswith("ipexctl-verify "):
                report = json.loads(line.partition(" ")[2])  # the controller checks that it is an `ImportReport`
                return report if isinstance(report, dict) else {}
        step = (["the import check"] + [line[13:] for line in output.splitlines() if line[:13] == "ipexctl-step "])[-1]
        how = "status %d" % status
        if status < 0:
            how = {int(sign): sign.name for sign in signal.Signals}.get(-status, how)
        raise SessionError("import", "%s ended with %s" % (step, how), errors=errors[-4000:])

    # -- finishing

    def mark(self, marker: Dict[str, Any]) -> None:
        """Syncs everything to disk, then writes the marker: from here on the environment is complete."""
        os.sync()
        temporary = os.path.join(self.target, "." + MARKER)
        with open(temporary, "w") as file:
            json.dump(marker, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, os.path.join(self.target, MARKER))
        fsync_directory(self.target)
        fsync_directory(self.base)

    def switch(self, ask: Optional[Dict[str, Any]], address: str) -> messages.Offer:
        """Makes the environment the active one, in one step, until it is confirmed. Without a word in time this host
        asks ``ask`` (base, token) whether all stay. The one with an ``address`` decides; the answer is where to ask."""
        if read_marker(self.target) is None:
            raise SessionError("step", "environment %s is not complete" % os.path.basename(self.target))
        if os.path.lexists(self.venv) and not os.path.islink(self.venv):
            raise SessionError("foreign", "%s exists already, and ipexctl did not make it" % self.venv)
        offer = self.serve_confirmation(address) if address else messages.Offer(0, "")
        self.ask, self.decides = ask, bool(address)
        self.before = os.path.basename(os.path.realpath(self.venv)) if self.is_linked() else ""
        self.activate(self.target)
        self.switched = True
        self.timer = threading.Timer(CONFIRM_TIMEOUT, end_session)
        self.timer.start()
        return offer

    def confirm(self) -> None:
        """Stays with the new environment. On the host that decides, this is the moment at which all hosts have it."""
        self.timer.cancel()
        if self.decides:
            open(os.path.join(self.base, CONFIRMED), "w").close()
        self.switched, self.active = False, True

    def go_back(self, before: str) -> None:
        """Makes ``before`` the active environment again; none, if that is empty."""
        self.timer.cancel()
        self.decides = False
        relay.remove_path(os.path.join(self.base, CONFIRMED))
        if before and self.is_linked():
            self.activate(os.path.join(self.base, before))
        elif self.is_linked():
            relay.remove_path(self.venv)
        self.switched = self.active = False

    def activate(self, target: str) -> None:
        temporary = os.path.join(self.base, "tmp", "link")
        os.makedirs(os.path.dirname(temporary), exist_ok=True)
        relay.remove_path(temporary)
        os.symlink(target, temporary)
        os.rename(temporary, self.venv)
        fsync_directory(os.path.dirname(self.venv))

    def find_used(self) -> messages.Used:
        """Environments with files in the memory of a process of this host: a running job keeps its own. The kernel
        shows the real paths of these files, past all links (a home directory is one, on some clusters)."""
        base = os.path.realpath(self.base)
        ids = list_environments(base)
        ids_in_use: Set[str] = set()
        runs: Set[str] = set()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            text = procs.read_maps(pid)
            mapped = [id for id in ids if os.fsencode(os.path.join(base, id) + "/") in text]
            ids_in_use.update(mapped)
            if mapped:
                runs.add(procs.read_run(pid))
        return messages.Used(sorted(ids_in_use), sorted(runs - {""}))

    def remove_unused(self, keep: List[str]) -> messages.Removed:
        """Removes complete environments other than ``keep``, the cache of wheels and what is incomplete."""
        removed = []
        keep = [*keep, *self.find_used().used]  # a run may have started since all hosts were asked
        self.decides = False  # every host is confirmed
        for id in list_environments(self.base):
            if id not in keep and not procs.find_mount(os.path.join(self.base, id)):
                try:  # without its marker first: a removal that is cut short leaves no environment that looks complete
                    os.unlink(os.path.join(self.base, id, MARKER))
                except OSError:
                    continue
                removed.append(id)
        if removed:
            # What uv kept for them; the cache in the home is the user's.
            relay.remove_path(os.path.join(self.base, "cache"))
        if not self.active and os.path.isdir(os.path.join(self.base, "wheels")):
            removed.append("wheels")
        relay.remove_path(os.path.join(self.base, "wheels"))
        self.clean()
        return messages.Removed([], removed)

    def remove(self) -> messages.Removed:
        """Removes all that installs made here, unless a job still uses it."""
        if not os.path.isdir(self.base):
            return messages.Removed([], [])
        self.lock({"verb": "uninstall", "since": time.time()})
        used = self.find_used().used
        if used:
            return messages.Removed(used, [])
        for name in os.listdir(self.base):
            at = procs.find_mount(os.path.join(self.base, name))
            if at:
                raise SessionError("residue", "something is mounted at %s" % at)
        if self.is_linked():
            os.unlink(self.venv)
        ids = list_environments(self.base)
        for id in ids:  # a removal that is cut short leaves no environment that looks complete
            os.unlink(os.path.join(self.base, id, MARKER))
        directories = procs.list_directories(self.base)[::-1]
        for number, directory in enumerate(directories):
            relay.remove_files(self.base, directory)
            if number % 100 == 0:
                report_progress(number, len(directories))
        if os.path.lexists(self.base):
            raise SessionError("residue", "%s could not be removed" % self.base)
        home, above = os.path.expanduser("~"), os.path.dirname(self.base)
        made = [os.path.join(home, path) for path in (AGENTS, RUNS, os.path.dirname(RUNS))]
        for path in [*made, *([above] if os.path.basename(above) == "ipexctl" else [])]:
            with suppress(OSError):  # it is not empty, or not there
                os.rmdir(path)
        return messages.Removed([], ids)


# environments on the disk.


def find_store_fault(base: str) -> str:
    """Why there may be no directory of environments at ``base``, or nothing in that one be used or executed: somebody
    else could put files into it, another one in its place, or has put something there. The same in sh is
    remote/ownership.sh. Empty where nothing is wrong with it."""
    near = os.path.abspath(find_nearest_directory(os.path.dirname(base)))
    try:
        fault = find_way_fault(os.path.realpath(near), base) or find_way_fault(near, base)
    except OSError as error:  # it has just gone away
        fault = "%s: %s" % (error.filename, error.strerror)
    if fault:
        return fault
    if os.path.lexists(base) and not os.path.isdir(base):
        return "%s is not a directory" % base
    entries = [os.path.join(base, name) for name in ("", *list_directory(base))]
    paths = [os.path.join(entry, name) for entry in entries for name in ("", "bin", "lib")]
    return next(filter(None, (relay.find_owner_fault(path.rstrip("/")) for path in paths)), "")


def find_way_fault(above: str, below: str) -> str:
    """Why others can put another directory, or link, in the place of one of these, up to the top, or of ``below``.
    Raises `OSError`."""
    accounts = (0, os.getuid())
    while True:
        info = os.lstat(above)
        if info.st_mode & stat.S_IWOTH and stat.S_ISDIR(info.st_mode):  # a group is trusted with what it shares
            if not info.st_mode & stat.S_ISVTX:
                return "%s can be written by everybody (mode %04o)" % (above, info.st_mode & 0o7777)
            if info.st_uid not in accounts:
                return "%s belongs to another user, and can be written by everybody" % above
            if os.path.lexists(below) and os.lstat(below).st_uid not in accounts:
                return "%s belongs to another user, and %s can be written by everybody" % (below, above)
        if above == "/":
            return ""
        above, below = os.path.dirname(above), above


def check_store(base: str) -> None:
    """Raises `SessionError` ("foreign") where `find_store_fault` finds something."""
    fault = find_store_fault(base)
    if fault:
        raise SessionError("foreign", fault)


def make_store(base: str) -> None:
    """Once it is there and ours, nobody else can put another in its place. Raises `SessionError` as `check_store`."""
    os.makedirs(base, mode=0o755, exist_ok=True)
    check_store(base)


def find_nearest_directory(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path) or os.curdir
    return path


def get_user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return "user %d" % os.getuid()


def find_mount(path: str) -> str:
    path = os.path.realpath(path)
    return path if os.path.ismount(path) else find_mount(os.path.dirname(path))


USUAL_PLACES = ("/scratch", "/data", "/work", "/local", "/srv", "/opt", "/var/tmp")  # where hosts often have room
MOUNT_LIMIT = 32  # file systems that are looked at
NO_DISKS = ("tmpfs", "devtmpfs", "ramfs", "overlay", "squashfs", "iso9660")  # kinds that are gone, or no disk


def list_mounts() -> List[str]:
    """Returns where disks and network file systems are mounted."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            rows = [line.split()[1:3] for line in mounts]
    except OSError:
        return []
    kept = [path for path, kind in rows if kind not in NO_DISKS and not path.startswith(("/proc", "/sys", "/dev"))]
    return [path for path in kept if "\\" not in path and path != "/"][:MOUNT_LIMIT]


def find_obstacle(path: str) -> str:
    """Why no environment can be in an existing directory; empty where one can."""
    flags = os.statvfs(path).f_flag
    for flag, how in ((os.ST_RDONLY, "read-only"), (os.ST_NOEXEC, "noexec")):
        if flags & flag:
            return "no environment can be in %s: %s is mounted %s" % (path, find_mount(path), how)
    if os.access(path, os.W_OK | os.X_OK):
        return ""
    return "%s cannot be written by %s" % (path, get_user_name())


def measure_room(path: str) -> Tuple[int, Optional[int], str]:
    """Returns bytes and files (None: any number) for which there is room in an existing directory, and whose limit that
    is: a quota's, where the host's own `quota` tells of one (of network file systems, too)."""
    space = os.statvfs(path)
    free, files, at = space.f_bavail * space.f_frsize, space.f_favail if space.f_files else None, path
    argv, pipe, null = ["quota", "-w", "-p", "-f", find_mount(path)], subprocess.PIPE, subprocess.DEVNULL
    try:
        output = subprocess.run(argv, stdin=null, stdout=pipe, stderr=null, timeout=5).stdout.decode("utf-8", "replace")
    except (OSError, subprocess.TimeoutExpired):
        output = ""
    # The last line: file system, blocks of 1 KiB (used, a star beyond the soft limit; soft; hard; grace), files alike.
    words = ["", *output.splitlines()][-1].replace("*", "").split()[1:]
    if len(words) == 8 and all(map(str.isdigit, words)):
        used, soft, hard, _, used_files, soft_files, hard_files, _ = map(int, words)
        limited = max(((hard or soft) - used) << 10, 0) if hard or soft else free
        if limited < free:
            free, at = limited, "%s (quota of %s)" % (path, get_user_name())
        if hard_files or soft_files:
            files = max((hard_files or soft_files) - used_files, 0)
    return free, files, at


def list_directory(path: str) -> List[str]:
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def list_packages(environment: str) -> Dict[str, str]:
    """Returns names and versions of what is installed, from the directories' names."""
    versions: Dict[str, str] = {}
    library = os.path.join(environment, "lib")
    for python in list_directory(library):
        for name in list_directory(os.path.join(library, python, "site-packages")):
            package, _, version = name[: -len(".dist-info")].rpartition("-")
            if name.endswith(".dist-info") and package:
                versions[package] = version
    return versions


def end_holder(pid: int, lock: str) -> None:
    """Ends the session that has this lock open; with a shared file system it may be another host's."""
    with suppress(OSError):
        if any(os.path.samefile(file, lock) for file in glob.glob("/proc/%d/fd/*" % pid)):
            os.kill(pid, signal.SIGTERM)


def list_environments(base: str) -> List[str]:
    """Complete environments: they have a marker."""
    names = [name for name in list_directory(base) if name not in NOT_ENVIRONMENTS]
    return [name for name in names if read_marker(os.path.join(base, name)) is not None]


def read_marker(directory: str) -> Any:
    try:
        with open(os.path.join(directory, MARKER), "rb") as file:
            return json.loads(file.read(1 << 20).decode())
    except (OSError, ValueError):
        return None


def link_environment(source: str, target: str, tmp: str) -> None:
    """Makes an environment with the files of another: hard links, or copies where there can be none. Small files that
    name the environment itself (scripts, settings) are written anew. An installer replaces files, it changes none."""
    linked, old, new = os.path.join(tmp, "linked"), *(os.fsencode("/" + os.path.basename(p)) for p in (source, target))
    for option in ("-al", "-a"):
        relay.remove_path(linked)
        status, _, errors = execute(
            ["cp", option, source, linked], dict(os.environ), None, relay.DISK_TIMEOUT, relay.DISK_TIMEOUT
        )
        if status == 0:
            break
    else:
        raise SessionError("no-space" if "No space" in errors else "step", "cp failed", errors=errors[-4000:])
    os.unlink(os.path.join(linked, MARKER))
    for pattern in ("pyvenv.cfg", "bin/*", "lib/*/site-packages/*.pth"):
        for path in glob.glob(os.path.join(linked, pattern)):
            data = b""
            if not os.path.islink(path) and os.path.getsize(path) < 1 << 20:
                data = procs.read_file(path)
            if old in data:
                with open(path + ".new", "wb") as file:
                    file.write(data.replace(old, new))
                shutil.copymode(path, path + ".new")
                os.rename(path + ".new", path)
    os.rename(linked, target)


def find_uv(base: str, uv: Dict[str, Any]) -> Optional[str]:
    """Returns the controller's own uv: at its path if this host sees it, or where an earlier install put it."""
    ours = os.path.join(base, "bin", "uv-" + uv["version"])
    for path in (ours, os.path.realpath(uv["path"])):  # a link on the way may lead elsewhere later
        same = relay.get_readable_size(path) == uv["size"] and relay.hash_file(path) == uv["sha256"]
        if same and (path == ours or is_safe_from_others(path)):
            return path
    return None


def is_safe_from_others(path: str) -> bool:
    """Returns whether nobody but this account and root can change an existing file, or put another in its place: what
    is executed later is then what was hashed."""
    path = os.path.realpath(path)
    info = os.stat(path)
    shared = bool(info.st_mode & 0o022) and not (stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX)
    if shared or info.st_uid not in (0, os.getuid()):
        return False
    return path == "/" or is_safe_from_others(os.path.dirname(path))


def find_unreachable(origins: List[Origin]) -> List[Origin]:
    """Returns those of ``[[host, port], …]`` that take no connection within 4 seconds, all tried at once."""
    if any(os.environ.get(name) for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")):
        return []  # the proxy decides
    unreachable = list(origins)

    def attempt(origin: Origin) -> None:
        try:
            socket.create_connection((origin[0], origin[1]), 4).close()
        except OSError:
            return
        unreachable.remove(origin)

    threads = [threading.Thread(target=attempt, args=(origin,), daemon=True) for origin in origins]
    for thread in threads:
        thread.start()
    end = time.time() + 5
    for thread in threads:
        thread.join(max(0.0, end - time.time()))
    return list(unreachable)


def prove_token(token: str, role: str, question: str) -> bytes:
    """Returns what only one who knows the token can say to this question, in this role."""
    return hmac.new(token.encode(), ("%s %s" % (role, question)).encode(), hashlib.sha256).hexdigest().encode()


def is_confirmed(base: str, token: str) -> bool:
    """Returns whether the host that decides stays with the new environment, which it says in time. It answers 404 until
    it knows, and not at all after it has gone back; who does not know the token cannot answer in its place."""
    answers: List[bool] = []
    asking = threading.Thread(target=lambda: answers.append(_ask_for_confirmation(base, token)), daemon=True)
    asking.start()
    asking.join(2 * CONFIRM_TIMEOUT)  # an answer may be one without an end, and this host holds the lock
    return answers == [True]


def _ask_for_confirmation(base: str, token: str) -> bool:
    import http.client  # as above
    import urllib.error
    import urllib.request

    question = relay.make_token()
    proof = prove_token(token, "asks", question).decode()
    request = urllib.request.Request(base + "/" + question, headers={"Authorization": proof})
    until = time.monotonic() + CONFIRM_TIMEOUT
    while time.monotonic() < until:
        try:
            with relay.open_directly(request, 5) as answer:
                return hmac.compare_digest(answer.read(100), prove_token(token, "stays", question))
        except urllib.error.HTTPError:
            time.sleep(0.1)
        except (OSError, http.client.HTTPException):
            break
    return False


def fsync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# programs.


def execute(argv: List[str], env: Dict[str, str], watch: Watch, stall: float, timeout: float) -> Tuple[int, str, str]:
    """Runs a program to its end; returns (status, output, errors). Ended when the controller is gone, after
    ``timeout`` seconds, or when ``watch`` has seen no progress for ``stall`` seconds."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files: Dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        child = subprocess.Popen(argv, env=env, **files, start_new_session=True, preexec_fn=procs.die_with_parent)
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
            if ENDED.is_set():
                reason = "gone"
            elif now - began > timeout:
                reason = "took more than %d s" % timeout
            elif watch and now - moved > stall:
                reason = "no progress for %d s" % stall
            if reason:
                kill_process_group(child)
        texts = []
        for file in (out, err):
            file.seek(max(0, file.seek(0, 2) - 65536))
            texts.append(file.read().decode("utf-8", "replace"))
    if reason == "gone":
        raise SessionError("gone", "the controller is gone")
    if reason:
        raise SessionError("stalled", reason, errors=texts[1][-2000:])
    return child.returncode, texts[0], texts[1]


def kill_process_group(child: "subprocess.Popen[bytes]") -> None:
    for sign, wait in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        with suppress(OSError):
            os.killpg(child.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            child.wait(wait)


def build_uv_environment(tmp: str, cache: str, stall: float) -> Dict[str, str]:
    """Returns all variables of uv: nothing of the account's own configuration but proxies and certificates."""
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
        "NETRC": os.devnull,  # its logins would go wherever a lock of somebody else leads; wheels have their own
    }
    proxies = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
    env.update({name: os.environ[name] for name in (*proxies, *map(str.upper, proxies)) if name in os.environ})
    for bundle in ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"):
        if os.path.exists(bundle):  # the host's own authorities, as its administrator wants them
            return dict(env, SSL_CERT_FILE=bundle, UV_SYSTEM_CERTS="1", UV_NATIVE_TLS="1")
    return env


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


def choose_uv_cache(base: str) -> str:
    """uv's own cache where hard links from it are possible (a second install costs nothing) and nobody else can have
    put something there, which uv takes without another look at its hash; else one of ours."""
    usual = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "uv")
    with suppress(OSError):
        near = find_nearest_directory(usual)
        info, inner = os.stat(near), os.path.join(usual, "wheels")
        own = info.st_uid == os.getuid() and not find_way_fault(os.path.realpath(near), inner)
        if own and os.access(near, os.W_OK) and info.st_dev == os.stat(base).st_dev and not find_way_fault(near, inner):
            return usual
    return os.path.join(base, "cache")


def main() -> None:
    os.umask(0o022)
    session = InstallSession()
    serve_requests(session.run, session.end, relay.DISK_TIMEOUT)


if __name__ == "__main__":
    main()
