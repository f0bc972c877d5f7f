"""A command of the user on the host that leads the run: it gets what happens as JSON on its standard input, as that of
``--notify`` does on the controller, and nobody needs to watch."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ipexctl.protocol import journal, paths, rank_records
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import procs

LIMIT = 10.0  # seconds for one call of the command
QUEUE_LIMIT = 100  # notices that wait for it
LISTED = 500  # hosts and ranks that are listed: more would be more than a pipe takes at once
MASK = "***"
RESULTS = {
    journal.Reason.DONE: "ok",
    journal.Reason.STOPPED: "stopped",
    journal.Reason.LOST: "lost",
    journal.Reason.LIMIT: "limit",
}


class Notice(NamedTuple):
    """The keys are those of the controller's `Notification`."""

    event: str
    text: str
    hosts: List[str] = []
    ranks: List[int] = []
    result: Optional[str] = None


def describe_record(record: "journal.Record") -> "Optional[Notice]":
    """Returns what is reported of a record, or None."""
    if isinstance(record, journal.Launched):
        ranks = sorted(rank for placed in record.placed.values() for rank in placed)
        again = " again (restart %d)" % record.restart if record.restart else ""
        hosts = [host for host, placed in record.placed.items() if placed]
        return Notice("start", "started%s, ranks: %d, hosts: %d" % (again, len(ranks), len(hosts)), hosts, ranks)
    if isinstance(record, rank_records.RankEnded) and record.status != 0 and not record.by_us:
        how = "signal %d" % record.signal if record.signal else "exit code %s" % record.status
        how = how if record.abort is None else "MPI_Abort(%d)" % record.abort
        text = "rank %d on %s failed (%s)" % (record.rank, record.host, how)
        return Notice("failure", text + (record.error and ": " + record.error), [record.host], [record.rank])
    if isinstance(record, journal.HostLost):
        return Notice("failure", "%s: lost (%s)" % (record.host, record.why), [record.host])
    if isinstance(record, journal.Stall) and not record.early:
        return Notice("stall", "no progress for %.0f s" % record.seconds, [], record.ranks)
    if isinstance(record, journal.Straggling):
        return Notice("stall", "stragglers for %.0f s" % record.seconds, [], record.ranks)
    if isinstance(record, journal.RunEnd):
        result = RESULTS.get(record.reason, "failed")
        text = "ended well" if result == "ok" else result
        return Notice("end", text + (record.detail and ": " + record.detail), result=result)
    return None


class NoticeQueue:
    """Calls the command for one notice after another. ``report`` gets why it failed, once."""

    def __init__(self, spec: "RunSpec", report: "Callable[[str], object]") -> None:
        self.spec, self.report = spec, report
        self.waiting: "List[Dict[str, Any]]" = []
        self.process: "Optional[subprocess.Popen[bytes]]" = None
        self.started = 0.0
        self.reported = self.failed = False

    def note_record(self, record: "journal.Record") -> None:
        """Takes a notice of the record, if it is one of those that are reported; of one attempt the first failure."""
        notice = describe_record(record) if self.spec.head_spec.notify else None
        if notice is None or (notice.event == "failure" and self.failed):
            return
        self.failed = notice.event == "failure" or (self.failed and notice.event != "start")
        if len(self.waiting) < QUEUE_LIMIT:
            text = "%s: %s" % (self.spec.title or self.spec.run, " ".join(notice.text.split()))
            for secret in self.spec.head_spec.secrets:
                text = text.replace(secret, MASK)
            text = "".join(char if char.isprintable() else "?" for char in text)
            notice = notice._replace(text=text[:600], hosts=notice.hosts[:LISTED], ranks=notice.ranks[:LISTED])
            value = dict(notice._asdict(), at=record.at or time.time(), verb="run")
            self.waiting.append(dict(value, title=self.spec.title, run=self.spec.run, host=self.spec.host))

    def work(self, now: float) -> None:
        """Ends a call that takes too long, and makes the next. Returns at once."""
        if self.process is not None and self.process.poll() is None:
            if now - self.started <= LIMIT:
                return
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.note_failure("not done after %.0f s, killed" % LIMIT)
        elif self.process is not None and self.process.returncode:
            self.note_failure("exit status %d" % self.process.returncode)
        self.process = None
        if self.waiting:
            self.started = now
            self.call(self.waiting.pop(0))

    def call(self, notice: "Dict[str, Any]") -> None:
        """Begins a call, in the directory of the ranks and with their variables."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)  # what a pipe takes at once is longer than a notice, unless the host limits it
        try:
            os.write(writing, json.dumps(notice).encode() + b"\n")
            self.process = subprocess.Popen(
                self.spec.head_spec.notify,
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self.spec.workdir,
                env={**os.environ, **self.spec.env, paths.EVENT_ENV: str(notice["event"])},
                start_new_session=True,
                preexec_fn=procs.die_with_parent,
            )
        except OSError as error:
            self.note_failure((error.strerror or str(error)).lower())
        finally:
            os.close(reading)
            os.close(writing)

    def note_failure(self, why: str) -> None:
        if not self.reported:
            self.reported = True
            self.report(why)

    def finish(self) -> None:
        """Makes the calls that wait, for the limit of one."""
        until = time.monotonic() + LIMIT + 1.0
        while (self.waiting or self.process is not None) and time.monotonic() < until:
            self.work(time.monotonic())
            time.sleep(0.02)
