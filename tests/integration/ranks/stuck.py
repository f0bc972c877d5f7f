"""A rank of the tests of stalls: gets on, or does not, as its arguments say. Speaks of no torch."""

import ctypes
import json
import os
import sys
import time

rank = int(os.environ["RANK"])
act, rest = sys.argv[1], sys.argv[2:]


def collective() -> None:
    time.sleep(300)


def read_data() -> None:
    time.sleep(300)


def read_null() -> None:
    ctypes.string_at(0)


def meet() -> None:
    """Until every rank is here: on a busy machine the first would else wait for long before the last begins."""
    place = os.path.dirname(os.environ["HOME"])  # of the hosts' homes, all on this machine
    open(os.path.join(place, "met.%d" % rank), "w").close()
    while not all(
        os.path.exists(os.path.join(place, "met.%d" % each)) for each in range(int(os.environ["WORLD_SIZE"]))
    ):
        time.sleep(0.02)


def tick() -> None:
    for number in range(int(rest[1]) if len(rest) > 1 else 3000):
        print("step", number, flush=True)
        time.sleep(0.1)


if act == "loader":  # one waits for data, the others in a call of torch's for it
    place = "/x/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    code = "import time\n\ndef all_reduce():\n    time.sleep(float(%r))\n" % (rest[1] if len(rest) > 1 else "300")
    exec(compile(code, place, "exec"))
    meet()
    print("step 1", flush=True)
    read_data() if rank == int(rest[0]) else globals()["all_reduce"]()
elif act == "hang":  # one rank reads, the others wait for it
    meet()
    print("step 1", flush=True)
    read_data() if rank == int(rest[0]) else collective()
elif act == "busy":  # one prints nothing but computes
    until = time.time() + 6
    while rank == int(rest[0]) and time.time() < until:
        pass
    if rank != int(rest[0]):
        tick()
elif act == "uneven":
    time.sleep(300 if rank == int(rest[0]) else 0.5)
elif act == "tick":
    tick()
elif act == "crash":
    time.sleep(0.3)
    if rank == int(rest[0]):
        read_null()
    collective()
elif act == "record":  # as torch.distributed.elastic.multiprocessing.errors.record does
    extra = {"py_callstack": "Traceback\n  in train\nKeyError: 'loss'\n", "timestamp": "1"}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as out:
        json.dump({"message": {"message": "KeyError: 'loss'", "extraInfo": extra}}, out)
    os._exit(1)
elif act == "again":  # fails until it was started so often
    time.sleep(0.5)
    sys.exit(0 if rest[0] == os.environ["TORCHELASTIC_RESTART_COUNT"] else 1)
elif act == "freeze":  # joins a group that is then frozen
    if rank == int(rest[0]):
        with open(rest[1], "w") as procs:
            procs.write(str(os.getpid()))
    print("joined", flush=True)
    collective()
elif act == "eat":  # until the memory group it joins kills it
    if rank == int(rest[0]):
        with open(rest[1], "w") as procs:
            procs.write(str(os.getpid()))
        print(len(b"x" * (1 << 30)))
    collective()
