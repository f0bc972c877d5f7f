"""Which steps are profiled, and what a rank recorded of them."""

import re
from itertools import pairwise

from ipexctl.model.errors import UsageError
from ipexctl.model.json_values import Record, parse_json

WARM_UP = 2  # steps before the first of ``--profile N``: memory is allocated and kernels are generated in these
STEP_LIMIT = 100  # of one profile: each may have tens of thousands of operators, which are in the rank's memory


def parse_profile_steps(text: str) -> tuple[int, int]:
    """First and last step, from 1, of ``FIRST:LAST`` or ``N``: N steps after `WARM_UP`. Raises `UsageError`."""
    match = re.fullmatch(r"(\d{1,7})(?::(\d{1,7}))?", text)
    what = f"--profile takes steps such as 10:15 or a number of steps, not {text[:40]!r}"
    if match is None:
        raise UsageError(what)
    first, last = (int(match[1]), int(match[2])) if match[2] else (WARM_UP + 1, WARM_UP + int(match[1]))
    if last < first or first == 0:
        raise UsageError(what, reasons=[f"step {last} is not after step {first}" if first else "steps count from 1"])
    if first == 1:
        reasons = ["steps are counted by their ends, so the first has no beginning"]
        raise UsageError("--profile cannot begin at step 1", reasons=reasons, hint=f"--profile 2:{max(last, 2)}")
    if last - first >= STEP_LIMIT:
        raise UsageError(f"--profile takes {STEP_LIMIT} steps at most, not {last - first + 1}")
    return first, last


class RecordedSteps(Record):
    """What a process of a rank wrote: ``ends`` are Unix nanoseconds of that host, the first when the profile began.
    ``works``: name, begin and end of collectives that torch's profiler does not see, those of impi."""

    first: int = 0
    steps: int = 0
    ends: tuple[int, ...] = ()
    traced: bool = False
    why: str = ""
    works: tuple[tuple[str, int, int], ...] = ()


def parse_recorded_steps(data: bytes) -> RecordedSteps | None:
    """None where the file is damaged."""
    try:
        recorded = parse_json(RecordedSteps, data)
    except (ValueError, RecursionError):
        return None
    ends, first = recorded.ends, recorded.first
    ordered = all(0 <= a <= b < 1 << 63 for a, b in pairwise(ends))
    ordered &= all(0 <= begin <= end < 1 << 63 for _, begin, end in recorded.works)
    return recorded if ordered and len(ends) <= STEP_LIMIT + 1 and 0 <= first < 1 << 31 else None
