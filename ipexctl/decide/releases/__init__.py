"""Facts × wish × table → one stack, or every reason why not."""

from ipexctl.decide.releases.resolve import resolve, why
from ipexctl.decide.releases.runtime import Runtime, runtime
from ipexctl.decide.releases.table import Table, parse

__all__ = ["Runtime", "Table", "parse", "resolve", "runtime", "why"]
