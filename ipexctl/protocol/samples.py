"""What the guards of a run measure. Times are of the head's clock once the keeper has stored them; on the way there, of
the host's own."""

from typing import Dict, List, NamedTuple, Optional

from ipexctl.protocol.codec import Kinds

SIZE_LIMIT = 1 << 28  # bytes of them that the head stores; what samples a host sends in a day is far below


class RankSample(NamedTuple):
    """As `model.events.RankSample`."""

    rank: int
    cpu: float
    rss: int


class HostSample(NamedTuple):
    """As `model.events.HostSample`."""

    host: str
    at: float
    seconds: float
    cpu: float
    cores: int
    memory: int
    memory_total: int
    swap: int = 0
    received: Dict[str, int] = {}
    sent: Dict[str, int] = {}
    read: int = 0
    written: int = 0
    mhz: Optional[float] = None
    celsius: Optional[float] = None
    joules: Optional[float] = None
    pressure: Dict[str, float] = {}
    ranks: List[RankSample] = []
    capped: Optional[float] = None
    resent: Optional[float] = None
    delay: Optional[float] = None  # as the head measures it
    output: int = 0  # bytes that ranks had written when the head stored this


KINDS: "Kinds[HostSample]" = Kinds(HostSample)
