"""Facts × request × version table → one stack, or every reason why not."""

from ipexctl.decide.releases.resolve import explain_request, resolve
from ipexctl.decide.releases.runtime import Runtime, build_runtime
from ipexctl.decide.releases.table import ReleaseTable, parse_table

__all__ = ["ReleaseTable", "Runtime", "build_runtime", "explain_request", "parse_table", "resolve"]
