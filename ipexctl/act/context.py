"""Everything a verb may touch, handed to it: there is nothing global to reach for."""

import time
from collections.abc import Callable
from pathlib import Path

from ipexctl.act.interrupts import Interrupts
from ipexctl.model.hosts import Opener
from ipexctl.model.json_values import Record, field
from ipexctl.store.masking import Masker
from ipexctl.store.record import make_name


class RecordLocation:
    """Where what happens is saved: known once the command has begun, None for commands that are not saved."""

    directory: Path | None = None
    runs = 0  # that were named

    def name_run(self, at: float) -> str:
        """Names the next run that the command starts: as its record, and with a number from the second one on."""
        self.runs += 1
        name = self.directory.name if self.directory else make_name(at)
        return f"{name}.{self.runs}" if self.runs > 1 else name


class Context(Record):
    """``links`` opens hosts; ``state`` holds the user's runs, ``cache`` what can be fetched again. ``bound`` is how
    many hosts are worked on at once."""

    links: Opener
    state: Path
    cache: Path
    bound: int = 32
    clock: Callable[[], float] = field(default=time.time)
    interrupts: Interrupts = field(default_factory=Interrupts)
    saved: RecordLocation = field(default_factory=RecordLocation)
    by_playbook: bool = False  # its author chose what this command does
    masker: Masker = field(default_factory=lambda: Masker({}))  # of all that this command shows and saves
