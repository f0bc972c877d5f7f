"""Real messages of programs, by the entry of a catalogue that must find them: ``tests/data/messages``."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ipexctl.model.toml import parse_toml

_ENTRY = re.compile(r"^\[([\w.-]+)\]  # (.+)$", re.M)


def read_sources(text: str) -> Mapping[str, Sequence[str]]:
    """Where the message of each entry of a catalogue was met, as stands beside its name."""
    return {code: sources.split(", ") for code, sources in _ENTRY.findall(text)}


def read_messages(catalogue: str) -> Mapping[str, Sequence[str]]:
    """The messages for ``errors`` or ``harmless``."""
    return parse_toml((Path(__file__).parents[1] / f"data/messages/{catalogue}.toml").read_text("utf-8"))
