"""Which files of a host are taken for a profile: its own ranks', and none that is larger than they can be."""

from pathlib import Path

import pytest

from ipexctl.decide.planning.fetch import RemoteFile
from ipexctl.model.errors import Failure
from ipexctl.model.hosts import Command, Completed, Host
from ipexctl.verbs.run.profile import _fetch_host, select_items
from tests.fakes import FakeLink
from tests.tables import read_table


@pytest.mark.parametrize(("name", "size", "wanted"), read_table("fetch/files"))
def test_files(name: str, size: int, wanted: bool) -> None:
    assert bool([*select_items([RemoteFile(name, name, size, 0)], {3, 4})]) is wanted


def test_a_rank_has_one_trace_and_few_records() -> None:
    """Any number before the kind was taken: 12 files, without a byte on the host's disk, were a gigabyte here."""
    names = [f"profile/3.{number}{kind}" for number in range(100) for kind in (".steps", ".trace.json.gz", ".onednn")]
    chosen = [*select_items([RemoteFile(name, name, 100, 0) for name in names], {3})]
    assert [item.name for item in chosen] == [f"profile/3.{number}.steps" for number in range(8)]


def test_what_has_no_room_here_is_not_fetched(tmp_path: Path) -> None:
    sent: list[str] = []

    def answer(_: Host, command: Command) -> Completed:
        sent.append(command.argv[1])
        files = b"".join(b"0 f 600 %d 1\0./profile/%d.trace.json.gz\0" % (96 << 20, rank) for rank in range(1 << 16))
        return Completed(0, b"/run\0" + files)

    failure = _fetch_host(FakeLink(Host("n0", "n0"), answer), "/run", tmp_path, "n0", {*range(1 << 16)})
    assert isinstance(failure, Failure)
    assert (failure.code, sent, [*tmp_path.iterdir()]) == ("no-space", ["list"], [])
