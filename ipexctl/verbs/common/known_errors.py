"""The catalogue of errors that failures of ranks are compared with."""

from functools import cache

from ipexctl.data import read_data
from ipexctl.decide.diagnosis.known_errors import KnownErrors, parse_known_errors
from ipexctl.model.engines import read_engines
from ipexctl.model.toml import parse_toml


@cache
def read_known_errors() -> KnownErrors:
    """The catalogue of errors of training scripts that comes with ipexctl."""
    from ipexctl.decide.script_imports import parse_import_table  # only a failure needs it

    tables = [*(engine.errors for engine in read_engines().values()), parse_toml(read_data("errors.toml"))]
    return parse_known_errors(tables, parse_import_table(read_data("imports.toml")).distributions)
