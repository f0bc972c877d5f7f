"""The answers of ``hosts``, ``du`` and ``lab``."""

from collections.abc import Mapping

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.json_values import JsonRecord


class ListedHost(JsonRecord):
    """A host of the inventory; ``origin`` is where it was written (``hosts:3``)."""

    host: str
    address: str
    user: str | None
    port: int | None
    slots: int | None
    key: str | None
    local: bool
    groups: tuple[str, ...]
    vars: Mapping[str, str]
    origin: str | None


class HostsAnswer(AnyAnswer):
    """``hosts``: ``text`` is the inventory in the dialect that was asked for."""

    source: str
    hosts: tuple[ListedHost, ...]
    text: str


class UsedPlace(JsonRecord):
    """A place that ipexctl has filled on a host ("": this machine): ``kind`` is environment, wheels, runs or project.
    Of a project, and of wheels that are removed, when the newest of its files was ``changed``, in Unix seconds; of a
    project the bytes of the files that no sync has ``written``. ``removed``: it was, or would be in a dry run;
    ``stays`` says why it was not."""

    host: str
    kind: str
    path: str
    bytes: int
    changed: float | None = None
    written: int = 0
    removed: bool = False
    stays: str = ""


class UsageAnswer(AnyAnswer):
    """``du`` of the hosts that ``answered``. With --prune ``dry`` where nothing was removed, and ``next``, the command
    that removes it."""

    answered: tuple[str, ...]
    places: tuple[UsedPlace, ...]
    dry: bool | None = None
    next: str | None = None


class LabHost(JsonRecord):
    """One SSH server of a lab."""

    host: str
    address: str
    port: int
    up: bool
    processes: int
    home: str


class LabAnswer(AnyAnswer):
    """``lab up``, ``lab status`` and ``lab down``."""

    up: bool
    directory: str
    hostfile: str | None = None
    ssh: str | None = None
    next: str | None = None
    hosts: tuple[LabHost, ...] | None = None
    processes_left: int | None = None
