"""The answers of ``sync`` and ``fetch``."""

from typing import TYPE_CHECKING

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.json_values import JsonForm, JsonRecord


class FailedTransfer(JsonRecord):
    """A host whose files could not be sent or fetched."""

    host: str
    failed: str
    code: str


class SyncedHost(JsonRecord):
    """What a host's working directory was sent: ``files`` with ``bytes`` in all, and how many were removed."""

    host: str
    workdir: str
    changed: bool
    files: int
    bytes: int
    removed: int


if TYPE_CHECKING:
    SyncResult = SyncedHost | FailedTransfer
else:
    SyncResult = JsonForm("SyncResult", (SyncedHost, FailedTransfer))


class SyncAnswer(AnyAnswer):
    """``sync``."""

    dry: bool
    hosts: tuple[SyncResult, ...]
    plan: str | None = None


class FetchedHost(JsonRecord):
    """What came from a host into ``directory``; ``same`` counts files that were there already."""

    host: str
    directory: str
    files: int
    bytes: int
    same: int


if TYPE_CHECKING:
    FetchResult = FetchedHost | FailedTransfer
else:
    FetchResult = JsonForm("FetchResult", (FetchedHost, FailedTransfer))


class FetchAnswer(AnyAnswer):
    """``fetch``."""

    dry: bool
    hosts: tuple[FetchResult, ...]
    plan: str | None = None
