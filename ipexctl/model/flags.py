"""How a field of a task stands on the command line: its group in the help, what its value is, its other names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """Metadata of a field: ``Annotated[int | None, Flag("Placement", "N", names=("-n",))]``.

    The flag's long name, default, choices and bounds are those of the field; ``help``, ``low`` and ``high`` are for
    the fields of dataclasses.
    """

    group: str = "Options"
    metavar: str | None = None
    help: str = ""
    names: tuple[str, ...] = ()  # short forms and synonyms
    low: float | None = None
    high: float | None = None
    argument: bool = False  # a positional argument
