"""The answers of ``doctor``, and what they hold."""

from collections.abc import Mapping

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.errors import Kind
from ipexctl.model.facts import Facts
from ipexctl.model.json_values import JsonRecord, Record, field
from ipexctl.model.reports import Finding


class HostFailure(JsonRecord):
    """Why a host could not be probed."""

    kind: Kind
    what: str
    code: str


class ChosenInterface(JsonRecord):
    """The network interface that ranks of a host use; ``address`` without a prefix."""

    name: str
    address: str
    why: str


class DoctorHost(JsonRecord):
    """One host: its facts, or None and the failure."""

    host: str
    facts: Facts | None
    interface: ChosenInterface | None = None
    failure: HostFailure | None = None


class FailedConnection(JsonRecord):
    """A connection between two hosts that was not made."""

    from_: str
    to: str
    error: str


class SharedDirectory(JsonRecord):
    """A directory that several hosts share."""

    directory: str
    hosts: tuple[str, ...]


class TriedConnection(JsonRecord):
    """A connection between two hosts that was made: the round trip in seconds, and bytes a second if measured."""

    from_: str
    to: str
    rtt: float | None
    rate: float | None


class NetworkCheck(JsonRecord):
    """Connections between hosts: ``tried`` counts them, ``made`` are those that were made; round trips in seconds,
    rates in bytes a second. ``untried`` maps hosts that could not take part to the reason."""

    tried: int
    failed: tuple[FailedConnection, ...]
    rtt: float | None
    rate: float | None
    mtu: int | None
    shared: tuple[SharedDirectory, ...]
    untried: Mapping[str, str]
    made: tuple[TriedConnection, ...] = ()


class HostSpeed(Record):
    """One host: Gflop/s of matrix products, bytes a second of memory by ``method`` ("triad" or "copy"). None: not
    measured, ``why`` says why not. ``spread`` is by what share the median turn of a figure was behind the best."""

    host: str
    threads: int = 0
    torch: str | None = None
    fp32: float | None = None
    bf16: float | None = None
    memory: float | None = None
    method: str = ""
    why: str = ""
    spread: Mapping[str, float] = field(default_factory=dict)


class LinkSpeed(JsonRecord):
    """Between two hosts, by TCP: seconds of a round trip, bytes a second."""

    first: str
    second: str
    latency: float | None
    rate: float | None


class SpeedCheck(JsonRecord):
    """What ``--bench`` measured; ``missed`` maps hosts that could not be measured to the reason."""

    hosts: tuple[HostSpeed, ...] = ()
    pairs: tuple[LinkSpeed, ...] = ()
    missed: Mapping[str, str] = field(default_factory=dict)


class AppliedFix(JsonRecord):
    """What ``--fix`` did on which hosts; ``code`` is the finding's, empty where it was none."""

    code: str
    hosts: tuple[str, ...]
    action: str


class DoctorAnswer(AnyAnswer):
    """``doctor``. ``imports`` maps hosts to what went wrong when the stack was imported."""

    hosts: tuple[DoctorHost, ...]
    findings: tuple[Finding, ...]
    common_isa: str | None
    advice: tuple[str, ...]
    network: NetworkCheck
    imports: Mapping[str, tuple[str, ...]] | None = None
    speed: SpeedCheck | None = None
    fixed: tuple[AppliedFix, ...] | None = None


class ExplainAnswer(AnyAnswer):
    """``doctor --explain``: the text of one code."""

    code: str
    text: str
