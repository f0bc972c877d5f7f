"""A run's directory on a host: what is in it, read and written so that half a file is never seen."""

import errno
import json
import os
from contextlib import suppress
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ipexctl.protocol import paths, rank_records, run_spec
from ipexctl.protocol.codec import DamagedError, decode, load_object
from ipexctl.protocol.timings import STARTING
from ipexctl.remote.agent import procs

# Kinds of a rank's records: ``ranks/<rank>.<kind>.json``. Beside them stand those of its stages and notes.
BEGIN, START, DROP, END = "begin", "start", "drop", "end"
RANK_LIMIT = 1 << 20  # bytes of a file that a rank's own Python writes
FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)  # no space is left: to anybody, or to this account


class KeeperAddress(NamedTuple):
    """Where the keeper listens; its process; the processes that are its own: itself and the launcher."""

    address: str
    port: int
    pid: int
    start: int
    own: "List[int]"


def read_json(directory: str, name: str, limit: int = -1) -> "Dict[str, Any]":
    """Returns the JSON object in a file, of at most so many bytes. Waits for no pipe. Raises OSError or ValueError."""
    path = os.path.join(directory, name)
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        return load_object(file.read(limit) or b"")  # half an object is none


def read_spec(directory: str) -> "run_spec.RunSpec":
    """Raises OSError or ValueError."""
    return decode(run_spec.RunSpec, read_json(directory, paths.SPEC))


def read_keeper_address(directory: str) -> "Optional[KeeperAddress]":
    """None where there is none, or none that can be read."""
    try:
        return decode(KeeperAddress, read_json(directory, paths.KEEPER))
    except (OSError, DamagedError):
        return None


def write_json(directory: str, name: str, value: "Dict[str, Any]") -> None:
    """Replaces the file at once; a reader sees the old one or the new one. Of a full disk it takes the reserve."""
    try:
        _write_atomically(os.path.join(directory, name), value)
    except OSError as error:
        if error.errno not in FULL_DISK_ERRORS:
            raise
        for base in (directory, os.path.dirname(directory)):
            release_space(base)
        _write_atomically(os.path.join(directory, name), value)


def reserve_space(directory: str) -> None:
    """Keeps a little space for the last words of a run whose disk somebody fills."""
    with suppress(OSError), open(os.path.join(directory, paths.RESERVE), "wb") as room:  # or there is none any more
        room.write(b"\0" * (1 << 18))


def release_space(directory: str) -> None:
    """Gives the reserved space back."""
    with suppress(OSError):
        os.unlink(os.path.join(directory, paths.RESERVE))


def _write_atomically(path: str, value: "Dict[str, Any]") -> None:
    fresh = "%s.%d" % (path, os.getpid())
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as text:
            json.dump(value, text)
            if path.endswith(paths.END):  # what the run was, also after a power cut
                text.flush()
                os.fsync(fd)
        os.replace(fresh, path)
    except OSError:
        os.unlink(fresh)
        raise


def get_host_tag() -> str:
    """Returns this host's own name, as a part of a file's name."""
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in os.uname().nodename)


def belongs_to_other_host(directory: str) -> bool:
    """Returns whether another host, with the same home directory, works in this one."""
    try:
        return bool(read_json(directory, paths.OWNER).get("host", get_host_tag()) != get_host_tag())
    except (OSError, DamagedError):
        return False


def is_fresh(directory: str) -> bool:
    """Returns whether it was made a moment ago: the run's first process may be still to come."""
    try:
        return procs.read_age(directory) < STARTING
    except OSError:
        return False


def is_half_made(directory: str) -> bool:
    """Returns whether this is what a controller left that was killed while it filled a run's directory, RUN-hNUMBER.
    Its own records of runs have no such number: they lie beside, where it is a host itself or shares a host's home."""
    _, mark, number = os.path.basename(directory).rpartition("-h")
    if not mark or not number.isdigit():
        return False
    if not os.path.isdir(directory) or os.path.exists(os.path.join(directory, paths.SPEC)):
        return False
    import glob  # as above

    # Over a slow line the input of rank 0 may take minutes, which change only the file itself.
    parts = glob.glob(os.path.join(glob.escape(directory), paths.PART + "*", "tree", "*"))
    with suppress(OSError):  # it is whole, or gone
        newest = max(map(os.path.getmtime, (directory, *parts)))
        return procs.read_clock(os.path.dirname(directory)) - newest >= STARTING
    return False


def build_record_path(rank: int, kind: str) -> str:
    return os.path.join(paths.RANKS, "%d.%s%s" % (rank, kind, paths.RECORD))


def write_record(directory: str, kind: str, record: "rank_records.RankRecord") -> str:
    """Writes a wrapper's message to its guard; why it could not be written, or ""; it never raises: a rank does not
    end because there is no space for its record."""
    try:
        write_json(directory, build_record_path(record.rank, kind), rank_records.KINDS.to_object(record))
    except OSError as error:
        return str(error.strerror)
    return ""


def remove_directory(path: str) -> None:
    """Removes a directory with all that is in it, as far as that is possible; not one in which something is mounted."""
    import shutil  # each start of the agent would pay for it
    import subprocess

    if procs.find_mount(path):
        return
    with suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if os.path.isdir(path):  # a rank may have made directories that are deeper than Python's stack
        subprocess.call(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL)


def run_then_record_crash(directory: str, role: str, work: "Callable[[], None]") -> None:
    """Does a background process's work, then ends the process; an exception is left in ``<role>.crash``."""
    try:
        work()
    except BaseException:
        import traceback  # each start of the agent would pay for it

        try:
            with open(os.path.join(directory, role + paths.CRASH), "w", encoding="utf-8") as text:
                text.write(traceback.format_exc())
        finally:
            os._exit(1)
    os._exit(0)
