"""Which files of a host are taken for a profile: its own ranks', and none that is larger than they can be."""

from __future__ import annotations

import pytest

from ipexctl.verbs.run.profile import is_wanted
from tests.tables import read_table


@pytest.mark.parametrize(
    ("name", "size", "wanted"),
    read_table("fetch/files"),
)
def test_files(name: str, size: int, wanted: bool) -> None:
    assert is_wanted(name, size, {3, 4}) is wanted
