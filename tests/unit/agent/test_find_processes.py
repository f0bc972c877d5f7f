"""The proof that nothing of a run is left costs no Python where that is so, and misses nothing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from ipexctl.act.run_control import find_leftover_processes
from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.model.hosts import NO_COMMAND_IO, Command, CommandIO, Completed, Host
from ipexctl.protocol.paths import RUN_ENV
from ipexctl.remote.agent import procs
from tests.waiting import wait

HERE = Host("here", "localhost")
SITE = RemoteRunDir(HERE, "/none", "python3")
RUN = f"find{os.getpid()}"


class CountingLink(LocalLink):
    """Counts commands."""

    def __init__(self, path: str = os.environ["PATH"]) -> None:
        super().__init__(HERE, env={"HOME": "/", "PATH": path})
        self.commands = 0

    def run(self, command: Command, command_io: CommandIO = NO_COMMAND_IO) -> Completed:
        self.commands += 1
        return super().run(command, command_io)


@contextmanager
def sleeping(env: Mapping[str, str], user: int | None = None) -> Iterator[int]:
    process = subprocess.Popen(["/bin/sleep", "300"], env=env, user=user)
    try:
        wait(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"/bin/sleep"))
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_what_is_killed_leaves_no_shared_memory_of_mpi() -> None:
    """And removes nothing where another user may have put a link in place of a directory."""
    inner, kept, gone = (Path(f"/dev/shm/{name}_{RUN}") for name in ("mpich_shm_dir", "other_shm", "mpich_shm"))
    inner.mkdir()
    inner /= "passwd"
    hold = "import mmap, sys, time; files = [open(path, 'r+') for path in sys.argv[1:]]; "
    hold += "held = [mmap.mmap(file.fileno(), 8) for file in files]"
    hold += "; print(flush=True); time.sleep(300)"
    for path in (inner, kept, gone):
        path.write_bytes(bytes(8))
    words = [sys.executable, "-c", hold, str(inner), str(kept), str(gone)]
    try:
        with subprocess.Popen(words, env={RUN_ENV: RUN}, stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            assert procs.kill_marked(f"{RUN_ENV}={RUN}", 0) == []  # below this one are servers of other tests
        assert (inner.exists(), kept.exists(), gone.exists()) == (True, True, False)
    finally:
        shutil.rmtree(inner.parent)
        kept.unlink()
        gone.unlink(missing_ok=True)


def test_where_nothing_is_left_one_command_says_so() -> None:
    others = {RUN_ENV: f"{RUN}0", "A": f"{RUN_ENV}={RUN}", f"A_{RUN_ENV}": RUN, "B": f"x\n{RUN_ENV}={RUN}\ny"}
    link = CountingLink()
    with sleeping(others):
        assert find_leftover_processes(link, SITE, RUN) == ()
    assert link.commands == 1


@pytest.mark.parametrize(
    "env", [{RUN_ENV: RUN}, {"A": "\n\n", RUN_ENV: RUN, "Z": "\xff"}], ids=["alone", "among others"]
)
def test_a_process_with_the_mark_is_found(env: Mapping[str, str]) -> None:
    link = CountingLink()
    with sleeping(env) as pid:
        assert find_leftover_processes(link, SITE, RUN) == (pid,)
    assert link.commands == 2
    assert find_leftover_processes(link, SITE, RUN) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a process of another account")
def test_a_process_of_another_user_is_none_of_a_run() -> None:
    """It was killed, and counted as left over where it was started again."""
    link = CountingLink()
    with sleeping({RUN_ENV: RUN}, user=4242) as pid:
        assert find_leftover_processes(link, SITE, RUN) == ()
        assert link.commands == 1
        assert (procs.kill_marked(f"{RUN_ENV}={RUN}", 0), procs.read_run(pid)) == ([], "")
        assert procs.find_process(pid)


ENDLESS = r"""
import ctypes, mmap, struct, sys, time
room = mmap.mmap(-1, 1 << 26, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
room[:8], room[-7:] = b"FIRST=1\0", b"LAST=1\0"
begin = ctypes.addressof(ctypes.c_char.from_buffer(room))
words = open("/proc/self/stat").read().rpartition(")")[2].split()
known = dict(enumerate(map(int, words[1:]), 4))  # proc(5)
ends = [known[number] for number in (26, 27, 45, 46, 47, 47, 28, 48, 49)]
map = struct.pack("=12QIi", *ends, begin, begin + len(room), 0, 0, -1)
print(ctypes.CDLL(None).prctl(35, 14, map, len(map), 0), flush=True)  # PR_SET_MM, PR_SET_MM_MAP
time.sleep(300)
"""


def test_of_variables_without_an_end_no_more_is_read_than_a_program_can_have() -> None:
    """A process makes them what it likes; root's searches of /proc took gigabytes."""
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            if process.stdout.readline() != b"0\n":
                pytest.skip("the kernel lets no process move its variables")
            assert procs.has_mark(process.pid, "FIRST=1")
            assert not procs.has_mark(process.pid, "LAST=1")
        finally:
            process.kill()


def test_control_groups_are_those_that_this_account_has_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another one has some that are deeper than Python's stack. A run whose name begins with that of this
    one, which may be a host's word, was ended with it."""
    monkeypatch.setattr(procs, "_CGROUP", str(tmp_path))
    (tmp_path / f"ipexctl-{RUN}-ab12-n0").mkdir()
    own, other, deep = (tmp_path / name / f"ipexctl-{RUN}-n0" for name in ("own", "other", "deep"))
    for path in (own, other):
        path.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(other, 4242, -1)
    subprocess.run(["mkdir", "-p", f"{deep.parent}/{'a/' * 1500}"], check=True)
    try:
        expected = {str(own)} if os.geteuid() == 0 else {str(own), str(other)}
        assert set(procs.find_cgroups(RUN)) == expected
        assert procs.list_cgroup_members(str(deep.parent)) == set()  # of a rank that has made such ones in its own
        procs.remove_cgroup(str(deep.parent))
        assert not deep.parent.exists()
    finally:
        subprocess.run(["rm", "-rf", str(deep.parent)], check=True)


def test_without_a_find_the_control_groups_are_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "find").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "find").chmod(0o755)
    link = CountingLink(f"{tmp_path}:{os.environ['PATH']}")
    assert find_leftover_processes(link, SITE, RUN) == ()
    assert link.commands == 2


FOUND = "echo '(standard input)'"


# It does not split its input: it would find no mark that stands among other variables.
WITHOUT_Z = f'shift; exec {shutil.which("grep")} -lsxF "$@"'


@pytest.mark.parametrize(
    "grep", [WITHOUT_Z, "exit 2", "exit 0", "exit 1", f"{FOUND}; exit 126", f"{FOUND}; echo /proc/1/environ"]
)
def test_a_grep_that_cannot_do_it_is_not_believed(tmp_path: Path, grep: str) -> None:
    (tmp_path / "grep").write_text(f"#!/bin/sh\n{grep}\n")
    (tmp_path / "grep").chmod(0o755)
    link = CountingLink(f"{tmp_path}:{os.environ['PATH']}")
    with sleeping({RUN_ENV: RUN, "Z": "1"}) as pid:
        assert find_leftover_processes(link, SITE, RUN) == (pid,)
    assert link.commands == 2
