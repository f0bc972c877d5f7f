"""How tests wait for what happens by itself, and for each other."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


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


@contextmanager
def hold_lock(file: Path) -> Iterator[None]:
    """Waits until no other process holds the lock of this file, and then holds it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
