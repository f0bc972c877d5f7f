"""What is needed soon, made by a thread while the command waits for its hosts."""

import threading
from collections.abc import Callable
from contextlib import suppress


def begin_in_background(work: Callable[[], object]) -> None:
    """Begins to import or compute something that Python keeps. Who needs it later gets it at once, or waits until it is
    there; what fails here is raised there."""

    def work_quietly() -> None:
        with suppress(Exception):
            work()

    threading.Thread(target=work_quietly, name=getattr(work, "__name__", "background"), daemon=True).start()
