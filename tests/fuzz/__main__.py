"""``python -m tests.fuzz SECONDS [TARGET…]``: new examples for each target, for so many seconds each.

A finding is made small, kept in ``corpus/TARGET`` (where every later test reads it) and printed; the exit is 1 then.
"""

import sys
import time
import traceback

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.corpus import keep
from tests.fuzz.targets import TARGETS, Target, damaged

_ROUND = 100  # examples between two looks at the clock


def fuzz(target: Target, seconds: float) -> tuple[int, int, bytes | None]:
    """How many inputs were tried, how many were accepted, and the smallest that is a finding."""
    tried = accepted = 0
    last = b""
    end, turn = time.monotonic() + seconds, time.time_ns()
    while time.monotonic() < end:
        turn += 1

        @seed(turn)
        @settings(
            max_examples=_ROUND,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        @given(damaged(target.grammar))
        def attempt(data: bytes) -> None:
            nonlocal tried, accepted, last
            last = data
            tried += 1
            accepted += target.accepts(data)

        try:
            attempt()
        except Exception:
            traceback.print_exc(limit=-4)
            return tried, accepted, last
    return tried, accepted, None


def main(argv: list[str]) -> int:
    seconds, names = float(argv[0]), argv[1:]
    findings = 0
    for target in TARGETS:
        if names and target.name not in names:
            continue
        tried, accepted, finding = fuzz(target, seconds)
        print(f"{target.name:14} {tried:9} tried  {accepted:9} accepted", flush=True)
        if finding is not None:
            findings += 1
            print(f"{target.name}: {finding!r} is kept in {keep(target.name, finding)}", flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
