"""The cluster: hosts on a bridge, a controller beside them, and the calls that make their lives hard."""

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.cluster.ground import Ground
from tests.cluster.spaces import Room, ip_batch
from tests.cluster.uplink import Uplink

LAN = "lan"
ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}

SSHD = """\
Port 22
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
LogLevel VERBOSE
AcceptEnv LANG LC_*
PidFile /run/sshd.pid
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True)
class Spec:
    """What is special about a host. ``networks``: one interface each, in this order: ("lan",) gives eth0 on the
    cluster's own network; ("aux", "lan") gives aux0 first, on another network that joins the same hosts, and
    then eth0. ``docker``: a docker0 bridge with the same address on every host that has it, before all others."""

    name: str
    networks: tuple[str, ...] = (LAN,)
    docker: bool = False
    users: tuple[str, ...] = ()
    root: str = "/"  # what its disk begins with: that of this machine, or of another installation
    files: tuple[tuple[str, str], ...] = ()  # path and text of what its kernel says otherwise than ours


@dataclass(frozen=True)
class Process:
    """As the host sees it; ``outer`` is its id on this machine, ``state`` the kernel's letter (T is stopped)."""

    pid: int
    ppid: int
    state: str
    argv: tuple[str, ...]
    environ: dict[str, str]
    outer: int


@dataclass
class _Host:
    spec: Spec
    number: int
    disk: Path
    public_key: str = ""
    guard: subprocess.Popen[str] | None = None  # unshare, which waits for init; None when the power is off
    init: int = 0


@dataclass
class _Undo(AbstractContextManager[None]):
    """Lets ``cut``, ``freeze`` and ``power_off`` stand in a ``with``: its end takes them back."""

    back: Callable[[], None]

    def __exit__(self, *_: object) -> None:
        self.back()


def missing() -> str:
    """Why this machine cannot have a cluster, as a reason for a skipped test; empty when it can."""
    if os.geteuid() != 0:
        return "separate hosts need root"
    tools = [tool for tool in ("unshare", "nsenter", "ip", "sshd", "ssh-keygen", "ssh") if not shutil.which(tool)]
    if tools:
        return f"not installed: {', '.join(tools)} (openssh-server openssh-client iproute2 util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, check=False
    )
    return f"no new namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass
class Cluster(AbstractContextManager["Cluster"]):
    """Hosts by name; `names` in order. Use it in a ``with``, or call `close`.

    The controller is the machine itself in a network of its own (10.77.0.1): prefix commands with `controller`, or
    use `run`; in this process, work ``with cluster.inside():`` and sockets (Paramiko's, too) reach the hosts.
    The hosts (10.77.0.10 and on) cannot resolve each other and reach nothing else.
    """

    specs: Sequence[Spec | str] = ("node0", "node1", "node2")
    _hosts: dict[str, _Host] = field(default_factory=dict, init=False)
    _networks: dict[str, int] = field(default_factory=dict, init=False)
    _disturbed: bool = field(default=False, init=False)  # what `restore` mends may have happened
    _open: ExitStack = field(default_factory=ExitStack, init=False)

    def __post_init__(self) -> None:
        with ExitStack() as opened:
            ground = Ground()
            opened.callback(ground.close)
            self._ground = ground.path
            self._switch, self._room = Room(), Room()
            opened.callback(self._switch.close)
            opened.callback(self._room.close)
            self.files = self._ground / "controller"
            self.files.mkdir(mode=0o700)
            self.key = self.files / "id_ed25519"
            self.public_key = _keygen(self.key)
            self._cable_controller()
            opened.callback(self._power_off_all)
            self.add(*self.specs)
            self._open = opened.pop_all()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process, and removes every file and namespace of this cluster."""
        self._open.close()

    # what it is

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._hosts)

    @property
    def controller(self) -> tuple[str, ...]:
        """The words in front of a command that is to run as on the controller: ``[*cluster.controller, "ssh", …]``."""
        return self._room.prefix

    @property
    def network(self) -> str:
        """The kernel's file of the controller's network namespace."""
        return self._room.path

    @property
    def hostfile(self) -> Path:
        """In ipexctl's own dialect: name, address, user, key, known_hosts."""
        return self.files / "hostfile"

    @property
    def known_hosts(self) -> Path:
        return self.files / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """For ``ssh -F``: knows the hosts by their names."""
        return self.files / "ssh_config"

    def address(self, host: str, network: str = LAN) -> str:
        return f"10.{self._networks[network]}.0.{self._hosts[host].number}"

    def host_key(self, host: str) -> str:
        """The public key its sshd shows: "ssh-ed25519 AAAA…"."""
        return self._hosts[host].public_key

    def init(self, host: str) -> int:
        """The process id, on this machine, of the host's first process."""
        if self._hosts[host].guard is None:
            raise RuntimeError(f"{host} is off")
        return self._hosts[host].init

    # on the controller

    def run(
        self, argv: Sequence[str | Path], *, timeout: float = 60, env: dict[str, str] | None = None, **more: object
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on the controller and waits for it; ``more`` goes to `subprocess.run`."""
        words = [*self.controller, *map(str, argv)]
        options: dict[str, object] = {"capture_output": True, "text": True, **more}
        return subprocess.run(words, timeout=timeout, env=env, **options)  # type: ignore[call-overload,no-any-return]

    def ssh(self, host: str, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """OpenSSH's own client, from the controller, with strict host keys; ``words`` is what the shell there gets."""
        return self.run(["ssh", "-F", self.ssh_config, "-o", "BatchMode=yes", host, *words], timeout=timeout)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and those it starts meanwhile, are on the controller's network."""
        with self._room.inside():
            yield

    @contextmanager
    def uplink(self, refused: Collection[str] = ()) -> Iterator[Uplink]:
        """An HTTP(S) proxy in the cluster through which package indexes can be reached, but those at the hosts
        ``refused``: ``env=uplink.env`` for the controller, ``uplink.url`` (http://10.77.0.1:PORT) for hosts."""
        with Uplink.open(self._room.inside, "10.77.0.1", refused) as uplink:
            yield uplink

    # on a host

    def exec(
        self,
        host: str,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 60,
        **more: object,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in a host, without ssh and its sshd; ``more`` goes to `subprocess.run`."""
        drop = [] if user is None else ["runuser", "-u", user, "--"]
        words = [*self.entrance(host), *drop, *argv]
        options: dict[str, object] = {"capture_output": True, "text": True, **more}
        return subprocess.run(words, env=ENV | (env or {}), timeout=timeout, **options)  # type: ignore[call-overload,no-any-return]

    def entrance(self, host: str) -> tuple[str, ...]:
        """The words in front of a command that is to run in the host (for a `subprocess.Popen`)."""
        spaces = ("--mount", "--net", "--pid", "--uts", "--ipc", "--root", "--wd")
        return ("nsenter", "--target", str(self.init(host)), *spaces, "--")

    def path(self, host: str, path: str) -> Path:
        """Where a file of a running host can be read and written from here (beware of absolute links on the way)."""
        return Path(f"/proc/{self.init(host)}/root") / PurePosixPath(path).relative_to("/")

    def home(self, host: str) -> Path:
        """root's home on this machine's disk, where files of two clusters can be linked to each other."""
        return self._hosts[host].disk / "root"

    def write(self, host: str, path: str, data: bytes, mode: int = 0o644) -> None:
        """Makes a file in the host, with the directories above it, owned by root."""
        place = self.path(host, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        place.chmod(mode)

    def read(self, host: str, path: str) -> bytes:
        return self.path(host, path).read_bytes()

    def processes(self, host: str) -> list[Process]:
        """Everything that is alive in the host, its first process (pid 1) and sshd among them; frozen or not."""
        space = os.readlink(f"/proc/{self.init(host)}/ns/pid")
        actual = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.readlink(entry / "ns/pid") == space:
                        actual[int(entry.name)] = _status(entry)
                except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended, or is not ours to see
                    continue
        inner = {outer: status["pid"] for outer, status in actual.items()}
        return [
            Process(
                pid=int(status["pid"]),
                ppid=int(inner.get(int(status["ppid"]), 0)),
                state=status["state"],
                argv=tuple(status["argv"].split("\0")),
                environ=dict(pair.split("=", 1) for pair in status["environ"].split("\0") if "=" in pair),
                outer=outer,
            )
            for outer, status in sorted(actual.items(), key=lambda item: int(item[1]["pid"]))
            if status["state"] != "Z"
        ]

    def sshd_log(self, host: str) -> str:
        return self.read(host, "/var/log/sshd.log").decode("utf-8", "replace")

    def small_home(self, host: str, mib: int) -> None:
        """From now on, to the next power cut, /root is an empty memory file system of this size (with the controller's
        key in it)."""
        done = self.exec(host, ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "tmpfs", "/root"])
        if done.returncode:
            raise RuntimeError(done.stderr)
        self._furnish_home(host, "root", self.path(host, "/root"))

    # what can happen to it

    def cut(self, host: str = "controller", network: str = LAN) -> AbstractContextManager[None]:
        """Pulls a cable: no packet passes, and the interface sees it. In a ``with``, healed at its end."""
        self._disturbed = True
        self._switch.ip(f"link set {self._port(host, network)} down")
        return _Undo(lambda: self.heal(host, network))

    def heal(self, host: str = "controller", network: str = LAN) -> None:
        if host == "controller" or self._hosts[host].guard is not None:
            self._switch.ip(f"link set {self._port(host, network)} up")
            self._forget_neighbours()

    @contextmanager
    def drop_packets(self, host: str = "controller", network: str = LAN) -> Iterator[None]:
        """No packet passes, and the interface does not see it."""
        port = self._port(host, network)
        self._switch.ip(f"link set {port} nomaster")
        try:
            yield
        finally:
            if host == "controller" or self._hosts[host].guard is not None:
                self._switch.ip(f"link set {port} master {network}")

    @contextmanager
    def slow_down(self, host: str, seconds: float, share: float, network: str = LAN) -> Iterator[None]:
        """Each packet takes so long, either way, and this share of them is lost."""
        port, near, far = self._port(host, network), "slow0", "slow1"
        self._switch.ip(
            f"link add {near} type veth peer name {far}",
            f"link set {near} up",
            f"link set {far} up master {network}",
            f"link set {port} nomaster",
        )
        wire = [sys.executable, str(Path(__file__).with_name("slow_wire.py"))]
        words = [*self._switch.prefix, *wire, port, near, str(seconds), str(share), "1"]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout
                assert process.stdout.readline() == b"ready\n"
                yield
            finally:
                process.kill()
                self._switch.ip(f"link delete {near}", f"link set {port} master {network}")

    def _forget_neighbours(self) -> None:
        """Removes each machine's unanswered questions for hardware addresses. One asked while the cable was out
        fails some seconds later, and takes a connection with it that began when the cable was back."""
        rooms = [self._room.prefix]
        rooms += [
            ("nsenter", f"--net=/proc/{host.init}/ns/net", "--")
            for host in self._hosts.values()
            if host.guard is not None
        ]
        for prefix in rooms:
            ip_batch(prefix, "neigh flush nud incomplete", "neigh flush nud failed")

    def freeze(self, host: str) -> AbstractContextManager[None]:
        """Stops every process of the host at one moment; its kernel goes on answering pings and connections."""
        self._tell(host, "stop")
        while any(process.state in "RS" for process in self.processes(host) if process.pid != 1):
            time.sleep(0.005)  # a signal is on its way
        return _Undo(lambda: self.thaw(host))

    def thaw(self, host: str) -> None:
        if self._hosts[host].guard is not None:
            self._tell(host, "cont")

    def power_off(self, host: str) -> AbstractContextManager[None]:
        """Cable down, then every process gone at once. The disk stays; /tmp, /run, /dev/shm do not."""
        self._disturbed = True
        on = self._hosts[host].guard is not None
        for network in (
            self._hosts[host].spec.networks if on else ()
        ):  # deleted, or the kernel would do it at some later moment
            self._switch.ip(f"link delete {self._port(host, network)}")
        self._stop(self._hosts[host])
        return _Undo(lambda: self.power_on(host))

    def power_on(self, host: str) -> None:
        """Boots a host that is off; its sshd listens when this returns."""
        if self._hosts[host].guard is None:
            self._boot(self._hosts[host])

    def restore(self) -> None:
        """Every host on, thawed, cabled: what a test may have left."""
        for host in self._hosts:
            self.power_on(host)
            self.thaw(host)
        if self._disturbed:
            ports = [("controller", LAN)]
            ports += [(name, network) for name, host in self._hosts.items() for network in host.spec.networks]
            self._switch.ip(*(f"link set {self._port(*port)} up" for port in ports))
            self._forget_neighbours()
            self._disturbed = False

    def add(self, *specs: Spec | str) -> None:
        """More hosts, in the order given; they are in the hostfile when this returns."""
        new = [spec if isinstance(spec, Spec) else Spec(spec) for spec in specs]
        for spec in new:
            for network in spec.networks:
                self._add_network(network)
        hosts = [self._manufacture(spec, 10 + len(self._hosts) + i) for i, spec in enumerate(new)]
        with ThreadPoolExecutor(max(1, len(hosts))) as pool:
            list(pool.map(self._boot, hosts))
        self._hosts |= {host.spec.name: host for host in hosts}
        for spec in new:
            for user in spec.users:
                self._add_user(spec.name, user)
        self._write_files()

    # how it is made

    def _cable_controller(self) -> None:
        self._room.ip("link set lo up")
        self._add_network(LAN)
        self._switch.ip(
            "link set lo up",
            f"link add p-controller master {LAN} type veth peer name eth0 netns {self._room.pid}",
            "link set p-controller up",
            f"address add 10.{self._networks[LAN]}.255.254/16 dev {LAN}",
        )
        self._room.ip("address add 10.77.0.1/16 dev eth0", "link set eth0 up", "route add default via 10.77.255.254")
        # Somebody must answer "network unreachable" to what leaves the cluster, or everything would wait for ever.
        forward = [*self._switch.prefix, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]
        subprocess.run(forward, check=True)

    def _add_network(self, network: str) -> None:
        if network not in self._networks:
            self._networks[network] = 77 + len(self._networks)
            self._switch.ip(f"link add {network} type bridge stp_state 0 forward_delay 0", f"link set {network} up")

    def _port(self, host: str, network: str) -> str:
        """The switch's end of a cable. Names of interfaces have 15 letters at most."""
        return "p-controller" if host == "controller" else f"p{self._hosts[host].number}-{network}"

    def _manufacture(self, spec: Spec, number: int) -> _Host:
        """A host's disk, as after its first installation."""
        disk = self._ground / spec.name
        for name in ("upper", "work", "mnt", "memory", "root", "home", "tmp", "vartmp"):
            (disk / name).mkdir(parents=True)
        host = _Host(spec, number, disk)
        etc = disk / "upper/etc"
        (etc / "ssh").mkdir(parents=True)
        host.public_key = _keygen(etc / "ssh/ssh_host_ed25519_key")
        (etc / "ssh/sshd_config").write_text(SSHD)
        (etc / "hosts").write_text(f"127.0.0.1\tlocalhost\n127.0.1.1\t{spec.name}\n::1\tlocalhost ip6-localhost\n")
        (etc / "hostname").write_text(f"{spec.name}\n")
        (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        (etc / "resolv.conf").write_text("")
        self._furnish_home("", "root", disk / "root")
        return host

    def _furnish_home(self, host: str, user: str, home: Path) -> None:
        shutil.copytree("/etc/skel", home, dirs_exist_ok=True)
        home.chmod(0o700)
        (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
        keys = home / ".ssh/authorized_keys"
        keys.write_text(self.public_key + "\n")
        keys.chmod(0o600)
        if user != "root":
            self.exec(host, ["chown", "-R", f"{user}:", f"/home/{user}"], check=True)

    def _add_user(self, host: str, user: str) -> None:
        self.exec(host, ["useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", user], check=True)
        self._furnish_home(host, user, self.path(host, f"/home/{user}"))

    def _boot(self, host: _Host) -> None:
        spec = host.spec
        for name in ("tmp", "vartmp"):
            shutil.rmtree(host.disk / name)
            (host.disk / name).mkdir()
            (host.disk / name).chmod(0o1777)
        with (host.disk / "console").open("wb") as console:
            spaces = ("--mount", "--net", "--uts", "--ipc", "--pid", "--fork")
            guard = subprocess.Popen(
                ["unshare", *spaces, "--", sys.executable, "-I", str(Path(__file__).with_name("init.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                text=True,
                env=ENV,
                cwd="/",
                start_new_session=True,
            )
        host.guard = guard
        lines = ["link set lo up"]
        for network in spec.networks:
            name = "eth0" if network == LAN else f"{network}0"
            lines += [f"address add 10.{self._networks[network]}.0.{host.number}/16 dev {name}", f"link set {name} up"]
        if LAN in spec.networks:
            lines.append("route add default via 10.77.255.254")
        try:
            _send(
                guard,
                json.dumps(
                    {"name": spec.name, "disk": str(host.disk), "ip": lines, "root": spec.root, "files": spec.files}
                ),
            )
            host.init = int(_hear(guard))
            if spec.docker:
                ip_batch(("nsenter", f"--net=/proc/{host.init}/ns/net", "--"), *_DOCKER)
            for network in spec.networks:
                name, port = "eth0" if network == LAN else f"{network}0", f"p{host.number}-{network}"
                # A machine keeps its hardware address over a power cut: its neighbours remember it.
                mac = f"02:00:0a:{self._networks[network]:02x}:00:{host.number:02x}"
                self._switch.ip(
                    f"link add {port} master {network} type veth peer name {name} address {mac} netns {host.init}",
                    f"link set {port} up",
                )
            _send(guard, "go")
            if _hear(guard) != "ready":
                raise ValueError
        except (ValueError, OSError) as error:
            output = (host.disk / "console").read_text(errors="replace")
            self._stop(host)
            raise RuntimeError(f"{spec.name} does not boot: {output.strip() or error}") from error

    def _tell(self, host: str, word: str) -> None:
        self.init(host)
        guard = self._hosts[host].guard
        assert guard is not None
        _send(guard, word)
        if _hear(guard) != "done":
            raise RuntimeError(f"{host} is dead")

    def _stop(self, host: _Host) -> None:
        guard, host.guard = host.guard, None
        if guard is None:
            return
        assert guard.stdin is not None
        assert guard.stdout is not None
        if host.init:
            with suppress(ProcessLookupError):  # it did not boot
                os.kill(host.init, 9)
        else:
            guard.kill()
        guard.wait(60)  # the kernel has ended all others by then
        guard.stdin.close()
        guard.stdout.close()

    def _power_off_all(self) -> None:
        for host in self._hosts.values():
            self._stop(host)

    def _write_files(self) -> None:
        hosts, known, config = [], [], []
        for name, host in self._hosts.items():
            if LAN not in host.spec.networks:
                continue
            address = self.address(name)
            hosts.append(f"{name} address={address} user=root key={self.key} known_hosts={self.known_hosts}")
            known.append(f"{name},{address} {host.public_key}")
            config += [f"Host {name}", f"  HostName {address}", ""]
        config += [
            "Host *",
            "  User root",
            f"  IdentityFile {self.key}",
            "  IdentitiesOnly yes",
            f"  UserKnownHostsFile {self.known_hosts}",
            "  StrictHostKeyChecking yes",
        ]
        for path, lines in ((self.hostfile, hosts), (self.known_hosts, known), (self.ssh_config, config)):
            path.write_text("\n".join(lines) + "\n")


_DOCKER = (  # as it looks while a container runs
    "link add docker0 type bridge",
    "link add veth0a master docker0 type veth peer name veth0b",
    "address add 172.17.0.1/16 brd 172.17.255.255 dev docker0",
    "link set veth0a up",
    "link set veth0b up",
    "link set docker0 up",
)


def _status(entry: Path) -> dict[str, str]:
    fields = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines() if ":\t" in line)
    return {
        "pid": fields["NSpid"].split()[-1],
        "ppid": fields["PPid"].strip(),
        "state": fields["State"][:1],
        "argv": (entry / "cmdline").read_bytes().decode("utf-8", "surrogateescape").rstrip("\0"),
        "environ": (entry / "environ").read_bytes().decode("utf-8", "surrogateescape"),
    }


def _keygen(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return " ".join(path.with_name(path.name + ".pub").read_text().split()[:2])


def _send(guard: subprocess.Popen[str], line: str) -> None:
    assert guard.stdin is not None
    guard.stdin.write(line + "\n")
    guard.stdin.flush()


def _hear(guard: subprocess.Popen[str]) -> str:
    assert guard.stdout is not None
    return guard.stdout.readline().strip()
