"""The guard of a run on one host: starts Hydra's proxy when the keeper asks, hears how ranks end, ends everything.

It holds a connection to the keeper on node0. When the keeper has been silent for the node lease, it ends all
processes of the run on this host by itself. It is the sub-reaper of all it starts, so nothing can leave its family.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Set

from ipexctl.remote.agent import files, procs, rpc, stack_traces

TICK = 0.2  # seconds between looks at the ranks' news


def main(argv: List[str]) -> int:
    """``guard RUNDIR ADDRESS PORT``: connects, says ``ready``, and goes on in the background.

    Says ``busy`` instead, with what is known of the other run, when one holds this account's lock on the host.
    """
    directory, address, port = argv[0], argv[1], int(argv[2])
    umask = os.umask(0o077)  # as the keeper's
    spec = files.read(directory, files.SPEC)
    # A home directory may be shared: each host has a lock of its own in it.
    other = claim(os.path.join(os.path.dirname(directory), "lock-" + files.here()), spec)
    if other is not None and other.get("run") != spec["run"] and not spec["share"]:
        print(json.dumps({"busy": other}))
        return 1
    base = os.path.dirname(directory)
    for name in os.listdir(base):
        if files.torn(os.path.join(base, name)):
            shutil.rmtree(os.path.join(base, name), ignore_errors=True)
    if not spec["head"]:  # there the keeper has done so
        files.reserve(directory)
    files.write(directory, files.PLACE, {"host": files.here()})
    os.makedirs(os.path.join(directory, files.RANKS), mode=0o700, exist_ok=True)
    try:
        keeper = rpc.connect(address, port, spec["token"], "guard", spec["host"])
    except (OSError, rpc.AuthenticationError) as error:
        print(json.dumps({"error": str(error)}))
        return 1
    print(json.dumps({"ready": True}))
    if procs.detach():
        files.survive(directory, "guard", Guard(directory, spec, keeper, umask).watch)
    return 0


def claim(path: str, spec: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Takes the lock for as long as this process (not its children) lives; what its holder wrote if it is taken.

    The kernel gives the lock back when the holder ends, however it ends: there are no stale locks.
    """
    door = os.open(path + ".door", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(door, fcntl.LOCK_EX)  # one at a time: nobody reads of a holder that has not written yet
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            with os.fdopen(fd, encoding="utf-8") as text:
                try:
                    holder = json.load(text)
                except ValueError:
                    holder = {}
            return holder if isinstance(holder, dict) else {}
        os.ftruncate(fd, 0)
        about = {name: spec[name] for name in ("run", "owner", "started", "title")}
        os.pwrite(fd, json.dumps(about).encode(), 0)
        return None
    finally:
        os.close(door)


class Guard:
    def __init__(self, directory: str, spec: Dict[str, Any], keeper: rpc.Wire, umask: int) -> None:
        self.directory = directory
        self.spec = spec
        self.umask = umask  # the login's, for the ranks
        self.mark = procs.of_seat(spec["run"], spec["label"])
        self.group = procs.group_of(spec["run"], spec["label"])
        self.keeper = keeper
        self.told: Set[str] = set()  # news files already passed on
        self.alive: Dict[int, procs.Process] = {}  # rank → its wrapper
        self.ends: Dict[int, int] = {}  # wrapper or proxy → a descriptor that wakes us when it ends
        self.ended: Set[int] = set()
        self.proxies: Set[int] = set()
        self.orphaned = False  # a wrapper's parent, Hydra's proxy for its rank, has died

    def watch(self) -> None:
        procs.become_reaper()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a polite stop of the run is not for its guard
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.keeper.send({"say": "ready", "clock": time.time()})
        last = time.monotonic()
        while True:
            readable, _, _ = select.select(self.sources(), [], [], TICK)
            now = time.monotonic()
            if now - last > self.spec["node_lease"]:
                return self.leave("this host stood still for %.0f s" % (now - last))
            last = now
            for message in self.keeper.take() if self.keeper in readable else []:
                if self.obey(message):
                    return None
            gone = self.proxies.intersection(pid for pid, _status in procs.reap())
            self.tell()  # how its ranks ended comes before the end of their proxy
            if gone:
                self.proxies -= gone
                self.keeper.send({"say": "proxy-ended", "at": time.time()})
            self.keeper.flush()
            if not self.keeper.open:
                return self.leave("the keeper is gone")
            if now - self.keeper.heard > self.spec["node_lease"]:
                return self.leave("no word from the keeper for %.0f s" % (now - self.keeper.heard))

    def sources(self) -> List[Any]:
        """What wakes us at once: the keeper's word, and the end of a wrapper or a proxy (where the kernel and Python
        offer it)."""
        watched = {process.pid for process in self.alive.values()} | self.proxies
        for pid in set(self.ends) - watched:
            os.close(self.ends.pop(pid))
        for pid in watched - set(self.ends) if hasattr(os, "pidfd_open") else ():
            try:
                self.ends[pid] = os.pidfd_open(pid)
            except OSError:
                pass  # it has ended, or the kernel is too old: the next tick finds it
        return [*self.ends.values(), *([self.keeper] if self.keeper.open else [])]

    def obey(self, message: Dict[str, Any]) -> bool:
        """Does what the keeper says; True when that was the last thing."""
        order = message.get("do")
        if order == "ping":
            self.keeper.send({"say": "pong", "sent": message.get("sent"), "clock": time.time()})
        elif order == "proxy":
            self.start(message["words"])
        elif order == "port":
            self.spec["port"] = message["port"]
            files.write(self.directory, "port.json", {"port": message["port"]})
        elif order == "term":
            try:
                files.write(self.directory, files.ENDING, {"at": time.time()})
            except OSError:
                pass  # only a wrapper that begins at this moment misses it: the hard stop is for that
            procs.send(self.ranks(), signal.SIGTERM)
            procs.send(self.ranks(), signal.SIGCONT)
        elif order == "kill":
            wrappers = {process.pid for process in self.alive.values()}  # they end, and tell, by themselves
            spare = self.spare() | wrappers
            self.keeper.send({"say": "killed", "count": len(procs.living(self.mark, os.getpid(), spare, [self.group]))})
            procs.wipe(self.mark, os.getpid(), spare, patience=2.0, groups=[self.group])
        elif order == "load":
            self.keeper.send({"say": "load", "ranks": stack_traces.load(self.alive)})
        elif order == "stacks":
            budget = self.spec["node_lease"] / 3  # within which nobody misses us
            for answer in stack_traces.ask(self.directory, self.alive, self.spec["argv"][0], budget):
                self.keeper.send(dict(answer, say="stacks", at=time.time()))
            self.keeper.send({"say": "asked"})
        elif order == "finish":
            self.finish()
            return True
        return False

    def start(self, words: List[str]) -> None:
        """Starts Hydra's proxy as a remote shell would: the words joined, read by a shell."""
        pid = os.fork()
        if pid:
            self.proxies.add(pid)
            return
        try:
            os.setsid()
            os.umask(self.umask)
            procs.join(self.group)
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            self.keeper.sock.close()
            limits = self.spec.get("nofile")
            if limits:
                import resource

                _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            os.execve("/bin/sh", ["sh", "-c", "exec " + " ".join(words)], self.spec["proxy_env"])
        finally:
            os._exit(127)

    def ranks(self) -> List[procs.Process]:
        """Everything of the run here but the guard, the proxies and (on node0) the keeper with its mpirun."""
        return procs.living(self.mark, os.getpid(), self.spare(), [self.group])

    def spare(self) -> Set[int]:
        """What the launcher needs for an orderly end: proxies, and on node0 the keeper, mpirun and its shims."""
        keep = set(self.proxies)
        try:
            keeper = files.read(self.directory, files.KEEPER)
        except (OSError, ValueError):
            keeper = {}
        own = {int(pid) for pid in keeper.get("own", [])}
        for process in procs.everyone().values():
            if (process.parent in self.proxies and _program(process.pid).startswith("hydra_")) or process.parent in own:
                keep.add(process.pid)
        return keep | own

    def tell(self) -> None:
        """Passes on what the wrappers wrote, and notices wrappers that died without a word."""
        try:
            names = sorted(os.listdir(os.path.join(self.directory, files.RANKS)), key=_order)
        except OSError:
            return
        for name in names:
            parts = name.split(".")
            if name in self.told or len(parts) != 3 or parts[2] != "json":
                continue
            try:
                value = files.read(self.directory, os.path.join(files.RANKS, name))
            except (OSError, ValueError):
                continue
            self.told.add(name)
            rank, kind = int(parts[0]), parts[1]
            if kind == "begin":
                # One that has died already is missed below, unless it left word of its end.
                gone = procs.Process(value["pid"], -1, os.getpid(), "X")
                self.alive[rank] = procs.look(value["pid"]) or gone
                continue
            if kind == "end":
                self.alive.pop(rank, None)
                self.ended.add(rank)
            self.keeper.send(dict(value, say=kind, rank=rank))
        for rank, process in list(self.alive.items()):
            now = procs.look(process.pid)
            if now and now.parent != process.parent and not self.orphaned:
                self.orphaned = True
                self.keeper.send({"say": "proxy-ended", "at": time.time()})
            if not procs.same(process) and not os.path.exists(self.news(rank, "end")):
                del self.alive[rank]
                self.missed(rank)

    def missed(self, rank: int) -> None:
        """Nobody saw its end."""
        self.ended.add(rank)
        self.keeper.send({"say": "end", "rank": rank, "status": None, "signal": 0, "lost": True, "at": time.time()})

    def news(self, rank: int, kind: str) -> str:
        return os.path.join(self.directory, files.RANKS, "%d.%s.json" % (rank, kind))

    def finish(self) -> None:
        """Ends all that is left but the keeper's own, reports what could not be ended, and takes its files along."""
        self.tell()
        own = self.spare() - self.proxies if self.spec["head"] else set()
        left = procs.wipe(self.mark, os.getpid(), own, patience=5.0, groups=[self.group])
        procs.disband(self.group)
        self.tell()
        for rank in sorted(set(map(int, self.spec["ranks"])) - self.ended):  # ended by us before its wrapper could tell
            self.missed(rank)
        self.keeper.send({"say": "clean", "left": [[p.pid, p.state] for p in left]})
        until = time.monotonic() + 2.0
        while self.keeper.open and self.keeper.outbox and time.monotonic() < until:
            select.select([], [self.keeper], [], 0.1)
            self.keeper.flush()
        if not self.spec["head"] and not left:
            shutil.rmtree(self.directory, ignore_errors=True)

    def leave(self, why: str) -> None:
        """The keeper is lost: ends the run's part on this host alone."""
        left = procs.wipe(self.mark, os.getpid(), patience=10.0, groups=[self.group])
        procs.disband(self.group)
        if self.spec["head"]:
            return  # the ranks' output is there
        if left:
            files.write(self.directory, "left.json", {"why": why, "at": time.time(), "left": [p.pid for p in left]})
        else:
            shutil.rmtree(self.directory, ignore_errors=True)


_KINDS = ("begin", "start", "python", "torch", "rendezvous", "connected", "first collective", "running")  # then "end"


def _order(name: str) -> int:
    """A rank's news in the order they happened, whatever the directory's."""
    kind = name.split(".")[1] if "." in name else ""
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS) + (kind == "end")


def _program(pid: int) -> str:
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
