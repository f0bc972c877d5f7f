"""Stacks as faulthandler writes them, grouped; and what is said of ranks that do not get on."""

import json
from typing import Any

import pytest

from ipexctl.decide.diagnosis.collectives import describe_collectives, have_mismatch
from ipexctl.decide.diagnosis.stack_traces import (
    describe_errors,
    describe_places,
    describe_stall,
    describe_stall_cause,
    find_odd_ranks,
    find_script_line,
    format_comparison,
    group_stacks,
    have_raised,
    parse_main_thread,
    show_stall,
)
from ipexctl.model.events import RankStack, Stalled
from ipexctl.protocol.hooks import COLLECTIVES, RAISED
from ipexctl.verbs.common.known_errors import read_known_errors
from tests.tables import read_table

FAULT = """\
Thread 0x00007f9a3ffff640 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/threading.py", line 995 in _bootstrap

Current thread 0x00007f9a80b1a740 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/u/train.py", line 88 in step
  File "/home/u/train.py", line 120 in <module>
"""
CRASH = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f9a3ffff640 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/u/train.py", line 15 in read
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f9a80b1a740 (most recent call first):
  File "/home/u/train.py", line 90 in <module>

Extension modules: numpy.core._multiarray_umath (total: 1)
"""
LOADER = """\
Thread 0x00007f9a3ffff640 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f9a80b1a740 (most recent call first):
  File "/home/u/data.py", line 41 in read
  File "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 701 in __next__
  File "/home/u/train.py", line 80 in <module>
"""


def stack(rank: int, text: str = FAULT, state: str = "R", wchan: str = "") -> RankStack:
    return RankStack(rank, f"xeon{rank // 2:02d}", 100 + rank, state, wchan, text)


def test_the_main_thread_is_the_last_of_faulthandlers() -> None:
    assert [frame.function for frame in parse_main_thread(FAULT)] == ["all_reduce", "wrapper", "step", "<module>"]
    assert [frame.function for frame in parse_main_thread(LOADER)] == ["read", "__next__", "<module>"]
    assert parse_main_thread(f"{FAULT}\n...\n") == (), "the newest hundred threads are written, and not this one"
    assert parse_main_thread("") == parse_main_thread("rubbish\n\x1b[2J") == ()


BACKWARD = """\
Current thread 0x00007f9a80b1a740 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/autograd/graph.py", line 825 in _engine_run_backward
  File "/v/lib/python3.11/site-packages/torch/_tensor.py", line 581 in backward
  File "/home/u/train.py", line 90 in step
"""


def test_a_backward_pass_that_sleeps_waits_for_other_ranks() -> None:
    waiting, computing = group_stacks([stack(0, BACKWARD, "S"), stack(1, BACKWARD, "R")])
    assert (waiting.ranks, waiting.waits, waiting.function, waiting.line) == ((0,), True, "backward", "train.py:90")
    assert (computing.ranks, computing.waits) == ((1,), False)


def test_ranks_at_the_same_place_are_one_group_and_the_odd_one_is_named() -> None:
    result = group_stacks([*(stack(rank) for rank in range(6) if rank != 3), stack(3, LOADER)])
    assert find_odd_ranks(result) == (3,)
    assert format_comparison(result, 6) == [
        "5 of 6 ranks wait in all_reduce, rank 3 on xeon01 does not",
        "  ranks 0-2,4-5  torch/distributed/distributed_c10d.py:2810 all_reduce ← train.py:88 step",
        "  rank 3         data.py:41 read",
    ]


def test_the_same_place_below_another_home_is_one_place() -> None:
    elsewhere = FAULT.replace("/home/u/", "/scratch/v/").replace("/v/lib/", "/opt/torch/lib/")
    launched = '  File "<frozen runpy>", line 88 in _run_code\n'
    result = group_stacks([stack(rank, (FAULT if rank % 2 else elsewhere) + launched) for rank in range(4)])
    assert [(group.ranks, group.line) for group in result] == [((0, 1, 2, 3), "train.py:88")]
    other = group_stacks(
        [stack(0), stack(1, FAULT.replace('/home/u/train.py", line 88', '/home/u/b/train.py", line 88'))]
    )
    assert len(other) == 2


def test_a_rank_that_cannot_answer_is_reported_with_its_state() -> None:
    result = group_stacks([stack(0), stack(1, "", "D", "nfs_wait_bit_killable"), stack(2)])
    assert "stuck in the kernel" in format_comparison(result, 3)[2]
    assert "(in nfs_wait_bit_killable)" in format_comparison(result, 3)[2]


LOCKED = """\
Current thread 0x00007f9a80b1a740 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/utils/file_baton.py", line 49 in wait
  File "/v/lib/python3.11/site-packages/torch/utils/cpp_extension.py", line 2378 in _jit_compile
  File "/v/lib/python3.11/site-packages/deepspeed/ops/op_builder/builder.py", line 531 in load
  File "/home/u/train.py", line 9 in <module>
"""


def test_ranks_that_wait_for_the_lock_of_an_extension_are_reported_with_the_remedy() -> None:
    lines = format_comparison(group_stacks([stack(0), stack(2, LOCKED, "S"), stack(3, LOCKED, "S")]), 3)
    who = "ranks 2-3 on xeon01: waiting for the lock of an extension of torch, which another process compiles"
    assert who in lines
    assert "~/.cache/torch_extensions/*/*/lock" in lines[-1]
    assert len(format_comparison(group_stacks([stack(0)]), 1)) == 1


ENDED = "the script has ended, and its process waits for"


@pytest.mark.parametrize(
    ("frames", "note"),
    [
        (["lib/python3.11/threading.py", 1583, "_shutdown"],
         f"{ENDED} a thread that is no daemon"),
        (["lib/python3.11/site-packages/jax/_src/distributed.py", 199, "shutdown"],
         f"{ENDED} a function of atexit"),
        (["lib/python3.11/threading.py", 320, "wait",
          "lib/python3.11/site-packages/torch/_inductor/async_compile.py", 818, "wait",
          "home/u/train.py", 9, "<module>"], "torch.compile compiles, which takes minutes where cores are few"),
        (["lib/python3.11/site-packages/filelock/_api.py", 344, "acquire", "home/u/train.py", 9, "<module>"],
         "waiting for a file lock, which another process holds while it compiles, downloads or prepares data"),
        (["lib/python3.11/threading.py", 320, "wait", "home/u/train.py", 9, "<module>"], ""),
        (["lib/python3.11/subprocess.py", 1, "wait", "lib/python3.11/multiprocessing/process.py", 108, "run"], ""),
        ([*["lib/python3.11/copy.py", 1, "deepcopy"] * 100], ""),
    ],
)  # fmt: skip
def test_a_rank_at_a_place_that_does_not_say_what_keeps_it_is_explained(frames: list[Any], note: str) -> None:
    places = zip(*[iter(frames)] * 3, strict=True)
    text = "".join(f'  File "/{file}", line {line} in {function}\n' for file, line, function in places)
    ended = "Current thread 0x1 (most recent call first):\n" + text
    lines = format_comparison(group_stacks([stack(0), stack(2, ended, "S")]), 2)
    assert lines[3:] == ([f"rank 2 on xeon01: {note}"] if note else [])


def test_all_at_one_place_and_each_at_another_are_reported() -> None:
    assert format_comparison(group_stacks([stack(0), stack(1)]), 2)[0] == "both ranks are at the same place"
    other = FAULT.replace("/torch/distributed/", "/numpy/")
    assert (
        format_comparison(group_stacks([stack(0, other), stack(1, LOADER)]), 2)[0]
        == "the ranks are at 2 different places"
    )
    assert format_comparison([], 2) == []
    assert find_odd_ranks(group_stacks([stack(0), stack(1)])) == find_odd_ranks([]) == ()


BARRIER = FAULT.replace("all_reduce", "barrier")
GROUP = FAULT.replace("all_reduce", "new_group")
MEMBERS = "all ranks must call new_group as often and in one order, those that are no members too"


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        ([FAULT, *[LOADER] * 3], "1 of 4 ranks waits in all_reduce, ranks 1-3 on xeon00, xeon01 do not"),
        ([FAULT, FAULT, BARRIER, LOADER], "3 of 4 ranks wait in all_reduce or barrier, rank 3 on xeon01 does not"),
        ([FAULT, BARRIER], "the ranks wait at 2 different places"),
        ([FAULT, GROUP], f"the ranks wait at 2 different places; {MEMBERS}"),
        ([GROUP, GROUP], f"both ranks are at the same place; {MEMBERS}"),
        ([GROUP, LOADER], "1 of 2 ranks waits in new_group, rank 1 on xeon00 does not"),
    ],
)
def test_whoever_is_not_in_a_collective_is_the_odd_one(texts: list[str], line: str) -> None:
    assert format_comparison(group_stacks([stack(*each) for each in enumerate(texts)]), len(texts))[0] == line


def test_of_several_processes_of_a_rank_the_one_at_work_speaks() -> None:
    launcher = 'Thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/subprocess.py", line 1 in wait\n'
    assert group_stacks([stack(0, launcher), stack(0)])[0].function == "all_reduce"


def test_a_loaders_worker_speaks_where_its_rank_waits_for_it() -> None:
    """A forked worker has the stack of its parent below its own."""

    def write(*frames: str) -> str:
        lines = [f'  File "{file}", line {line} in {function}' for file, line, function in map(str.split, frames)]
        return "\n".join(["Thread 0x1 (most recent call first):", *lines]) + "\n"

    lib = "/v/lib/python3.11/site-packages/torch"
    forked = (
        f"{lib}/utils/data/_utils/worker.py 374 _worker_loop",
        "/usr/lib/python3.11/multiprocessing/process.py 108 run",
        "/usr/lib/python3.11/multiprocessing/process.py 314 _bootstrap",
        f"{lib}/utils/data/dataloader.py 1210 __init__",
        "/home/u/train.py 20 train", "/home/u/train.py 60 main", "/home/u/train.py 99 <module>",
    )  # fmt: skip
    main = ("/home/u/train.py 27 train", "/home/u/train.py 60 main", "/home/u/train.py 99 <module>")
    idle = write("/usr/lib/python3.11/multiprocessing/connection.py 948 wait", *forked)
    stuck = write("/home/u/train.py 13 __getitem__", *forked)
    backward = write(f"{lib}/autograd/graph.py 979 _engine_run_backward", *main)
    waits = write("/usr/lib/python3.11/selectors.py 415 select", f"{lib}/utils/data/dataloader.py 1448 _get", *main)
    stacks = [stack(0, backward, "S"), stack(0, idle, "S"), stack(1, waits, "S"), stack(1, stuck, "S")]
    groups = group_stacks(stacks)
    assert {group.ranks: group.line for group in groups} == {(0,): "train.py:27", (1,): "train.py:13"}
    assert find_odd_ranks(groups) == (1,)


@pytest.mark.parametrize(
    ("place", "wchan", "launch", "explained"),
    [
        ("/home/u/data.py", "futex_do_wait", "popen_fork", True),
        ("/v/lib/python3.11/site-packages/torch/nn/functional.py", "futex_wait_queue_me", "popen_fork", True),
        ("/home/u/data.py", "hrtimer_nanosleep", "popen_fork", False),
        ("/home/u/data.py", "futex_do_wait", "popen_spawn_posix", False),
        ("/usr/lib/python3.11/threading.py", "futex_do_wait", "popen_fork", False),
    ],
)
def test_a_forked_process_that_waits_for_what_its_parent_alone_has_is_explained(
    place: str, wchan: str, launch: str, explained: bool
) -> None:
    """As a worker that computes with torch after its parent has."""
    library = '  File "/usr/lib/python3.11/multiprocessing'
    child = f'Thread 0x1 (most recent call first):\n  File "{place}", line 3 in f\n  File "/home/u/t.py", line 4 in g\n'
    child += f'{library}/process.py", line 314 in _bootstrap\n{library}/{launch}.py", line 71 in _launch\n'
    rank = f'Thread 0x1 (most recent call first):\n{library}/process.py", line 149 in join\n'
    group = group_stacks([stack(0, rank, "S", "do_wait"), stack(0, child, "S", wchan)])[0]
    assert any("forked" in note for note in group.notes) == explained


def test_a_stall_is_one_line_with_ranks_hosts_and_states() -> None:
    hosts = ["a", "a", "b", "b"]
    stall = Stalled((0, 1, 2, 3), 60.2, "all", {"0": "R", "1": "R", "2": "R", "3": "D"})
    assert (
        describe_stall(stall, hosts)
        == "no progress for 60 s: all 4 ranks on a, b are silent (rank 3 on b stuck in the kernel)"
    )
    stall = Stalled((3,), 60.2, "stragglers", {})
    assert describe_stall(stall, hosts) == "3 of 4 ranks done for 60 s, still running: rank 3 on b"


@pytest.mark.parametrize(
    ("error", "cause"),
    [("RuntimeError: No CUDA GPUs are available", "a GPU is asked for; "), ("ValueError: of the script's own", "")],
)
def test_an_exception_behind_a_stall_is_named_where_it_is_known(error: str, cause: str) -> None:
    text = f"{RAISED}{json.dumps({'error': error, 'traceback': '', 'thread': 'Thread-3'})}\n"
    known = describe_stall_cause(read_known_errors, [stack(0, text)], "k7", "train.py")
    assert known[: len(cause) or None] == cause


def test_a_state_that_no_kernel_has_is_shown_as_it_came() -> None:
    """A damaged record: the watching goes on."""
    stall = Stalled((0, 1), 60.0, "all", {"0": "", "1": "tD"})
    assert describe_stall(stall, ["a", "b"]).startswith("no progress for 60 s: both ranks on a, b are silent")


def test_one_rank_has_a_verb_of_its_own() -> None:
    for kind, words in (("all", "is silent (processes"), ("some", "is silent and idle (")):
        stall = Stalled((1,), 60.0, kind, {"1": "S"})  # type: ignore[arg-type]
        assert describe_stall(stall, ["a", "b"]).startswith(f"no progress for 60 s: rank 1 on b {words}")
    output = format_comparison(group_stacks([stack(0), stack(1, LOADER)]), 2)
    assert output[0] == "1 of 2 ranks waits in all_reduce, rank 1 on xeon00 does not"


TRACEBACK = """Traceback (most recent call last):
  File "/home/u/train.py", line 61, in <module>
    main()
  File "/home/u/data.py", line 41, in read_batch
    return torch.load(name)
  File "/v/lib/python3.11/site-packages/torch/serialization.py", line 9, in load
    raise OSError(name)
OSError: b.pt
"""
CALLER = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 8, in main\nOSError: b.pt\n'


@pytest.mark.parametrize(
    ("traceback", "stacks", "line"),
    [
        (TRACEBACK, "", "data.py:41"),
        (TRACEBACK, FAULT, "data.py:41"),
        (TRACEBACK + '  File "<string>", line 117, in __init__\n', "", "data.py:41"),  # of a dataclass
        (
            TRACEBACK + '  File "/tmp/torch_geometric.nn.sage_conv_p3bdy7ph.py", line 229, in propagate\n',
            "",
            "data.py:41",
        ),
        (TRACEBACK + '  File "/tmp/torchinductor_u/ab/cabc.py", line 9, in call\n', "", "data.py:41"),
        (TRACEBACK + '  File "/tmp/my_training.py", line 9, in call\n', "", "my_training.py:9"),
        (f'multiprocess.pool.RemoteTraceback: \n"""\n{TRACEBACK}"""\n\n{CALLER}', "", "data.py:41"),
        ("", FAULT, "train.py:88"),
        ("", LOADER, "data.py:41"),
        ("Segmentation fault", "", ""),
        (CRASH, "", "train.py:15"),
        (CRASH.replace("/home/u/train.py", "/v/lib/python3.11/site-packages/x.py"), FAULT, "train.py:88"),
    ],
)
def test_the_line_of_the_script_is_the_innermost_of_the_users_own(traceback: str, stacks: str, line: str) -> None:
    assert find_script_line(traceback, stacks) == line


def test_places_have_the_stack_of_their_first_rank_innermost_first() -> None:
    wait, read = describe_places([stack(0), stack(1), stack(3, LOADER), stack(2), stack(3, "")])
    assert (wait.ranks, wait.hosts) == ((0, 1, 2), ("xeon00", "xeon01"))
    assert wait.frames == (
        "torch/distributed/distributed_c10d.py:2810 all_reduce",
        "torch/distributed/c10d_logger.py:81 wrapper",
        "train.py:88 step",
        "train.py:120 <module>",
    )
    assert (read.ranks, read.frames[0]) == ((3,), "data.py:41 read")
    [stopped] = describe_places([stack(0, "", "T")])
    assert (stopped.frames, stopped.where[:7]) == ((), "stopped")


def dump(*frames: str) -> str:
    """These frames, innermost first: ``torch/nn/x.py:3 forward`` of the environment, or ``~/train.py:3 f``."""
    lines = ["Current thread 0x1 (most recent call first):"]
    for frame in frames:
        file, _, function = frame.partition(" ")
        file, _, line = file.partition(":")
        path = file.replace("~", "/home/u") if file[0] in "~/<" else f"/v/lib/python3.11/site-packages/{file}"
        lines.append(f'  File "{path}", line {line} in {function}')
    return "\n".join(lines)


LOGGER, C10D = "torch/distributed/c10d_logger.py:83 wrapper", "torch/distributed/distributed_c10d.py"
HOOK = "/root/.ipexctl/runs/{}/hooks/sitecustomize.py:163 call"
INIT = (f"{C10D}:1800 init_process_group", LOGGER)


QUEUE = ("/usr/lib/python3.11/selectors.py:415 select", "/usr/lib/python3.11/multiprocessing/queues.py:113 get")
LOKY = (
    "joblib/externals/loky/process_executor.py:453 _process_worker",
    "/usr/lib/python3.11/multiprocessing/process.py:108 run",
    "/usr/lib/python3.11/multiprocessing/process.py:314 _bootstrap",
    "joblib/externals/loky/backend/popen_loky_posix.py:180 <module>",
)


@pytest.mark.parametrize(
    ("own", "others", "where"),
    [
        # mpi4py's gather beside idle workers of joblib
        (
            ["~/jl.py:19 <module>"],
            [[*QUEUE, *LOKY], ["joblib/externals/loky/backend/resource_tracker.py:357 main", "<string>:1 <module>"]],
            "jl.py:19 <module>",
        ),
        (
            ["joblib/parallel.py:1822 _retrieve", "~/jl.py:18 <module>"],
            [[*QUEUE, *LOKY], ["<dynamic-code>:15 work", "joblib/parallel.py:607 __call__", *LOKY]],
            "<dynamic-code>:15 work ← jl.py:18 <module>",
        ),
        (["joblib/parallel.py:1 get", "~/jl.py:18 f"], [[*QUEUE, *LOKY]], "joblib/parallel.py:1 get ← jl.py:18 f"),
        # torch.multiprocessing.spawn: the rank's work is in what it started; a worker that reads ahead is not the rank
        (
            ["torch/multiprocessing/spawn.py:130 join", "~/a.py:9 <module>"],
            [[f"{C10D}:2810 all_reduce", "~/a.py:5 train", "torch/multiprocessing/spawn.py:90 _wrap", *LOKY[1:3]]],
            f"{C10D}:2810 all_reduce ← a.py:5 train",
        ),
        (["~/a.py:9 <module>"], [["~/a.py:3 read", "~/a.py:5 work", *LOKY[1:3]]], "a.py:9 <module>"),
    ],
)  # fmt: skip
def test_a_process_of_multiprocessing_stands_for_its_rank_where_the_rank_waits_for_it(
    own: list[str], others: list[list[str]], where: str
) -> None:
    [group] = group_stacks([stack(0, dump(*frames), "S") for frames in (*others, own)])
    assert group.where == where


def test_our_own_hook_is_nobodys_line_and_hosts_with_other_directories_are_one_group() -> None:
    texts = [dump(*INIT, HOOK.format(rank), f"/disk{rank}/job/late.py:6 <module>") for rank in range(3)]
    result = group_stacks([stack(rank, text) for rank, text in enumerate(texts)])
    assert format_comparison(result, 3) == [
        "all 3 ranks are at the same place",
        f"  ranks 0-2  {C10D}:1800 init_process_group ← late.py:6 <module>",
    ]
    assert result[0].line == "late.py:6"
    raised = f'  File "{HOOK.format(1).partition(":")[0]}", line 163, in call\nRuntimeError: x\n'
    assert find_script_line('  File "/home/u/late.py", line 6, in <module>\n' + raised, "") == "late.py:6"
    assert not find_script_line('  File "/opt/env/bin/torchrun", line 10, in <module>\n', ""), (
        "a program of the environment"
    )


def test_how_a_backend_waits_is_no_other_place() -> None:
    """One polls, one sleeps, one looks who has left."""
    drive = ("impi_torch/_engine.py:300 drive", "impi_torch/_engine.py:105 wait", f"{C10D}:3252 all_reduce", LOGGER)
    ways = [
        ("impi_torch/_engine.py:222 turn",),
        ("impi_torch/_engine.py:330 _breathe",),
        ("impi_torch/_group.py:119 gone", "impi_torch/_engine.py:370 _watch"),
    ]
    texts = [dump(*way, *drive, "~/train.py:9 step") for way in ways]
    result = group_stacks([*(stack(rank, text) for rank, text in enumerate(texts)), stack(3, LOADER)])
    assert format_comparison(result, 4)[:2] == [
        "3 of 4 ranks wait in all_reduce, rank 3 on xeon01 does not",
        f"  ranks 0-2  {C10D}:3252 all_reduce ← train.py:9 step",
    ]


def test_the_line_inside_of_a_call_that_waits_is_no_other_place() -> None:
    """init_process_group waits for the store on rank 0, and for the other ranks' addresses on the others."""
    texts = [dump(f"{C10D}:{line} init_process_group", LOGGER, "~/late.py:6 <module>") for line in (1892, 1899, 1899)]
    [group] = group_stacks([stack(rank, text) for rank, text in enumerate(texts)])
    assert group.where == f"{C10D}:1892 init_process_group ← late.py:6 <module>"


@pytest.mark.parametrize(("frames", "call"), read_table("stack_traces/waiting_calls"))
def test_a_rank_waits_where_it_talks_to_others(frames: list[str], call: str | None) -> None:
    stands = dump(*(frame.format(c10d=C10D, logger=LOGGER) for frame in frames))
    group, other = group_stacks([stack(0, stands), stack(2, dump("~/x.py:1 f"))])
    assert (group.function if group.waits else None) == call
    assert not other.waits


def test_the_same_line_reached_from_two_callers_is_reported_with_them() -> None:
    reduce = (f"{C10D}:3252 all_reduce", "~/utils.py:5 sync")
    result = group_stacks(
        [stack(0, dump(*reduce, "~/train.py:50 step")), stack(1, dump(*reduce, "~/train.py:61 validate"))]
    )
    assert [group.where for group in result] == [
        f"{C10D}:3252 all_reduce ← utils.py:5 sync ← train.py:50 step",
        f"{C10D}:3252 all_reduce ← utils.py:5 sync ← train.py:61 validate",
    ]


def test_stacks_that_all_differ_take_time_that_grows_with_their_number_alone() -> None:
    """Each was compared with all others: a minute for 2,000 ranks. The limit of each test ends it."""
    frames = '  File "/w/a.py", line 5 in f\n  File "/w/b.py", line {} in g\n'
    text = f"Current thread 0x1 (most recent call first):\n{frames}"
    groups = group_stacks([RankStack(rank, "a", rank, "S", "", text.format(rank)) for rank in range(16_000)])
    assert groups[1].where.startswith("a.py:5 f ← b.py:1 g")


def test_a_line_that_begins_like_a_thread_takes_no_more_time_than_to_read_it() -> None:
    """A stack of 32 KiB took two seconds, and a host's of 4 MiB hours. The limit of each test ends it."""
    assert parse_main_thread("Thread 0x" + "a" * (1 << 21) + "(" * (1 << 21)) == ()


def test_a_stack_of_our_hook_alone_is_described_by_its_state() -> None:
    ending = dump("/x/sitecustomize.py:140 wait_for_gloo_threads")
    assert format_comparison(group_stacks([stack(0, ending, "S")]), 1) == ["  rank 0  no stack: sleeps"]


def test_ranks_without_a_stack_are_at_no_place() -> None:
    polling = "no stack: computes, or waits in MPI (which uses the processor)"
    silent = [stack(0, "", "R"), stack(1, "", "R")]
    assert format_comparison(group_stacks(silent), 2) == [f"  ranks 0-1  {polling}"]
    output = format_comparison(group_stacks([*silent, stack(2, "", "S")]), 3)
    assert output[0] == "rank 2 on xeon01 is elsewhere than 2 of 3 ranks"


def report(rank: int, *collectives: tuple[str, list[int], int, str, int, bool]) -> RankStack:
    """A rank's stacks behind what it says of its groups: name, members, number, kind, size, ended."""
    keys = ("group", "ranks", "number", "kind", "size", "done")
    told = [{**dict(zip(keys, each, strict=True)), "rank": rank} for each in collectives]
    return stack(rank, f"{COLLECTIVES}{json.dumps(told)}\n{FAULT}")


MB = 4 << 20


@pytest.mark.parametrize(
    ("stacks", "lines"),
    [
        (
            [report(0, ("0", [0, 1], 7, "all_reduce", MB, False)), report(1, ("0", [0, 1], 7, "broadcast", MB, False))],
            [
                "the ranks are in different collectives: all_reduce #7 of 4.0 MiB on rank 0, "
                "broadcast #7 of 4.0 MiB on rank 1"
            ],
        ),
        (
            [report(rank, ("0", [0, 1, 2], 7, "all_reduce", MB << rank // 2, False)) for rank in range(3)],
            [
                "the ranks are in different collectives: all_reduce #7 of 4.0 MiB on ranks 0-1, "
                "all_reduce #7 of 8.0 MiB on rank 2"
            ],
        ),
        (
            [
                report(0, ("0", [0, 1, 2], 9, "all_gather", 12, False), ("3", [0, 2], 2, "barrier", 0, True)),
                report(1, ("0", [0, 1, 2], 8, "all_reduce", 0, True)),
                report(2, ("0", [0, 1, 2], 9, "all_gather", 24, False), ("3", [0, 2], 2, "barrier", 0, True)),
            ],
            ["last collectives: all_gather #9 on ranks 0,2, all_reduce #8 on rank 1 (ended)"],
        ),
        (
            [
                report(0, ("0", [0, 1, 2], 1, "barrier", 0, True), ("3", [0, 2], 2, "broadcast", 8, False)),
                report(1, ("0", [0, 1, 2], 1, "barrier", 0, True)),
            ],
            ["last collectives in the group of ranks 0,2: broadcast #2 of 8 B on rank 0"],
        ),
        ([report(0, ("0", [0, 1], 1, "barrier", 0, True)), stack(1), stack(2, f"{COLLECTIVES}[1]\n{FAULT}")], []),
        (
            [report(0, ("0", [0, 1], 2, "barrier", 0, False)), stack(1, f"{COLLECTIVES}null\n{FAULT}")],
            ["last collectives: barrier #2 on rank 0", "rank 1 on xeon00 has left the group (destroy_process_group)"],
        ),
        ([stack(1, f"{COLLECTIVES}null\n{FAULT}")], []),
    ],
)
def test_the_last_collectives_and_a_mismatch_are_reported(stacks: list[RankStack], lines: list[str]) -> None:
    assert describe_collectives(stacks) == lines
    assert have_mismatch(stacks) == any("different collectives" in line for line in lines)


@pytest.mark.parametrize(
    ("stalled", "title"), [(True, "the ranks are in different collectives"), (False, "last collectives")]
)
def test_ranks_that_get_on_may_be_a_collective_apart(stalled: bool, title: str) -> None:
    stacks = [report(rank, ("0", [0, 1], 118 - rank, "all_reduce", MB, False)) for rank in range(2)]
    where = "all_reduce #118 of 4.0 MiB on rank 0, all_reduce #117 of 4.0 MiB on rank 1"
    assert describe_collectives(stacks, stalled=stalled) == [f"{title}: {where}"]


def raised(rank: int, **fields: Any) -> RankStack:
    return stack(rank, f"{FAULT}\n{RAISED}{json.dumps({'at': 1.0, **fields})}\n")


TRACE = 'Traceback (most recent call last):\n  File "/home/u/brk.py", line 56, in producer\nValueError: no\n'


@pytest.mark.parametrize(
    ("stacks", "lines", "ended"),
    [
        ([stack(0), raised(1, error="ValueError: no\nsuch", traceback=TRACE, thread="Thread-1 (producer)")],
         ["rank 1 on xeon00: Thread-1 (producer) ended with ValueError: no such (brk.py:56)"], False),
        ([raised(rank, error="ValueError: no", traceback=TRACE) for rank in (0, 2)] + [stack(1)],
         ["ranks 0,2 on xeon00, xeon01: the script has ended with ValueError: no (brk.py:56),"
          " and its process does not end"],
         True),
        ([stack(0), raised(1, status=1, error="bad config", exit_line="/home/u/brk.py:51")],
         ["rank 1 on xeon00: the script called sys.exit with code 1 (bad config) at brk.py:51,"
          " and its process does not end"],
         True),
        ([stack(0), raised(1, error="ValueError: no", traceback=TRACE, handled=True)],
         ["rank 1 on xeon00: handles ValueError: no (brk.py:56): what it does in finally or except does not end"],
         False),
        ([raised(rank, error="ImportError: no", handled=True) for rank in (0, 1)], [], False),
        ([stack(0), raised(1, status=0, exit_line="/home/u/brk.py:49")], [], False),
        ([stack(0), stack(1, f"{RAISED}{{\n{RAISED}3\n{FAULT}")], [], False),
    ],
)  # fmt: skip
def test_exceptions_of_processes_that_live_on_are_reported(
    stacks: list[RankStack], lines: list[str], ended: bool
) -> None:
    assert describe_errors(stacks) == lines
    assert have_raised(stacks) == ended


def test_ranks_whose_scripts_have_ended_wait_for_a_thread_which_is_named() -> None:
    frame = 'File "{}", line {}'
    waits = frame.format("/usr/lib/python3.11/threading.py", 324) + " in wait"
    head = FAULT.replace(waits, frame.format("/home/u/train.py", 9) + " in upload").partition("\nCurrent")[0]
    ended = frame.format("/usr/lib/python3.11/threading.py", 1583) + " in _shutdown"
    text = f"{head}\nCurrent thread 0x2 (most recent call first):\n  {ended}\n"
    stacks = [stack(rank, text, "S") for rank in (0, 1)]
    groups = group_stacks(stacks)
    assert show_stall(groups, stacks)
    assert format_comparison(groups, 2)[-1].endswith(f"{ENDED} a thread that is no daemon: train.py:9 upload")


def test_a_thread_in_a_collective_beside_that_of_the_main_thread_is_named() -> None:
    c10d = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    waits = '  File "/usr/lib/python3.11/threading.py", line 324 in wait\n'
    gathers = f'  File "{c10d}", line 3631 in gather_object\n  File "/home/u/save.py", line 9 in save\n'
    text = FAULT.replace(waits, gathers)
    *_, where, advice = format_comparison(group_stacks([stack(rank, text, "S") for rank in (0, 1)]), 2)
    assert where.endswith(
        "in a collective, too: torch/distributed/distributed_c10d.py:3631 gather_object ← save.py:9 save"
    )
    assert "process_group=torch.distributed.new_group()" in advice
    computes = text.replace('distributed_c10d.py", line 2810 in all_reduce', 'nn/functional.py", line 9 in linear')
    for alone in (computes, FAULT):
        assert "collective" not in str(format_comparison(group_stacks([stack(0, alone, "S")]), 1))
