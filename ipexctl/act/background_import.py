"""Modules that are needed soon, imported by a thread while the command waits for its hosts."""

import threading
from contextlib import suppress
from importlib import import_module


def import_in_background(name: str) -> None:
    """Begins to import a module. Who imports it later waits until it is there; what fails here is raised there."""

    def import_quietly() -> None:
        with suppress(Exception):
            import_module(name)

    threading.Thread(target=import_quietly, name=f"import {name}", daemon=True).start()
