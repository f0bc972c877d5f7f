"""What a playbook asks for: one schema of its own keys and of those of its steps; the tasks are in `tasks`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ipexctl.model.errors import Origin
from ipexctl.model.hosts import Inventory
from ipexctl.model.json_values import Record, field
from ipexctl.model.tasks import Task
from ipexctl.model.text import printable

TOGETHER = frozenset({"run", "bench", "tune"})
"""Actions whose hosts work together, so that none can be missing."""

_SHARE = re.compile(r"([0-9]{1,4})(?:\.0)?|([0-9]{1,3}(?:\.[0-9]+)?)\s*%")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)\s*%?")


class Share(Record):
    """So many hosts, or so many percent of them (at least one)."""

    number: float
    percent: bool = False

    def count_hosts(self, total: int) -> int:
        return max(1, int(total * self.number / 100 if self.percent else self.number))


def _parse_share(value: Any) -> Any:
    match = _SHARE.fullmatch(value.strip()) if isinstance(value, str) else None
    number = float(match[1] or match[2]) if match else 0.0
    if match and 0 < number <= (100 if match[2] else 9999):
        return Share(number, percent=bool(match[2]))
    if isinstance(value, Share):
        return value
    raise ValueError("must be a number of hosts, or a percentage such as 25%")


def _require_percentage(value: Any) -> Any:
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    number = float(match[1]) if match else value
    if number is None or (isinstance(number, int | float) and 0 <= number <= 100):
        return number
    raise ValueError("must be a number from 0 to 100")


def _wrap_in_tuple(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    return () if value is None else (value,)


Name = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
Tag = Annotated[str, Field(pattern="^[A-Za-z0-9_.-]+$")]


class FailurePolicy(BaseModel):
    """How many hosts may fail; of a play the default of its steps."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    any_errors_fatal: bool = Field(False, description="one host that fails ends the play")
    max_fail_percentage: Annotated[float | None, BeforeValidator(_require_percentage)] = Field(
        None, description="how many hosts may be lost before the play ends"
    )


class PlayKeys(FailurePolicy):
    """The keys of a playbook whose values are plain; ``hosts``, ``vars`` and ``steps`` have parsers of their own."""

    name: str = ""
    env_allow: Annotated[tuple[Name, ...], BeforeValidator(_wrap_in_tuple)] = ()


class StepKeys(FailurePolicy):
    """The keys beside a step's action. ``when`` "" is always; of ``serial`` the last size repeats, () is all at once.
    Without ``max_fail_percentage`` there is no limit, but for actions whose hosts work `TOGETHER`."""

    name: str = Field("", description="a title; --start-at begins there")
    limit: str | None = Field(None, description="a part of the hosts, as --limit")
    tags: Annotated[tuple[Tag, ...], BeforeValidator(_wrap_in_tuple)] = Field(
        (), description="words for --tags and --skip-tags"
    )
    when: str = Field("", description="only on hosts where this is true of the facts: isa_level >= AVX512_BF16")
    serial: Annotated[tuple[Annotated[Share, BeforeValidator(_parse_share)], ...], BeforeValidator(_wrap_in_tuple)] = (
        Field((), description="hosts in batches: a number, a percentage, or a list of them")
    )
    ignore_errors: bool = Field(False, description="go on, with all hosts, although this fails")


class Step(StepKeys):
    """One task of a play. ``action`` is the key it was written under: doctor, install, sync, run, command …"""

    action: str
    task: Task
    origin: Origin | None = None
    places: Mapping[str, Origin] = {}  # of the values of its task, by key

    def locate(self, key: str) -> str:
        """Where the value of a key of its task was written, for a message; the step itself where it has none."""
        return printable(str(self.places.get(key, self.origin)), 300)

    @property
    def title(self) -> str:
        return self.name or self.action


class LocalUse(Record):
    """A file of this machine that a play reads or writes (``kind`` path), or a variable of the user's environment that
    it takes (env). ``key`` is what names it, and ``given`` are the values from the command line in its text."""

    kind: Literal["path", "env"]
    key: str
    name: str
    origin: Origin
    given: tuple[str, ...] = ()


class Play(BaseModel):
    """Steps in order, and the hosts they are for: a hostfile's path, or an inventory, or neither (flags decide)."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    source: str
    steps: tuple[Step, ...]
    name: str = ""
    hostfile: str | None = None
    hosts_origin: Origin | None = None
    inventory: Inventory | None = None
    variables: Mapping[str, str] = field(default_factory=dict)  # that it sets or uses
    uses: tuple[LocalUse, ...] = ()
    warnings: tuple[str, ...] = ()  # of reading it; a verb says them first
