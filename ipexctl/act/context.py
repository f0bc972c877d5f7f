"""Everything a verb may touch, handed to it (there is nothing global to reach for), and work on many hosts in parallel.

Each host has a thread; the caller's thread only passes events on. At most ``Context.bound`` hosts are worked on at
once, not counting hosts that are slow to connect: all dead hosts together cost one connect timeout."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ipexctl.act.interrupts import Interrupts
from ipexctl.model.errors import Failure
from ipexctl.model.events import Event, HostFailed, Message, StepEnded, StepOutcome, StepStarted, Workflow
from ipexctl.model.hosts import Host, Link, LinkError, Opener
from ipexctl.model.json_values import Record, field
from ipexctl.store.masking import Masker
from ipexctl.store.record import make_name


class RecordLocation:
    """Where what happens is saved: known once the command has begun, None for commands that are not saved."""

    directory: Path | None = None
    runs = 0  # that were named

    def name_run(self, at: float) -> str:
        """Names the next run that the command starts: as its record, and with a number from the second one on."""
        self.runs += 1
        name = self.directory.name if self.directory else make_name(at)
        return f"{name}.{self.runs}" if self.runs > 1 else name


class Limits(Record):
    """``stall`` seconds without progress end an attempt, ``tries`` are made, a probe takes ``probe`` seconds."""

    stall: float = 60.0
    tries: int = 3
    probe: float = 5.0


class Context(Record):
    """``links`` opens hosts; ``state`` holds the user's runs, ``cache`` what can be fetched again. ``bound`` is how
    many hosts are worked on at once. ``environ`` are this machine's variables, also for pip's and uv's settings."""

    links: Opener
    state: Path
    cache: Path
    bound: int = 32
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    limits: Limits = Limits()  # of downloads
    clock: Callable[[], float] = field(default=time.time)
    interrupts: Interrupts = field(default_factory=Interrupts)
    saved: RecordLocation = field(default_factory=RecordLocation)
    by_playbook: bool = False  # its author chose what this command does
    masker: Masker = field(default_factory=lambda: Masker({}))  # of all that this command shows and saves


_log = logging.getLogger(__name__)

T = TypeVar("T")
Emit = Callable[[Event], None]
Work = Callable[[Link, Emit], "T | Failure"]

_CONNECTING_LIMIT = 1.0  # seconds after which a host that is still connecting no longer counts as being worked on
_THREAD_END_TIMEOUT = 5.0  # seconds in which all threads must end once the work is interrupted
_QUEUE_LIMIT = 4096  # events; a full queue slows the workers down instead of filling memory


def run_on_hosts(
    context: Context,
    hosts: Iterable[Host],
    step: str,
    work: Work[T],
    *,
    outcome: Callable[[T], tuple[StepOutcome, str]] | None = None,
) -> Workflow[tuple[dict[str, T], dict[str, Failure]]]:
    """Calls ``work`` for every host; returns its results and the failures of the other hosts, both by name in the order
    of ``hosts``. Yields `StepStarted`, the events that ``work`` emits, and `StepEnded` (with ``outcome`` of the result,
    else "ok") per host. A `LinkError`, or a `Failure` returned by ``work``, becomes `HostFailed` and that host's
    failure. Any other exception is an internal error: it ends the work on all hosts and is raised here. When the
    generator is closed or interrupted, all links are closed and no thread is left."""
    hosts = tuple(hosts)
    waiting = list(reversed(hosts))
    results: dict[str, T] = {}
    failures: dict[str, Failure] = {}
    # Of each host its events, and at last its name with the result.
    events: queue.Queue[Event | tuple[str, T | Failure | BaseException]] = queue.Queue(_QUEUE_LIMIT)
    connecting: dict[str, float] = {}  # host → when it began, monotonic
    threads: dict[str, threading.Thread] = {}

    def run_on_host(host: Host) -> None:
        events.put(StepStarted(host.name, step))
        connecting[host.name] = time.monotonic()
        try:
            try:
                link = context.links.open(host)
            finally:
                del connecting[host.name]
            for note in link.notes():
                events.put(Message(note, "info", host.name))
            value: T | Failure | BaseException = work(link, events.put)
        except LinkError as error:
            value = error.failure
        except BaseException as error:  # handed to the caller's thread, which raises it
            value = error
        events.put((host.name, value))

    def count_active() -> int:
        now = time.monotonic()
        return len(threads) - sum(1 for since in list(connecting.values()) if now - since > _CONNECTING_LIMIT)

    try:
        while waiting or threads:
            while waiting and count_active() < context.bound:
                host = waiting.pop()
                thread = threading.Thread(target=run_on_host, args=(host,), name=f"{step} {host.name}", daemon=True)
                threads[host.name] = thread
                thread.start()
            try:
                item = events.get(timeout=0.2 if waiting else None)
            except queue.Empty:
                continue
            if isinstance(item, Event):
                yield item
                continue
            name, value = item
            threads.pop(name).join()
            if isinstance(value, BaseException):
                _log.error("%s: step %r raised %r", name, step, value)
                raise value
            if isinstance(value, Failure):
                failures[name] = value
                yield HostFailed(value)
            else:
                results[name] = value
                yield StepEnded(name, step, *(outcome(value) if outcome else ()))
    finally:
        if threads:
            _stop_threads(context, events, list(threads.values()))
    names = [host.name for host in hosts]
    ordered = {name: results[name] for name in names if name in results}
    return ordered, {name: failures[name] for name in names if name in failures}


def _stop_threads(context: Context, events: queue.Queue[Any], threads: list[threading.Thread]) -> None:
    """Closes the links again and again (a worker may just be opening one) until every thread has ended."""
    deadline = time.monotonic() + _THREAD_END_TIMEOUT
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        context.links.close()
        with suppress(queue.Empty):
            events.get(timeout=0.02)  # makes room: a worker may be waiting to put an event
