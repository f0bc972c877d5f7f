"""TOML text, read with the standard library, or with tomli on Python 3.10: the one import of either."""

import sys
from typing import Any

Table = dict[str, Any]  # of TOML, before it has a type


def parse_toml(text: str) -> Table:
    """Returns the top-level table of a document. Raises `ValueError`."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

    table: Table = tomllib.loads(text)
    return table
