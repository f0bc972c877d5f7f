"""The lab with real OpenSSH servers, as an ordinary user of a separate host."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import typing_extensions

from tests.cluster import Cluster, Spec, missing
from tests.waiting import wait

ROOT = Path(__file__).parents[2]
DRIVER = """\
import sys, time
from pathlib import Path
from ipexctl.model.errors import UsageError
from ipexctl.model.json_values import to_json
from ipexctl.model.events import Answer, Ended, HostFailed, StepEnded
from ipexctl.verbs import lab
verb, place = sys.argv[1], Path(sys.argv[2])
steps, stand_still_after = 0, int(sys.argv[4]) if len(sys.argv) > 4 else None
try:
    for event in lab.up(int(sys.argv[3]), place) if verb == "up" else getattr(lab, verb)(place):
        if isinstance(event, StepEnded):
            print("step", event.host, event.step, event.outcome, flush=True)
            steps += 1
            if steps == stand_still_after:
                time.sleep(1000)
        elif isinstance(event, HostFailed):
            print("failed", event.failure.host, event.failure.what)
        elif isinstance(event, Answer):
            print("answer", to_json(event.value))
        elif isinstance(event, Ended):
            sys.exit(int(event.exit))
except UsageError as refused:
    print(refused)
    sys.exit(int(refused.exit))
"""


@dataclass
class Place:
    """Where a lab is tried: ``prefix`` goes in front of every command; ``root`` is where its files are seen from
    here."""

    prefix: tuple[str, ...]
    python: tuple[str, ...]
    directory: Path
    root: Path = Path("/")

    def command(self, *words: str) -> list[str]:
        return [*self.prefix, *words]

    def lab(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = self.command(*self.python, "-c", DRIVER, verb, str(self.directory), *words)
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    def ssh(
        self, host: str, *words: str, options: tuple[str, ...] = (), **more: str
    ) -> subprocess.CompletedProcess[str]:
        argv = self.command("ssh", "-F", f"{self.directory}/ssh_config", "-oBatchMode=yes", *options, host, *words)
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, **more)  # type: ignore[call-overload,no-any-return]

    def seen(self, name: str) -> Path:
        return self.root / str(self.directory).lstrip("/") / name


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An ordinary user's on a separate host; without root that of whoever runs the tests."""
    if not missing():
        place = _ordinary(request)
    elif shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin"):
        place = Place((), ("env", f"PYTHONPATH={ROOT}", sys.executable), tmp_path / "lab")
    else:
        pytest.skip("openssh-server is not installed")
    yield place
    done = place.lab("down")
    assert done.returncode == 0, done.stdout + done.stderr


def _ordinary(request: pytest.FixtureRequest) -> Place:
    cluster: Cluster = request.getfixturevalue("ann")
    prefix = (*cluster.entrance("deep"), "runuser", "-u", "ann", "--", "env", "HOME=/home/ann", "PATH=/usr/bin:/bin")
    python = ("env", "PYTHONPATH=/opt/under-test", "/usr/bin/python3")
    return Place(prefix, python, Path("/home/ann/my state/lab"), cluster.path("deep", "/"))


def install_source(cluster: Cluster, host: str) -> None:
    """ipexctl, and the two dependencies that a lab imports, for a Python of the same version without packages."""
    for package in (ROOT / "ipexctl", Path(msgspec.__file__).parent):
        for path in (path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            cluster.write(host, f"/opt/under-test/{path.relative_to(package.parent)}", path.read_bytes())
    cluster.write(host, "/opt/under-test/typing_extensions.py", Path(typing_extensions.__file__).read_bytes())


@pytest.fixture(scope="session")
def ann() -> Iterator[Cluster]:
    with Cluster([Spec("deep", users=("ann",))]) as cluster:
        install_source(cluster, "deep")
        yield cluster


def test_every_host_is_entered_and_is_a_home_of_its_own(place: Place) -> None:
    done = place.lab("up", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("lab0", "lab1"):
        home = f"{place.directory}/{name}/home"
        assert place.ssh(name, "echo $HOME; pwd; echo ~").stdout == f"{home}\n" * 3
        terminal = place.ssh(name, options=("-tt",), input="shopt -q login_shell && echo is=login=$HOME; exit\n")
        assert f"is=login={home}" in terminal.stdout
        assert place.ssh(name, "exit 7").returncode == 7
        assert place.ssh(name, "cat", input="a\nb\n").stdout == "a\nb\n"
    (place.seen("lab0/home") / "carried").write_text("over")
    sftp = place.command("sftp", "-F", f"{place.directory}/ssh_config", "-q", "-b", "-", "lab0")
    listed = subprocess.run(sftp, input="ls\n", capture_output=True, text=True, timeout=30, check=False)
    assert "carried" in listed.stdout, listed.stderr


def test_a_lab_that_is_up_is_the_answer_and_another_size_is_refused(place: Place) -> None:
    assert place.lab("up", "2").returncode == 0
    before = place.seen("hostfile").read_text()
    again = place.lab("up", "2")
    assert (again.returncode, place.seen("hostfile").read_text()) == (0, before)
    other = place.lab("up", "3")
    assert other.returncode == 7
    assert "hint: ipexctl lab down" in other.stdout
    assert place.ssh("lab1", "true").returncode == 0


def test_down_leaves_no_process_of_any_session(place: Place) -> None:
    assert place.lab("up", "2").returncode == 0
    tag = place.seen("lab.json").read_text().partition('"tag": "')[2].partition('"')[0]
    hidden = "trap '' TERM HUP; (trap '' TERM; setsid sleep 1000 >/dev/null 2>&1 </dev/null &) ; echo ready; "
    sessions = [
        subprocess.Popen(
            place.command("ssh", "-F", f"{place.directory}/ssh_config", "lab1", hidden + "sleep 1000; sleep 1000"),
            stdout=subprocess.PIPE,
        ),
        subprocess.Popen(  # an idle connection, a tunnel
            place.command("ssh", "-F", f"{place.directory}/ssh_config", "-N", "-L127.0.0.1:0:127.0.0.1:1", "lab0"),
            stderr=subprocess.DEVNULL,
        ),
    ]
    assert sessions[0].stdout is not None
    assert sessions[0].stdout.readline() == b"ready\n"
    wait(lambda: len(_tagged(tag)) >= 3)  # the tunnel and the sleeper come when they come
    down = place.lab("down")
    assert down.returncode == 0, down.stdout
    assert "'processes_left': 0" in down.stdout
    assert _tagged(tag) == []
    for session in sessions:
        assert session.wait(60) != 0
        if session.stdout:
            session.stdout.close()
    assert sorted(path.name for path in place.seen("").iterdir()) == ["lab0", "lab1", "lock"]
    assert place.seen("lab0/home").is_dir()
    assert place.lab("down").returncode == 0  # nothing to do


@pytest.mark.parametrize("steps", [0, 2])
def test_what_a_killed_up_left_is_cleaned_by_the_next(place: Place, steps: int) -> None:
    argv = place.command(*place.python, "-c", DRIVER, "up", str(place.directory), "2", str(steps))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as first:
        assert first.stdout is not None
        if steps == 0:
            wait(lambda: place.seen("lab.json").exists())
        for _ in range(steps):
            first.stdout.readline()
        os.killpg(first.pid, signal.SIGKILL)
    tag = place.seen("lab.json").read_text().partition('"tag": "')[2].partition('"')[0]
    assert place.lab("status").returncode == 4
    done = place.lab("up", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _tagged(tag) == []
    assert place.ssh("lab0", "true").returncode == place.ssh("lab1", "true").returncode == 0


def test_a_server_that_died_is_reported_and_the_next_up_makes_all_new(place: Place) -> None:
    assert place.lab("up", "2").returncode == 0
    assert place.lab("status").returncode == 0
    record = place.seen("lab.json").read_text()
    pid = record.rpartition('"pid": ')[2].partition(",")[0]
    subprocess.run(place.command("kill", "-9", pid), capture_output=True, check=False)
    status = place.lab("status")
    assert (status.returncode, "failed lab1 sshd does not run" in status.stdout) == (4, True)
    assert place.lab("up", "2").returncode == 0
    assert place.ssh("lab1", "true").returncode == 0


def test_without_sshd_the_package_is_named(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster("bare")
    install_source(cluster, "bare")
    cluster.exec("bare", ["rm", "/usr/sbin/sshd"], check=True)
    code = DRIVER.replace("sys.argv[1], Path(sys.argv[2])", "'up', Path('/root/lab')").replace("sys.argv[3]", "1")
    done = cluster.exec("bare", ["/usr/bin/python3", "-c", code], env={"PYTHONPATH": "/opt/under-test"})
    assert done.returncode == 4, done.stderr
    assert "sshd not found" in done.stdout
    assert "apt-get install openssh-server" in done.stdout
    assert not cluster.path("bare", "/root/lab").exists()


def _tagged(tag: str) -> list[int]:
    """Processes on this machine (its hosts among them) with the lab's tag in their environment."""
    result = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"IPEXCTL_LAB={tag}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    result.append(int(entry.name))
            except OSError:
                continue
    return result
