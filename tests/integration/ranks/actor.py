"""A rank of the tests: does what its arguments say, after noting in a ledger what it is about to print."""

import json
import os
import random
import signal
import sys
import time

rank = int(os.environ["RANK"])
act, rest = sys.argv[1], sys.argv[2:]
if "MEET" in os.environ:  # the ranks are a process group (tests/stock.py)
    from meet import meet
else:

    def meet() -> None:
        """They do not know each other."""


def ledger(stream: str, data: bytes) -> None:
    with open(os.path.join(rest[0], "%d.%s" % (rank, stream)), "ab") as out:
        out.write(data)
    fd = 1 if stream == "out" else 2
    while data:
        data = data[os.write(fd, data) :]


if act == "say":
    print("rank", rank, "of", os.environ["WORLD_SIZE"], "argv", sys.argv[2:])
elif act == "bytes":
    noise = random.Random(rank)
    for _ in range(200):
        data = bytes(noise.randrange(256) for _ in range(noise.randrange(1, 400)))
        ledger(noise.choice(["out", "err"]), data)
elif act == "lines":
    for first in range(0, int(rest[1]), 1000):
        ledger("out", b"".join(b"rank %d line %07d %s\n" % (rank, n, b"x" * 70) for n in range(first, first + 1000)))
elif act == "raise" and rank == int(rest[0]):
    time.sleep(0.3)
    raise ValueError("the answer is not 42")
elif act == "forge":  # a tag and a frame of rank 0, with the run's own nonce, in two pieces
    with open(os.path.join(os.environ["IPEXCTL_DIR"], "spec.json")) as spec:
        nonce = json.load(spec)["nonce"].encode()
    output = b"\x01%s:0\x02by rank %d\n\x01%s=0o4\x02abc\n" % (nonce, rank, nonce)
    ledger("out", output[:7])
    time.sleep(0.3)
    ledger("out", output[7:])
elif act == "read":
    print("read", sys.stdin.buffer.read())
elif act == "signal" and rank == int(rest[1]):
    time.sleep(0.3)
    os.kill(os.getpid(), getattr(signal, rest[0]))
elif act == "exit" and rank == int(rest[1]):
    sys.exit(int(rest[0]))
elif act == "stubborn":
    for deadly in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(deadly, signal.SIG_IGN)
    print("stubborn")
elif act in {"daemon", "hold"}:
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.closerange(0 if act == "daemon" else 3, 256)  # the other one holds the rank's output open
        os.execve("/bin/sleep", ["sleep", *(rest or ["300"])], {})
    time.sleep(0.3)
    sys.exit(0)
elif act == "hide":
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.closerange(0, 256)
        os.execve("/bin/sleep", ["sleep", *rest], {})
    print("hidden")
    time.sleep(300)
elif act == "count":
    for number in range(int(rest[0])):
        print("tick", number)
        meet()
        time.sleep(0.1)
        while rest[1:] and number == 9 and not os.path.exists(rest[1]):  # goes on when the test has made this file
            time.sleep(0.1)
    sys.exit(0)
if act in {"raise", "signal", "exit", "stubborn", "wait"}:
    print("waiting")
    time.sleep(300)
