"""How tests wait for what happens by itself."""

import time
from collections.abc import Callable


def wait(
    true: Callable[[], object], timeout: float = 60.0, otherwise: Callable[[], str] = lambda: "", pause: float = 0.02
) -> float:
    """Until it is true; how many seconds that took. An assertion fails when it takes too long. What takes long is
    looked at less often: many tests wait at once, and a look may go through all processes."""
    begun = time.monotonic()
    while not true():
        waited = time.monotonic() - begun
        assert waited < timeout, otherwise() or f"not within {timeout} s"
        time.sleep(max(pause, min(waited / 20, 12 * pause)))
    return time.monotonic() - begun
