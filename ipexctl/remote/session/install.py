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
import io
import json
import os
import shutil
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import Any, BinaryIO, Dict, List, Optional, Set

from ipexctl.protocol import session as messages
from ipexctl.protocol.paths import AGENTS, MARKER, RUNS
from ipexctl.protocol.session import SessionError
from ipexctl.remote.agent import procs
from ipexctl.remote.session import relay
from ipexctl.remote.session.confirmation import CONFIRM_TIMEOUT, is_confirmed, prove_token
from ipexctl.remote.session.environments import (
    NOT_ENVIRONMENTS,
    fsync_directory,
    link_environment,
    list_environments,
    list_packages,
    read_marker,
)
from ipexctl.remote.session.loop import end_session, report_progress, serve_requests
from ipexctl.remote.session.places import (
    USUAL_PLACES,
    check_store,
    find_nearest_directory,
    find_obstacle,
    find_store_fault,
    get_user_name,
    list_directory,
    list_mounts,
    make_store,
    measure_room,
)
from ipexctl.remote.session.programs import execute
from ipexctl.remote.session.uv import build_uv_environment, choose_uv_cache, find_uv, run_uv

Origin = List[Any]  # [host, port]

TOKEN_LIFETIME = 3600.0  # seconds after which a token belongs to no running install
BUILD_TIMEOUT = 3600.0  # seconds that unpacking everything may take
LINGER_SECONDS = 10.0  # seconds for which the host that decides can be asked after the controller has gone
# Requests that change something: only for the holder of the lock.
CHANGES = ("make_room", "serve", "fetch", "clean", "build", "mark", "switch", "confirm", "go_back", "remove_unused")
CONFIRMED = "tmp/confirmed"  # below the store of the host that decides: all hosts stay with the new environment


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


def end_holder(pid: int, lock: str) -> None:
    """Ends the session that has this lock open; with a shared file system it may be another host's."""
    with suppress(OSError):
        if any(os.path.samefile(file, lock) for file in glob.glob("/proc/%d/fd/*" % pid)):
            os.kill(pid, signal.SIGTERM)


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


def main() -> None:
    os.umask(0o022)
    session = InstallSession()
    serve_requests(session.run, session.end, relay.DISK_TIMEOUT)


if __name__ == "__main__":
    main()
