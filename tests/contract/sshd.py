"""A real sshd on a loopback port, unprivileged, with keys of its own: started and stopped by the test that needs it."""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ipexctl.model.hosts import Host

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@dataclass(frozen=True)
class Server:
    """``host()`` is how to reach it; the client's key is ``key``, what it should know ``known_hosts``."""

    place: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def key(self) -> Path:
        return self.place / "id"

    @property
    def known_hosts(self) -> Path:
        return self.place / "known_hosts"

    @property
    def log(self) -> str:
        return (self.place / "log").read_text("utf-8", "replace")

    def host(self, name: str = "node1", **changes: object) -> Host:
        output: dict[str, object] = {"user": getpass.getuser(), "port": self.port, "key": str(self.key)}
        return Host(name, "127.0.0.1", **{**output, **changes})  # type: ignore[arg-type]

    def public(self, kind: str = "ed25519") -> str:
        """The host key as a known_hosts line has it: type and base64."""
        return " ".join((self.place / f"host_{kind}.pub").read_text().split()[:2])


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    words = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return path


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Something on a loopback port that takes connections, one at a time, and is no sshd."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def body() -> None:
            while not stop.is_set():
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client, contextlib.suppress(OSError):
                    serve(client)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def pour(source: socket.socket, sink: socket.socket, gate: threading.Event | None = None) -> None:
    """Passes on what comes, each piece once the gate is open."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            if gate:
                gate.wait()
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def sshd(
    place: Path,
    *lines: str,
    host_keys: tuple[str, ...] = ("ed25519",),
    address: str = "127.0.0.1",
    env: Mapping[str, str] | None = None,
    startup: str = "",
) -> Iterator[Server]:
    """Runs a server with its files in ``place``; ``lines`` come first in its configuration.

    Sessions get ``env`` and a home of their own, so that the developer's own startup files do not matter: there is
    only ``startup``, for a bash that knows sshd as its parent (~/.bashrc, as in Debian) and for one that does not.
    """
    (place / "home").mkdir(parents=True, exist_ok=True)
    place.chmod(0o700)
    variables = {"HOME": str(place / "home"), **(env or {})}
    if startup:
        (place / "home/.bashrc").write_text(startup)
        variables["BASH_ENV"] = str(place / "home/.bashrc")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's own wish when it is started by root
    for kind in host_keys:
        if not (place / f"host_{kind}").exists():
            keygen(place / f"host_{kind}", kind)
    if not (place / "id").exists():
        keygen(place / "id")
    authorized = place / "authorized_keys"
    if not authorized.exists():
        authorized.write_text((place / "id.pub").read_text())
    port = free_port()
    names = "\n".join(
        f"[127.0.0.1]:{port} {' '.join((place / f'host_{kind}.pub').read_text().split()[:2])}" for kind in host_keys
    )
    (place / "known_hosts").write_text(names + "\n")
    (place / "config").write_text(
        "\n".join(
            [
                *lines,
                *(f"HostKey {place}/host_{kind}" for kind in host_keys),
                f"Port {port}",
                f"ListenAddress {address}",
                f"AuthorizedKeysFile {authorized}",
                f"PidFile {place}/pid",
                "PasswordAuthentication no",
                "KbdInteractiveAuthentication no",
                "UsePAM no",
                "StrictModes no",
                "PermitRootLogin yes",
                "LogLevel VERBOSE",
                "UseDNS no",
                "SetEnv " + " ".join(f"{name}={value}" for name, value in variables.items()),
            ]
        )
    )
    log = (place / "log").open("ab")
    # A test run that is killed takes its servers with it, where util-linux is new enough to say so.
    tied = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    words = [*tied, SSHD, "-D", "-e", "-f", str(place / "config")]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    server = Server(place, port, process)
    try:
        deadline = time.monotonic() + 60
        while "Server listening" not in server.log:
            assert process.poll() is None, server.log
            assert time.monotonic() < deadline, server.log
            time.sleep(0.02)
        yield server
    finally:
        for child in children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.terminate()
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def children(pid: int) -> list[int]:
    """Processes started by ``pid``, and by those."""
    result: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                result += [child, *children(child)]
    return result
