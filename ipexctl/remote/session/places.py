"""Where an environment may be on this host: who can write there, what is mounted, and for how much there is room."""

import os
import pwd
import stat
import subprocess
from typing import List, Optional, Tuple

from ipexctl.protocol.session import SessionError
from ipexctl.remote.session import relay


def find_store_fault(base: str) -> str:
    """Why there may be no directory of environments at ``base``, or nothing in that one be used or executed: somebody
    else could put files into it, another one in its place or that of the link beside it, or has put something there.
    The same in sh is remote/ownership.sh. Empty where nothing is wrong with it."""
    near = os.path.abspath(find_nearest_directory(os.path.dirname(base)))
    try:
        ways = [(way, name) for way in (os.path.realpath(near), near) for name in (base, base[: -len(".d")])]
        fault = next(filter(None, (find_way_fault(*way) for way in ways)), "")
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


def is_safe_from_others(path: str) -> bool:
    """Returns whether nobody but this account and root can change an existing file, or put another in its place: what
    is executed later is then what was hashed."""
    path = os.path.realpath(path)
    info = os.stat(path)
    shared = bool(info.st_mode & 0o022) and not (stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX)
    if shared or info.st_uid not in (0, os.getuid()):
        return False
    return path == "/" or is_safe_from_others(os.path.dirname(path))


def find_nearest_directory(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path) or os.curdir
    return path


def list_directory(path: str) -> List[str]:
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def get_user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return "user %d" % os.getuid()


def find_mount(path: str) -> str:
    path = os.path.realpath(path)
    above = os.path.dirname(path)
    is_mount = os.path.ismount(path) or os.statvfs(path).f_flag != os.statvfs(above).f_flag  # also of the same disk
    return path if is_mount else find_mount(above)


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
