"""Options of Accelerate and the Trainer by version, read from ``ipexctl/data/options.toml``."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Literal

from ipexctl.decide.releases.table import parse_version
from ipexctl.model.errors import Note
from ipexctl.model.json_values import Record
from ipexctl.model.text import printable
from ipexctl.model.toml import parse_toml

Kind = Literal["key", "launch", "argument"]
Support = Literal["yes", "idle", "not yet", "no more"]


class FrameworkOption(Record):
    """A key of Accelerate's configuration, a flag of ``accelerate launch``, or an argument of scripts that use the
    Trainer. Empty versions mean: always, never. ``needs``: the distribution without which it fails, and the option of
    install that brings it. ``fails``: why training with it fails on processors, in every version."""

    of: str
    kind: Kind
    name: str
    instead: str
    source: str
    since: str = ""
    idle: str = ""
    gone: str = ""
    needs: str = ""
    fails: str = ""

    def support_in(self, version: str) -> Support:
        """Returns how ``version`` of the distribution treats it; "idle": accepted without effect."""
        asked = parse_version(version)
        if self.since and asked < parse_version(self.since):
            return "not yet"
        if self.gone and asked >= parse_version(self.gone):
            return "no more"
        return "idle" if self.idle and asked >= parse_version(self.idle) else "yes"

    def explain_support(self, version: str) -> str:
        """Returns a sentence for a version that does not support it; empty if supported."""
        if self.fails:
            return f"{self.name} {self.fails}; instead: {self.instead}"
        support = self.support_in(version)
        reasons = {
            "not yet": f"does not know {self.name} yet (from {self.since} on)",
            "no more": f"does not know {self.name} any more (until {self.gone})",
            "idle": f"takes {self.name} and does nothing with it (since {self.idle})",
        }
        if support in reasons:
            return f"{self.of} {version} {reasons[support]}; instead: {self.instead}"
        return ""


def parse_options(text: str) -> tuple[FrameworkOption, ...]:
    """Parse the table. Raises `TypeError` for a file that is not well-formed (a fault of ours, tested)."""
    return tuple(FrameworkOption(**item) for item in parse_toml(text)["option"])


def supports_option(options: Sequence[FrameworkOption], of: str, name: str, version: str) -> bool:
    """Returns whether this version supports that option; unlisted options count as supported."""
    return all(option.support_in(version) == "yes" for option in options if (option.of, option.name) == (of, name))


def find_unsupported_arguments(
    options: Sequence[FrameworkOption], packages: Mapping[str, str], args: Sequence[str]
) -> Iterator[Note]:
    """Yields a note for each argument of a script that the installed Trainer would refuse, ignore or fail of.
    ``packages`` maps distributions to versions. A script may read such an argument itself: these are warnings."""
    given = set(normalise_arguments(args))
    for option in options:
        version = packages.get(option.of)
        if option.kind == "argument" and version and option.name in given:
            text = option.explain_support(version)
            package, _, install = option.needs.partition(" ")
            if not text and package and package not in packages:
                command = f"install {install}, or {option.instead}"
                text = f"{option.name} needs {package}, not in the environment: {command}"
            yield from (Note("framework-option", printable(text, 500)) for _ in [text] if text)


def normalise_arguments(args: Sequence[str]) -> Iterator[str]:
    """``--use-ipex``, ``--ddp_backend=ccl`` and ``--ddp_backend ccl`` as the table spells them."""
    for word, after in zip_longest(args, args[1:], fillvalue=""):
        if not word.startswith("--"):
            continue
        name, equals, value = word.partition("=")
        name = name.replace("-", "_").replace("__", "--", 1)
        yield name
        yield f"{name} {value if equals else after}"
