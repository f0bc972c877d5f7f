"""Which words of Accelerate and of the Trainer a version knows, read from the text of ``ipexctl/data/options.toml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from ipexctl.decide.releases.table import number
from ipexctl.model.notes import Note
from ipexctl.model.text import printable
from ipexctl.model.toml import parse_toml

Kind = Literal["key", "launch", "argument"]
Knows = Literal["yes", "idle", "not yet", "no more"]


@dataclass(frozen=True, slots=True)
class Option:
    """A key of Accelerate's configuration, a flag of ``accelerate launch``, or an argument of scripts that use the
    Trainer. Empty versions mean: always, never."""

    of: str
    kind: Kind
    name: str
    since: str
    idle: str
    gone: str
    instead: str
    source: str

    def known(self, version: str) -> Knows:
        """What ``version`` of the distribution makes of it; "idle": it is taken, and does nothing."""
        asked = number(version)
        if self.since and asked < number(self.since):
            return "not yet"
        if self.gone and asked >= number(self.gone):
            return "no more"
        return "idle" if self.idle and asked >= number(self.idle) else "yes"

    def said(self, version: str) -> str:
        """One sentence for a version that does not know it; empty for one that does."""
        knows = self.known(version)
        told = {
            "not yet": f"does not know {self.name} yet (from {self.since} on)",
            "no more": f"does not know {self.name} any more (until {self.gone})",
            "idle": f"takes {self.name} and does nothing with it (since {self.idle})",
        }
        return f"{self.of} {version} {told[knows]}; instead: {self.instead}" if knows in told else ""


def parse(text: str) -> tuple[Option, ...]:
    """All of them. Raises `KeyError` for a file that is not well-formed (a fault of ours, tested)."""
    return tuple(
        Option(
            item["of"],
            item["kind"],
            item["name"],
            item.get("since", ""),
            item.get("idle", ""),
            item.get("gone", ""),
            item["instead"],
            item["source"],
        )
        for item in parse_toml(text)["option"]
    )


def knows(options: Sequence[Option], of: str, name: str, version: str) -> bool:
    """Whether this version does something with that word. Words that are not listed are known."""
    return all(option.known(version) == "yes" for option in options if (option.of, option.name) == (of, name))


def misfits(options: Sequence[Option], packages: Mapping[str, str], args: Sequence[str]) -> Iterator[Note]:
    """A note for each argument of a script that the installed Trainer would refuse, or take for nothing.

    ``packages`` maps distributions to versions. A script that reads such an argument itself is free to: these are
    warnings.
    """
    given = set(_spelt(args))
    for option in options:
        version = packages.get(option.of)
        if option.kind == "argument" and version and option.name in given and (said := option.said(version)):
            yield Note("framework-option", printable(said, 500))


def _spelt(args: Sequence[str]) -> Iterator[str]:
    """``--use-ipex``, ``--ddp_backend=ccl`` and ``--ddp_backend ccl`` as the table spells them."""
    for word, after in zip_longest(args, args[1:], fillvalue=""):
        if not word.startswith("--"):
            continue
        name, equals, value = word.partition("=")
        name = name.replace("-", "_").replace("__", "--", 1)
        yield name
        yield f"{name} {value if equals else after}"
