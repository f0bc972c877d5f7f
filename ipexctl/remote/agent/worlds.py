"""In a rank's Python, of several ranks, once its script imports what lets processes meet or train: which worlds the
process is in, where its script looks for the others, and whether it trains before it has exchanged anything.

It looks when a world is joined, at the first optimizer steps and at the end, and costs nothing in between. Nothing here
ever raises into the script. Files below ``$IPEXCTL_DIR/ranks``: `rank_records.RankWorld` and those behind it."""

import atexit
import json
import os
import re
import sys
import time
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Tuple

    from ipexctl.protocol import hooks as names
else:
    import _ipexctl_hooks as names  # the same file, put beside this one

STEPS = 3  # of an optimizer, before which whoever trains together has exchanged something
LARGEST = 1 << 20  # bytes of a source file that is searched
GROUPS = 16  # whose collectives are reported; those in flight first
FILES = 64  # of the script's own that are searched
C10D = "torch.distributed.distributed_c10d"
# An assignment of a variable of the environment: ["NAME"] = …, NAME=…, "NAME": …, ("NAME", …
ASSIGNED = r"""\b%s\b(["']\s*\]?\s*(=(?!=)|:|,)|\s*=(?!=))"""
# What torch calls the groups of each backend.
BACKENDS = {"ProcessGroupGloo": "gloo", "ImpiProcessGroup": "impi", "ProcessGroupCCL": "ccl", "ProcessGroupMPI": "mpi"}
STORE = ("self", "host_name", "port", "world_size", "is_master", "timeout", "wait_for_workers")  # arguments of TCPStore
# Options of scripts without which their ranks do not meet: that of OpenMMLab, and torch.distributed.launch's.
OPTIONS = (("launcher", "--launcher"), ("local-rank", "--local[-_]rank"))
QUOTED = r"""["']%s["']"""
IMPI = "/impi_torch/"
BYPASSED = (
    "the ranks do not average the gradients of %s: the script made optimizer steps and never called its "
    "DistributedDataParallel, but the model inside (model.module, or what was wrapped); call the wrapper itself"
)
LATE = (
    "the ranks do not average the gradients of %s of %s: what is added or unfrozen after its DistributedDataParallel "
    "was made is left out; wrap the model after that"
)
IDLE = (
    "no parameter of %s had a gradient at its step %d, so that it changes nothing: it was made before fully_shard or "
    "a copy of the model, or zero_grad() comes before step()"
)
RUN = os.environ.get(names.RUN_ENV, "")  # also TORCHELASTIC_RUN_ID, but for ranks of another torchrun
HOOKS = ("/_ipexctl_", "/sitecustomize.py")
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3.", *HOOKS)
quietly = names.quietly


class Worlds:
    """``rank`` is this process's; ``meeting``: `hooks.MEETING_ENV`."""

    def __init__(self, directory: str, rank: str, meeting: str, hook_exit: "Any" = None) -> None:
        self.base, self.rank = os.path.join(directory, names.RANKS, rank), int(rank)
        address, port, count = meeting.split(" ")
        self.hook_exit = hook_exit  # of `sitecustomize.Hooks`
        self.count = int(count)  # ranks that are to work together
        self.planned = {"MASTER_ADDR": address, "MASTER_PORT": port}
        self.script = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0])
        self.written: "Any" = set()
        self.exchanged = False  # with another process, or nobody can tell
        self.joined = False  # a world of several processes
        self.lonely: "Any" = []  # causes: worlds of one process
        self.barriers = 0
        self.steps = 0
        self.own_steps: "Any" = {}  # of each optimizer, by its identity
        self.wrapped: "Any" = weakref.WeakKeyDictionary()  # what each DistributedDataParallel averages, by identities
        self.handle: "Any" = None
        atexit.register(self.end)

    @quietly
    def write(self, name: str, kind: str, **fields: "Any") -> None:
        """A record of this rank, once for each name, by the first of its processes that has it."""
        if name not in self.written:
            self.written.add(name)
            record = dict(fields, kind=kind, rank=self.rank, host="", at=time.time())
            names.write_once("%s.%s%s" % (self.base, name, names.RECORD), json.dumps(record))

    def note_world(self, via: str, size: int, member: int, exchanged: bool) -> None:
        """This process is in such a world."""
        if size < 2:
            self.lonely.append((via, "", ""))
            return
        self.joined, self.exchanged = True, self.exchanged or exchanged
        name = "%s-%s-%d-%d" % ("exchange" if exchanged else "world", via, size, member)
        self.write(name, names.WORLD, via=via, size=size, member=member, exchanged=exchanged)

    # -- torch --------------------------------------------------------------------------------------------------------

    @quietly
    def note_rendezvous(self, args: "Any", kwargs: "Any") -> None:
        """`init_process_group` is about to be called: where will it look for the others?"""
        method = kwargs.get("init_method") or (args[1] if len(args) > 1 else None) or "env://"
        if kwargs.get("store") is not None or not method.startswith(("env:", "tcp:", "file:")):
            return
        place, file, is_url = self._find_place(method)
        changed = [name for name in self.planned if place[name] != self.planned[name]]
        size, number = (
            kwargs.get(name, (*args, -1, -1, -1, -1, -1)[at]) for at, name in ((3, "world_size"), (4, "rank"))
        )
        in_call = is_url or size > 0 or number >= 0
        size = size if size > 0 else int(os.environ.get("WORLD_SIZE") or 0)
        inner = __import__("multiprocessing").parent_process() is not None
        named = os.environ.get("RANK", "")
        own = named == str(self.rank) or (not inner and was_started_with("RANK=%d" % self.rank))  # it is the rank
        number = int(named) if own and number < 0 else number
        own = own and size != 1  # and not with itself alone
        number = number if own and number != self.rank else -1
        other_size = own and not inner and self.count > 1 and size not in (0, self.count)
        if changed:
            name, value = changed[0], place[changed[0]]
        elif number >= 0:
            name, value = "RANK", str(number)
        elif other_size:
            name, value = "WORLD_SIZE", str(size)
        else:
            return
        line = find_call() if in_call and (is_url or not changed) else find_assignment(self.script, name, value)
        known = {
            "address": place["MASTER_ADDR"],
            "port": place["MASTER_PORT"],
            "planned": self.planned["MASTER_ADDR"],
            "size": size,
            "line": line,
            "inner": inner,
            "number": number,
        }
        self._write_meeting(known, file, place["MASTER_ADDR"] if changed else "")

    def _find_place(self, method: str) -> "Tuple[Dict[str, str], str, bool]":
        """Where the ranks meet by an ``init_method``, its file if it is one, and whether the method itself names it."""
        url = re.match(r"(?:tcp://\[?(?P<MASTER_ADDR>[^\]/?]+)\]?:(?P<MASTER_PORT>\d+)|file://(?P<file>[^?]+))", method)
        place = url.groupdict("") if url else {name: os.environ.get(name, "") for name in self.planned}
        file = place.pop("file", "")
        if file:
            place["MASTER_ADDR"] = "file://" + file
        return place, file, url is not None

    def _write_meeting(self, known: "Dict[str, Any]", file: str, address: str) -> None:
        """Writes where the rank is about to meet others; of a name that is not the planned one, whether it resolves."""

        @quietly
        def write(fault: str = "") -> None:
            self.write("meeting", names.MEETING, fault=fault, **known)

        if file:
            write(identify_directory(file))
        elif not address or address == "localhost" or ":" in address or not address.strip("0123456789."):
            write()
        else:  # which a server of names may take seconds for
            __import__("threading").Thread(target=lambda: write(find_name_fault(address)), daemon=True).start()

    @quietly
    def note_store(self, args: "Any", kwargs: "Any") -> None:
        """The script makes a `TCPStore` by itself: does it wait for others where each host means itself?"""
        itself, planned = ("localhost", "127.", "::1"), self.planned["MASTER_ADDR"]
        given = dict(kwargs, **{name: args[at] for at, name in enumerate(STORE[: len(args)])})
        address, size = given["host_name"], given.get("world_size") or 1
        waits = size > 1 and given.get("wait_for_workers", True)
        if waits and address.startswith(itself) and not planned.startswith(itself):
            inner = __import__("multiprocessing").parent_process() is not None
            place = {"address": address, "port": str(given["port"]), "planned": planned}
            place.update(line=find_call(), fault=names.STORE)
            self.write("meeting", names.MEETING, size=size, inner=inner, **place)

    @quietly
    def note_group(self, exchanged: bool = False) -> None:
        """torch's own world was joined; ``exchanged``: and something has been exchanged since."""
        group = sys.modules[C10D]
        self.note_world("torch", group.get_world_size(), group.get_rank(), exchanged)
        if group.get_world_size() > 1:
            self.hook_exit()
            if group.get_rank() == 0:
                self.note_backend(group)

    @quietly
    def note_backend(self, group: "Any") -> None:
        """Says what carries torch's collectives on processors, where it is not what the plan names."""
        used = type(group._get_default_group()._get_backend(sys.modules["torch"].device("cpu"))).__name__
        planned, used = os.environ.get("IPEXCTL_BACKEND", ""), BACKENDS.get(used, "")
        if planned and used and used != planned:
            text, more = "the script uses %s, not the planned %s" % (used, planned), ""
            if (planned, used) == ("impi", "gloo") and os.environ.get("IMPI_TORCH_OVERRIDE") != "1":
                more = "; --backend-override gives it impi"
            self.write("backend", names.NOTE, text=text + more, info=True, backend=used)

    def note_collective(self, name: str) -> None:
        """A collective has ended, the first but for barriers, which move no data."""
        if name == "barrier":
            self.barriers += 1
        else:
            self.note_group(True)

    def has_exchanged(self) -> bool:
        """Returns whether any process group of torch was used for more than barriers, by way of whatever function."""
        group: Any = sys.modules.get(C10D)
        if group is None or not group.is_initialized() or group.get_world_size() < 2:
            return False
        count = sum(each._get_sequence_number_for_group() for each in list(group._world.pg_map))
        return bool(count > self.barriers)

    @quietly
    def hook_optimizers(self, module: "Any") -> None:
        """torch has hooks of all optimizers from 2.0 on (pytorch/pytorch#89176); before, only the end tells."""
        self.handle = module.register_optimizer_step_post_hook(self.count_step)
        names.call_around(module.Optimizer, "add_param_group", after=self.note_added)

    def note_added(self, args: "Any", _: "Any") -> None:
        """An optimizer has got more parameters: those of a part of the model that is trained from now on."""
        if self.own_steps.get(id(args[0]), 0) >= STEPS:
            self.note_unaveraged(args[0])

    @quietly
    def hook_wrapper(self, module: "Any") -> None:
        def note(args: "Any", _: "Any") -> None:
            self.wrapped[args[0]] = {id(each) for each in args[0].parameters() if each.requires_grad}

        names.call_around(module.DistributedDataParallel, "__init__", after=note)

    def count_step(self, optimizer: "Any", *_: "Any") -> None:
        """An optimizer has made a step."""
        self.steps += 1
        own = self.own_steps[id(optimizer)] = self.own_steps.get(id(optimizer), 0) + 1
        if self.steps == STEPS:
            self.judge(STEPS)
        if own == STEPS:
            self.note_unaveraged(optimizer)
            self.note_idle(optimizer)
            self.remove_step_hook()

    @quietly
    def note_unaveraged(self, optimizer: "Any") -> None:
        """Names a model that this optimizer trains and whose wrapper, which averages its gradients, is never called or
        was made before these parameters."""
        own = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for wrapper, averaged in list(self.wrapped.items()):
            group, called = wrapper.process_group, wrapper._lazy_init_ran or wrapper._use_python_reducer
            if group.size() == 1 or group.rank() != 0:
                continue
            model = type(wrapper.module).__name__
            mine = {name: each for name, each in wrapper.module.named_parameters() if id(each) in own}
            late = [name for name, each in mine.items() if each.requires_grad and id(each) not in averaged]
            if mine and not called:
                self.write("bypassed", names.NOTE, text=BYPASSED % model)
            elif late:
                some = ", ".join(late[:3]) + ", …" * (len(late) > 3)
                self.write("late", names.NOTE, text=LATE % (some, model))

    @quietly
    def note_idle(self, optimizer: "Any") -> None:
        """Names an optimizer that trains nothing. FSDP leaves empty what other ranks have of a parameter."""
        own = [each for group in optimizer.param_groups for each in group["params"]]
        if self.joined and self.rank == 0 and own and all(each.grad is None and each.numel() for each in own):
            self.write("idle", names.NOTE, text=IDLE % (type(optimizer).__name__, STEPS))

    @quietly
    def remove_step_hook(self) -> None:
        """torch is going through its hooks: only from behind the last one may this be taken out (odictobject.c)."""
        if next(reversed(self.handle.hooks_dict_ref())) == self.handle.id:
            self.handle.remove()

    @quietly
    def judge(self, steps: int) -> None:
        """After so many optimizer steps, or (0) at the end: does this process work alone?"""
        if self.exchanged:
            return
        try:
            exchanged = self.has_exchanged()
        except Exception:  # a group that counts nothing
            self.exchanged = True
            return
        if exchanged:
            self.note_group(True)
        elif "alone-1" not in self.written and (steps or not self.joined or is_single_for_accelerate()):
            self.write("alone-%d" % bool(steps), names.ALONE, steps=steps, causes=self.find_causes())

    @quietly
    def end(self) -> None:
        """The end of the script: only what has loaded torch, or was told by MPI that it is alone, is of interest."""
        if self.count and (self.lonely or "torch" in sys.modules):
            self.judge(0)
            self.note_left((), {})

    def find_causes(self) -> "Any":
        """Why a process may be alone: kind, line of the script, value."""
        causes = list(dict.fromkeys(self.lonely))
        address = os.environ.get("MASTER_ADDR", "")
        if address and address != self.planned["MASTER_ADDR"]:
            if os.environ.get("TORCHELASTIC_RUN_ID", RUN) != RUN:
                return [("torchrun", "", "")]
            causes.append(("address", find_assignment(self.script, "MASTER_ADDR", address), address))
        if is_single_for_accelerate():
            causes.append((names.ACCELERATE, "", ""))
        elif "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules:
            causes.append(("lightning", "", ""))
        elif self.joined:
            causes.append(("unused", "", ""))
        for kind, option in OPTIONS:
            line = search_source(self.script, QUOTED % option)
            if line and not self.joined and not any(re.match(option, word) for word in sys.argv):
                return [*causes, (kind, line, "")]
        return causes

    @quietly
    def answer_requests(self) -> None:
        """Starts a thread that sleeps until the guard, at a stall, opens this process's pipe, and then appends the last
        collective of each group to the rank's stacks. The second time there is a pipe already, and nothing is done."""
        import threading

        path = "%s.%d%s" % (self.base, os.getpid(), names.ASK)
        os.mkfifo(path, 0o600)

        @quietly
        def append_line() -> None:
            last = sorted(list_collectives(), key=lambda collective: collective["done"])[:GROUPS]
            while len(json.dumps(last)) > names.STACK_LIMIT // 2:  # of many ranks: no more of it would be kept
                last.pop()
            lines = names.COLLECTIVES + json.dumps(last if sys.modules[C10D].is_initialized() else None) + "\n"
            handled = describe_handled_error(threading.main_thread().ident)
            if handled:
                lines += names.RAISED + json.dumps(handled) + "\n"
            fd = os.open(self.base + names.STACKS, os.O_WRONLY | os.O_APPEND)
            os.write(fd, lines.encode())
            os.close(fd)

        def answer() -> None:
            while True:
                with open(path, "rb") as asked:
                    asked.read()
                append_line()

        threading.Thread(target=answer, name="ipexctl-collectives", daemon=True).start()

    @quietly
    def note_left(self, args: "Any", kwargs: "Any") -> None:
        """torch's own world is left, as by `destroy_process_group`: how many collectives this rank took part in."""
        group = sys.modules[C10D]
        world, left = group._get_default_group(), kwargs.get("group", (*args, None)[0])
        if left in (None, world) and world.size() == self.count:
            fields = {"via": "torch", "size": self.count, "member": world.rank(), "exchanged": self.exchanged}
            self.write("left", names.WORLD, collectives=count_collectives(world), **fields)

    # -- other ways to meet -------------------------------------------------------------------------------------------

    @quietly
    def hook_mpi(self, module: "Any") -> None:
        """mpi4py initialises MPI as it is imported, unless it was told not to."""

        def note(*_: "Any") -> None:
            if module.Is_initialized() and not module.Is_finalized():
                world = module.COMM_WORLD
                # impi loads MPI for torch's groups, which are noted when they are used.
                if not any(IMPI in file for file, _ in list_frames()):
                    self.note_world("mpi", world.Get_size(), world.Get_rank(), True)
                if world.Get_size() > 1:
                    self.hook_exit()

        note()
        for name in ("Init", "Init_thread"):
            names.call_around(module, name, after=note)

    @quietly
    def note_end(self, error: BaseException) -> None:
        """Has mpi4py end the whole job, as ``python -m mpi4py`` does after an exception: MPI_Finalize waits for ranks
        that wait for it. Not where another finalises, as impi, whose ranks learn from each other why they end."""
        mpi: Any = sys.modules.get("mpi4py.MPI")
        rc: Any = sys.modules.get("mpi4py.rc")
        if rc and rc.finalize is False:
            return
        if mpi and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.Get_size() > 1:
            __import__("mpi4py.run").run.set_abort_status(error)  # of mpi4py 3.0 and later

    @quietly
    def hook_horovod(self, module: "Any") -> None:
        def note(args: "Any", _: "Any") -> None:
            self.note_world("horovod", args[0].size(), args[0].rank(), True)

        names.call_around(module.HorovodBasics, "init", after=note)

    @quietly
    def hook_rpc(self, module: "Any") -> None:
        def note(*_: "Any") -> None:
            agent = module.api._get_current_rpc_agent()
            self.note_world("rpc", len(agent.get_worker_infos()), agent.get_worker_info().id, True)

        names.call_around(module, "init_rpc", after=note)


def list_collectives() -> "Any":
    """The first collective of each process group that has not ended, or the last. Gloo's are in the flight recorder of
    a torch that has one for it; impi's groups know theirs."""
    c10d, torch = sys.modules[C10D], sys.modules["torch"]
    recorded: Any = {}

    def count_bytes(sides: "Any", dtype: str) -> int:
        return torch.Size(sides).numel() * getattr(torch, dtype.lower(), torch.uint8).itemsize  # type: ignore

    for name, entry in read_flight_record():
        if recorded.get(name, {"done": True})["done"]:
            recorded[name] = {
                "number": entry["collective_seq_id"], "kind": entry["profiling_name"].partition(":")[2],
                "size": sum(map(count_bytes, entry["input_sizes"], entry["input_dtypes"])), "done": entry["retired"],
            }  # fmt: skip
    for group, name in list(c10d._world.pg_names.items()):
        describe = getattr(group, "describe_collective", None)
        last = describe() if describe else recorded.get(name)
        if last:
            yield dict(last, group=name, ranks=list(c10d._world.pg_group_ranks[group]), rank=c10d.get_rank())


def read_flight_record() -> "Any":
    """The latest collectives over Gloo, each with the name of its group: of a torch that has a recorder for it."""
    dump = getattr(sys.modules["torch._C._distributed_c10d"], "_dump_fr_trace_json", None)
    entries = json.loads(dump(True, False)).get("entries", ()) if dump else ()
    return [(entry["process_group"][0], entry) for entry in entries if not entry["is_p2p"]]


def count_collectives(group: "Any") -> "Any":
    """How many collectives of a group this rank took part in; None where nothing counts them. Gloo's own number counts
    messages between two ranks, too."""
    if hasattr(group, "describe_collective"):
        return group._get_sequence_number_for_group()
    own = sys.modules[C10D]._world.pg_names[group]
    return max((entry["collective_seq_id"] for name, entry in read_flight_record() if name == own), default=None)


def describe_handled_error(thread: "Any") -> "Any":
    """Returns the exception on the way of which a thread is in ``finally`` or ``except``; None without one."""
    import traceback

    list_errors = getattr(sys, "_current_exceptions", dict)  # not of the oldest Python
    error = list_errors().get(thread)
    error = error[1] if isinstance(error, tuple) else error  # before 3.12: as of sys.exc_info()
    if error is None:
        return None
    last = "".join(traceback.format_exception_only(type(error), error)).strip()
    text = "".join(traceback.format_tb(error.__traceback__))
    return {"error": last[:2000], "traceback": text[-20000:], "handled": True}


def is_single_for_accelerate() -> bool:
    """Returns whether Accelerate takes this rank for a single process; it makes a process group all the same."""
    state: Any = sys.modules.get("accelerate.state")
    shared = state.PartialState._shared_state if state else {}
    return str(shared.get("distributed_type", "")).endswith("NO")


def list_frames() -> "Any":
    """Files and lines of the calls that led here, the innermost first."""
    frame: Any = sys._getframe(1)
    places = []
    while frame is not None:
        places.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return places


def is_own(file: str) -> bool:
    """Returns whether a file is of the script, rather than of a library."""
    return file.endswith(".py") and not any(part in file for part in LIBRARIES)


def identify_directory(path: str) -> str:
    """Returns the type of the file system that a file is on, or will be (ext4, nfs4 …), and which directory of which
    file system it is in: containers of one machine may share one."""
    directory = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    place = os.stat(directory)
    with open("/proc/self/mounts") as mounts:
        types = {words[1]: words[2] for words in map(str.split, mounts)}
    while directory not in types and directory != "/":  # which in a chroot may be no mount
        directory = os.path.dirname(directory)
    return "%s %d:%d" % (types.get(directory, "?"), place.st_dev, place.st_ino)


def find_name_fault(name: str) -> str:
    """Returns why this host has no address for a name; "" where it has one."""
    import socket

    try:
        socket.getaddrinfo(name, None)
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", error))
    return ""


def find_call() -> str:
    """Returns the script's line that is being executed, ``path:number``."""
    return next(("%s:%d" % place for place in list_frames() if is_own(place[0])), "")


def find_assignment(script: str, name: str, value: str) -> str:
    """Where the script, or a library on the way here, sets a variable of the environment; "" where nothing does."""
    stack = [file for file, _ in list_frames()]
    base = os.path.dirname(script) + os.sep
    loaded = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    own = [file for file in [*stack, script, *(file for file in loaded if file.startswith(base))] if is_own(file)]
    libraries = [file for file in stack if not any(part in file for part in HOOKS)]
    for file in list(dict.fromkeys([*own[:FILES], *libraries])):
        for pattern in (ASSIGNED % name + r".*\b" + re.escape(value), ASSIGNED % name):
            line = search_source(file, pattern)
            if line:
                return line
    return ""


def was_started_with(variable: str) -> bool:
    """Returns whether this process was started with ``NAME=value``, whatever its script has set since."""
    with open("/proc/self/environ", "rb") as file:
        return variable.encode() in file.read().split(b"\0")


def search_source(file: str, pattern: str) -> str:
    """``path:number`` of the first line of a source file with this pattern."""
    if not file.endswith(".py"):
        return ""
    try:
        with open(file, "rb") as source:
            lines = source.read(LARGEST).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next(("%s:%d" % (file, at) for at, line in enumerate(lines, 1) if re.search(pattern, line)), "")
