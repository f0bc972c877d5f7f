"""rsync brings no more than was listed, whatever a file on the host has become meanwhile."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.act.transfer import rsync
from ipexctl.model.hosts import Host

pytestmark = pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync here")
LISTED = 1 << 20


@pytest.mark.parametrize(("extra", "fits"), [(0, True), (100_000, False), (8 << 20, False)])
@pytest.mark.parametrize("known", [True, False])  # whether the old version has most of the blocks
def test_a_file_that_grew_is_refused_and_takes_no_more_room(
    tmp_path: Path, extra: int, fits: bool, known: bool
) -> None:
    there, results = tmp_path / "there", tmp_path / "results"
    into = results / ".part"
    there.mkdir()
    into.mkdir(parents=True)
    data = random.Random(1).randbytes(LISTED)
    (results / "big").write_bytes(data if known else b"")
    (there / "big").write_bytes(data + bytes(extra))
    with closing(LocalLink(Host("node0", "localhost"))) as link:
        if fits:
            rsync.receive_files(link, {"big": LISTED}, str(there), into, lambda _: None)
            assert (into / "big").read_bytes() == data
        else:
            with pytest.raises(rsync.RsyncError):
                rsync.receive_files(link, {"big": LISTED}, str(there), into, lambda _: None)
    taken = [path.stat().st_size for path in into.rglob("*") if path.is_file()]
    assert sum(taken) <= LISTED, taken
