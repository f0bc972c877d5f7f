"""The answers of ``install``, ``verify``, ``uninstall``, ``wheels`` and ``stacks``."""

from collections.abc import Mapping, Sequence

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.json_values import JsonRecord
from ipexctl.model.stack import StackSummary


class ImportCheck(JsonRecord):
    """The import check of the new environment of one host. ``preload`` maps libraries to why they cannot be preloaded,
    empty where they can. ``same``: unchanged files of the environment before, of which nothing is imported."""

    host: str
    versions: Mapping[str, str]
    problems: tuple[str, ...]
    python: str
    isa: str | None = None
    step_ms: float | None = None
    dtype: str | None = None
    mpi: str | None = None
    preload: Mapping[str, str] | None = None
    same: int | None = None
    failed: Sequence[str] | None = None  # packages that were added and cannot be imported


class InstallAnswer(AnyAnswer):
    """``install``: the environment and its stack, and which hosts changed. ``failed`` maps hosts to the reason;
    ``next`` is the command that uses it.
    Stopped before there was a plan, it has no more than ``changed`` and ``failed``."""

    changed: tuple[str, ...]
    failed: Mapping[str, str]
    venv: str | None = None
    id: str | None = None
    stack: StackSummary | None = None
    check: bool | None = None
    plan: str | None = None
    unchanged: tuple[str, ...] | None = None
    hosts: tuple[ImportCheck, ...] | None = None
    next: str | None = None

    @property
    def dry(self) -> bool:
        return bool(self.check)


class VerifiedHost(JsonRecord):
    """What the marker of a host's environment says: its id and its stack, None without one."""

    host: str
    id: str | None
    stack: StackSummary | None


class VerifyAnswer(AnyAnswer):
    """``verify``: ``failed`` maps hosts whose environment is not what was installed to the reason."""

    hosts: tuple[VerifiedHost, ...]
    failed: Mapping[str, str]


class UninstallAnswer(AnyAnswer):
    """``uninstall``. Of ``unchanged`` hosts nothing was there that ipexctl had made."""

    changed: tuple[str, ...]
    failed: Mapping[str, str]
    unchanged: tuple[str, ...] = ()


class WheelsAnswer(AnyAnswer):
    """``wheels fetch``: ``fetched`` are those of ``wheels`` that were missing, ``bytes`` their size. ``next`` installs
    from them; none where they could not be fetched."""

    directory: str
    wheels: tuple[str, ...]
    fetched: tuple[str, ...]
    python: tuple[str, ...]
    bytes: int
    dry: bool | None = None
    plan: str | None = None
    next: str | None = None


class ListedRelease(JsonRecord):
    """A row of the version table. ``fits`` and ``reasons`` only where hosts were asked; ``python_from``: where they
    could get a Python that the row needs."""

    torch: str
    ipex: str | None
    oneccl: str | None
    module: str | None
    track: str
    pythons: tuple[str, ...]
    isa: str | None
    mpi: str
    mpis: tuple[str, ...]  # those that it goes with, as --mpi names them
    glibc: str | None
    glibcxx: str | None
    libraries: tuple[str, ...]
    indexes: tuple[str, ...]
    unconfirmed: tuple[str, ...]
    yanked: str | None
    notes: tuple[str, ...]
    source: str
    fits: bool | None = None
    reasons: tuple[str, ...] | None = None
    python_from: str | None = None


class StacksAnswer(AnyAnswer):
    """``stacks``: the version table; ``text`` is its form for people."""

    rows: tuple[ListedRelease, ...]
    text: str


class StacksWhyAnswer(AnyAnswer):
    """``stacks --why``: whether the request can be met, by which stack, and why."""

    ok: bool
    stack: str | None
    why: tuple[str, ...]
    hint: str | None
    text: str
