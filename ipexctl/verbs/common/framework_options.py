"""The words of Accelerate and the Trainer that came with this ipexctl."""

from __future__ import annotations

from importlib import resources

from ipexctl.decide.releases.framework_options import Option, parse


def options() -> tuple[Option, ...]:
    """All of them, from ``data/options.toml``."""
    return parse(resources.files("ipexctl.data").joinpath("options.toml").read_text("utf-8"))
