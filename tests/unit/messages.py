"""Real messages of programs, by the entry of a catalogue that must find them: ``tests/data/messages``."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ipexctl.data import read_data
from ipexctl.model.toml import parse_toml

_ENTRY = re.compile(r"^\[([\w.-]+)\]  # (.+)$", re.M)


def read_sources(text: str) -> Mapping[str, Sequence[str]]:
    """Where the message of each entry of a catalogue was met, as stands beside its name."""
    return {code: sources.split(", ") for code, sources in _ENTRY.findall(text)}


def read_catalogue(name: str) -> str:
    """Returns the text of ``errors`` or ``harmless``, with the entries of that kind of all engines."""
    engines = Path(__file__).parents[2] / "ipexctl/data/engines"
    texts = [file.read_text("utf-8").replace(f"[{name}.", "[") for file in engines.iterdir()]
    return "\n".join([read_data(f"{name}.toml"), *texts])


def read_messages(catalogue: str) -> Mapping[str, Sequence[str]]:
    """The messages for ``errors`` or ``harmless``."""
    return parse_toml((Path(__file__).parents[1] / f"data/messages/{catalogue}.toml").read_text("utf-8"))
