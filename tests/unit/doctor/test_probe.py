"""The probe under real shells: complete, quick, and whole even where commands hang, rave or are missing."""

import fcntl
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest

from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.facts.probe_output import ProbeOutput, build_probe_command, parse_probe_answer
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Command
from ipexctl.model.json_values import to_json
from tests.markers import MARKER
from tests.tables import read_table
from tests.unit.doctor.corpus import uarchs

TEXT = "".join(files("ipexctl.remote").joinpath(name).read_text("utf-8") for name in ("ownership.sh", "probe.sh"))
NONCE = secrets.token_hex(16)  # of this test run: others may run on this machine
SHELLS = [
    pytest.param(
        shell, marks=pytest.mark.skipif(not shutil.which(shell[0]), reason=f"{shell[0]} is not installed here")
    )
    for shell in (("dash",), ("bash", "--posix"), ("bash",), ("busybox", "ash"))
]


def ask(
    path: str, shell: tuple[str, ...] = ("sh",), *, limit: float = 10.0, home: Path | None = None, **asked: str
) -> ProbeOutput:
    command = build_probe_command(TEXT, NONCE, limit=limit, **asked)
    env = {"PATH": path, "HOME": str(home or "/"), "LANG": "de_DE.UTF-8"}
    done = subprocess.run(
        [shutil.which(shell[0]) or shell[0], *shell[1:], *command.argv[1:]],
        input=command.stdin,
        stdout=subprocess.PIPE,
        env=env,
        timeout=30,
        check=True,
    )
    return parse_probe_answer(done.stdout, NONCE, limit=limit)


def facts(bundle: ProbeOutput) -> Facts:
    return parse_facts(bundle, uarchs())


def shim(directory: Path, name: str, text: str) -> None:
    file = directory / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def processes(mark: str) -> list[int]:
    """Processes that carry the mark in their environment and are not dead yet."""
    result = []
    for directory in Path("/proc").iterdir():
        try:
            if directory.name.isdigit() and mark.encode() in (directory / "environ").read_bytes():
                result.append(int(directory.name))
        except OSError:
            continue
    return result


@pytest.mark.fault("C2")
@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_tells_the_same_of_this_machine(shell: tuple[str, ...]) -> None:
    bundle = ask("/usr/bin:/bin", shell, venv="~/env", home=Path("/tmp"))
    reported = facts(bundle)
    assert bundle.unread == {}
    assert reported.cpus_online
    assert reported.logical_online == os.cpu_count()
    assert reported.physical_cores
    assert reported.mem_total_kb
    assert reported.kernel == os.uname().release
    assert reported.hostname == os.uname().nodename
    assert reported.clock == pytest.approx(time.time(), abs=600)
    assert set(reported.cpus_allowed or ()) == os.sched_getaffinity(0)
    assert "127.0.0.1/8" in {address for card in reported.interfaces for address in card.addresses}
    assert {disk.path for disk in reported.disks} >= {"/tmp/env", "/dev/shm", "/tmp"}
    assert all(disk.free is not None for disk in reported.disks)
    assert reported.installed is not None
    assert (reported.installed.venv, reported.installed.exists) == ("/tmp/env", False)
    assert reported.machine_id


@pytest.mark.fault("C2")
def test_nothing_but_a_shell_and_its_kernel_still_tells_what_matters(tmp_path: Path) -> None:
    """Of the usual tools only those that any POSIX system has."""
    for name in ("cat", "sed", "grep", "head", "sleep", "ls"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    text = TEXT.replace("PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin", "PATH=$PATH")
    assert text != TEXT
    command = build_probe_command(text, NONCE)
    done = subprocess.run(
        [shutil.which("sh") or "sh", *command.argv[1:]],
        input=command.stdin,
        stdout=subprocess.PIPE,
        env={"PATH": str(tmp_path), "HOME": "/"},
        timeout=30,
        check=True,
    )
    reported = facts(parse_probe_answer(done.stdout, NONCE))
    assert reported.cpus_online
    assert reported.mem_total_kb
    assert reported.distribution
    assert reported.clock is None
    assert reported.disks
    assert all(disk.free is None for disk in reported.disks)


@pytest.mark.fault("C3")
def test_questions_that_hang_are_killed_and_named_and_all_others_are_answered(tmp_path: Path) -> None:
    shim(tmp_path, "df", "sleep 1000 & sleep 1000")
    shim(tmp_path, "getent", "trap '' TERM HUP INT; while :; do sleep 1000; done")
    shim(tmp_path, "python3", "exec sleep 1000")
    bundle = ask(f"{tmp_path}:/usr/bin:/bin", limit=3)
    assert bundle.unread == {
        "df -Pk": "timed out after 3 s",
        "df -Pk /dev/shm /tmp": "timed out after 3 s",
        "getent hosts": "timed out after 3 s",
        "python -V": "timed out after 3 s",
    }
    reported = facts(bundle)
    assert reported.cpus_online
    assert reported.interfaces
    assert any(python.why == "timed out after 3 s" and not python.usable for python in reported.pythons)
    assert processes(f"IPEXCTL_PROBE={NONCE}") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_settings_that_others_may_change_are_reported_without_values(tmp_path: Path, shell: tuple[str, ...]) -> None:
    home = tmp_path / "a home"
    for name in ("tools", "sticky", "closed", "scratch/mine", "shared/work"):
        (home / name).mkdir(parents=True)
    for name, mode in {"tools": 0o757, "sticky": 0o1777, "closed": 0o775, "scratch": 0o777, "shared": 0o1777}.items():
        (home / name).chmod(mode)
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://me:hunter2@mirror.example/simple\n")
    (home / ".config/uv").mkdir()
    (home / ".config/uv/uv.toml").touch()  # an empty one sets nothing
    own = {
        "PIP_INDEX_URL": "https://me:hunter2@mirror.example/\nUV_FORGED=1",
        "UV_OFFLINE": "1",
        "PIPX_HOME": "/opt/pipx",
    }
    command = build_probe_command(TEXT, NONCE, venv=str(home / "scratch/mine/env"), workdir=str(home / "shared/work"))
    done = subprocess.run(
        [shutil.which(shell[0]) or shell[0], *shell[1:], *command.argv[1:]],
        input=command.stdin,
        stdout=subprocess.PIPE,
        env={"PATH": f"{home}/tools:/usr/bin:{home}/sticky:/bin:{home}/closed:.", "HOME": str(home), **own},
        timeout=30,
        check=True,
    )
    bundle = parse_probe_answer(done.stdout, NONCE)
    reported = facts(bundle)
    assert bundle.unread == {}
    assert set(reported.open_directories) == {f"{home}/{name}" for name in ("tools", "sticky", "scratch")}
    shown = {name for name in reported.ignored_settings if not name.startswith("/etc/")}
    assert shown - {"UV_FORGED"} == {"PIP_INDEX_URL", "UV_OFFLINE", f"{home}/.config/pip/pip.conf"}
    assert b"hunter2" not in done.stdout


FREEZER = Path("/sys/fs/cgroup/freezer")  # of the first kind: whom it has frozen no signal ends


@pytest.mark.skipif(not os.access(FREEZER / "tasks", os.W_OK), reason="no freezer of control groups v1, or not root")
@pytest.mark.parametrize("shell", SHELLS)
def test_a_program_that_cannot_be_killed_costs_only_its_own_answer(tmp_path: Path, shell: tuple[str, ...]) -> None:
    group = FREEZER / f"ipexctl-{NONCE}"
    group.mkdir()
    try:
        (group / "freezer.state").write_text("FROZEN")
        for name in ("df", "python3"):
            shim(tmp_path, name, f"echo $$ >{group}/tasks\nsleep 1000")
        bundle = ask(f"{tmp_path}:/usr/bin:/bin", shell, limit=3)
    finally:
        (group / "freezer.state").write_text("THAWED")
        while (group / "tasks").read_text():
            time.sleep(0.05)
        group.rmdir()
    dead = {f"process {line}" for line in bundle.unread if line.startswith("process ")}
    assert len(dead) >= 2
    assert {name: why for name, why in bundle.unread.items() if not name.startswith("process ")} == {
        "df -Pk": "timed out after 3 s",
        "df -Pk /dev/shm /tmp": "timed out after 3 s",
        "python -V": "timed out after 3 s",
    }
    reported = facts(bundle)
    assert reported.cpus_online
    assert reported.interfaces
    assert reported.tools


def test_a_question_that_runs_away_into_a_session_of_its_own_is_killed_too(tmp_path: Path) -> None:
    shim(tmp_path, "getent", "setsid sleep 1000 & sleep 1000")
    bundle = ask(f"{tmp_path}:/usr/bin:/bin", limit=3)
    assert set(bundle.unread) == {"getent hosts"}
    assert processes(f"IPEXCTL_PROBE={NONCE}") == []


@pytest.mark.fault("C4")
def test_an_answer_without_end_is_cut_and_marked(tmp_path: Path) -> None:
    shim(tmp_path, "ip", "exec cat /dev/zero")
    shim(tmp_path, "df", f"exec yes {1:0500}")
    bundle = ask(f"{tmp_path}:/usr/bin:/bin", limit=4)
    assert bundle.unread["ip addr"] == "timed out after 4 s"  # a line without end
    assert "longer than 256 KiB" in bundle.unread["df -Pk"]
    assert facts(bundle).cpus_online


@pytest.mark.fault("C4")
@pytest.mark.parametrize("garbage", read_table("probe/garbage_from_any_tool_is_survived"))
def test_garbage_from_any_tool_is_survived(tmp_path: Path, garbage: str) -> None:
    for name in ("df", "ip", "getent", "python3", "mpirun", "date", "lscpu", "getconf", "ps", "id"):
        shim(tmp_path, name, garbage)
    reported = facts(ask(f"{tmp_path}:/usr/bin:/bin"))
    assert reported.cpus_online
    assert all(disk.free is None for disk in reported.disks)
    assert not any(python.usable for python in reported.pythons if python.path.startswith(str(tmp_path)))


def test_an_environment_is_read_without_starting_its_python(tmp_path: Path) -> None:
    venv = tmp_path / "env"
    site = venv / "lib" / "python3.11" / "site-packages"
    for name in ("torch-2.8.0+cpu", "intel_extension_for_pytorch-2.8.0", "odd.Name-1.0"):
        (site / f"{name}.dist-info").mkdir(parents=True)
    (venv / "bin").mkdir()
    shim(venv / "bin", "python", "echo started >> " + str(tmp_path / "started"))
    (venv / "ipexctl.json").write_text(json.dumps(to_json(MARKER), indent=1))
    installed = facts(ask("/usr/bin:/bin", venv=str(venv))).installed
    assert installed is not None
    assert installed.exists
    assert installed.packages == {"torch": "2.8.0+cpu", "intel-extension-for-pytorch": "2.8.0", "odd-name": "1.0"}
    assert installed.marker == MARKER
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_an_install_that_is_under_way_is_seen_by_its_lock(tmp_path: Path, shell: tuple[str, ...]) -> None:
    store = tmp_path / "env.d"
    (store / "tmp").mkdir(parents=True)
    with (store / "lock").open("w") as lock:
        for held in (False, True):
            if held:
                fcntl.flock(lock, fcntl.LOCK_EX)
            installed = facts(ask("/usr/bin:/bin", shell, venv=str(tmp_path / "env"))).installed
            assert installed is not None
            assert (installed.locked, installed.beside) == (held, ("tmp",))


def test_paths_with_blanks_quotes_and_commands_in_them_are_only_paths(tmp_path: Path) -> None:
    evil = str(tmp_path / "a b'c\"$(touch pwned)`touch pwned`;*")
    reported = facts(ask("/usr/bin:/bin", venv=evil, workdir=f"{evil}/x", home=tmp_path))
    assert reported.installed is not None
    assert reported.installed.venv == evil
    assert {evil, f"{evil}/x"} <= {disk.path for disk in reported.disks}
    assert not list(tmp_path.rglob("*pwned*"))


@pytest.mark.parametrize("shell", SHELLS)
def test_a_relative_place_is_one_in_the_home_directory(tmp_path: Path, shell: tuple[str, ...]) -> None:
    (tmp_path / "proj").mkdir()
    bundle = ask("/usr/bin:/bin", shell, workdir="proj/x", venv="~/env", home=tmp_path)
    assert bundle.unread == {}
    reported = facts(bundle)
    assert {str(tmp_path / "proj/x"), str(tmp_path / "env")} <= {disk.path for disk in reported.disks}


def test_the_command_is_plain_words_with_the_script_on_its_input() -> None:
    command = build_probe_command(TEXT, NONCE, venv="/v", names=["a", "b"], limit=7)
    assert command == Command(
        ("sh", "-s", "--", NONCE, "7", str(1 << 18), "/v", "", "a", "b"),
        stdin=TEXT.encode(),
        timeout=12.0,
        cap=16 << 20,
        brief=True,
    )


@pytest.mark.parametrize("tools", [("perl",), ("python3",), ()], ids=["Perl", "Python", "neither"])
def test_whether_a_process_may_use_tiles_is_asked_with_what_is_there(tmp_path: Path, tools: tuple[str, ...]) -> None:
    for tool in tools:
        if not (result := sys.executable if tool == "python3" else shutil.which(tool)):
            pytest.skip(f"{tool} is not installed here")
        (tmp_path / tool).symlink_to(Path(result).resolve())
    begin = TEXT.index("tiles() {")
    question = TEXT[begin : TEXT.index("\n}\n", begin) + 3] + "tiles 2>/dev/null"
    done = subprocess.run(["/bin/sh", "-c", question], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert re.fullmatch(r"granted\n|refused [0-9]+\n" if tools else "", done.stdout), done
