"""A small cluster on this machine: real OpenSSH servers on loopback, run by an ordinary user.

All files of a lab are in one directory. Its processes are identified by process id and start time (the servers,
recorded before they run), by descent from a server, and by an environment variable of every session; never by name. So
the next command can clean up after one that was killed at any moment."""

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
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path

from ipexctl.model.errors import Exit, UsageError, advise
from ipexctl.model.json_values import Record, convert_json
from ipexctl.model.text import printable
from ipexctl.store.private_files import (
    claim_private_directory,
    make_private_directories,
    read_regular_file,
    write_private_file,
)

ENV_TAG = "IPEXCTL_LAB"
ADDRESS = "127.0.0.1"
_SBIN = "/usr/sbin:/usr/local/sbin:/sbin"  # not on an ordinary user's PATH
_SFTP = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec", "/usr/lib64/ssh")
_RECORD_LIMIT = 1 << 20  # bytes
_VARIABLES = 8 << 20  # bytes of a process: more than a program can be started with
_NAME = re.compile("lab[0-9]{1,4}")  # of a host, and of its directory
_UNSAFE = re.compile(r'["%\\]|[^\x20-\x7e]')  # has a meaning in sshd_config


class Server(Record):
    """One lab host: its sshd's port, process id and start time (clock ticks since boot)."""

    name: str
    port: int
    pid: int
    started: int


class Lab(Record):
    """``tag`` is the value of ``IPEXCTL_LAB`` in every session, ``boot`` the machine's boot id at its creation;
    ``ready`` is saved last, after a login to every server."""

    directory: Path
    names: tuple[str, ...]
    user: str
    tag: str
    boot: str
    servers: tuple[Server, ...] = ()
    ready: bool = False

    def __post_init__(self) -> None:
        names = [*self.names, *(server.name for server in self.servers)]
        if not all(map(_NAME.fullmatch, names)):  # files are made and removed in directories of these names
            raise ValueError("its hosts are not lab0, lab1 and so on")

    def path(self, *names: str) -> Path:
        """A file of the lab ("hostfile"), or of one of its hosts ("lab0", "home"); "env" is the environment of all."""
        return self.directory.joinpath(*names)


class Tools(Record):
    sshd: str
    keygen: str
    ssh: str
    sftp: str | None


class LabError(Exception):
    """A server could not be started, or a login failed; the text is one line, subject first."""


def find_openssh_tools() -> Tools:
    """Finds the programs of OpenSSH. Raises `UsageError` (exit 4) if one is missing."""
    path = f"{os.environ.get('PATH', '')}:{_SBIN}"
    programs = {name: shutil.which(name, path=path) for name in ("sshd", "ssh-keygen", "ssh")}
    missing = [name for name, program in programs.items() if program is None]
    if missing:
        raise UsageError(
            f"the lab needs OpenSSH: {', '.join(missing)} not found",
            hint="apt-get install openssh-server (dnf: openssh-server openssh-clients)",
            exit=Exit.STEP,
        )
    sftp = shutil.which("sftp-server", path=os.pathsep.join(_SFTP))
    return Tools(str(programs["sshd"]), str(programs["ssh-keygen"]), str(programs["ssh"]), sftp)


@contextmanager
def lock_lab_directory(directory: Path) -> Iterator[None]:
    """Creates the lab's directory if needed, and locks it. Raises `UsageError` if it is unsafe, or locked (exit 7)."""
    if unsafe := _UNSAFE.search(str(directory)):
        raise UsageError(f"a lab cannot be in {printable(str(directory))}: its path contains '{printable(unsafe[0])}'")
    try:
        make_private_directories(directory)
        _check_owner(directory)
        claim_private_directory(directory)  # a link would lead to other keys of the user's
        fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UsageError(f"a lab cannot be in {directory}: {error.strerror}", exit=Exit.STEP) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise UsageError(f"the lab in {directory} is locked by another ipexctl", exit=Exit.BUSY) from None
    try:
        yield
    finally:
        os.close(fd)


def _check_owner(directory: Path) -> None:
    """Raises `UsageError` if users other than this one and root can change the directory or one above it."""
    for path in (directory, *directory.parents):
        status = path.stat()
        by_group = status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid)
        is_sticky = path == directory or status.st_mode & stat.S_ISVTX
        shared = (status.st_mode & stat.S_IWOTH or by_group) and not is_sticky
        if shared or status.st_uid not in (0, os.geteuid()):
            raise UsageError(f"a lab cannot be in {directory}: others may change {path}", exit=Exit.STEP)


def _is_private_group(gid: int) -> bool:
    """Returns whether a group has no member but this user, or is root's."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return gid == 0 or (group.gr_name == user and set(group.gr_mem) <= {user})


def load_lab(directory: Path) -> Lab | None:
    """Returns the lab last started here, running or not; None without one. Raises `UsageError` for a damaged record."""
    record = directory / "lab.json"
    try:
        value = json.loads(read_regular_file(record, _RECORD_LIMIT, own=True))
        servers = convert_json(tuple[Server, ...], value.pop("servers"))
        return Lab(directory, tuple(value.pop("names")), servers=servers, **value)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = printable(str(error))
        raise UsageError(f"the lab's record {record} cannot be read: {why}", exit=Exit.STEP) from None


def save_lab(lab: Lab) -> None:
    """Replaces the lab's record, by which later commands find and clean it up."""
    record = {name: value for name, value in asdict(lab).items() if name != "directory"}
    write_private_file(lab.path("lab.json"), json.dumps(record, indent=2).encode())


def create_lab(directory: Path, count: int, tools: Tools) -> Lab:
    """Creates keys and home directories and saves the lab; starts no process."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise UsageError(f"user {os.geteuid()} has no entry in the user database, so sshd accepts no login") from None
    names = tuple(f"lab{number}" for number in range(count))
    lab = Lab(directory, names, user, secrets.token_hex(16), _read_boot_id())
    save_lab(lab)
    write_private_file(lab.path("session"), _read_file("remote", "lab_session.sh").encode())
    _generate_key_pair(tools, lab.path("id_ed25519"))
    write_private_file(lab.path("authorized_keys"), lab.path("id_ed25519.pub").read_bytes())
    for name in names:
        make_private_directories(lab.path(name, "home"))
        _generate_key_pair(tools, lab.path(name, "host_key"))
    return lab


def start_server(lab: Lab, name: str, tools: Tools) -> Lab:
    """Starts one host's server on a free port and waits for its banner; returns the lab with it. Raises `LabError`."""
    config, log = lab.path(name, "sshd_config"), lab.path(name, "sshd.log")
    for _ in range(3):  # another process may take the port before sshd does
        with socket.create_server((ADDRESS, 0)) as free:
            port = free.getsockname()[1]
        write_private_file(config, format_sshd_config(lab, name, port, tools).encode())
        _check_sshd_config(config, tools)
        write_private_file(log, b"")
        lab = _spawn_sshd(lab, name, port, [tools.sshd, "-D", "-f", str(config), "-E", str(log)])
        if _wait_for_banner(lab.servers[-1]):
            return lab
        output = log.read_text("utf-8", "replace")
        _signal_processes({lab.servers[-1].pid}, signal.SIGKILL)
        lab = replace(lab, servers=lab.servers[:-1])
        if "Address already in use" not in output:
            break
    raise LabError(f"sshd sends no banner: {_format_last_line(output)}")


def write_client_files(lab: Lab) -> None:
    """Writes the hostfile, known_hosts and ssh_config of the lab's servers."""
    keys = [(server.port, lab.path(server.name, "host_key.pub").read_text("utf-8")) for server in lab.servers]
    known_hosts = "".join(f"[{ADDRESS}]:{port} {key}" for port, key in keys)
    hosts = (f"Host {server.name}\n  HostName {ADDRESS}\n  Port {server.port}\n" for server in lab.servers)
    config = "\n".join([*hosts, _read_file("data", "lab_ssh_config").format(lab=lab)])
    texts = {"known_hosts": known_hosts, "hostfile": format_hostfile(lab), "ssh_config": config}
    for name, text in texts.items():
        write_private_file(lab.path(name), text.encode())


def try_login(lab: Lab, name: str, tools: Tools) -> None:
    """Logs in to a host and checks the home directory. Raises `LabError`."""
    argv = [tools.ssh, "-F", str(lab.path("ssh_config")), "-oBatchMode=yes", "-oConnectTimeout=10", "-n", name]
    try:
        done = _run_program([*argv, 'printf "%s\\n" "$HOME" "$PWD"'], timeout=30)
    except subprocess.TimeoutExpired:
        raise LabError("login timed out after 30 s") from None
    if done.returncode:
        raise LabError(f"login failed: {_format_last_line(done.stderr)}")
    home = str(lab.path(name, "home"))
    if done.stdout.split("\n")[:1] != [home]:
        raise LabError(f"login ended in {printable(done.stdout.strip())}, not in {home}")


def format_sshd_config(lab: Lab, name: str, port: int, tools: Tools) -> str:
    """Returns the text of one server's configuration."""
    session = shlex.quote(str(lab.path("session")))
    is_shared = any(parent.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) for parent in lab.directory.parents)
    words = {"address": ADDRESS, "port": port, "strict": "no" if is_shared else "yes", "tag": ENV_TAG}
    text = _read_file("data", "lab_sshd_config").format(lab=lab, host=lab.path(name), session=session, **words)
    return text + (f"Subsystem sftp {tools.sftp}\n" if tools.sftp else "")


def _read_file(package: str, name: str) -> str:
    return resources.files(f"ipexctl.{package}").joinpath(name).read_text("utf-8")


def format_hostfile(lab: Lab) -> str:
    """Returns the text of a hostfile with everything ipexctl needs to reach the lab."""
    heading, line = _read_file("data", "lab_hostfile").splitlines(keepends=True)
    return heading + "".join(line.format(server=server, address=ADDRESS, lab=lab) for server in lab.servers)


def is_server_alive(lab: Lab, server: Server) -> bool:
    """Returns whether the server's sshd runs (not another process with the same id)."""
    return lab.boot == _read_boot_id() and _read_start_time(server.pid) == server.started


def find_dead_hosts(lab: Lab) -> list[str]:
    """Returns the names of the hosts whose server does not run."""
    running = {server.name for server in lab.servers if is_server_alive(lab, server)}
    return [name for name in lab.names if name not in running]


def find_processes(lab: Lab, server: Server | None = None) -> set[int]:
    """Process ids of the lab, or of one host: servers, their descendants, and processes with the lab's tag. Processes
    of other users are never part of a lab."""
    home = {f"HOME={lab.path(server.name, 'home')}".encode()} if server else set()
    marks = home | {f"{ENV_TAG}={lab.tag}".encode()}
    pids = {each.pid for each in ((server,) if server else lab.servers) if is_server_alive(lab, each)}
    parents: dict[int, int] = {}
    for pid in (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        with suppress(OSError):  # it has ended, or belongs to another user
            state, parent = _read_stat(pid)[:2]
            if state == "Z":
                continue
            parents[pid] = int(parent)
            if marks <= _read_variables(pid):
                pids.add(pid)
    new = pids
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - pids
        pids |= new
    return pids


def _read_variables(pid: int) -> set[bytes]:
    """Returns what a process was started with; nothing of another user's, whose variables may have no end (prctl(2)).
    Raises `OSError`."""
    if f"\nUid:\t{os.getuid()}\t" not in Path(f"/proc/{pid}/status").read_text("utf-8", "replace"):
        return set()
    with Path(f"/proc/{pid}/environ").open("rb") as file:
        return {*file.read(_VARIABLES).split(b"\0")}


def remove_lab(lab: Lab) -> tuple[int, ...]:
    """Ends every process of the lab, and removes its files if none remains; returns those that do. Homes and the
    environment stay for the next lab. Raises `UsageError` if this process is one of the lab's."""
    if remaining := _end_processes(lab):
        return remaining
    own = ("sshd_config", "host_key", "host_key.pub", "sshd.log")
    shared = ("hostfile", "known_hosts", "id_ed25519", "id_ed25519.pub", "ssh_config", "authorized_keys", "session")
    files = [lab.path(name, file) for name in lab.names for file in own]
    for path in (*files, *map(lab.path, shared), lab.path("lab.json")):  # the record last: by it a command cleans up
        path.unlink(missing_ok=True)
    return ()


def _end_processes(lab: Lab, grace: float = 5.0) -> tuple[int, ...]:
    """SIGTERM, SIGKILL after ``grace`` seconds. Servers end first, so that no session is added."""
    servers = {server.pid for server in lab.servers if is_server_alive(lab, server)}
    pids = find_processes(lab)
    if os.getpid() in pids:
        raise UsageError(
            "this shell is a session of the lab", hint=advise("lab", "down", text="leave it (exit), then:")
        )
    _signal_processes(servers, signal.SIGTERM)
    _signal_processes(pids - servers, signal.SIGTERM)
    start_times = {pid: _read_start_time(pid) for pid in pids}
    begun = time.monotonic()
    while True:
        # A session's sshd is no descendant any more once the server has ended, hence `start_times`.
        remaining = {pid for pid, start in start_times.items() if start is not None and _read_start_time(pid) == start}
        remaining |= find_processes(lab)
        start_times |= {pid: _read_start_time(pid) for pid in remaining - start_times.keys()}
        waited = time.monotonic() - begun
        if not remaining or waited > grace + 5.0:
            return tuple(sorted(remaining))
        if waited > grace:
            _signal_processes(remaining, signal.SIGKILL)
        time.sleep(0.02 if waited < 0.5 else 0.1)


def _spawn_sshd(lab: Lab, name: str, port: int, sshd: list[str]) -> Lab:
    """Starts sshd detached from this process, but lets it run only after its process id is saved."""
    waiting = 'echo $$ && read -r go && exec "$@" </dev/null >/dev/null 2>&1'
    argv, pipe = ["setsid", "--fork", "sh", "-c", waiting, "sh", *sshd], subprocess.PIPE
    env = {"PATH": os.environ.get("PATH", os.defpath), ENV_TAG: lab.tag}
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=env, cwd="/", text=True) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        lab = replace(lab, servers=(*lab.servers, Server(name, port, pid, _read_start_time(pid) or 0)))
        save_lab(lab)
        shell.stdin.write("go\n")
    return lab


def _check_sshd_config(path: Path, tools: Tools) -> None:
    """Checks a configuration with ``sshd -t``; as root makes the directory its service would. Raises `LabError`."""
    for _ in range(2):
        done = _run_program([tools.sshd, "-t", "-f", str(path)])
        if done.returncode == 0:
            return
        missing = re.search(r"Missing privilege separation directory: (/\S+)", done.stderr)
        if not missing or os.geteuid() != 0:
            break
        Path(missing[1]).mkdir(mode=0o755, parents=True, exist_ok=True)
    raise LabError(f"sshd refuses its configuration: {_format_last_line(done.stderr)}")


def _wait_for_banner(server: Server, patience: float = 10.0) -> bool:
    end = time.monotonic() + patience
    while time.monotonic() < end and _read_start_time(server.pid) == server.started:
        try:
            with socket.create_connection((ADDRESS, server.port), timeout=1.0) as probe:
                if probe.recv(4) == b"SSH-":
                    return _read_start_time(server.pid) == server.started
        except OSError:
            pass
        time.sleep(0.02)
    return False


def _signal_processes(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _read_stat(pid: int) -> Sequence[str]:
    """Returns the fields of /proc/PID/stat from the third on: state, parent, … Raises `OSError` if it has ended."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()


def _read_start_time(pid: int) -> int | None:
    """Returns the start time of a running process, in clock ticks since boot."""
    try:
        fields = _read_stat(pid)
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _read_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def _generate_key_pair(tools: Tools, path: Path) -> None:
    for file in (path, path.with_name(f"{path.name}.pub")):
        file.unlink(missing_ok=True)
    done = _run_program([tools.keygen, "-q", "-t", "ed25519", "-N", "", "-C", "ipexctl-lab", "-f", str(path)])
    if done.returncode:
        raise UsageError(f"ssh-keygen failed: {_format_last_line(done.stderr)}", exit=Exit.STEP)
    path.with_name(f"{path.name}.pub").chmod(0o600)


def _run_program(argv: list[str], timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, timeout=timeout, text=True, errors="replace")


def _format_last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return printable(lines[-1].strip(), 200) if lines else "no output"
