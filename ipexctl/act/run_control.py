"""Starting and watching a run: what is done on which host, over links. What to start is decided elsewhere."""

from __future__ import annotations

import json
import queue
import shlex
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ipexctl.act import agent
from ipexctl.act.context import Context
from ipexctl.act.transfer.send import PART, write_files
from ipexctl.model.commands import Command
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.hosts import Host
from ipexctl.model.links import Channel, Link, LinkError

AGENT = "agent.pyz"  # as in decide.launching.spec
SHIM = "shim"  # what Hydra calls in place of ssh
ROLE = "agent"  # the agent with its interpreter: `agent list DIRECTORY`
RUNS = ".local/state/ipexctl/runs"  # below the home directory of each host
HOOKS = "hooks"
FRAME = struct.Struct("!cQI")  # as in ipexctl.remote.agent.client
QUIET = 30.0  # seconds without a word (one comes every two) after which the link counts as lost
TICK = 1.0  # seconds between two looks at what came
BEAT = 2.0  # seconds between two signs that we listen; as ipexctl.remote.agent.client.SILENT expects
GIVE_UP = 60.0  # seconds of failed reconnecting after which a watcher lets go


# Starts the interpreter $p so that nothing in the account's files or variables can influence it; the host's own where
# $p is gone, because its environment was removed after the run.
_PYTHON = '[ -x "$p" ] || p=python3; exec "$p" -E -s -S'


@dataclass(frozen=True, slots=True)
class RemoteRunDir:
    """A run's place on one host."""

    host: Host
    directory: str
    python: str

    def agent(self, role: str, *words: str, timeout: float = 30.0, run: str = "") -> Command:
        env = {"IPEXCTL_RUN": run} if run else {}
        return Command((f"{self.directory}/{ROLE}", role, *words), env=env, timeout=timeout, cwd="/")

    def script(self, *words: str) -> bytes:
        """A program that is the agent with these words first."""
        agent = shlex.join((f"{self.directory}/{AGENT}", *words))
        return f'#!/bin/sh\np={shlex.quote(self.python)}; {_PYTHON} {agent} "$@"\n'.encode()


def prepare(link: Link, site: RemoteRunDir, spec: Mapping[str, Any]) -> None:
    """Puts the run's directory on a host: specification (with the ranks' environment, 0600), agent, shim, hooks.

    Raises `LinkError` when the host cannot be reached or the directory cannot be made safely.
    """
    write_files(
        link,
        {
            "spec.json": json.dumps(spec).encode(),
            AGENT: agent.archive(),
            ROLE: site.script(),
            SHIM: site.script("shim", site.directory),
            f"{HOOKS}/sitecustomize.py": agent.hook(),
        },
        site.directory,
        modes={SHIM: 0o700, ROLE: 0o700},
    )


def start_keeper(link: Link, site: RemoteRunDir, run: str) -> int:
    """Starts the keeper on the head; its port. Raises `LinkError`."""
    answer = _ask(link, site.agent("keeper", site.directory, run=run), "the run's keeper did not start")
    if "port" not in answer:
        raise LinkError(Failure(site.host.name, Kind.STEP, f"keeper: {answer.get('error', 'no port')}", code="keeper"))
    return int(answer["port"])


def start_guard(link: Link, site: RemoteRunDir, run: str, address: str, port: int) -> None:
    """Starts the guard on a host. Raises `LinkError`: BUSY when another run holds the host, STEP when the keeper on
    the head cannot be reached from there."""
    answer = _ask(link, site.agent("guard", site.directory, address, str(port), run=run), "its guard did not start")
    if "busy" in answer:
        other = answer["busy"]
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(other.get("started", 0)))
        raise LinkError(
            Failure(
                site.host.name,
                Kind.BUSY,
                f"busy with run {other.get('run', '?')} of {other.get('owner', '?')}, since {since}",
                hint="wait for it, stop it (ipexctl stop), or start beside it with --share",
                code="busy",
            )
        )
    if "ready" not in answer:
        raise LinkError(
            Failure(
                site.host.name,
                Kind.STEP,
                f"cannot reach the head at {address} port {port}: {answer.get('error', 'no answer')}",
                hint="open the ports between the hosts, or choose another network with --iface",
                code="back-connection",
            )
        )


def tell(link: Link, site: RemoteRunDir, order: str, why: str) -> bool:
    """Gives the keeper an order ("stop", "kill"); False when it is gone."""
    return link.run(site.agent("tell", site.directory, order, why)).ok


def prove(link: Link, site: RemoteRunDir, run: str, *, reap: bool = False, patience: float = 30.0) -> tuple[int, ...]:
    """The ids of processes of the run that live on a host; ``reap`` ends them first. Raises `LinkError` when the host
    has not said so within ``patience`` seconds."""
    program = agent.script("procs.py").encode()  # the run's own directory may be gone by now
    words = ("/bin/sh", "-c", f'p=$1; shift; {_PYTHON} "$@"', "sh", site.python, "-", "reap" if reap else "prove", run)
    done = link.run(Command(words, stdin=program, timeout=patience))
    if not done.ok:
        raise LinkError(Failure(site.host.name, Kind.RESIDUE, f"cannot look for processes: {done.last_words(1)}"))
    return tuple(row["pid"] for row in json.loads(done.out)["left"])


def runs(link: Link) -> dict[str, Any]:
    """The runs kept on a host: ``runs`` whose head it is, and ``stray`` directories. Raises `LinkError`.

    Any run's agent can tell of all, but that of an old one may have lost its interpreter: the first that works is
    believed, and when none does, that is not taken for "no runs".
    """
    script = (
        f'tried=; all="$HOME/{RUNS}"; for d in "$all"/*; do [ -x "$d/{ROLE}" ] || continue; tried=1; '
        f'"$d/{ROLE}" list "$all" || python3 -E -s -S "$d/{AGENT}" list "$all" && exit 0; done; '
        """[ "$tried" ] || echo '{"runs": [], "stray": []}'"""
    )
    return _ask(link, Command(("/bin/sh", "-c", script), timeout=20.0), "its runs cannot be listed")


def about(link: Link, directory: str) -> dict[str, Any]:
    """What a watcher must know of the run in this directory of its head. Raises `LinkError`."""
    return _ask(link, Command((f"{directory}/{ROLE}", "show", directory), timeout=20.0), "the run cannot be read")


def remove(link: Link, site: RemoteRunDir) -> None:
    """Takes the run's directory away (only one that holds a run's specification or agent, or what was to become them);
    a guard that writes its last word there meanwhile is waited for."""
    script = (
        f'test -L "$1" && exit 1; test -f "$1/spec.json" || test -f "$1/{ROLE}" || test -f "$1/{AGENT}" || '
        f'case "$(ls -A -- "$1" 2>/dev/null)" in ""|{PART}put-*) ;; *) exit 0; esac; '
        'for wait in 0.2 1 2; do rm -rf -- "$1" 2>/dev/null && exit 0; sleep $wait; done; exec rm -rf -- "$1"'
    )
    link.run(Command(("/bin/sh", "-c", script, "sh", site.directory), timeout=30.0))


def _ask(link: Link, command: Command, otherwise: str) -> dict[str, Any]:
    done = link.run(command)
    try:
        answer = json.loads(done.out.decode("utf-8", "replace").strip().splitlines()[-1])
    except (ValueError, IndexError):
        said = done.last_words(2) or f"status {done.status}"
        raise LinkError(Failure(link.host.name, Kind.STEP, f"{otherwise}: {said}", code="agent")) from None
    return answer if isinstance(answer, dict) else {}


@dataclass(frozen=True, slots=True)
class Frame:
    """A piece of the run's files: kind ``j`` journal, ``o``/``e`` mpirun's outputs, ``z`` the end; ``lost`` and
    ``back`` are the watcher's own words about its link; ``gave-up`` ends it."""

    kind: str
    data: bytes = b""


class RunFollower:
    """Reads a run's files from the head, from given offsets on, reconnecting without losing or doubling a byte;
    with ``once`` only what is there now."""

    def __init__(
        self, context: Context, site: RemoteRunDir, offsets: tuple[int, int, int] = (0, 0, 0), *, once: bool = False
    ) -> None:
        self._context = context
        self._site = site
        self._once = ("once",) if once else ()
        self._offsets = dict(zip("joe", offsets, strict=True))
        self._frames: queue.Queue[Frame] = queue.Queue(64)
        self._over = threading.Event()
        self._error: Exception | None = None  # a fault of ours in the thread
        self._thread = threading.Thread(target=self._body, name="watch", daemon=True)
        self._thread.start()

    def take(self, timeout: float) -> Frame | None:
        """The next frame, or None after ``timeout`` seconds without one."""
        try:
            return self._frames.get(timeout=timeout)
        except queue.Empty:
            if self._error is not None:
                raise self._error from None
            return None

    @property
    def offsets(self) -> tuple[int, int, int]:
        """Where the next watcher would have to go on: journal, out, err."""
        return self._offsets["j"], self._offsets["o"], self._offsets["e"]

    def close(self) -> None:
        self._over.set()
        while self._thread.is_alive():
            self.take(0.05)

    def _body(self) -> None:
        try:
            self._read()
        except Exception as error:  # raised again in the thread that takes the frames
            self._error = error

    def _read(self) -> None:
        since, pause, lost = 0.0, 0.5, False
        while not self._over.is_set():
            try:
                for frame in self._connect():
                    if lost:
                        self._frames.put(Frame("back"))
                    lost, pause = False, 0.5
                    if frame.kind != "t":
                        self._frames.put(frame)
                    if frame.kind == "z" or self._over.is_set():
                        return
                why = "the connection ended"
            except LinkError as error:
                why = error.failure.what
            if not lost:
                self._frames.put(Frame("lost", why.encode()))
                lost, since = True, time.monotonic()
            if time.monotonic() - since > GIVE_UP:
                self._frames.put(Frame("gave-up", why.encode()))
                return
            self._over.wait(pause)
            pause = min(pause * 2, 10.0)

    def _connect(self) -> Iterator[Frame]:
        words = [str(offset) for offset in self.offsets]
        link = self._context.links.open(self._site.host)
        command = self._site.agent("watch", self._site.directory, *words, *self._once, timeout=0)
        with link.stream(command) as channel:
            # Of its own, so that a screen that stands still does not look like a controller that is gone.
            threading.Thread(target=_beat, args=(channel,), name="beat", daemon=True).start()
            held = b""
            for data in self._heard(channel):
                held += data
                while len(held) >= FRAME.size:
                    kind, offset, length = FRAME.unpack_from(held)
                    if len(held) < FRAME.size + length:
                        break
                    piece, held = held[FRAME.size : FRAME.size + length], held[FRAME.size + length :]
                    name = kind.decode()
                    if name in self._offsets:
                        if offset > self._offsets[name]:  # the oldest was dropped, under the run's cap
                            yield Frame(f"missing-{name}", b"%d" % (offset - self._offsets[name]))
                        self._offsets[name] = offset + length
                    yield Frame(name, piece)

    def _heard(self, channel: Channel) -> Iterator[bytes]:
        """What the watcher on the head says, until `close`. Raises `LinkError` when it says nothing for `QUIET`
        seconds: its host or its disk hangs, while sshd may still answer for them."""
        silent = 0.0  # not by the clock: a controller that slept has not waited
        while (pieces := channel.read(TICK)) is not None and not self._over.is_set():
            said = b"".join(data for stream, data in pieces if stream == "out")
            silent = 0.0 if said else silent + (0.0 if pieces else TICK)
            if said:
                yield said
            elif silent >= QUIET:
                what = f"no sign of life for {QUIET:g} s"
                raise LinkError(Failure(self._site.host.name, Kind.UNREACHABLE, what, code="lost"))


def _beat(channel: Channel) -> None:
    """Tells the watcher on the head, until the channel ends, that somebody listens: it has no other way to know."""
    try:
        while True:
            channel.write(b".")
            time.sleep(BEAT)
    except (OSError, LinkError):
        return
