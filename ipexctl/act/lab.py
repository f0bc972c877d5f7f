"""A small cluster on this machine: real OpenSSH servers on loopback, run by an ordinary user.

Everything of a lab lies in one directory. Its processes are known by process id and start time (the servers, written
down before they run), by descent from them, and by a mark in the environment of every session; never by name. So the
next command can clean up after one that was killed at any moment.
"""

from __future__ import annotations

import fcntl
import grp
import json
import os
import pwd
import re
import secrets
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.text import printable

MARK = "IPEXCTL_LAB"
ADDRESS = "127.0.0.1"
_SBIN = "/usr/sbin:/usr/local/sbin:/sbin"  # not on an ordinary user's PATH
_SFTP = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec", "/usr/lib64/ssh")
_UNFIT = re.compile(r'["%\\]|[^\x20-\x7e]')  # means something in sshd_config, or to a reader of it

_SESSION = """\
# Every session of a lab host begins here: sshd leaves it in the real home, its home is the lab host's.
cd "$HOME" || exit 255
if [ -z "${SSH_ORIGINAL_COMMAND+set}" ]; then
    exec "$SHELL" -l
fi
command=$SSH_ORIGINAL_COMMAND
unset SSH_ORIGINAL_COMMAND
exec "$SHELL" -c "$command"
"""


@dataclass(frozen=True, slots=True)
class Server:
    """One lab host: its sshd's port, process id and start time (clock ticks since boot)."""

    name: str
    port: int
    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Lab:
    """``mark`` is the value of ``IPEXCTL_LAB`` in every session; ``boot`` the machine's boot id when it was made;
    ``ready`` is written last, when every server had let us in."""

    directory: Path
    names: tuple[str, ...]
    user: str
    mark: str
    boot: str
    servers: tuple[Server, ...] = ()
    ready: bool = False

    @property
    def hostfile(self) -> Path:
        return self.directory / "hostfile"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def key(self) -> Path:
        return self.directory / "id_ed25519"

    @property
    def ssh_config(self) -> Path:
        return self.directory / "ssh_config"

    @property
    def venv(self) -> Path:
        """One environment for all: lab hosts share this machine's files."""
        return self.directory / "env"

    def home(self, name: str) -> Path:
        return self.directory / name / "home"


@dataclass(frozen=True, slots=True)
class Tools:
    sshd: str
    keygen: str
    ssh: str
    sftp: str | None


class LabError(Exception):
    """A server could not be started or entered; the text is one line, subject first."""


# what is on this machine ------------------------------------------------------------------------------------------


def find_tools() -> Tools:
    """The programs of OpenSSH. Raises `UsageError` (exit 4) when one is missing."""
    path = f"{os.environ.get('PATH', '')}:{_SBIN}"
    found = {name: shutil.which(name, path=path) for name in ("sshd", "ssh-keygen", "ssh")}
    missing = [name for name, place in found.items() if place is None]
    if missing:
        raise UsageError(
            f"the lab needs OpenSSH: {', '.join(missing)} not found",
            hint="apt-get install openssh-server (dnf: openssh-server openssh-clients)",
            exit=Exit.STEP,
        )
    sftp = next((f"{place}/sftp-server" for place in _SFTP if os.access(f"{place}/sftp-server", os.X_OK)), None)
    return Tools(str(found["sshd"]), str(found["ssh-keygen"]), str(found["ssh"]), sftp)


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """The lab's directory, made if need be, for us alone. Raises `UsageError` when it is unfit, or (7) busy."""
    if bad := _UNFIT.search(str(directory)):
        raise UsageError(f"a lab cannot lie in {printable(str(directory))}: '{printable(bad[0])}' in the path")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(directory)
        directory.chmod(0o700)
        fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UsageError(f"a lab cannot lie in {directory}: {error.strerror}", exit=Exit.STEP) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise UsageError(f"another ipexctl is working on the lab in {directory}", exit=Exit.BUSY) from None
    try:
        yield
    finally:
        os.close(fd)


def _check_owner(directory: Path) -> None:
    """Nobody but us (and root) may be able to put other files where ours are."""
    for place in (directory, *directory.parents):
        status = place.stat()
        shared = status.st_mode & stat.S_IWOTH or (
            status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid)
        )
        shared = shared and place != directory and not status.st_mode & stat.S_ISVTX
        if shared or status.st_uid not in (0, os.geteuid()):
            raise UsageError(f"a lab cannot lie in {directory}: others may change {place}", exit=Exit.STEP)


def _is_private_group(gid: int) -> bool:
    """A group of the user's own, as many distributions make them, or root's."""
    try:
        group = grp.getgrgid(gid)
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return gid == 0 or (group.gr_name == user and set(group.gr_mem) <= {user})


def load_lab(directory: Path) -> Lab | None:
    """The lab that was last brought up here, whether its processes live or not."""
    try:
        value = json.loads((directory / "lab.json").read_text("utf-8"))
        servers = tuple(Server(**server) for server in value["servers"])
        user, mark, boot = (str(value[key]) for key in ("user", "mark", "boot"))
        return Lab(directory, tuple(value["names"]), user, mark, boot, servers, value["ready"] is True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"the lab's own record {directory / 'lab.json'} cannot be read: {printable(str(error))}", exit=Exit.STEP
        ) from None


# making one -------------------------------------------------------------------------------------------------------


def create_lab(directory: Path, count: int, tools: Tools) -> Lab:
    """A lab on paper: keys, homes and configurations, no process yet."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise UsageError(f"user {os.geteuid()} has no entry in the user database, so sshd lets nobody in") from None
    names = tuple(f"lab{number}" for number in range(count))
    lab = Lab(directory, names, user, secrets.token_hex(16), _boot_id())
    _save(lab)
    _write_atomically(directory / "session", _SESSION)
    public = _keygen(tools, lab.key)
    _write_atomically(directory / "authorized_keys", f"{public}\n")
    for name in names:
        lab.home(name).mkdir(mode=0o700, parents=True, exist_ok=True)
        _keygen(tools, directory / name / "host_key")
    return lab


def start_server(lab: Lab, name: str, tools: Tools) -> Lab:
    """Starts the server of one host on a free port and waits until it greets; the lab with it. Raises `LabError`."""
    place = lab.directory / name
    for _ in range(3):  # between our finding a free port and sshd's taking it another may come
        with socket.create_server((ADDRESS, 0)) as free:
            port = free.getsockname()[1]
        _write_atomically(place / "sshd_config", format_sshd_config(lab, name, port, tools))
        _check_config(place / "sshd_config", tools)
        _write_atomically(place / "sshd.log", "")
        lab = _spawn_sshd(lab, name, port, tools)
        if _sends_banner(lab.servers[-1]):
            return lab
        said = (place / "sshd.log").read_text("utf-8", "replace")
        _signal_processes({lab.servers[-1].pid}, signal.SIGKILL)
        lab = replace(lab, servers=lab.servers[:-1])
        if "Address already in use" not in said:
            break
    raise LabError(f"sshd does not answer: {_last_line(said)}")


def write_files(lab: Lab) -> None:
    """The hostfile, known_hosts and ssh_config of the servers that run."""
    keys = {s.name: (lab.directory / s.name / "host_key.pub").read_text("utf-8").split()[:2] for s in lab.servers}
    known = [f"[{ADDRESS}]:{s.port} {' '.join(keys[s.name])}" for s in lab.servers]
    _write_atomically(lab.known_hosts, "".join(f"{line}\n" for line in known))
    _write_atomically(lab.hostfile, format_hostfile(lab))
    _write_atomically(lab.ssh_config, format_ssh_config(lab))


def try_login(lab: Lab, name: str, tools: Tools) -> None:
    """Proves that a user gets in and is at home there. Raises `LabError`."""
    argv = [tools.ssh, "-F", str(lab.ssh_config), "-oBatchMode=yes", "-oConnectTimeout=10", "-n", name]
    try:
        done = subprocess.run(
            [*argv, 'printf "%s\\n" "$HOME" "$PWD"'], capture_output=True, timeout=30, text=True, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise LabError("login timed out after 30 s") from None
    if done.returncode:
        raise LabError(f"login failed: {_last_line(done.stderr)}")
    home = str(lab.home(name))
    if done.stdout.split("\n")[:1] != [home]:
        raise LabError(f"login ended in {printable(done.stdout.strip())}, not in {home}")


def write_ready_lab(lab: Lab) -> Lab:
    """Writes down that the lab is up."""
    lab = replace(lab, ready=True)
    _save(lab)
    return lab


def format_sshd_config(lab: Lab, name: str, port: int, tools: Tools) -> str:
    """The text of one server's configuration."""
    directory = lab.directory
    session = shlex.quote(str(directory / "session"))
    lines = [
        f"ListenAddress {ADDRESS}:{port}",
        f'HostKey "{directory / name / "host_key"}"',
        "PidFile none",
        f'AuthorizedKeysFile "{directory / "authorized_keys"}"',
        "AuthenticationMethods publickey",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        f"AllowUsers {lab.user}",
        # sshd refuses keys below a directory such as /tmp. Its reason, that others might change them, was ruled out
        # by `held`: all directories above are ours or root's, and sticky where others may write.
        f"StrictModes {'no' if _below_shared(directory) else 'yes'}",
        "UsePAM no",
        "UseDNS no",
        "PrintMotd no",
        "PrintLastLog no",
        "X11Forwarding no",
        "LogLevel VERBOSE",
        "AcceptEnv LANG LC_*",
        f'SetEnv "HOME={lab.home(name)}" "{MARK}={lab.mark}"',
        f"ForceCommand exec /bin/sh {session}",
    ]
    if tools.sftp:
        lines.append(f"Subsystem sftp {tools.sftp}")
    return "".join(f"{line}\n" for line in lines)


def format_hostfile(lab: Lab) -> str:
    """Everything ipexctl needs to reach the lab, with no further option."""
    lines = ["# Written by ipexctl lab up, removed by ipexctl lab down. All hosts share this machine's files."]
    for server in lab.servers:
        words = {
            "address": ADDRESS,
            "port": str(server.port),
            "user": lab.user,
            "key": str(lab.key),
            "known_hosts": str(lab.known_hosts),
            "venv": str(lab.venv),
            "workdir": str(lab.home(server.name) / "work"),
            "lab": f"lab-{lab.mark[:8]}",  # one machine on purpose
        }
        lines.append(" ".join([server.name, *(f"{key}={_quote(value)}" for key, value in words.items())]))
    return "".join(f"{line}\n" for line in lines)


def format_ssh_config(lab: Lab) -> str:
    """For ``ssh -F``: the lab's hosts by their names."""
    lines = []
    for server in lab.servers:
        lines += [f"Host {server.name}", f"  HostName {ADDRESS}", f"  Port {server.port}", ""]
    lines += [
        "Host lab*",
        f"  User {lab.user}",
        f'  IdentityFile "{lab.key}"',
        "  IdentitiesOnly yes",
        f'  UserKnownHostsFile "{lab.known_hosts}"',
        "  GlobalKnownHostsFile /dev/null",
        "  StrictHostKeyChecking yes",
    ]
    return "".join(f"{line}\n" for line in lines)


# what runs --------------------------------------------------------------------------------------------------------


def is_alive(lab: Lab, server: Server) -> bool:
    """Whether its sshd (not merely a process of the same number) runs."""
    return lab.boot == _boot_id() and _start_time(server.pid) == server.started


def find_dead(lab: Lab) -> list[str]:
    """The hosts whose server does not run."""
    running = {server.name for server in lab.servers if is_alive(lab, server)}
    return [name for name in lab.names if name not in running]


def find_processes(lab: Lab, server: Server | None = None) -> set[int]:
    """Every process of the lab, or of one host: servers, what descends from them, and what bears the lab's mark.

    Processes of other users cannot be looked at, and are not ours.
    """
    servers = lab.servers if server is None else (server,)
    home = None if server is None else f"HOME={lab.home(server.name)}".encode()
    parents: dict[int, int] = {}
    found = {server.pid for server in servers if is_alive(lab, server)}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it ended, or is not ours to see
            state, parent = _state(int(entry.name))[:2]
            if state == "Z":
                continue
            parents[int(entry.name)] = int(parent)
            words = Path(entry.path, "environ").read_bytes().split(b"\0")
            if f"{MARK}={lab.mark}".encode() in words and (home is None or home in words):
                found.add(int(entry.name))
    new = found
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def stop_lab(lab: Lab, grace: float = 5.0) -> tuple[int, ...]:
    """Ends every process of the lab: politely, after ``grace`` seconds not; what is left even then.

    Servers end first, so that nobody comes in any more. Raises `UsageError` when we are in the lab ourselves.
    """
    if os.getpid() in find_processes(lab):
        raise UsageError("this shell is a session of the lab itself", hint="exit, then ipexctl lab down")
    masters = {server.pid for server in lab.servers if is_alive(lab, server)}
    known = find_processes(lab)
    _signal_processes(masters, signal.SIGTERM)
    _signal_processes(known - masters, signal.SIGTERM)
    births = {pid: _start_time(pid) for pid in known}
    begun = time.monotonic()
    while True:
        # A session's sshd loses its descent when the server ends, hence `births`.
        left = {pid for pid, born in births.items() if born is not None and _start_time(pid) == born} | find_processes(
            lab
        )
        births |= {pid: _start_time(pid) for pid in left - births.keys()}
        waited = time.monotonic() - begun
        if not left or waited > grace + 5.0:
            return tuple(sorted(left))
        if waited > grace:
            _signal_processes(left, signal.SIGKILL)
        time.sleep(0.02 if waited < 0.5 else 0.1)


def remove_lab(lab: Lab) -> None:
    """The files of a lab that has ended. Homes and the environment stay for the next one."""
    for name in lab.names:
        for file in ("sshd_config", "host_key", "host_key.pub", "sshd.log"):
            (lab.directory / name / file).unlink(missing_ok=True)
    for file in ("hostfile", "known_hosts", "id_ed25519", "id_ed25519.pub", "ssh_config", "authorized_keys", "session"):
        (lab.directory / file).unlink(missing_ok=True)
    (lab.directory / "lab.json").unlink(missing_ok=True)  # last: with it goes the knowledge that there was a lab


# the parts --------------------------------------------------------------------------------------------------------


def _spawn_sshd(lab: Lab, name: str, port: int, tools: Tools) -> Lab:
    """Starts sshd as a process of nobody's, but lets it run only once we have written down which one it is."""
    place = lab.directory / name
    waiting = 'echo $$ && read -r go && exec "$@" </dev/null >/dev/null 2>&1'
    sshd = [tools.sshd, "-D", "-f", str(place / "sshd_config"), "-E", str(place / "sshd.log")]
    with subprocess.Popen(
        ["setsid", "--fork", "sh", "-c", waiting, "sh", *sshd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath), MARK: lab.mark},
        cwd="/",
        text=True,
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        lab = replace(lab, servers=(*lab.servers, Server(name, port, pid, _start_time(pid) or 0)))
        _save(lab)
        shell.stdin.write("go\n")
    return lab


def _check_config(path: Path, tools: Tools) -> None:
    """sshd's own opinion. As root it wants a directory that its service would have made."""
    for _ in range(2):
        done = subprocess.run([tools.sshd, "-t", "-f", str(path)], capture_output=True, text=True, errors="replace")
        if done.returncode == 0:
            return
        found = re.search(r"Missing privilege separation directory: (/\S+)", done.stderr)
        if not found or os.geteuid() != 0:
            break
        Path(found[1]).mkdir(mode=0o755, parents=True, exist_ok=True)
    raise LabError(f"sshd cannot be configured: {_last_line(done.stderr)}")


def _sends_banner(server: Server, patience: float = 10.0) -> bool:
    end = time.monotonic() + patience
    while time.monotonic() < end and _start_time(server.pid) == server.started:
        try:
            with socket.create_connection((ADDRESS, server.port), timeout=1.0) as probe:
                if probe.recv(4) == b"SSH-":
                    return _start_time(server.pid) == server.started
        except OSError:
            pass
        time.sleep(0.02)
    return False


def _signal_processes(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _state(pid: int) -> Sequence[str]:
    """The fields of /proc/PID/stat from the third on: state, parent, … Raises `OSError` when it is gone."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()


def _start_time(pid: int) -> int | None:
    """When a living process started, in clock ticks since boot."""
    try:
        fields = _state(pid)
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def _below_shared(directory: Path) -> bool:
    return any(place.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) for place in directory.parents)


def _keygen(tools: Tools, path: Path) -> str:
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".pub").unlink(missing_ok=True)
    argv = [tools.keygen, "-q", "-t", "ed25519", "-N", "", "-C", "ipexctl-lab", "-f", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise UsageError(f"no key could be made: {_last_line(done.stderr)}", exit=Exit.STEP)
    return path.with_name(path.name + ".pub").read_text("utf-8").strip()


def _save(lab: Lab) -> None:
    value = {
        "names": lab.names,
        "user": lab.user,
        "mark": lab.mark,
        "boot": lab.boot,
        "ready": lab.ready,
        "servers": [{"name": s.name, "port": s.port, "pid": s.pid, "started": s.started} for s in lab.servers],
    }
    _write_atomically(lab.directory / "lab.json", json.dumps(value, indent=2) + "\n")


def _write_atomically(path: Path, text: str) -> None:
    """Old or new, never between; for us alone."""
    new = path.with_name(f"{path.name}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _quote(value: str) -> str:
    return value if re.fullmatch(r"[A-Za-z0-9_./:@+=,-]+", value) else f'"{value}"'


def _last_line(text: str) -> str:
    """The last thing that was said, as one harmless line."""
    lines = [line for line in text.splitlines() if line.strip()]
    return printable(lines[-1].strip(), 200) if lines else "it said nothing"
