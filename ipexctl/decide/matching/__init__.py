"""Facts × wish × table → one stack, or every reason why not."""

from ipexctl.decide.matching.match import match, why
from ipexctl.decide.matching.runtime import Runtime, runtime
from ipexctl.decide.matching.table import Table, parse

__all__ = ["Runtime", "Table", "match", "parse", "runtime", "why"]
