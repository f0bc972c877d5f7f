"""The start of a host's part of a run: its guard."""

import mmap
import os
import select
import sys
from typing import List

from ipexctl.protocol import messages, paths
from ipexctl.protocol.messages import KINDS
from ipexctl.remote.agent import files, procs, rpc
from ipexctl.remote.agent.guard import Guard
from ipexctl.remote.agent.host_lock import take_host


def main(argv: "List[str]") -> int:
    """``guard RUNDIR ADDRESS [PORT]``: connects to the keeper, prints `GuardReady`, and goes on in the background.
    Without PORT a `KeeperListening` on the standard input tells it: this program may begin before the keeper listens.
    Where the input ends without one there is no keeper, and nothing is started. Prints `HostBusy` when another run
    holds this account's lock on the host, and `EnvironmentGone` when the run's environment was removed."""
    directory, address = argv[0], argv[1]
    umask = os.umask(0o077)  # as the keeper's
    spec = files.read_spec(directory)
    # A home directory may be shared: each host has a lock of its own in it.
    base = os.path.dirname(directory)
    other = None if spec.wait else take_host(base, spec)[1]
    if other is not None and other.run != spec.run and not spec.share:
        print(KINDS.write(other).decode())
        return 1
    marker = os.path.join(spec.environment, paths.MARKER)
    try:  # by what is in its memory an install knows that this process uses the environment: `find_used`
        _in_use = map_file(marker) if spec.environment else None
    except OSError:
        print(KINDS.write(messages.EnvironmentGone(spec.environment)).decode())
        return 1
    for name in os.listdir(base):
        if files.is_half_made(os.path.join(base, name)):
            files.remove_directory(os.path.join(base, name))
    if spec.head is None:  # there the keeper has done so
        files.reserve_space(directory)
    files.write_json(directory, paths.OWNER, {"host": files.get_host_tag()})
    os.makedirs(os.path.join(directory, paths.RANKS), mode=0o700, exist_ok=True)
    port = int(argv[2]) if argv[2:] else _read_port(2 * spec.timings.ready_timeout)
    if not port:
        return 1
    try:
        keeper = rpc.connect(address, port, spec.token, paths.Role.GUARD, spec.host, spec.timings.connect)
    except OSError as error:
        answered = isinstance(error, ConnectionError) or (type(error) is OSError and error.errno is None)
        refusal = messages.AgentFailed if answered else messages.KeeperUnreachable
        print(KINDS.write(refusal(str(error))).decode())
        return 1
    print(KINDS.write(messages.GuardReady()).decode())
    if procs.daemonize():
        files.run_then_record_crash(directory, paths.Role.GUARD, Guard(directory, spec, keeper, umask).watch)
    return 0


def map_file(path: str) -> mmap.mmap:
    """Keeps a file in the memory of this process for as long as the result lives. Raises `OSError`."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def _read_port(patience: float) -> int:
    """Where the keeper listens, out of the standard input; 0 where that does not tell it within so many seconds: a
    controller may have vanished without a word, and this process has the host's lock."""
    if not select.select([0], [], [], patience)[0]:
        return 0
    listening = KINDS.read(sys.stdin.buffer.read(messages.PORT_SIZE).strip())
    return listening.port if isinstance(listening, messages.KeeperListening) else 0
