"""TOML text, read with the standard library, or with tomli on Python 3.10: the one import of either."""

import sys
from typing import Any


def parse_toml(text: str) -> dict[str, Any]:
    """Returns the top-level table of a document. Raises `ValueError`."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

    table: dict[str, Any] = tomllib.loads(text)
    return table
