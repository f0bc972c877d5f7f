"""The keeper of a run, on node0: starts mpirun, stores what it says, watches the hosts, ends everything.

A run ends when its script ends, when someone says stop, at a limit, or when a host is lost. A lost watcher ends
nothing, unless the run was given a lease. Everything that happens goes into the journal, one JSON object a line;
watchers read the files, so a watcher that comes back goes on at the exact byte.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Set

from ipexctl.remote.agent import files, procs, progress_monitor, rpc, spool

PING = 2.0  # seconds between two words to each guard
GREET = 5.0  # seconds a stranger may take to prove itself
STRANGERS = 64  # waiting places for those who have not, beside one for each host
HELD = 1 << 16  # bytes of the journal that wait for space before the reserve is used
INQUIRY = 20.0  # seconds in which the guards must have said where their ranks stand
ORDERLY = 1.0  # seconds mpirun gets for its own end after that of its ranks
DRAIN = 1 << 20  # bytes taken from a pipe at a time
_F_SETPIPE_SZ = 1031  # linux/fcntl.h


def main(argv: List[str]) -> int:
    """``keeper RUNDIR``: listens, prints where, and goes on in the background."""
    directory = argv[0]
    umask = os.umask(0o077)  # what we make here is for nobody else, whatever the account's files say
    spec = files.read(directory, files.SPEC)
    listener = socket.socket(socket.AF_INET6 if ":" in spec["address"] else socket.AF_INET)
    try:
        listener.bind((spec["address"], 0))
    except OSError as error:
        print(json.dumps({"error": "cannot listen on %s: %s" % (spec["address"], error)}))
        return 1
    listener.listen(128)
    print(json.dumps({"port": listener.getsockname()[1]}))
    if procs.detach():
        files.survive(directory, "keeper", Keeper(directory, spec, listener, umask).keep)
    return 0


class Keeper:
    def __init__(self, directory: str, spec: Dict[str, Any], listener: socket.socket, umask: int) -> None:
        self.directory = directory
        self.spec = spec
        self.umask = umask  # the login's, for mpirun and the ranks it starts itself
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        self.journal = open(os.path.join(directory, files.JOURNAL), "ab", buffering=0)
        self.wires: Set[rpc.Wire] = set()
        self.guards: Dict[str, rpc.Wire] = {}
        self.offset: Dict[str, float] = {}  # host → its clock minus ours, seconds
        self.within: Dict[str, float] = {}  # host → how far that may be off: the round trip it was measured by
        self.lost: Set[str] = set()
        self.clean: Dict[str, List[Any]] = {}
        self.started: Set[int] = set()
        self.ended: Dict[int, Dict[str, Any]] = {}
        self.launcher: Optional[subprocess.Popen[bytes]] = None
        self.launcher_ended: float = 0.0
        self.sinks: Dict[int, spool.Spool] = {}  # pipe of mpirun → where it goes
        self.unwritten = b""  # of the journal
        files.reserve(directory)
        self.unstored = 0
        self.state = "gathering"  # gathering → running → stopping → killing → finishing
        self.deadline = time.monotonic() + float(spec["ready_timeout"])
        self.began = time.monotonic()
        self.reason = ""
        self.detail = ""
        self.watched = time.monotonic()
        self.pinged = 0.0
        self.pulse = progress_monitor.ProgressMonitor(
            spec["nonce"], spec.get("stall_warn") or 0.0, spec.get("straggler_warn") or 0.0
        )
        self.loaded = 0.0  # when the guards were last asked how busy their ranks are
        self.inquiry: Set[str] = set()  # hosts that have still to say where their ranks stand
        self.inquiry_until = 0.0
        self.doubted = ""  # the reason that goes with it
        self.doubt = ""  # why the run seems to be over, if no guard tells better
        self.doubt_since = 0.0  # in this host's time
        self.doubt_until = 0.0
        self.verdict = ""  # why the run is to be stopped once they have
        self.wordless: List[Dict[str, Any]] = []  # ranks whose wrappers were killed, while it is in doubt by whom

    # -- the loop -----------------------------------------------------------------------------------------------------

    def keep(self) -> None:
        for number in (signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.stop("stopped", "the keeper was told to end"))
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.publish([os.getpid()])
        self.note("keeper", pid=os.getpid())
        last = time.monotonic()
        while self.state != "done":
            for key, _ in self.selector.select(0.2):
                key.data(key.fileobj)
            now = time.monotonic()
            if now - last > self.spec["node_lease"]:  # frozen or suspended: the guards have ended their parts by now
                for host in list(self.guards):
                    self.lose(host, "node0 stood still for %.0f s" % (now - last))
            last = now
            self.heartbeat(now)
            self.clock(now)
        self.journal.close()

    def heartbeat(self, now: float) -> None:
        if now - self.pinged >= PING:
            self.pinged = now
            for guard in self.guards.values():
                guard.send({"do": "ping", "sent": time.time()})
        if self.state == "running" and self.pulse.warn and now - self.loaded >= self.pulse.interval:
            self.loaded = now
            for guard in self.guards.values():
                guard.send({"do": "load"})
        for link in list(self.wires):
            link.flush()
            if not link.open or (not link.role and now - link.since > GREET):
                self.drop(link)
        if any(link.role == "watch" for link in self.wires):
            self.watched = now
        for host, guard in list(self.guards.items()):
            if now - guard.heard > self.spec["node_lease"]:
                self.lose(host, "no sign of life for %.0f s" % (now - guard.heard))

    def clock(self, now: float) -> None:
        """What time, and what has ended, make due."""
        spec = self.spec
        if self.launcher and not self.launcher_ended and self.launcher.poll() is not None:
            self.launcher_ended = now
        if self.state == "gathering":
            missing = sorted(set(spec["hosts"]) - set(self.guards))
            if not missing:
                self.launch()
            elif now > self.deadline:
                self.stop("launch", "no guard on %s" % ", ".join(missing))
        elif self.state == "running":
            if len(self.ended) == spec["size"] and self.doubt:
                self.stop(self.doubted, self.doubt)  # all of them ended by the launcher, none by itself
            elif len(self.ended) == spec["size"]:
                if self.launcher_ended or now > max(r["heard"] for r in self.ended.values()) + 3.0:
                    self.finish("done")
            elif self.launcher_ended and now > self.launcher_ended + 3.0:
                status = self.launcher.returncode if self.launcher else None
                reason = "lost" if self.started else "launch"
                self.stop(reason, "mpirun ended with status %s before its ranks" % status)
            elif len(self.started) < spec["size"] and now > self.began + spec["start_timeout"]:
                missing = sorted(set(range(spec["size"])) - self.started)
                self.stop("launch", "rank %d did not start within %.0f s" % (missing[0], spec["start_timeout"]))
            elif self.doubt and now > self.doubt_until:
                self.stop(self.doubted, self.doubt)
            elif spec.get("time_limit") and now > self.began + spec["time_limit"]:
                self.stop("limit", "time limit of %.0f s" % spec["time_limit"])
            elif spec.get("lease") and now > self.watched + spec["lease"]:
                self.stop("limit", "watcher lost: nobody watched for %.0f s" % spec["lease"])
            else:
                self.progress(now)
        elif self.state == "stopping":
            if self.settled():
                self.finish()
            elif now > self.deadline:
                self.kill()
        elif self.state == "killing":
            if self.settled() or now > self.deadline:
                self.finish()
        elif self.state == "finishing" and (set(self.guards) <= set(self.clean) or now > self.deadline):
            self.close()

    def progress(self, now: float) -> None:
        """Tells of ranks that do not get on, asks where they stand, and ends the run if it was told to."""
        before = bool(self.pulse.told)
        stall = self.pulse.stalled(now)
        if before and not self.pulse.told:
            self.note("resumed")
        straggling = self.pulse.straggling(now)
        if stall:
            kill = self.spec.get("stall") == "kill" and stall["grave"]
            self.note("stall", kill=kill, **stall)
            self.inquire("no progress for %.0f s" % stall["seconds"] if kill else "", now)
        elif straggling:
            kill = bool(self.spec.get("straggler_kill"))
            self.note("straggling", kill=kill, **straggling)
            self.inquire("%(done)d ranks done for %(seconds).0f s, others go on" % straggling if kill else "", now)
        if self.inquiry_until and (not self.inquiry or now > self.inquiry_until):
            self.inquiry_until = 0.0
            self.note("asked")
            if self.verdict:
                self.stop("limit", self.verdict)

    def suspect(self, why: str, at: float, reason: str = "lost") -> None:
        """The launcher ends its parts: perhaps because of a rank whose end is still to be told. A moment's patience."""
        self.doubt, self.doubted = self.doubt or why, self.doubted or reason
        self.doubt_since = min(at, self.doubt_since or at)
        self.doubt_until = self.doubt_until or time.monotonic() + 1.0

    def inquire(self, verdict: str, now: float) -> None:
        self.verdict = self.verdict or verdict
        self.inquiry, self.inquiry_until = set(self.guards), now + INQUIRY
        for guard in self.guards.values():
            guard.send({"do": "stacks"})

    def settled(self) -> bool:
        """Nothing is to be waited for: mpirun has ended or never began, or every rank of a living host has ended."""
        if self.launcher is None or self.launcher_ended:
            return True
        hosts = self.spec["hosts"]
        waited = {rank for host in hosts if host not in self.lost for rank in hosts[host]["ranks"]}
        if not waited <= set(self.ended):
            return False
        # mpirun ends by itself soon after its ranks, and then complains of nothing; with a host lost it never does.
        return bool(self.lost) or time.monotonic() > max(end["heard"] for end in self.ended.values()) + ORDERLY

    # -- steps --------------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """All hosts are ready: a free port for the ranks, then mpirun."""
        port = self.spec.get("port") or self.free_port()
        for guard in self.guards.values():
            guard.send({"do": "port", "port": port})
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            for name, text in self.spec.get("files", {}).items():
                with open(os.path.join(self.directory, name), "w", encoding="utf-8") as file:
                    file.write(text.replace("{port}", str(port)))
            self.launcher = subprocess.Popen(
                self.spec["mpiexec"],
                env=self.spec["mpiexec_env"],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out_write,
                stderr=err_write,
                start_new_session=True,
                preexec_fn=self.in_launcher,
            )
        except OSError as error:
            self.stop("launch", "cannot start %s: %s" % (self.spec["mpiexec"][0], error))
            return
        finally:
            os.close(out_write)
            os.close(err_write)
        for fd, name in ((out_read, files.OUT), (err_read, files.ERR)):
            os.set_blocking(fd, False)
            try:
                fcntl.fcntl(fd, _F_SETPIPE_SZ, DRAIN)
            except OSError:
                pass  # over the user's pipe quota: the usual 64 KiB do
            base = os.path.join(self.directory, name)
            self.sinks[fd] = spool.Spool(base, self.spec.get("log_cap"), self.pulse.opening)
            self.selector.register(fd, selectors.EVENT_READ, self.store)
        self.publish([os.getpid(), self.launcher.pid])
        self.state, self.began, self.watched = "running", time.monotonic(), time.monotonic()
        self.note("launched", pid=self.launcher.pid, port=port)

    def in_launcher(self) -> None:
        """In mpirun's process, before it is mpirun."""
        procs.die_with_parent()
        os.umask(self.umask)

    def free_port(self) -> int:
        with socket.socket(self.listener.family) as probe:
            probe.bind((self.spec["address"], 0))
            return int(probe.getsockname()[1])

    def stop(self, reason: str, detail: str) -> None:
        """The polite stop; the first reason stays."""
        if self.state not in {"gathering", "running"}:
            return
        self.reason, self.detail = reason, detail
        for end in self.wordless:
            self.note("rank", by_us=reason != "lost", **end)
        self.note("stopping", reason=reason, detail=detail)
        self.state, self.deadline = "stopping", time.monotonic() + self.spec["grace"]
        for guard in self.guards.values():
            guard.send({"do": "term"})

    def kill(self) -> None:
        self.note("killing")
        self.state, self.deadline = "killing", time.monotonic() + 4.0
        for guard in self.guards.values():
            guard.send({"do": "kill"})

    def finish(self, reason: str = "") -> None:
        self.reason = self.reason or reason
        self.state, self.deadline = "finishing", time.monotonic() + 9.0
        for guard in self.guards.values():
            guard.send({"do": "finish"})

    def close(self) -> None:
        """The guards are done: end mpirun itself, store the rest of its output, write the final record."""
        for link in self.wires:
            if link.role == "shim":  # Open MPI does not wait for them, and they hold its outputs open
                link.send({"do": "end"})
                link.flush()
        if self.launcher and self.launcher.poll() is None:
            try:
                self.launcher.wait(1.0)
            except subprocess.TimeoutExpired:
                self.launcher.kill()
                self.launcher.wait()
        until = time.monotonic() + 5.0
        while self.sinks and time.monotonic() < until:
            for key, _ in self.selector.select(0.1):
                if key.fd in self.sinks:
                    self.store(key.fd)
        for fd in list(self.sinks):
            self.unplug(fd)
        files.free(self.directory)
        hosts = self.spec["hosts"]
        end = {
            "run": self.spec["run"],
            "reason": self.reason,
            "detail": self.detail,
            "at": time.time(),
            "launcher": self.launcher.returncode if self.launcher else None,
            "left": {host: left for host, left in self.clean.items() if left},
            "unknown": sorted(set(hosts) - set(self.clean)),
            "lost": sorted(self.lost),
            "unstored": self.unstored,
        }
        self.note("end", **{name: value for name, value in end.items() if name not in ("run", "at")})
        files.write(self.directory, files.END, end)
        self.state = "done"

    # -- what arrives -------------------------------------------------------------------------------------------------

    def accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            return
        strangers = [link for link in self.wires if not link.role]
        if len(strangers) >= STRANGERS + len(self.spec["hosts"]):
            # Ours prove themselves in a moment: whoever has waited longest is none of them.
            self.drop(min(strangers, key=lambda link: link.since))
        link = rpc.Wire(sock, rpc.GREETS)
        self.wires.add(link)
        self.selector.register(sock, selectors.EVENT_READ, lambda _: self.hear(link))
        rpc.challenge(link)

    def hear(self, link: rpc.Wire) -> None:
        for message in link.take():
            if not link.role:
                role = rpc.believe(link, message, self.spec["token"])
                if not role:
                    link.close()
                    break
                if role == "guard" and link.name in self.spec["hosts"]:
                    self.guards[link.name] = link
                    self.offset[link.name] = float(message.get("clock", time.time())) - time.time()
                    link.send({"do": "ping", "sent": time.time()})
                    self.note("ready", host=link.name)
                continue
            getattr(self, "from_" + link.role, self.ignore)(link, message)
        if not link.open:
            self.drop(link)

    def ignore(self, link: rpc.Wire, message: Dict[str, Any]) -> None:
        """Roles that only listen."""

    def from_guard(self, link: rpc.Wire, message: Dict[str, Any]) -> None:
        host, say = link.name, message.pop("say", "")
        if say == "pong":
            sent, now = float(message.get("sent") or 0.0), time.time()
            if now - sent <= self.within.get(host, now - sent):
                self.offset[host] = float(message["clock"]) - (sent + now) / 2
            self.within[host] = 1.1 * min(now - sent, self.within.get(host, now - sent))  # clocks drift
        elif say == "load":
            for rank, (seconds, state) in message["ranks"].items():
                self.pulse.load(int(rank), float(seconds), str(state), time.monotonic())
        elif say == "stacks":
            self.note("stacks", host=host, **message)
        elif say == "asked":
            self.inquiry.discard(host)
        elif say == "start":
            self.started.add(message["rank"])
            self.pulse.sign(message["rank"], time.monotonic())
            self.note("start", host=host, **self.timed(host, message))
        elif say == "end":
            self.rank_ended(dict(self.timed(host, message), host=host))
        elif say == "clean":
            self.clean[host] = message["left"]
            if message["left"]:
                self.note("left", host=host, left=message["left"])
        elif say == "killed":
            self.note("killed", host=host, count=message["count"])
        elif say == "proxy-ended":
            ranks, at = set(self.spec["hosts"][host]["ranks"]), self.timed(host, message)["at"]
            if not ranks & self.started:
                self.suspect("mpirun's proxy on %s ended before it started a rank" % host, at, "launch")
            elif ranks - set(self.ended):
                self.suspect("mpirun's proxy on %s ended before its ranks" % host, at)
            for other in self.wires:
                if other.role == "shim" and other.name == host:
                    other.send({"do": "end"})
        elif say not in {"", "ready"}:
            self.pulse.sign(message["rank"], time.monotonic())
            self.note("stage", host=host, stage=say, **self.timed(host, message))

    def rank_ended(self, end: Dict[str, Any]) -> None:
        """A guard's word of a rank's end, in our time."""
        rank, host, now = end["rank"], end["host"], time.monotonic()
        self.ended[rank] = dict(end, heard=now)
        self.started.add(rank)
        self.pulse.ended(rank, end.get("status") == 0, now)
        alone = self.spec.get("independent") and not self.spec.get("fail_fast")  # the other instances do not need it
        if end.get("lost") and self.state == "running" and not alone:
            # By somebody, by the kernel in the script's place, or by mpirun: because of a rank whose own end is not
            # yet told, but came first.
            self.wordless.append(end)
            self.suspect("the wrapper of rank %d on %s was killed" % (rank, host), end["at"])
            return
        if end.get("unheard") and self.state == "running":
            self.suspect("mpirun's proxy on %s ended before its ranks" % host, end["at"])
        after = bool(self.doubt) and end["at"] > self.doubt_since + self.within.get(host, 0.0)
        by_us = self.state != "running" or after or bool(end.get("unheard"))
        self.note("rank", by_us=by_us, **end)
        if end.get("status") == 0 or by_us or alone:
            return
        if end.get("stopped") and end.get("signal"):
            self.suspect("mpirun ended rank %d on %s" % (rank, host), end["at"])
        else:
            self.stop("rank", "rank %d on %s failed" % (rank, host))

    def from_shim(self, link: rpc.Wire, message: Dict[str, Any]) -> None:
        guard = self.guards.get(link.name)
        if guard and message.get("do") == "proxy":
            guard.send({"do": "proxy", "words": message["words"]})
        else:
            link.close()

    def from_tell(self, link: rpc.Wire, message: Dict[str, Any]) -> None:
        order = message.get("do")
        if order == "stop":
            self.stop("stopped", str(message.get("why", "")))
        elif order == "kill":
            if self.state in {"gathering", "running"}:
                self.stop("stopped", str(message.get("why", "")))
            if self.state == "stopping":
                self.kill()
        link.send({"state": self.state, "watchers": sum(1 for other in self.wires if other.role == "watch")})

    def timed(self, host: str, message: Dict[str, Any]) -> Dict[str, Any]:
        """Host times moved to this host's clock."""
        return dict(message, at=message["at"] - self.offset.get(host, 0.0)) if "at" in message else message

    def store(self, fd: int) -> None:
        while True:
            try:
                piece = os.read(fd, DRAIN)
            except BlockingIOError:
                return
            except OSError:
                piece = b""
            if not piece:
                self.unplug(fd)
                return
            self.pulse.wrote(fd, piece, time.monotonic())
            missing = self.sinks[fd].write(piece)
            if missing and not self.unstored:
                self.note("unstored")
            self.unstored += missing
            if len(piece) < DRAIN:
                return

    def unplug(self, fd: int) -> None:
        self.selector.unregister(fd)
        os.close(fd)
        self.sinks.pop(fd).close()

    def drop(self, link: rpc.Wire) -> None:
        """A connection is over. Of a guard that means: its host, or at least its guard, is lost."""
        self.wires.discard(link)
        link.close()
        for key in list(self.selector.get_map().values()):
            if key.fileobj is link.sock:
                self.selector.unregister(key.fileobj)
        if link.role == "guard" and self.guards.get(link.name) is link and link.name not in self.clean:
            self.lose(link.name, "its guard ended")

    def lose(self, host: str, why: str) -> None:
        guard = self.guards.pop(host, None)
        self.lost.add(host)
        if guard:
            guard.close()
            self.drop(guard)
        self.note("lost", host=host, why=why)
        self.stop("lost", "%s lost (%s)" % (host, why))

    # -- records ------------------------------------------------------------------------------------------------------

    def note(self, what: str, **more: Any) -> None:
        record = dict(more, what=what)
        record.setdefault("at", time.time())
        self.unwritten += json.dumps(record).encode() + b"\n"
        try:
            while self.unwritten:
                self.unwritten = self.unwritten[self.journal.write(self.unwritten) or 0 :]
        except OSError:
            if len(self.unwritten) > HELD:
                files.free(self.directory)  # the next line is written there

    def publish(self, own: List[int]) -> None:
        me = procs.look(os.getpid())
        where = {"address": self.spec["address"], "port": self.listener.getsockname()[1]}
        files.write(self.directory, files.KEEPER, dict(where, pid=os.getpid(), start=me.start if me else 0, own=own))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
