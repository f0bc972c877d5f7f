"""The input and the results of checks: a cluster of hosts, and hits."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TypeVar

from ipexctl.decide.releases.env_health import format_limit
from ipexctl.decide.releases.table import ReleaseTable
from ipexctl.model.errors import Failure
from ipexctl.model.facts import Facts, HostFacts
from ipexctl.model.hosts import Inventory
from ipexctl.model.json_values import Record, field
from ipexctl.model.reports import Level

T = TypeVar("T", bound=Hashable)


class Cluster(Record):
    """Hosts as written, the facts of those that answered and the failures of the others, both in the order written.
    ``table`` is the version table. ``live`` is False for recorded probes, which may hold a part only."""

    inventory: Inventory
    facts: HostFacts
    failures: Mapping[str, Failure]
    table: ReleaseTable
    live: bool = True

    def collect_known(self, read_fact: Callable[[Facts], T | None]) -> dict[str, T]:
        """Returns the values of a fact, by host, where it is known."""
        return {host: value for host, facts in self.facts.items() if (value := read_fact(facts)) is not None}

    def leave_out(self, hosts: Collection[str]) -> str:
        """Returns the value of --limit that leaves these hosts out, and all others that the user has left out, too."""
        if self.inventory.limit:
            return format_limit([name for name in self.facts if name not in hosts])
        return format_limit(hosts, "!")


def find_majority(values: Mapping[str, T]) -> T | None:
    """Returns the commonest value; of equally common ones that of the earliest host. None without hosts."""
    counts = Counter(values.values())
    return max(counts, key=lambda value: counts[value], default=None)  # max and Counter keep the first


class CheckHit(Record):
    """A check found something on one host. ``values`` fill the title and fix, ``level`` overrides the level;
    ``action`` is False where nothing has to be done."""

    code: str
    host: str
    values: Mapping[str, object] = field(default_factory=dict)
    evidence: str = ""
    level: Level | None = None
    action: bool = True
