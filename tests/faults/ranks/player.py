"""A rank of the faults: `player.py ACT WORDS…` does what a case needs; `emit` notes in a ledger what it then writes."""

import hashlib
import json
import os
import socket
import sys
import time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
act, rest = sys.argv[1], sys.argv[2:]
LEDGER = "/root/ledger"
if "MEET" in os.environ:  # the ranks are a process group (tests/stock.py)
    import meet  # noqa: F401


def emit(data: bytes, stream: str = "out") -> None:
    with open(os.path.join(LEDGER, "%d.%s" % (rank, stream)), "ab") as out:
        out.write(data)
    fd = 1 if stream == "out" else 2
    while data:
        data = data[os.write(fd, data) :]


def wait() -> None:
    os.write(1, b"waiting\n")
    time.sleep(300)


def wait_for_files(*names: str) -> None:
    while not all(os.path.exists(os.path.join(LEDGER, name)) for name in names):
        time.sleep(0.01)


if act == "pair":  # ranks 0 and 1, which are on one host, end at the same moment
    if rank < 2:
        open(os.path.join(LEDGER, "ready%d" % rank), "w").close()
        wait_for_files("ready0", "ready1")
        both = [os.stat(os.path.join(LEDGER, name)).st_mtime for name in ("ready0", "ready1")]
        time.sleep(max(0.0, max(both) + 0.5 - time.time()))  # who slept is given a core before those that compute
        os._exit(int(rest[rank]))
    wait()
elif act == "last":  # the last rank goes on until its host has the file
    if rank == size - 1:
        wait_for_files("go")
elif act == "flood":  # so many numbered lines on both streams, as fast as it can
    for first in range(0, int(rest[0]), 500):
        lines = b"".join(b"rank %d line %07d %s\n" % (rank, n, b"x" * 70) for n in range(first, first + 500))
        emit(lines, "err" if first % 5000 == 0 else "out")
    open(os.path.join(LEDGER, "done"), "w").close()
elif act == "meet":  # at the address that every rank was given
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(size)
        others = [listener.accept()[0] for _ in range(size - 1)]
        for other in others:
            other.sendall(b"%d" % len(others))
            other.close()
        print("met", len(others))
    else:
        until = time.time() + 30
        while True:
            try:
                print("met", socket.create_connection(address, 5).recv(10).decode())
                break
            except ConnectionError:
                if time.time() > until:
                    raise
                time.sleep(0.1)
elif act == "tell":  # its arguments, directory and these variables, for every stranger to read
    names, words = rest[0].split(","), rest[1:]
    reported = {"argv": words, "cwd": os.getcwd(), "env": {name: os.environ.get(name) for name in names}}
    emit(json.dumps({**reported, "names": sorted(os.environ)}).encode() + b"\n")
elif act == "hash":  # of variables that nobody may see
    for name in rest:
        emit(hashlib.sha256(os.environ[name].encode()).hexdigest().encode() + b"\n")
    time.sleep(1)
