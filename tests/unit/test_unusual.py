"""What is unusual in ranks' output, and what is known to be harmless."""

from collections.abc import Iterator

from ipexctl.decide.run.unusual import UNUSUAL_LIMIT
from ipexctl.model import events as e
from ipexctl.model.run_state import RunState
from tests.unit.show.streams import START, fold_state

KERNEL = b"""[W422 16:14:14.000000000 OperatorEntry.cpp:161] Warning: Warning only once for all operators,  other
  Overriding a previously registered kernel for the same operator and the same dispatch key
  operator: aten::_cummax_helper(Tensor self, Tensor(a!) values, Tensor(b!) indices, int dim) -> ()
    registered at /build/pytorch/build/aten/src/ATen/RegisterSchema.cpp:6
  dispatch key: XPU
  previous kernel: registered at /build/pytorch/build/aten/src/ATen/RegisterCPU.cpp:30476
       new kernel: registered at /opt/ipex-cpu-dev/csrc/cpu/autocast/autocast_mode.cpp:112 (function operator())
"""
HOST_NAME = (
    b"[W416 23:24:57.460001114 socket.cpp:204] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n"
)


def feed(*outputs: tuple[int, str, bytes]) -> RunState:
    return fold_state(e.Stamped(START, e.Output(rank, "a", stream, data)) for rank, stream, data in outputs)  # type: ignore[arg-type]


def count_harmless(state: RunState) -> int:
    return sum(lines.count for lines in state.harmless.values())


def entries(state: RunState) -> list[tuple[str, set[int], int, int]]:
    return [(entry.text, entry.ranks, entry.count, entry.more) for entry in state.unusual.values()]


def test_an_exception_that_ends_no_script_is_kept() -> None:
    trace = b'Traceback (most recent call last):\n  File "train.py", line 3, in save\n    open(1)\nOSError: no room\n'
    for head, where in (
        (b"Exception in thread Thread-1 (save):\n", "in a thread"),
        (b"Exception ignored in atexit callback: <function save at 0x7f>\n", "at its exit"),
        (b"Error in atexit._run_exitfuncs:\n", "at its exit"),
        (b"Task exception was never retrieved\nfuture: <Task finished name='Task-2'>\n", "in a task"),
        (b"Process Process-1:1:\n", "in a process that it started"),
    ):
        later = (0, "err", b"Exception in thread T:\n" + trace.replace(b"no room", b"later"))
        assert feed((1, "err", head + trace), later).uncaught == (1, f"{where}: OSError: no room")
    assert not feed((1, "err", b"Exception ignored in: <function Pool.__del__>\n" + trace)).uncaught
    assert not feed((1, "err", trace)).uncaught
    assert not feed((1, "err", b"Process group:\n  tp\nretried\n" + trace)).uncaught, "a line of the script's own"
    stopped = b"Process Process-1:\n" + trace.replace(b"OSError: no room", b"KeyboardInterrupt")
    assert not feed((1, "err", stopped)).uncaught


def test_an_exception_after_which_a_rank_writes_nothing_more_is_kept() -> None:
    trace = b'Traceback (most recent call last):\n  File "train.py", line 3, in save\n    open(1)\n'
    trace += b"OSError: no room\n  [1]\n"
    loguru = trace.replace(b'  File "train.py"', b'\n> File "train.py"')
    for text in (trace, b"saved\nERROR:root:no\n" + loguru, trace + KERNEL + b"\n", b"Process group: tp\n" + trace):
        assert [said for _, said in feed((1, "err", text)).last_words.values()] == ["OSError: no room"]
    routine = (b"KeyboardInterrupt", b"asyncio.exceptions.CancelledError", b"[rank1]: no room")
    for text in (
        trace + b"retried\n", b"Exception in thread T:\n" + trace, b"Exception ignored in: <f>\n" + trace,
        *(trace.replace(b"OSError: no room", end) for end in routine),
    ):  # fmt: skip
        assert not feed((1, "err", text)).last_words
    assert not feed((1, "err", trace), (1, "out", b"step 4\n")).last_words


def test_known_harmless_lines_are_counted_and_not_shown() -> None:
    noise = [(rank, "err", data) for rank in range(4) for data in (KERNEL, HOST_NAME)]
    lines = feed(*noise, (0, "out", b"[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"))  # fmt: skip  # noqa: E501
    assert entries(lines) == []
    assert count_harmless(lines) == 4 * 8 + 1
    counts = {code: (entry.count, entry.ranks) for code, entry in lines.harmless.items()}
    assert counts == {
        "kernel-overridden": (28, {0, 1, 2, 3}),
        "c10d-host-name": (4, {0, 1, 2, 3}),
        "gloo-connected": (1, {0}),
    }


def test_indented_lines_belong_to_the_harmless_line_before_them() -> None:
    lines = feed((0, "err", b"x.py:3: FutureWarning: old\n  train(model, old=True)\nUserWarning: new\n"))
    assert entries(lines) == [("UserWarning: new", {0}, 1, 0)]
    assert count_harmless(lines) == 2


def test_time_stamps_addresses_and_processes_do_not_hinder_folding() -> None:
    lines = feed(
        *((rank, "err", b"2026-11-20 10:31:%02d,123 WARNING %d retry\n" % (rank, 7)) for rank in range(3)),
        *((rank, "err", b"[rank%d]:[W1120 10:31:05.12%d x.cpp:7] at 0x7f%d0\n" % ((rank,) * 3)) for rank in (0, 1)),
        *((rank, "err", b"2026:11:20-10:31:05:(%d) |CCL_ERROR| no\n" % (4000 + rank)) for rank in (0, 2)),
        *((rank, "err", b"refused by 10.77.0.1%d:29500\n" % rank) for rank in (0, 1)),
        *((rank, "err", b"W1122 08:07:52.46%d000 80%d _logger.py:72] odd\n" % (rank, rank)) for rank in (0, 1)),
    )  # fmt: skip
    assert [(text, ranks, count) for text, ranks, count, _ in entries(lines)] == [
        ("2026-11-20 10:31:02,123 WARNING 7 retry", {0, 1, 2}, 3),
        ("[rank1]:[W1120 10:31:05.121 x.cpp:7] at 0x7f10", {0, 1}, 2),
        ("2026:11:20-10:31:05:(4002) |CCL_ERROR| no", {0, 2}, 2),
        ("refused by 10.77.0.11:29500", {0, 1}, 2),
        ("W1122 08:07:52.461000 801 _logger.py:72] odd", {0, 1}, 2),
    ]
    assert len(feed((0, "err", b"exit 1\nexit 2\n")).unusual) == 2


def test_continuation_lines_and_tracebacks_stay_with_their_line() -> None:
    lines = feed(
        (0, "err", b"a.py:3: UserWarning: odd\n  call(\n"),
        (0, "err", b"    more)\n"),
        (1, "err", b"unrelated\n"),
        (0, "err", b'Traceback (most recent call last):\n  File "x.py", line 1\n    f()\n'),
        (0, "err", b"ValueError: 7\n  of its own\n"),
    )
    assert entries(lines) == [
        ("a.py:3: UserWarning: odd", {0}, 1, 2),
        ("unrelated", {1}, 1, 0),
        ("ValueError: 7", {0}, 1, 3),
        ("of its own", {0}, 1, 0),
    ]


def test_bars_figures_and_reports_on_standard_error_are_not_unusual() -> None:
    lines = feed(
        (0, "err", b"100%|###| 10/10 [00:10<00:00, 1.00it/s]\nMap: 10%|# | 1/10\n"),
        (0, "err", b"{'loss': 0.5, 'epoch': 1.0}\n[INFO|trainer.py:10] 2026-11-20 >> Num examples\n"),
        (0, "err", b"step 7 loss nan\n"),
        (0, "out", b"step 8 loss nan\nstep 9 loss 1.0\nbanana split\nnano 3\n"),
    )
    assert [text for text, *_ in entries(lines)] == ["step 7 loss nan", "step 8 loss nan"]


def test_a_flood_is_read_within_a_budget_of_each_second() -> None:
    def flood() -> Iterator[e.Stamped]:
        yield e.Stamped(START, e.RunStarted("k7", "a", ("a",) * 10, "mpirun"))
        for moment in range(3):
            for rank in range(10):
                data = b"".join(b"warning %d of %d\n" % (moment * 1000 + n, rank) for n in range(1000))
                yield e.Stamped(START + moment, e.Output(rank, "a", "err", data))

    state = fold_state(flood())
    assert sum(entry.count for entry in state.unusual.values()) == len(state.unusual) == UNUSUAL_LIMIT
    assert list(state.unusual)[-1] == "warning 2999 of 9"
