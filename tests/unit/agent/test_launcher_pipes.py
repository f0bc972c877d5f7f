"""The launcher's shims reach the keeper through named pipes, and end by its word or with it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.model.hosts import Host
from ipexctl.protocol.paths import PIPES
from ipexctl.remote.agent.launcher_pipes import LauncherPipes
from tests.waiting import wait

LABELS = ("h0.ipexctl", "h1.ipexctl")
SHELLS = [[shell] for shell in ("dash", "bash")] + [["busybox", "sh"]]


@pytest.fixture
def pipes(tmp_path: Path) -> Iterator[LauncherPipes]:
    made = LauncherPipes(str(tmp_path), LABELS)
    yield made
    made.close()


def call(place: Path, *words: str, shell: Sequence[str] = ("/bin/sh",)) -> subprocess.Popen[bytes]:
    script = place / "shim"
    script.write_bytes(RemoteRunDir(Host("a", "a"), str(place), "python3").build_shim())
    return subprocess.Popen([*shell, str(script), *words], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)


def take(pipes: LauncherPipes) -> list[tuple[str, list[str]]]:
    taken: list[tuple[str, list[str]]] = []

    def has_come() -> bool:
        taken.extend(pipes.take_requests())
        return bool(taken)

    wait(has_come)
    return taken


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("before", [("-q", "-x"), ()], ids=["Hydra", "Open MPI"])
def test_words_arrive_as_they_are_and_the_shim_ends_as_requested(
    tmp_path: Path, pipes: LauncherPipes, shell: list[str], before: tuple[str, ...]
) -> None:
    words = ["proxy", "--path", "/a b/c", "", "-x", "two\nlines", "'\"$HOME\\", "long" * 5000]
    shim = call(tmp_path, *before, LABELS[1], *words, shell=shell)
    assert take(pipes) == [(LABELS[1], words)]
    assert [path.name for path in (tmp_path / PIPES).iterdir() if path.is_file()] == []
    assert shim.poll() is None
    pipes.release_shims(LABELS[0], 1)  # another host's
    pipes.release_shims(LABELS[1], 7)
    assert shim.wait(60) == 7


def test_a_shim_ends_with_its_keeper(tmp_path: Path) -> None:
    keeper = (
        "import time; from ipexctl.remote.agent.launcher_pipes import LauncherPipes\n"
        f"pipes = LauncherPipes({str(tmp_path)!r}, {LABELS!r}); print(flush=True); time.sleep(300)"
    )
    process = subprocess.Popen([sys.executable, "-c", keeper], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    shim = call(tmp_path, LABELS[0], "proxy")
    wait(lambda: [path for path in (tmp_path / PIPES).iterdir() if path.is_file()])
    process.kill()
    process.wait()
    process.stdout.close()
    assert shim.wait(60) == 1


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_shim_that_comes_after_its_keeper_ends(tmp_path: Path, shell: list[str]) -> None:
    pipes = LauncherPipes(str(tmp_path), LABELS)
    for number in (*pipes.answers.values(), pipes.requests):
        os.close(number)
    assert call(tmp_path, LABELS[0], "proxy", shell=shell).wait(60) == 1


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_shim_whose_keeper_ends_before_it_is_asked_ends(tmp_path: Path, shell: list[str]) -> None:
    pipes = LauncherPipes(str(tmp_path), LABELS)
    os.close(pipes.requests)
    shim = call(tmp_path, LABELS[0], "proxy", shell=shell)
    wait(lambda: [path for path in (tmp_path / PIPES).iterdir() if path.is_file()])
    for number in pipes.answers.values():
        os.close(number)
    assert shim.wait(60) == 1


def test_a_host_that_the_run_does_not_have_is_refused(tmp_path: Path, pipes: LauncherPipes) -> None:
    shim = call(tmp_path, "-q", "-x", "other", "proxy")
    _, output = shim.communicate(timeout=60)
    assert (shim.returncode, output) == (1, b"ipexctl: the run has no host other\n")
    assert pipes.take_requests() == []


def test_a_name_that_is_no_request_of_ours_is_left_alone(tmp_path: Path, pipes: LauncherPipes) -> None:
    (tmp_path / "h0.ipexctl.1").write_bytes(b"outside\0")
    with (tmp_path / PIPES / "requests").open("wb", buffering=0) as requests:
        requests.write(b"../h0.ipexctl.1\nh9.ipexctl.1\n\nh0.ipexctl.2\n")
    assert pipes.take_requests() == []
    assert (tmp_path / "h0.ipexctl.1").exists()


def test_pipes_are_elsewhere_where_the_file_system_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, mode: int) -> None:
        if path.startswith(f"{tmp_path}/run/") and not Path(path).parent.is_symlink():
            raise OSError("Operation not permitted")
        make(path, mode)

    make = os.mkfifo
    monkeypatch.setattr(os, "mkfifo", refuse)
    (tmp_path / "run").mkdir()
    pipes = LauncherPipes(str(tmp_path / "run"), LABELS)
    elsewhere = Path(pipes.elsewhere)
    assert elsewhere.parent == Path(tempfile.gettempdir())
    assert elsewhere.stat().st_mode & 0o777 == 0o700
    shim = call(tmp_path / "run", LABELS[0], "proxy")
    assert take(pipes) == [(LABELS[0], ["proxy"])]
    pipes.close()
    assert shim.wait(60) == 0
    pipes.remove()
    assert not elsewhere.exists()
