"""What a hub says of its files, and a directory that another library fills while it is measured."""

import threading
from pathlib import Path

import pytest

from ipexctl.act.hub import _is_plain
from ipexctl.store.private_files import measure_tree


@pytest.mark.parametrize(
    ("name", "size", "plain"),
    [
        ("a/model.safetensors", 5_000_000_000, True), ("model.bin", 0, True), ("model.bin", -1, False),
        ("model.bin", "9", False), ("model.bin", 1e400, False), ("model.bin", 10**30, False), ("/etc/x", 1, False),
        ("a/../../x", 1, False), ("a//b", 1, False), ("x\n\x1b[2J", 1, False), ("x\u202e", 1, False), ("x\0", 1, False),
    ],
)  # fmt: skip
def test_names_and_sizes_are_those_of_files(name: str, size: object, plain: bool) -> None:
    assert _is_plain(name, size) is plain


def test_files_that_come_and_go_are_measured(tmp_path: Path) -> None:
    """Downloads are renamed when they are whole, and their directories removed."""
    (tmp_path / "whole").write_bytes(b"x" * 100)
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            for number in range(20):
                (tmp_path / f"d{number}").mkdir()
                (tmp_path / f"d{number}/part").write_bytes(b"")
            for number in range(20):
                (tmp_path / f"d{number}/part").unlink()
                (tmp_path / f"d{number}").rmdir()

    other = threading.Thread(target=churn)
    other.start()
    try:
        assert {measure_tree(tmp_path)[0] for _ in range(300)} == {100}
    finally:
        over.set()
        other.join()
