"""Hosts for tests that need SSH and little else: separate ones where we may, else the lab on loopback."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ipexctl.verbs import lab
from tests.cluster.cluster import Cluster

T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """``prefix`` goes in front of commands that are to reach the hosts; ``separate`` hosts share nothing."""

    names: tuple[str, ...]
    hostfile: Path
    ssh_config: Path
    prefix: tuple[str, ...]
    separate: bool


def separate(cluster: Cluster) -> Bench:
    return Bench(cluster.names, cluster.hostfile, cluster.ssh_config, cluster.controller, True)


@contextmanager
def on_loopback(directory: Path, count: int = 3) -> Iterator[Bench]:
    made = _value(lab.up(count, directory))
    if made is None:
        raise RuntimeError("the lab did not come up")
    try:
        yield Bench(made.names, made.path("hostfile"), made.path("ssh_config"), (), False)
    finally:
        assert _value(lab.down(directory)), "processes of the lab are left"


def _value(story: Generator[Any, None, T]) -> T:
    while True:
        try:
            next(story)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
