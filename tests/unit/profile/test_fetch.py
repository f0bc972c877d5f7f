"""Which files of a host are taken for a profile: its own ranks', and none that is larger than they can be."""

from __future__ import annotations

import pytest

from ipexctl.verbs.run.profile import is_wanted


@pytest.mark.parametrize(
    ("name", "size", "wanted"),
    [
        ("profile/3.trace.gz", 5 << 20, True),
        ("profile/3.4711.steps", 200, True),
        ("profile/3.onednn", 1 << 20, True),
        ("profile/clocks", 300, True),
        ("profile/5.trace.gz", 100, False),  # of another host's rank
        ("profile/3.trace.gz", 1 << 30, False),
        ("profile/3.4711.steps", 8 << 20, False),
        ("profile/3.begun", 0, False),
        ("profile/3.part", 100, False),
        ("profile/x.trace.gz", 100, False),
        ("profile/3.trace.gz/x", 100, False),
        ("profile/hosts/3.trace.gz", 100, False),
        ("spec.json", 100, False),
    ],
)
def test_files(name: str, size: int, wanted: bool) -> None:
    assert is_wanted(name, size, {3, 4}) is wanted
