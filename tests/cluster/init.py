"""The first process of a host, started in new namespaces: mounts the host's root, starts sshd, then reaps and obeys.

Standard input is the host's life line: a JSON line with what the host is, then ``go`` once its cables are plugged
in, then ``stop`` and ``cont``. Each is answered by a line. When it closes, this process ends and the kernel ends
everything else in the host.

All modules are imported before the root changes: this interpreter may not exist in the host.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

OVERLAYFS_MAGIC = "overlayfs"
NODES = ("null", "zero", "full", "random", "urandom", "tty")


def main() -> None:
    host = json.loads(sys.stdin.readline())
    say(os.readlink("/proc/self"))  # /proc is still the outer one: our process id as the owner sees it
    expect("go")
    socket.sethostname(host["name"])
    furnish(Path(host["disk"]), host["root"], dict(host["files"]))
    call("ip", "-batch", "-", text="".join(f"{line}\n" for line in host["ip"]))
    Path("/run/sshd").mkdir(mode=0o755)
    call("/usr/sbin/sshd", "-E", "/var/log/sshd.log")
    wait_for_sshd()
    signal.signal(signal.SIGCHLD, reap)
    reap()
    say("ready")
    for line in sys.stdin:
        if line == "stop\n":
            send_all(signal.SIGSTOP)
        elif line == "cont\n":
            send_all(signal.SIGCONT)
        say("done")


def furnish(disk: Path, root: str, files: dict[str, str]) -> None:
    """Makes the host's root from an overlay of ``root``, which is this machine's or another installation, and the
    host's own disk, and moves into it. ``files`` stand in the place of the kernel's."""
    new = disk / "mnt"
    if subprocess.run(["stat", "-fc", "%T", disk], capture_output=True, text=True).stdout.strip() == OVERLAYFS_MAGIC:
        # An overlay cannot be the upper layer of another (we are in a container): the disk is then memory.
        for name in ("upper", "work"):
            shutil.copytree(disk / name, disk / f"{name}.new", symlinks=True)
        call("mount", "-t", "tmpfs", "tmpfs", str(disk / "memory"))
        for name in ("upper", "work"):
            shutil.move(disk / f"{name}.new", disk / "memory" / name)
        layers = disk / "memory"
    else:
        layers = disk
    options = f"lowerdir={root},upperdir={layers}/upper,workdir={layers}/work"
    call("mount", "-t", "overlay", "overlay", "-o", options, str(new))
    for name, place in (("root", "root"), ("home", "home"), ("tmp", "tmp"), ("vartmp", "var/tmp")):
        call("mount", "--bind", str(disk / name), str(new / place))
    for name in ("run", "dev"):
        call("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(new / name))
    for name in NODES:
        (new / "dev" / name).touch()
        call("mount", "--bind", f"/dev/{name}", str(new / "dev" / name))
    for name in ("shm", "pts"):
        (new / "dev" / name).mkdir()
    call("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(new / "dev/shm"))
    call("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620,gid=5", "devpts", str(new / "dev/pts"))
    for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0")):
        (new / "dev" / name).symlink_to(target)
    for name, target in (("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")):
        (new / "dev" / name).symlink_to(target)
    (new / "run/lock").mkdir(mode=0o1777)
    (new / "run/old").mkdir()
    call("mount", "-t", "proc", "proc", str(new / "proc"))
    call("mount", "-t", "sysfs", "-o", "ro", "sysfs", str(new / "sys"))
    if Path("/sys/fs/cgroup").is_mount():
        call("mount", "--rbind", "/sys/fs/cgroup", str(new / "sys/fs/cgroup"))
    # The kernel's own would be the same on all hosts.
    for number, (path, text) in enumerate({**files, "/proc/sys/kernel/random/boot_id": f"{uuid.uuid4()}\n"}.items()):
        (new / f"run/file{number}").write_text(text)
        call("mount", "--bind", str(new / f"run/file{number}"), f"{new}{path}")
    call("pivot_root", str(new), str(new / "run/old"))  # moves us, too
    os.chdir("/")
    call("umount", "--lazy", "/run/old")
    Path("/run/old").rmdir()
    for line in Path("/proc/mounts").read_text().splitlines():
        place = line.split()[1]
        if place.startswith("/sys/fs/cgroup"):
            call("mount", "-o", "remount,bind,ro", place)


def wait_for_sshd() -> None:
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 22)) == 0:
                return
        time.sleep(0.01)
    raise SystemExit("sshd does not listen: " + Path("/var/log/sshd.log").read_text()[-500:])


def reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def send_all(number: int) -> None:
    """To all processes of this host but ourselves, at one moment."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


def call(*argv: str, text: str = "") -> None:
    done = subprocess.run(argv, input=text, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {done.stderr.strip()}")


def expect(word: str) -> None:
    if sys.stdin.readline().strip() != word:
        raise SystemExit(0)  # our owner is gone


def say(text: str) -> None:
    print(text, flush=True)


ctypes.CDLL(None).prctl(15, b"init", 0, 0, 0)  # PR_SET_NAME
main()
