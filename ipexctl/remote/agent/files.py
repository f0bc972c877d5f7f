"""A run's directory on a host: what is in it, read and written so that half a file is never seen."""

from __future__ import annotations

import errno
import json
import os
import time
import traceback
from typing import Any, Callable, Dict

SPEC = "spec.json"  # what the controller wrote: token, environment, ranks (0600)
KEEPER = "keeper.json"  # node0 only: where the keeper listens, its pid and start time
END = "end.json"  # node0 only: the final record
JOURNAL = "journal.jsonl"  # node0 only: what happened, in order
OUT = "out.bin"  # node0 only: mpirun's two outputs, tagged per rank
ERR = "err.bin"
RESERVE = "reserve"  # space for the last words
PLACE = "place.json"  # which host this directory is for: homes may be shared
ENDING = "ending.json"  # the run is being ended: no rank is to start any more
FRESH = 60.0  # seconds a run may take from its directories to its keeper and guards
RANKS = "ranks"  # a file per rank and kind of news, written by wrappers
FULL = (errno.ENOSPC, errno.EDQUOT)  # no space is left: to anybody, or to this account


def read(directory: str, name: str) -> Dict[str, Any]:
    with open(os.path.join(directory, name), encoding="utf-8") as text:
        value = json.load(text)
    if not isinstance(value, dict):
        raise ValueError("%s is not an object" % name)
    return value


def write(directory: str, name: str, value: Dict[str, Any]) -> None:
    """Replaces the file at once; a reader sees the old one or the new one. Of a full disk it takes the reserve."""
    try:
        _replace(os.path.join(directory, name), value)
    except OSError as error:
        if error.errno not in FULL:
            raise
        for base in (directory, os.path.dirname(directory)):
            free(base)
        _replace(os.path.join(directory, name), value)


def reserve(directory: str) -> None:
    """Keeps a little space for the last words of a run whose disk somebody fills."""
    try:
        with open(os.path.join(directory, RESERVE), "wb") as room:
            room.write(b"\0" * (1 << 18))
    except OSError:
        pass  # there is none any more


def free(directory: str) -> None:
    """Gives the reserved space back."""
    try:
        os.unlink(os.path.join(directory, RESERVE))
    except OSError:
        pass


def _replace(path: str, value: Dict[str, Any]) -> None:
    fresh = "%s.%d" % (path, os.getpid())
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as text:
            json.dump(value, text)
        os.replace(fresh, path)
    except OSError:
        os.unlink(fresh)
        raise


def here() -> str:
    """This host's own name, as a part of a file's name."""
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in os.uname().nodename)


def elsewhere(directory: str) -> bool:
    """Whether another host, with the same home directory, works in this one."""
    try:
        return bool(read(directory, PLACE)["host"] != here())
    except (OSError, ValueError, KeyError):
        return False


def fresh(directory: str) -> bool:
    """Whether it was made a moment ago: the run's first process may be still to come."""
    try:
        return time.time() - os.stat(directory).st_mtime < FRESH
    except OSError:
        return False


def torn(directory: str) -> bool:
    """Whether this is what a controller left that was killed while it filled a run's directory."""
    return os.path.isdir(directory) and not os.path.exists(os.path.join(directory, SPEC)) and not fresh(directory)


def news(directory: str, rank: int, kind: str, value: Dict[str, Any]) -> str:
    """A wrapper's word to its guard: ``ranks/<rank>.<kind>.json``. Why it could not be written, or ""; it never raises:
    a rank does not end because there is no space for its record."""
    try:
        write(os.path.join(directory, RANKS), "%d.%s.json" % (rank, kind), value)
    except OSError as error:
        return str(error.strerror)
    return ""


def survive(directory: str, role: str, work: Callable[[], None]) -> None:
    """Does a background process's work, then ends the process; a fault of ours is left in ``<role>.crash``."""
    try:
        work()
    except BaseException:
        try:
            with open(os.path.join(directory, role + ".crash"), "w", encoding="utf-8") as text:
                text.write(traceback.format_exc())
        finally:
            os._exit(1)
    os._exit(0)
