"""The checksum that hosts compute with the program cksum."""

import subprocess

import pytest

from ipexctl.act.transfer.cksum import Cksum


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"123456789", bytes(range(256)) * 1030], ids=["empty", "NUL", "digits", "long"]
)
def test_it_is_that_of_the_program(data: bytes) -> None:
    checksum = Cksum()
    for start in range(0, len(data), 1000):
        checksum.update(data[start : start + 1000])
    assert checksum.format_line() == subprocess.run(["cksum"], input=data, capture_output=True, check=True).stdout
