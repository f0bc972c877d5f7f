"""How tests wait for what happens by itself."""

import time
from collections.abc import Callable


def wait(
    true: Callable[[], object], timeout: float = 60.0, otherwise: Callable[[], str] = lambda: "", pause: float = 0.02
) -> float:
    """Until it is true; how many seconds that took. An assertion fails when it takes too long."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < timeout, otherwise() or f"not within {timeout} s"
        time.sleep(pause)
    return time.monotonic() - begun
