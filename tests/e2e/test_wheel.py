"""The wheel, installed into an empty environment: what it brings is enough for the demo. No checkout is on its path."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ipexctl

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")

pytestmark = pytest.mark.timeout(1200)
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment in ``env`` with the wheel and what it depends on, from uv's cache."""
    path = tmp_path_factory.mktemp("wheel")
    subprocess.run([UV, "build", "-q", "--wheel", "--out-dir", path / "dist", ROOT], check=True, timeout=300)
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, path / "env"], check=True, timeout=60)
    [wheel] = (path / "dist").glob("*.whl")
    words: list[str | Path] = [UV, "pip", "install", "-q", "--python", path / "env/bin/python", wheel]
    subprocess.run(words, check=True, timeout=300)
    return path


@pytest.fixture(scope="module")
def command(folder: Path) -> Iterator[Command]:
    """The installed program, as a user with a home of their own; whatever lab it leaves is taken down."""
    home = folder / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))}
    caches = {"XDG_CACHE_HOME": str(Path.home() / ".cache")}
    env = {**kept, **caches, "PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8"}

    def run(*words: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        program = [folder / "env/bin/ipexctl", *words]
        return subprocess.run(program, cwd=home, env=env, text=True, capture_output=True, check=False, timeout=timeout)

    yield run
    run("lab", "down")
    shutil.rmtree(home)  # of the demo there are 7 GB, which others need as well


def test_the_wheel_brings_the_program_and_its_man_page(folder: Path, command: Command) -> None:
    assert command("--version").stdout.split()[-1] == ipexctl.__version__
    metadata = next((folder / "env").glob("lib/python3*/site-packages/ipexctl-*.dist-info/METADATA")).read_text("utf-8")
    assert "# ipexctl\n" in metadata
    assert "](docs/" not in metadata
    assert (folder / "env/share/man/man1/ipexctl.1").read_text("utf-8").startswith(".TH IPEXCTL 1")


def test_hosts_and_doctor_work_on_a_lab(command: Command) -> None:
    lab = command("lab", "up", "--json")
    assert lab.returncode == 0, lab.stderr
    hostfile = json.loads(lab.stdout)["hostfile"]
    hosts = command("hosts", "-f", hostfile)
    assert hosts.returncode == 0, hosts.stderr
    assert "lab0" in hosts.stdout
    doctor = command("doctor", "-f", hostfile, "--json")
    assert [host["host"] for host in json.loads(doctor.stdout)["hosts"]] == ["lab0", "lab1"], doctor.stderr
    assert command("lab", "down").returncode == 0


@pytest.mark.stack
@pytest.mark.usefixtures("unpacks")
def test_the_demo_passes(command: Command) -> None:
    demo = command("lab", "demo", "--output", "plain", timeout=1000)
    assert demo.returncode == 0, demo.stdout[-4000:] + demo.stderr[-4000:]
    assert "0 processes left on 2 hosts" in demo.stdout
