"""What a rank shows of its end, and which of it decides."""

from dataclasses import replace

import pytest

from ipexctl.decide.diagnosis.evidence import collect_evidence
from ipexctl.decide.diagnosis.known_errors import match_evidence
from ipexctl.model.reports import RankOutcome
from ipexctl.verbs.common.known_errors import read_known_errors
from tests.tables import read_table

FAILED = RankOutcome(1, "b", "failed", status=1)
HANDLED = """Traceback (most recent call last):
  File "/home/u/train.py", line 5, in <module>
    import wandb
ModuleNotFoundError: No module named 'wandb'
"""
RAISED = """Traceback (most recent call last):
  File "/home/u/train.py", line 9, in <module>
    main()
  File "/v/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1, in _call_impl
    return forward(x)
{}"""
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
UNKNOWN = RAISED.format("TypeError: forward() got an unexpected keyword argument 'x'\n")
WARNING = "/v/x.py:13: UserWarning: Failed to load image Python extension: 'image.so: undefined symbol: _Z3foo'"


def name_error(rank: RankOutcome) -> str | None:
    match = match_evidence(read_known_errors(), collect_evidence(rank))
    return match.known.code if match else None


@pytest.mark.parametrize(
    ("traceback", "code"),
    [
        (HANDLED, "package"),
        (HANDLED + DURING + UNKNOWN, None),
        (HANDLED + CAUSE + UNKNOWN, "package"),
        (HANDLED + DURING + UNKNOWN + CAUSE + RAISED.format("RuntimeError: it failed\n"), None),
        (HANDLED + CAUSE + RAISED.format("OSError: [Errno 28] No space left on device\n"), "disk"),
        (RAISED.format("RuntimeError: Caught OSError in DataLoader worker process 0.\n"
                       "Original Traceback (most recent call last):\n"
                       '  File "/home/u/data.py", line 3, in __getitem__\n'
                       "OSError: [Errno 24] Too many open files\n"), "files"),
        (RAISED.format("RuntimeError: Caught KeyError in DataLoader worker process 0.\n"
                       "Original " + HANDLED + DURING + "Traceback (most recent call last):\n"
                       '  File "/home/u/data.py", line 3, in __getitem__\n'
                       "KeyError: 'x'\n"), None),
        *((RAISED.format(f"RuntimeError: DataLoader worker (pid 7) is killed by signal: {signal}. \n") + CAUSE
           + RAISED.format("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly\n"), code)
          for signal, code in (("Killed", "sigkill"), ("Bus error", "shm"), ("Aborted", "dataloader-ended"))),
        (HANDLED.replace("ModuleNotFoundError: No module named 'wandb'",
                         "OSError: libc10_cuda.so: cannot open shared object file: No such file or directory")
         + CAUSE + RAISED.format("OSError: Could not load this library: /v/torchaudio/lib/_torchaudio.so\n"),
         "cuda-library"),
        # what the code of the script says is not what was raised
        (RAISED.replace("main()", 'raise OSError("No space left on device")').format("ValueError: no\n"), None),
        ("  + Exception Group Traceback (most recent call last):\n"
         '  |   File "/home/u/train.py", line 5, in <module>\n'
         "  |     run()\n"
         "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
         "  +-+---------------- 1 ----------------\n"
         "    | Traceback (most recent call last):\n"
         '    |   File "/home/u/train.py", line 3, in get\n'
         "    |     raise OSError\n"
         "    | OSError: [Errno 37] No locks available\n"
         "    +------------------------------------\n", "no-locks"),
    ],
)  # fmt: skip
def test_of_a_traceback_the_exception_that_nobody_caught_decides(traceback: str, code: str | None) -> None:
    assert name_error(replace(FAILED, traceback=traceback)) == code
    assert name_error(replace(FAILED, traceback=traceback, tail=f"No space left on device\n{WARNING}")) == code


@pytest.mark.parametrize(
    ("last", "code"), [("KeyError: 'x'", None), ("OSError: [Errno 24] Too many open files", "files")]
)
def test_what_a_worker_handled_before_it_failed_does_not_count(last: str, code: str | None) -> None:
    frame = 'Traceback (most recent call last):\n  File "/home/u/data.py", line 3, in __getitem__\n'
    error = f"RuntimeError: Caught it in DataLoader worker process 0.\nOriginal {HANDLED}{DURING}{frame}{last}\n"
    assert name_error(replace(FAILED, error=error)) == code
    assert name_error(replace(FAILED, error=error, traceback=RAISED.format(error))) == code
    elsewhere = replace(FAILED, error=last, traceback="Traceback\n  in train\n")  # torch's error file
    assert name_error(elsewhere) == code


def test_an_exception_tells_more_than_a_signal_and_a_signal_more_than_the_output() -> None:
    killed = replace(
        FAILED, status=None, signal=11, tail="OMP: Error #15: Initializing libiomp5.so, but found libomp.so"
    )
    assert name_error(killed) == "sigsegv"
    assert name_error(replace(killed, signal=6)) == "omp-twice", "abort() itself says nothing"
    assert name_error(replace(killed, error="RuntimeError: bad")) is None
    assert name_error(replace(killed, traceback=HANDLED)) == "package"
    assert name_error(replace(killed, traceback=UNKNOWN)) is None
    crash = (
        'Fatal Python error: Bus error\n\nCurrent thread 0x7f (most recent call first):\n  File "a.py", line 1 in f\n'
    )
    assert name_error(replace(killed, signal=7, traceback=crash)) == "sigbus"
    assert name_error(replace(killed, signal=6, traceback=crash)) == "omp-twice"
    workers = crash.replace("Bus error", "Segmentation fault").replace("a.py", "/lib/mpi4py/futures/_core.py")
    assert name_error(replace(killed, traceback=workers)) == "mpi4py-futures"
    assert name_error(replace(killed, signal=7, traceback=workers)) == "sigbus"
    mapped = crash.replace("a.py", "/lib/python3.11/site-packages/datasets/table.py")
    assert name_error(replace(killed, signal=7, traceback=mapped)) == "sigbus-mapped"
    below = crash + '  File "/lib/python3.11/site-packages/datasets/table.py", line 2 in g\n'
    assert name_error(replace(killed, signal=7, traceback=below)) == "sigbus"


@pytest.mark.parametrize(
    ("status", "code"), [(137, "sigkill"), (139, "sigsegv"), (132, "sigill"), (143, None), (3, None)]
)
def test_the_status_of_a_shell_tells_of_the_signal_that_ended_its_child(status: int, code: str | None) -> None:
    assert name_error(replace(FAILED, status=status, tail="step 3")) == code


@pytest.mark.parametrize(("tail", "code"), read_table("evidence/last_words"))
def test_of_the_output_the_last_words_of_the_runtime_decide(tail: str, code: str | None) -> None:
    texts = {"handled": HANDLED, "unknown": UNKNOWN, "warning": WARNING, "during": DURING}
    texts |= {"end_of_handled": HANDLED.partition("\n")[2]}
    for name, prefix in (("rank", "[rank1]:"), ("worker", "(train pid=7)")):
        texts |= {f"handled_of_{name}": "".join(f"{prefix} {line}\n" for line in HANDLED.splitlines())}
    assert name_error(replace(FAILED, tail=tail.format_map(texts))) == code


def test_a_syntax_error_is_shown_once() -> None:
    """Its text alone holds the name of the file."""
    trace = '  File "/home/u/helper.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
    rank = replace(FAILED, error="SyntaxError: invalid syntax (helper.py, line 1)", traceback=trace)
    assert [raised.text for raised in collect_evidence(rank).exceptions] == ["SyntaxError: invalid syntax"]


def test_a_rank_shows_more_than_its_end_where_it_raised_or_crashed() -> None:
    assert collect_evidence(replace(FAILED, error="KeyError: 1")).own
    assert collect_evidence(replace(FAILED, status=None, signal=9)).own
    assert not collect_evidence(replace(FAILED, tail="step 1")).own
