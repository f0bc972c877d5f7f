"""A run's directory on a host is made whole or not at all, for nobody else to write; the agent travels once."""

import os
import shlex
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.act import agent
from ipexctl.act.run_dir import RemoteRunDir, create_run_dir
from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.model.hosts import NO_COMMAND_IO, Command, CommandIO, Completed, Host, LinkError
from ipexctl.protocol.paths import AGENT, AGENTS, HOOKS, ROLE, RUNS, SHIM, SPEC, STDIN
from tests.unit.agent.runs import SPEC as RUN

HERE = Host("here", "localhost")


class CountingLink(LocalLink):
    """Notes how much each command is given; ``cut`` takes the end of it away."""

    def __init__(self, home: Path, cut: int = 0) -> None:
        super().__init__(HERE, env={"HOME": str(home), "PATH": os.environ["PATH"]})
        self.sizes: list[int] = []
        self.cut = cut

    def run(self, command: Command, command_io: CommandIO = NO_COMMAND_IO) -> Completed:
        self.sizes.append(len(command.stdin))
        return super().run(replace(command, stdin=command.stdin[: len(command.stdin) - self.cut]), command_io)


@pytest.fixture
def link(tmp_path: Path) -> CountingLink:
    return CountingLink(tmp_path)


def place(home: Path, run: str = "r1") -> RemoteRunDir:
    return RemoteRunDir(HERE, f"{home}/{RUNS}/{run}-h0", "python3")


def list_files(directory: Path) -> dict[str, int]:
    """Each file below it, and its mode."""
    result = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode) for path in result}


def test_all_files_are_there_for_their_owner_alone(link: CountingLink, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_run_dir(link, place(tmp_path), RUN._replace(ranks={0: RUN.ranks[0]}), b"the input")
    finally:
        os.umask(before)
    made = Path(place(tmp_path).directory)
    hooks = {f"{HOOKS}/{name}": 0o600 for name in agent.read_hooks()}
    assert list_files(made) == {SPEC: 0o600, STDIN: 0o600, AGENT: 0o600, ROLE: 0o700, SHIM: 0o700, **hooks}
    assert (made / STDIN).read_bytes() == b"the input"
    directories = [made, made / HOOKS, made.parent, tmp_path / AGENTS]
    assert [stat.S_IMODE(directory.stat().st_mode) for directory in directories] == [0o700] * 4


def test_the_agent_travels_once_and_each_run_has_its_own(link: CountingLink, tmp_path: Path) -> None:
    create_run_dir(link, place(tmp_path), RUN)
    without, with_agent = link.sizes
    assert with_agent - without > len(agent.build_archive())
    first = Path(place(tmp_path).directory, AGENT)
    assert first.read_bytes() == agent.build_archive()
    first.write_bytes(b"rubbish")
    create_run_dir(link, place(tmp_path, "r2"), RUN)
    assert len(link.sizes) == 3
    assert Path(place(tmp_path, "r2").directory, AGENT).read_bytes() == agent.build_archive()
    assert [path.name for path in (tmp_path / AGENTS).iterdir()] == [agent.compute_agent_id()]


@pytest.mark.parametrize("programs", ["of this machine", "of busybox"])
def test_agents_of_other_versions_go_by_the_clock_of_their_file_system(tmp_path: Path, programs: str) -> None:
    """That of a file server, here a hundred days behind that of the host."""
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("find", "touch", "stat") if programs == "of busybox" else ():
        write_program(path / name, f'exec busybox {name} "$@"')
    write_program(path / "cp", '/bin/cp "$@" && for each do :; done && /usr/bin/touch -d "100 days ago" "$each"')
    agents = tmp_path / AGENTS
    agents.mkdir(parents=True, mode=0o700)
    for name, days in (("young", 100 + 89), ("old", 100 + 91)):
        (agents / name).touch()
        os.utime(agents / name, (time.time() - days * 86400,) * 2)
    link = LocalLink(HERE, env={"HOME": str(tmp_path), "PATH": f"{path}:{os.environ['PATH']}"})
    create_run_dir(link, place(tmp_path), RUN)
    assert sorted(each.name for each in agents.iterdir()) == sorted([agent.compute_agent_id(), "young"])


def write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("damage", ["empty", "zeros", "cut", "link"])
def test_an_agent_that_is_not_whole_is_sent_again(link: CountingLink, tmp_path: Path, damage: str) -> None:
    there = tmp_path / AGENTS / agent.compute_agent_id()
    there.parent.mkdir(parents=True, mode=0o700)
    if damage != "link":
        whole = agent.build_archive()
        there.write_bytes({"empty": b"", "zeros": bytes(len(whole)), "cut": whole[:-1000]}[damage])
    else:
        (tmp_path / "strange").write_text("print('strange')")
        there.symlink_to(tmp_path / "strange")
    create_run_dir(link, place(tmp_path), RUN)
    assert Path(place(tmp_path).directory, AGENT).read_bytes() == agent.build_archive()
    assert there.read_bytes() == agent.build_archive()
    assert not there.is_symlink()


@pytest.mark.fault("J4")
@pytest.mark.parametrize("where", [RUNS, AGENTS])
@pytest.mark.parametrize("how", ["link", "writable"])
def test_a_place_that_others_can_write_is_refused(link: CountingLink, tmp_path: Path, where: str, how: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / where).parent.mkdir(parents=True)
    if how == "link":
        (tmp_path / where).symlink_to(other)
    else:
        (tmp_path / where).mkdir()
        (tmp_path / where).chmod(0o770)
    why = "symbolic link" if how == "link" else "can be written by others"
    with pytest.raises(LinkError, match=why):
        create_run_dir(link, place(tmp_path), RUN)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_transfer_that_was_cut_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match=r"cannot unpack|the transfer was cut"):
        create_run_dir(CountingLink(tmp_path, cut=2048), place(tmp_path), RUN)
    assert list((tmp_path / RUNS).iterdir()) == []


def test_where_no_program_can_be_executed_nothing_is_made_and_the_mount_is_blamed(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    write_program(tmp_path / "bin" / "mv", '/bin/mv "$@" && for last; do :; done && chmod -f a-x "$last/agent"; :')
    home = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    with pytest.raises(LinkError, match=f"can be executed in {tmp_path}/{RUNS}: it is mounted noexec"):
        create_run_dir(LocalLink(HERE, env=home), place(tmp_path), RUN)
    assert list((tmp_path / RUNS).iterdir()) == []


def test_without_room_for_a_run_nothing_is_made_and_the_bytes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    write_program(path / "df", f"/bin/df -Pk {shlex.quote(str(tmp_path))} | awk 'NR == 2 {{ $4 = 900 }} 1'")
    full = LocalLink(HERE, env={"HOME": str(tmp_path), "PATH": f"{path}:{os.environ['PATH']}"})
    with pytest.raises(LinkError) as raised:
        create_run_dir(full, place(tmp_path), RUN)
    failure = raised.value.failure
    assert failure.what == f"no space left: a run needs 4.0 MiB in {tmp_path}/{RUNS}, 900 KiB free"
    assert (failure.code, failure.hint and str(failure.hint).endswith("ipexctl du")) == ("no-space", True)
    assert list((tmp_path / RUNS).iterdir()) == []


def test_a_directory_that_exists_is_refused_and_stays(link: CountingLink, tmp_path: Path) -> None:
    create_run_dir(link, place(tmp_path), RUN, b"first")
    before = list_files(tmp_path)
    with pytest.raises(LinkError, match=r"cannot create .*File exists"):
        create_run_dir(link, place(tmp_path), RUN, b"second")
    assert list_files(tmp_path) == before
