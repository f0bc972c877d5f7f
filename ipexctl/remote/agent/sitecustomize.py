"""Loaded by every Python that a rank starts. It tells how far the rank has come, keeps an uncaught exception for the
report, lets the guard ask where the program stands (`STACKS_SIGNAL`), and keeps Python's end from tripping over Gloo's
threads. It changes nothing else, and never raises.

Files below ``$IPEXCTL_DIR/ranks``: ``<rank>.<stage>.json``, ``<rank>.<pid>.error``, ``<rank>.<pid>.thread`` and
``<rank>.stacks``."""

import os
import sys

TYPE_CHECKING = False  # importing typing would cost every interpreter more than all the rest here
if TYPE_CHECKING:
    from typing import Any

    from ipexctl.protocol import hooks as names
else:
    import _ipexctl_hooks as names  # the same file, put beside this one

COLLECTIVES = (  # the first of them is the first that DistributedDataParallel does
    "_verify_params_across_processes", "barrier", "all_reduce", "broadcast", "all_gather", "all_gather_into_tensor",
    "all_gather_object", "broadcast_object_list", "reduce_scatter_tensor", "reduce_scatter", "reduce", "gather",
    "scatter", "all_to_all", "all_to_all_single", "gather_object", "scatter_object_list", "send", "recv",
    "batch_isend_irecv",
)  # fmt: skip

# what Python and torch write of a full disk; torch the same of any file that it cannot write
DISK_FULL = ("No space left", "Disk quota exceeded", "iostream error", "unexpected pos")
LEAST_ROOM = 1 << 20  # free bytes of a disk that is not full
LOST_WORKER = "RuntimeError: DataLoader worker "  # torch/utils/data/dataloader.py
OF_LOST = ("BrokenProcessPool", "EOFError", "ConnectionResetError", "BrokenPipeError", "Empty")  # of queues, too
OF_RESULT = "Cannot extract tensors from value: "
ERRORS = 8  # exceptions kept of one rank's processes: the latest
WORDS = 8000  # letters kept of a command line

C10D = "torch.distributed.distributed_c10d"
WORLDS = {  # modules by which processes meet or train → what `_ipexctl_worlds.Worlds` does with them
    "torch.optim.optimizer": "hook_optimizers", "torch.distributed.rpc": "hook_rpc", "mpi4py.MPI": "hook_mpi",
    "horovod.common.basics": "hook_horovod", "torch.nn.parallel.distributed": "hook_wrapper",
}  # fmt: skip
LIBRARY = rb"/lib(ccl|mpi|fabric|iomp5|omp|gomp)(-\w+)?\.so[.0-9]*$"

LOOP = b"pt_gloo_runloop"  # what torch calls the threads of Gloo that let go of tensors (ProcessGroupGloo.cpp)
LOOP_POLL = 0.03  # seconds between two looks at them: who waits for Python's lock wakes every 5 ms
LOOP_TIMEOUT = 10.0  # seconds until the rank goes on all the same


def take_signals_in_thread(fd: int) -> None:
    """Leaves the signals for stacks to a thread that does nothing else. A signal ends the system call of its thread,
    which C libraries take for an error, or for the end of a sleep: a rank must not change because it was looked at."""
    import _thread
    import faulthandler
    import signal

    request, at_once = [names.STACKS_REQUEST], [names.STACKS_SIGNAL]

    def answer() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, at_once)
        while True:
            signal.sigwait(request)
            faulthandler.dump_traceback(fd)  # with Python's lock

    def leave_thread() -> None:
        signal.signal(names.STACKS_REQUEST, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, at_once)

    os.register_at_fork(after_in_child=leave_thread)
    signal.pthread_sigmask(signal.SIG_BLOCK, request)
    _thread.start_new_thread(answer, ())
    signal.pthread_sigmask(signal.SIG_BLOCK, at_once)  # here, and in the threads and processes that come after
    signal.signal(names.STACKS_REQUEST, signal.SIG_IGN)  # by which others know that it is taken


class Hooks(names.ModuleHooks):
    def __init__(self, directory: str, rank: str) -> None:
        hooks = {"threading": self.hook_threads, "multiprocessing.process": self.hook_joins}
        hooks["concurrent.futures._base"] = self.hook_futures
        super().__init__(dict(hooks, **{"torch.distributed": self.wrap_collectives, C10D: self.wrap_rendezvous}))
        self.base = os.path.join(directory, names.RANKS, rank)
        self.reached: "Any" = set()
        self.worlds: "Any" = None
        meeting = os.environ.get(names.MEETING_ENV, "")
        if meeting and not meeting.endswith(" 0"):  # there are other ranks
            self.hooks.update(dict.fromkeys(WORLDS, self.hook_world))
        self.meeting = directory, rank, meeting
        self.excepthook: "Any" = None

    @names.quietly
    def record_stage(self, stage: str) -> None:
        """The rank is at this stage. Said once, by the first of its processes that gets there."""
        if stage not in self.reached:
            self.reached.add(stage)
            if sys.excepthook is not self.excepthook:  # the script, or a library, has one of its own
                self.excepthook = sys.excepthook = self.make_excepthook(sys.excepthook)
            import time

            names.write_once("%s.%s%s" % (self.base, stage, names.RECORD), '{"at": %r}' % time.time())

    def make_excepthook(self, before: "Any") -> "Any":
        def note(kind: "Any", error: BaseException, trace: "Any") -> None:
            shorten_message(error)
            self.record_error(names.ERROR, kind, error, trace, grouped=names.CONNECTED in self.reached)
            self.record_failure()
            before(kind, error, trace)
            if self.worlds:
                self.worlds.note_end(error)

        return note

    @names.quietly
    def record_failure(self) -> None:
        """The script of a program that was up has failed; threads of it may serve on, and nobody else would notice."""
        is_script = os.getsid(0) == os.getpid()
        if is_script and os.path.exists("%s.%s%s" % (self.base, names.READY, names.RECORD)):
            self.record_stage(names.FAILED)

    @names.quietly
    def record_last_error(self) -> None:
        """Keeps the exception that ended the script where a hook that was set after the last stage has written it."""
        error = getattr(sys, "last_value", None)
        if error is not None and not os.path.exists("%s.%d%s" % (self.base, os.getpid(), names.ERROR)):
            self.make_excepthook(lambda *_: None)(type(error), error, error.__traceback__)

    @names.quietly
    def note_exit(self, error: "Any") -> None:
        """Notes how and where the script ends, as its process may be killed before it has. What it handled then, and
        may have written into a file of its own, is why it fails; but 2 is the status of refused arguments."""
        code, cause = error.code, error.__context__
        end: "Any" = {"exit_line": error.line, "status": 1}  # as Python does with words
        if code is None or isinstance(code, int):
            end["status"] = int(code or 0) & 0xFF  # which may be a truth value; 256 is 0 to the system
        else:
            end["error"] = str(code)[:2000]
            if not isinstance(code, (str, BaseException)):
                end["observed"] = names.EXIT_VALUE, type(code).__name__
        if cause is not None and end["status"] not in (0, 2):
            self.record_error(names.ERROR, type(cause), cause, cause.__traceback__, **end)
        else:
            end["at"] = __import__("time").time()
            names.write_once("%s.%d%s" % (self.base, os.getpid(), names.ERROR), __import__("json").dumps(end))
        if end["status"]:
            self.record_failure()
        if self.worlds:
            self.worlds.note_end(error)

    def hook_exit(self) -> None:
        """Has ``sys.exit(3)`` noted, for which Python calls no hook: its exception dies outside of all frames
        where nobody has caught it."""
        note_exit, own = self.note_exit, sys.exit
        find_call = names.quietly(lambda: __import__("_ipexctl_worlds").find_call())

        class ScriptExit(SystemExit):
            line = ""

            def __del__(self) -> None:
                if sys._getframe().f_back is None:
                    note_exit(self)

            def __reduce__(self) -> "Any":
                return SystemExit, self.args

        def exit(*status: "Any") -> "Any":
            error: "Any" = None
            try:
                own(*status)  # which takes a tuple apart, and an exception as it is
            except SystemExit as raised:
                error = raised
            threading: "Any" = sys.modules.get("threading")
            in_thread = threading and threading.get_ident() != threading.main_thread().ident
            if type(error) is SystemExit and not in_thread:  # there it is no more than the end of the thread
                error = ScriptExit(*error.args)
                error.line = find_call() or ""
            try:
                raise error
            finally:
                del error  # which its traceback would keep until the collector comes, in whatever frame that is

        if sys.exit.__module__ == "sys":  # a script may have its own
            sys.exit = exit
            builtins = __import__("builtins")
            for name in {"exit", "quit"} & set(vars(builtins)):  # of the module site, for a keyboard
                setattr(builtins, name, exit)

    def hook_threads(self, module: "Any") -> None:
        """An exception that ends a thread ends nothing else, and those who wait for the thread wait for ever."""
        before = module.excepthook  # not of the oldest Python

        def note(args: "Any") -> None:
            if args.exc_type is not SystemExit:
                thread = getattr(args.thread, "name", "a thread")
                self.record_error(names.THREAD_ERROR, args.exc_type, args.exc_value, args.exc_traceback, thread=thread)
            before(args)

        module.excepthook = note

    def hook_futures(self, module: "Any") -> None:
        """An executor keeps the exception of a task for who asks for its result. Where nobody does, as for that of a
        checkpoint that is written beside the training, it is lost with the task."""
        import atexit
        import weakref

        failed: "Any" = weakref.WeakSet()
        in_result = module.Future.result.__code__
        routine = (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt, module.CancelledError)

        def note_asked(args: "Any", _: "Any") -> None:
            args[0].ipexctl_asked = True

        def note_lost(task: "Any") -> None:
            error = task._exception
            if error is None or isinstance(error, routine) or hasattr(task, "ipexctl_asked"):
                return
            # Empty where it was only set, as by torch's pool of compilers when that is closed.
            raised = [frame.f_code for frame, _ in __import__("traceback").walk_tb(error.__traceback__)]
            if raised and in_result not in raised:
                where = {"thread": "a task of an executor", "grouped": names.CONNECTED in self.reached}
                self.record_error(names.THREAD_ERROR, type(error), error, error.__traceback__, **where)

        def note_kept() -> None:
            for task in list(failed):
                note_lost(task)

        names.call_around(module.Future, "set_exception", after=lambda args, _: failed.add(args[0]))
        names.call_around(module.Future, "exception", note_asked)
        module.Future.__del__ = names.quietly(note_lost)
        atexit.register(names.quietly(note_kept))

    def hook_joins(self, module: "Any") -> None:
        """Whoever waits for what a killed process was to do waits for ever, as a ``Pool`` that has started another."""

        def note(args: "Any", _: "Any") -> None:
            code = args[0].exitcode or 0
            if code < 0 and code != -15:  # by which a pool ends its processes
                error = ChildProcessError("killed by signal %d" % -code)
                self.record_error(names.THREAD_ERROR, ChildProcessError, error, None, thread=args[0].name)

        names.call_around(module.BaseProcess, "join", after=note)
        names.call_around(module.BaseProcess, "_bootstrap", self.hook_process)

    def hook_process(self, *_: "Any") -> None:
        """An exception that ends a process of ``multiprocessing`` comes to no hook: its ``_bootstrap`` prints it. So
        does a queue with one of the thread that pickles what is put: whoever waits for that, as a batch, waits on."""

        def note(*_: "Any") -> None:
            kind, error, trace = sys.exc_info()
            caller = trace and trace.tb_frame.f_code.co_name
            if caller == "_bootstrap":
                self.record_error(names.ERROR, kind, error, trace)
            elif caller == "_feed":
                self.record_error(names.THREAD_ERROR, kind, error, trace, thread="the thread of a queue")

        names.call_around(__import__("traceback"), "print_exc", note)

    def record_error(self, ending: str, kind: "Any", value: "Any", trace: "Any", **fields: "Any") -> None:
        for _ in range(2):  # a handler of a signal may raise meanwhile, as that of a DataLoader whose worker has died
            try:
                drop_own_frames(value)
                report = dict(describe_error(kind, value, trace), **fields)
                path = "%s.%d%s" % (self.base, os.getpid(), ending)
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
                    __import__("json").dump(report, out)
                import glob

                # A helper that fails at each of a million steps, which its rank knows how to handle, fills no disk.
                kept = sorted(glob.glob(glob.escape(self.base) + ".*" + ending), key=os.path.getmtime)
                for path in kept[:-ERRORS]:
                    os.unlink(path)
                return
            except Exception:
                pass  # whatever goes wrong here must not hide the user's own error

    def enable_stack_dumps(self) -> None:
        """A crash (SIGSEGV and the like) and `STACKS_SIGNAL` leave the stacks of all threads in a file."""
        import faulthandler

        if faulthandler.is_enabled():
            return  # the user has asked for its own
        fd = os.open(self.base + names.STACKS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if fd <= 2:  # the script has closed its own outputs; what it opens next must get these numbers
            os.close(fd)
            return
        faulthandler.enable(fd)
        names.quietly(take_signals_in_thread)(fd)  # there may be no more threads: the program's own gets it then
        # The last: who asks looks for this one first, and would have interrupted the program's own thread.
        faulthandler.register(names.STACKS_SIGNAL, fd, all_threads=True, chain=False)

    @names.quietly
    def record_libraries(self) -> None:
        """Which libraries that should be there once are loaded, by the first process of the rank that has torch: after
        its first collective, or at its end."""
        path = self.base + names.LIBRARIES
        if "torch" not in sys.modules or os.path.exists(path):
            return
        import re

        with open("/proc/self/maps", "rb") as maps:
            found = {line.split(None, 5)[5].rstrip() for line in maps if b".so" in line}
        named = sorted(name for name in found if re.search(LIBRARY, name))
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(b"\n".join(named))

    @names.quietly
    def wait_for_gloo_threads(self) -> None:
        """Waits until Gloo's threads rest, which takes two looks.

        They take Python's lock to let go of a tensor. Where Python is being taken down, the lock ends the thread, which
        C++ answers with "terminate called without an active exception" (9 of 20 ranks with one core each, torch
        2.13.0; pytorch/pytorch#179291). Where the last to hold the process group drops it with the lock held, as
        DistributedDataParallel's reducer does at the end of a script's main, both wait for each other for ever."""
        if names.CONNECTED not in self.reached:
            return
        import time

        end = time.monotonic() + LOOP_TIMEOUT
        before = None
        while time.monotonic() < end:
            time.sleep(LOOP_POLL)
            now = read_gloo_threads()  # without /proc it has had its moment
            if now == before and all(state == b"S" for state, _ in now.values()):
                return
            before = now

    def leave_group(self, args: "Any", kwargs: "Any") -> None:
        if self.worlds:
            self.worlds.note_left(args, kwargs)
        self.wait_for_gloo_threads()

    # The import system asks this before its own finders.

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name == "torch":
            self.record_stage(names.TORCH)
        return super().find_spec(name, path, target)

    def load_worlds(self) -> "Any":
        """Returns what watches how this rank meets others; None where there are none."""
        directory, rank, meeting = self.meeting
        if meeting and self.worlds is None:  # not before the script needs it
            self.worlds = __import__("_ipexctl_worlds").Worlds(directory, rank, meeting, self.hook_exit)
        return self.worlds

    def hook_world(self, module: "Any") -> None:
        getattr(self.load_worlds(), WORLDS[module.__name__])(module)

    def wrap_rendezvous(self, module: "Any") -> None:
        """Notes the entry into the rendezvous and its end, whichever module it is called from."""
        worlds = self.load_worlds()

        def enter(args: "Any", kwargs: "Any") -> None:
            if worlds:
                worlds.note_rendezvous(args, kwargs)
            self.record_stage(names.RENDEZVOUS)

        def leave(*_: "Any") -> None:
            self.record_stage(names.CONNECTED)
            if worlds and worlds.count:
                worlds.note_group()
                worlds.answer_requests()

        names.call_around(module, "init_process_group", enter, leave)

    def wrap_collectives(self, module: "Any") -> None:
        """Notes the entry into and the end of the first collective; then all is as it was, unless that was a barrier,
        which moves no data."""
        functions, worlds = vars(module), self.load_worlds()
        first = {name: functions[name] for name in COLLECTIVES if callable(functions.get(name))}

        def enter(*_: "Any") -> None:
            self.record_stage(names.FIRST_COLLECTIVE)

        def leave(name: str) -> None:
            self.record_stage(names.RUNNING)
            if name != "barrier":
                for each, own in first.items():
                    if getattr(functions.get(each), "__wrapped__", None) is own:
                        functions[each] = own
                self.record_libraries()
            if worlds and worlds.count:
                worlds.note_collective(name)

        for name in first:
            names.call_around(module, name, enter, lambda *_, name=name: leave(name))
        if worlds and "TCPStore" in functions:
            names.call_around(functions["TCPStore"], "__init__", worlds.note_store)
        if callable(functions.get("destroy_process_group")):
            names.call_around(module, "destroy_process_group", self.leave_group)


def describe_error(kind: "Any", error: "Any", trace: "Any") -> "Any":
    """Returns what is kept of an exception."""
    import time
    import traceback

    text = "".join(traceback.format_exception(kind, error, trace, -1000))  # as many as Python prints: each is parsed
    last = "".join(traceback.format_exception_only(kind, error)).strip()
    if isinstance(error, SyntaxError):  # the lines of which begin with the text of the script
        last = "%s: %s" % (kind.__name__, error)
    if kind.__name__ == "CalledProcessError":  # what it wrote where that was captured is printed by nobody
        wrote = error.stderr or error.output or ""
        text += wrote.decode("utf-8", "replace") if isinstance(wrote, bytes) else str(wrote)
    observed: "Any" = None
    if isinstance(error, (ImportError, OSError)) and not os.path.exists(sys.prefix):
        observed = names.ENV_GONE, sys.prefix
    room = find_tightest_directory(error, trace) if any(words in text for words in DISK_FULL) else None
    if room and room[1] >= LEAST_ROOM and any(words in text for words in DISK_FULL[2:]):
        observed = observed or find_file_limit()
    report: "Any" = {"error": cut(last, 2000), "traceback": cut(text, 20000), "at": time.time()}
    with open("/proc/self/cmdline", "rb") as cmdline:
        report["argv"] = format_command(os.fsdecode(cmdline.read()).split("\0")[:-1])
    report.update(room=room, observed=observed)
    if kind.__name__ == "CalledProcessError":
        report["of"] = format_command(error.cmd)
    elif kind.__name__ == "ChildFailedError":  # torchrun's, whose child has its own
        report["child"] = error.get_first_failure()[1].pid
    elif kind.__name__ == "ProcessExitedException":  # of torch.multiprocessing.spawn, likewise
        report["child"] = error.error_pid
    elif last.startswith(LOST_WORKER) or {
        type(each).__name__ for each in (error, error.__cause__, error.__context__)
    }.intersection(OF_LOST):
        report["lost"] = True
    return report


def find_file_limit() -> "Any":
    """Returns the limit of the account for the size of a file; None where there is none."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if limit == resource.RLIM_INFINITY else (names.FILE_LIMIT, str(limit))


def shorten_message(error: "Any") -> None:
    """Keeps the group's own error of that of its result: torch puts words before it, and stacks behind."""
    text = str(error) if type(error) is RuntimeError else ""
    if text.startswith(OF_RESULT):
        error.args = (text[len(OF_RESULT) :].partition("\n\nAt:\n")[0],)


def drop_own_frames(error: "Any") -> None:
    """Takes the calls of this directory's modules out of the tracebacks of an exception and of what it was raised from,
    which Python 3.7 allows first."""
    own = os.path.dirname(os.path.abspath(__file__)) + os.sep
    for trace in [each.__traceback__ for each in (error, error.__cause__, error.__context__) if each is not None]:
        while trace is not None and sys.version_info >= (3, 7):
            while trace.tb_next is not None and trace.tb_next.tb_frame.f_code.co_filename.startswith(own):
                trace.tb_next = trace.tb_next.tb_next
            trace = trace.tb_next


def read_gloo_threads() -> "Any":
    """Gloo's threads: each one's state, and how often it has gone to sleep (proc(5): status)."""
    threads = {}
    tasks = "/proc/self/task/"
    for thread in os.listdir(tasks):
        try:
            with open(tasks + thread + "/status", "rb") as status:
                lines = dict(line.split(b":", 1) for line in status if b":" in line)
        except (OSError, ValueError):
            continue  # it has ended
        if lines.get(b"Name", b"").strip() == LOOP:
            threads[thread] = lines.get(b"State", b"").split()[0], lines.get(b"voluntary_ctxt_switches")
    return threads


def cut(text: str, room: int) -> str:
    """The beginning and the end of a text that is longer."""
    return text if len(text) <= room else "%s … %s" % (text[: room // 2], text[-room // 2 :])


def format_command(command: "Any") -> str:
    """Returns a command line, comparable with others."""
    return "\0".join(map(str, command if isinstance(command, (list, tuple)) else [command]))[:WORDS]


@names.quietly
def _install_hooks() -> None:
    directory, rank = os.environ.get(names.DIRECTORY_ENV), os.environ.get(names.RANK_ENV)
    if not directory or not rank:
        return
    hooks = Hooks(directory, rank)
    hooks.record_stage(names.PYTHON)
    hooks.enable_stack_dumps()
    sys.meta_path.insert(0, hooks)
    if os.getsid(0) == os.getpid():  # the script itself: its helpers end as they like, but for those who meet others
        hooks.hook_exit()
    import atexit

    atexit.register(hooks.record_libraries)
    atexit.register(hooks.wait_for_gloo_threads)  # the first to be registered is the last to be called
    atexit.register(hooks.record_last_error)
    if os.environ.get(names.PROFILE_ENV):
        __import__("_ipexctl_profile").install_profiler(directory, rank)  # it lies beside this file then
    if "threading" in sys.modules:  # the last: the oldest Python has no hook there
        hooks.hook_threads(sys.modules["threading"])


def find_tightest_directory(error: "Any", trace: "Any") -> "Any":
    """Returns where an exception meets a full disk, and the free bytes: of the files that its calls had in hand or that
    are open, and of the current directory."""
    named, places = [getattr(error, "filename", None), "."], {}
    opened = [os.path.realpath("/proc/self/fd/" + number) for number in os.listdir("/proc/self/fd")[:1000]]
    named += [path for path in opened if os.path.isfile(path)]
    while trace is not None:
        named += trace.tb_frame.f_locals.values()
        trace = trace.tb_next
    for each in named:
        if isinstance(each, (str, os.PathLike)):
            path = os.path.dirname(os.path.abspath(each))
            if path not in places and os.path.isdir(path):
                room = os.statvfs(path)
                places[path] = room.f_bavail * room.f_frsize
    return min(places.items(), key=lambda place: place[1])


def _run_next_sitecustomize() -> None:
    """Another sitecustomize further down the path (a distribution's, a user's) still gets its turn."""
    own_folder = os.path.dirname(os.path.abspath(__file__))
    for folder in sys.path:
        path = os.path.join(folder or ".", "sitecustomize.py")
        if os.path.abspath(folder or ".") != own_folder and os.path.exists(path):
            with open(path, "rb") as source:
                exec(compile(source.read(), path, "exec"), {"__name__": "sitecustomize", "__file__": path})
            return


_install_hooks()
_run_next_sitecustomize()
