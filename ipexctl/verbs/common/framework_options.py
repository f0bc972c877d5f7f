"""The words of Accelerate and the Trainer that came with this ipexctl."""

from __future__ import annotations

from ipexctl.data import read_data
from ipexctl.decide.releases.framework_options import FrameworkOption, parse_options


def load_framework_options() -> tuple[FrameworkOption, ...]:
    """All of them, from ``data/options.toml``."""
    return parse_options(read_data("options.toml"))
