"""Messages of a session: a program on a host takes one request at a time and answers it, JSON lines both ways.

Python 3.6, standard library: this module is shipped with each session program. Answers are named tuples here, so that
the program that gives one and the controller that reads it agree on its fields."""

import json
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from ipexctl.protocol.codec import Kinds, Unreadable

MALFORMED = "malformed"  # code of an answer that has another shape than its type
INTERNAL = "internal"  # code of an exception of the session program itself


class SessionError(Exception):
    """The host cannot do a request. ``code`` is a stable word, ``details`` are further facts for the controller."""

    def __init__(self, code: str, what: str, **details: Any) -> None:
        Exception.__init__(self, what)
        self.code, self.what, self.details = code, what, details


# Messages of a host.
Ready = NamedTuple("Ready", [])
KeepAlive = NamedTuple("KeepAlive", [])
Progress = NamedTuple("Progress", [("done", int), ("total", int)])
Done = NamedTuple("Done", [("answer", Any)])
Failed = NamedTuple("Failed", [("code", str), ("what", str), ("details", Dict[str, Any])])
Message = Union[Ready, KeepAlive, Progress, Done, Failed]

KINDS: "Kinds[Message]" = Kinds(Message)


def decode_message(line: bytes) -> Union[Message, Unreadable, None]:
    """The message of a line, `Unreadable` for a damaged one; None for a line that is none (a banner of the host)."""
    message = KINDS.read(line)
    return None if isinstance(message, Unreadable) and message.kind not in KINDS.types else message


def encode_request(do: str, arguments: Dict[str, Any]) -> bytes:
    """Returns one line of JSON."""
    return (json.dumps(dict(arguments, do=do)) + "\n").encode()


def decode_request(line: bytes) -> Tuple[str, Dict[str, Any]]:
    """Returns the command and its arguments. Raises `ValueError` for something else."""
    fields = json.loads(line.decode())
    return str(fields.pop("do")), fields


# Answers: install.
Nothing = NamedTuple("Nothing", [])


class Inspection(NamedTuple):
    """What a host has at the place of the environment."""

    kind: str  # "absent", "ours", "foreign"
    why: str = ""  # for "foreign"
    active: Optional[str] = None
    complete: List[str] = []
    leftovers: List[str] = []  # of a killed install, and not used by a job
    packages: Optional[Dict[str, str]] = None  # of the active environment that has a Python: name → version
    free: int = 0  # bytes
    files: Optional[int] = None  # how many more there may be
    at: str = ""  # the existing directory nearest to the place
    uv: Optional[str] = None
    visible: List[str] = []  # files of the controller that the host sees, too
    unreachable: List[str] = []  # host:port of indexes that this host cannot reach


# Who holds the lock of an environment, as its file says; since when, in seconds since the epoch; the machine whose
# process id this is, since its start; the process id of the session on the host.
LockOwner = NamedTuple(
    "LockOwner", [("user", str), ("host", str), ("pid", int), ("since", float), ("machine", str), ("session", int)]
)
# Bytes that a build needs, and those that are free, at a path.
Shortage = NamedTuple("Shortage", [("need", int), ("free", int), ("at", str)])
# Directories in which this account can make environments, and the bytes free there.
RoomyPlaces = NamedTuple("RoomyPlaces", [("places", Dict[str, int])])
SeenTokens = NamedTuple("SeenTokens", [("seen", List[str])])
Cleaned = NamedTuple("Cleaned", [("removed", int)])
Offer = NamedTuple("Offer", [("port", int), ("token", str)])  # of the host's own HTTP server
Fetched = NamedTuple("Fetched", [("files", List[str]), ("why", str)])
Present = NamedTuple("Present", [("paths", List[str])])
Used = NamedTuple("Used", [("used", List[str]), ("runs", List[str])])  # environments, and runs whose processes use them
Removed = NamedTuple("Removed", [("used", List[str]), ("removed", List[str])])


class ImportReport(NamedTuple):
    """What the import check of an environment saw. Fields that do not apply are None."""

    versions: Dict[str, str]
    problems: List[str]
    python: str
    isa: Optional[str] = None
    step_ms: Optional[float] = None
    dtype: Optional[str] = None
    mpi: Optional[str] = None
    preload: Optional[Dict[str, str]] = None  # library → why it cannot be loaded, empty where it can
    same: Optional[int] = None  # files of a checked environment; if all are the same, only what was added is imported
    failed: Optional[List[str]] = None  # packages that were added and cannot be imported


# Answers: netcheck.
Ports = NamedTuple("Ports", [("tcp", int), ("udp", int)])


class ConnectionAttempt(NamedTuple):
    """One connection tried: seconds, bytes a second, bytes of a packet; None where not measured."""

    host: str
    error: Optional[str] = None
    rtt: Optional[float] = None
    local: Optional[str] = None
    large: Optional[bool] = None
    mtu: Optional[int] = None
    rate: Optional[float] = None


Attempts = NamedTuple("Attempts", [("attempts", List[ConnectionAttempt])])
SeenMarkerFiles = NamedTuple("SeenMarkerFiles", [("paths", List[str])])


# Answers: bench.
class Figures(NamedTuple):
    """Gflop/s of products, bytes a second of memory; ``spread`` by figure: by what share the median turn was slower."""

    threads: int
    method: str  # of the memory figure: "triad" or "copy"
    memory: float
    spread: Dict[str, float]
    torch: Optional[str] = None
    why: str = ""  # torch does not load
    fp32: Optional[float] = None
    bf16: Optional[float] = None
