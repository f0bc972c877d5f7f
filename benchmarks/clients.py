"""What people write with the libraries ipexctl is measured against. Run by the interpreter of peers.py:

``python clients.py TASK LIBRARY PLACE PORT WORKERS WORD… -- ADDRESS…``
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

OUT = sys.stdout.buffer


class Given:
    def __init__(self, words: list[str]) -> None:
        self.place, self.port, self.workers = Path(words[0]), int(words[1]), int(words[2])
        split = words.index("--")
        self.words, self.addresses = words[3:split], words[split + 1 :]

    def there(self, address: str) -> str:
        """The directory of one host."""
        return f"{self.place}/hosts/h{self.addresses.index(address):03}"

    def pool(self, work: Any) -> None:
        with ThreadPoolExecutor(self.workers) as pool:
            for answer in pool.map(work, self.addresses):
                OUT.write(answer)


# -- paramiko ----------------------------------------------------------------------------------------------------------


def transports(given: Given) -> Any:
    """A function that connects as cheaply as Paramiko can: the host's key is known, one key is offered."""
    import paramiko

    key = paramiko.Ed25519Key.from_private_key_file(str(given.place / "id"))
    known = {
        line.split()[0]: " ".join(line.split()[1:]) for line in (given.place / "known_hosts").read_text().splitlines()
    }

    def connect(address: str) -> Any:
        import socket

        sock = socket.create_connection((address, given.port), 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = paramiko.Transport(sock)
        options = transport.get_security_options()
        options.kex = ("curve25519-sha256@libssh.org",)
        options.key_types = ("ssh-ed25519",)
        options.ciphers = tuple(name for name in options.ciphers if "gcm" in name)[:1] or options.ciphers
        transport.start_client(timeout=20)
        shown = transport.get_remote_server_key()
        assert known[f"[{address}]:{given.port}"] == f"{shown.get_name()} {shown.get_base64()}"
        transport.auth_publickey(USER, key)
        return transport

    return connect


def all_of(channel: Any) -> bytes:
    pieces = []
    while data := channel.recv(1 << 18):
        pieces.append(data)
    return b"".join(pieces)


def fanout_transport(given: Given) -> None:
    connect = transports(given)

    def one(address: str) -> bytes:
        transport = connect(address)
        channel = transport.open_session()
        channel.exec_command(given.words[0])
        answer = all_of(channel)
        transport.close()
        return answer

    given.pool(one)


def run_transport(given: Given) -> None:
    """One command on the first host; its output is passed on as it comes."""
    transport = transports(given)(given.addresses[0])
    channel = transport.open_session()
    channel.exec_command(given.words[0])
    while data := channel.recv(1 << 18):
        OUT.write(data)
        OUT.flush()
    transport.close()


def fanout_sshclient(given: Given) -> None:
    import paramiko

    def one(address: str) -> bytes:
        client = paramiko.SSHClient()
        client.load_host_keys(str(given.place / "known_hosts"))
        client.connect(address, given.port, USER, key_filename=str(given.place / "id"), timeout=20)
        _, out, _ = client.exec_command(given.words[0])
        answer = out.read()
        client.close()
        return answer

    given.pool(one)


def push_transport(given: Given) -> None:
    """One tar stream on one channel."""
    connect = transports(given)
    parcel = packed(Path(given.words[0]))

    def one(address: str) -> bytes:
        there = given.there(address)
        transport = connect(address)
        channel = transport.open_session()
        channel.exec_command(f"mkdir -p {there} && tar -xf - -C {there}")
        channel.sendall(parcel)
        channel.shutdown_write()
        status = channel.recv_exit_status()
        transport.close()
        return b"%d\n" % status

    given.pool(one)


def packed(directory: Path) -> bytes:
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(directory, ".")
    return out.getvalue()


# -- fabric ------------------------------------------------------------------------------------------------------------


def connection(given: Given, address: str) -> Any:
    import fabric

    keys = {"key_filename": str(given.place / "id"), "look_for_keys": False, "allow_agent": False}
    return fabric.Connection(address, USER, given.port, connect_kwargs=keys, config=fabric.Config(lazy=True))


def fanout_fabric(given: Given) -> None:
    def one(address: str) -> bytes:
        with connection(given, address) as link:
            answer: str = link.run(given.words[0], hide=True, in_stream=False).stdout
            return answer.encode()

    given.pool(one)


def push_fabric(given: Given) -> None:
    directory = Path(given.words[0])
    files = [path.relative_to(directory) for path in directory.rglob("*") if path.is_file()]

    def one(address: str) -> bytes:
        there = given.there(address)
        with connection(given, address) as link:
            link.run("mkdir -p " + " ".join({f"{there}/{file.parent}" for file in files}), hide=True, in_stream=False)
            for file in files:
                link.put(str(directory / file), f"{there}/{file}")
        return b"0\n"

    given.pool(one)


# -- asyncssh ----------------------------------------------------------------------------------------------------------


def asyncly(given: Given, work: Any) -> None:
    import asyncio

    import asyncssh

    async def main() -> None:
        gate = asyncio.Semaphore(given.workers)
        options = asyncssh.SSHClientConnectionOptions(
            client_keys=[asyncssh.read_private_key(str(given.place / "id"))],
            known_hosts=asyncssh.read_known_hosts(str(given.place / "known_hosts")),
            username=USER,
            kex_algs=["curve25519-sha256"],
            encryption_algs=["aes128-gcm@openssh.com"],
            server_host_key_algs=["ssh-ed25519"],
            agent_path=None,
            config=None,
        )

        async def one(address: str) -> None:
            async with gate, asyncssh.connect(address, given.port, options=options) as link:
                await work(link, address)

        await asyncio.gather(*map(one, given.addresses))

    asyncio.run(main())


def fanout_asyncssh(given: Given) -> None:
    async def one(link: Any, address: str) -> None:
        answer = await link.run(given.words[0], encoding=None)
        OUT.write(answer.stdout)

    asyncly(given, one)


def stream_asyncssh(given: Given) -> None:
    """Line by line with the host's name before each, as the documentation shows it."""

    async def one(link: Any, address: str) -> None:
        prefix = address.encode() + b": "
        async with link.create_process(given.words[0], encoding=None) as process:
            async for line in process.stdout:
                OUT.write(prefix + line)

    asyncly(given, one)


if __name__ == "__main__":
    import getpass

    USER = getpass.getuser()
    globals()[f"{sys.argv[1]}_{sys.argv[2]}"](Given(sys.argv[3:]))
