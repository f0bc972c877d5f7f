"""The private members of Paramiko that ipexctl relies on; no other file of ipexctl names one.

`tests/contract/test_paramiko_internals.py` tests each of them, and that no other file does. pyproject.toml bounds
Paramiko below the next major release, and `make fast-lowest` runs the tests with the oldest release that is allowed.

- ``Transport._channel_handler_table``: Paramiko drops the name of the signal that ended a command (``exit-signal``).
- ``Transport._handler_table``: Paramiko has no callback for the replies to a global request, and keeps only the last
  banner of a login.
- ``Transport._parse_disconnect``: Paramiko logs why a server disconnects, and forgets it.
- ``Transport._send_message``: the public ``global_request`` waits for its reply without a limit, and the public
  ``set_keepalive`` asks for no reply, so that it never notices a host that is gone.
- ``Transport._check_banner``: Paramiko waits for each line of a banner; ours has one deadline.
- ``Transport._log``, ``_parse_debug``: some forty log lines per connection that nobody reads.
- ``Transport._really_parse_kex_init``: Paramiko does not name what a server offers that has nothing in common with us.
- ``Transport._kex_info``, ``_key_info``, ``_cipher_info``, ``_mac_info``: the algorithms it has, weak ones too.
- ``Transport._parse_ext_info``: counts extensions as far as the host says, for hours in a packet without any.
- ``Transport._parse_kex_init``: Paramiko exchanges keys as often as a host asks, by Python's own arithmetic.
- ``KexGex._parse_kexdh_gex_group``: seeks an exponent for ever in a group whose prime is negative.
- ``packetizer.start_handshake``: starts one timer thread per connection.
- ``packetizer.read_all``: waits for packets of up to 4 GiB, whose length is not authenticated with the usual ciphers.
- ``packetizer.set_keepalive``: the only periodic call in the transport's own thread.
- ``Transport.completion_event``: stays unset when a transport is closed while it connects.
- ``Transport.clear_to_send``: tells whether a key exchange is going on, during which sending would block.
- ``socket._closed``: the transport's thread reads it of its socket before it ends.
- ``AgentSSH._conn``, ``_keys``: the public `Agent` knows no socket but that of the environment, and hides why it has no
  agent; one key of it that Paramiko cannot read, or its comment, would be the end of all.
- ``AgentSSH._send_message``: requests of several threads would be mixed on the agent's one connection.
- ``AgentSSH._read_all``, ``_conn``: Paramiko waits for an agent without a limit, and takes 4 GiB and 4 G keys of it.
- ``Channel.in_buffer``, ``in_stderr_buffer``: the public API cannot wait for both outputs at once. Paramiko takes more
  than the window allows, whether anybody reads it or not."""

import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import paramiko
from paramiko.agent import SSH2_AGENT_IDENTITIES_ANSWER, AgentKey, AgentSSH, cSSH2_AGENTC_REQUEST_IDENTITIES
from paramiko.common import (
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_REQUEST,
    MSG_REQUEST_FAILURE,
    MSG_REQUEST_SUCCESS,
    MSG_USERAUTH_BANNER,
    cMSG_GLOBAL_REQUEST,
)
from paramiko.message import Message

_PACKET_LIMIT = 1 << 16  # bytes; 35,000 must do (RFC 4253, 6.1), and of a number each takes as long as all before it
_EXTENSION_LIMIT = 64  # that a host tells of
_GROUP_LIMIT = 4096  # bits of a group of the host's choice
_SLOW_EXCHANGES = 16  # of keys, in such a group or a fixed one; and one more each second
_AGENT_TIMEOUT = 5.0  # seconds in which an agent lists its keys
_AGENT_KEYS, _AGENT_ANSWER = 2048, 1 << 18  # keys, and bytes, as OpenSSH takes them
_CHANNEL_HANDLERS: dict[int, Callable[[paramiko.Channel, Message], None]]
_CHANNEL_HANDLERS = paramiko.Transport._channel_handler_table  # type: ignore[attr-defined]


def _bound_group(engine: Any) -> Any:
    """Returns a key exchange in a group of the host's choice that refuses one that is none, or costs seconds."""

    class Bounded(engine):  # type: ignore[misc]
        max_bits = _GROUP_LIMIT

        def _parse_kexdh_gex_group(self, message: Message) -> None:
            if not 0 < message.get_mpint() < 1 << _GROUP_LIMIT:
                raise paramiko.SSHException("a group for the key exchange that is none, or too large")
            message.rewind()
            super()._parse_kexdh_gex_group(message)

    return Bounded


class QuietTransport(paramiko.Transport):
    """Paramiko's transport without log lines and timer threads, with hooks for the banner and for keepalives."""

    _kex_info: ClassVar = {
        name: _bound_group(engine) if "group-exchange" in name else engine
        for name, engine in paramiko.Transport._kex_info.items()  # type: ignore[attr-defined]
    }

    # The server's algorithms; in ``server_mac_algo_list`` and the like, their names.
    offered: Mapping[str, tuple[str, ...]] = {}

    def list_implemented_algorithms(self, name: str) -> Container[str]:
        """Returns the algorithms of a list of `SecurityOptions` that Paramiko has: it takes no others."""
        lists = {"kex": "_kex_info", "key_types": "_key_info", "ciphers": "_cipher_info", "digests": "_mac_info"}
        implemented: Container[str] = getattr(self, lists[name])
        return implemented

    def _really_parse_kex_init(self, *words: Any, **named: Any) -> Any:
        parsed = super()._really_parse_kex_init(*words, **named)  # type: ignore[misc]
        self.offered = {name: tuple(value) for name, value in parsed.items() if isinstance(value, list)}
        return parsed

    def __init__(self, sock: Any, window: int) -> None:
        """``window`` is how many bytes the host may send ahead on one channel."""
        super().__init__(sock, default_window_size=window)
        self.begun, self.slow_exchanges = time.monotonic(), 0
        bounded = {
            kind: _bound_output(_CHANNEL_HANDLERS[kind]) for kind in (MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA)
        }
        self._channel_handler_table = {**_CHANNEL_HANDLERS, **bounded, MSG_CHANNEL_REQUEST: _handle_channel_request}
        for reply in (MSG_REQUEST_SUCCESS, MSG_REQUEST_FAILURE):
            self._handler_table[reply] = lambda message: self.handle_keepalive_reply()  # type: ignore[attr-defined]
        self._handler_table[MSG_USERAUTH_BANNER] = self._keep_login_banner  # type: ignore[attr-defined]
        self.login_banner = ""  # what the server wrote to the user last during the login
        self.farewell = ""  # why the server disconnected, in its own words
        self.packetizer.start_handshake = lambda timeout: None  # type: ignore[method-assign]
        read_all = self.packetizer.read_all

        def read_bounded(n: int, check_rekey: bool = False) -> bytes:
            if n > _PACKET_LIMIT:
                raise paramiko.SSHException(f"a packet of {n} bytes")
            return read_all(n, check_rekey)

        self.packetizer.read_all = read_bounded  # type: ignore[method-assign]

    def prepare_banner_read(self, sock: socket.socket) -> None:
        """Called with the plain socket before the host's banner is read; may raise."""

    def handle_keepalive_reply(self) -> None:
        """Called for each reply to `send_keepalive`."""

    def call_when_idle(self, seconds: float, callback: Callable[[], None]) -> None:
        """Calls ``callback`` in the transport's thread each time nothing was received for so many seconds."""
        self.packetizer.set_keepalive(seconds, callback)

    def send_keepalive(self) -> None:
        """Sends a request that the host must answer, unless a key exchange is going on."""
        request = Message()
        request.add_byte(cMSG_GLOBAL_REQUEST)
        request.add_string("keepalive@openssh.com")
        request.add_boolean(True)
        if self.clear_to_send.is_set():
            self._send_message(request)  # type: ignore[attr-defined]

    def wake_waiters(self) -> None:
        """Ends the wait of whoever waits for this transport to connect."""
        if self.completion_event is not None:
            self.completion_event.set()

    def _parse_ext_info(self, message: Message) -> None:
        if message.get_int() > _EXTENSION_LIMIT:
            raise paramiko.SSHException("more extensions than there are")
        message.rewind()
        super()._parse_ext_info(message)  # type: ignore[misc]

    def _parse_kex_init(self, message: Message) -> None:
        super()._parse_kex_init(message)  # type: ignore[misc]
        self.slow_exchanges += getattr(self.kex_engine, "name", "").startswith("diffie-hellman")
        if self.slow_exchanges > _SLOW_EXCHANGES + time.monotonic() - self.begun:
            raise paramiko.SSHException("more key exchanges than there is time for")

    def _check_banner(self) -> None:
        if isinstance(self.sock, socket.socket):
            self.prepare_banner_read(self.sock)
        super()._check_banner()  # type: ignore[misc]

    def _keep_login_banner(self, message: Message) -> None:
        self.login_banner = message.get_binary().decode("utf-8", "replace")

    def _parse_disconnect(self, message: Message) -> None:
        message.get_int()  # its code is that of a protocol error for every reason
        self.farewell = message.get_binary().decode("utf-8", "replace")

    def _log(self, level: int, msg: object, *args: object) -> None:
        """Discards Paramiko's log lines."""

    def _parse_debug(self, message: Message) -> None:
        """Discards a server's debug messages."""


def _handle_channel_request(channel: paramiko.Channel, message: Message) -> None:
    """Keeps a command's death by a signal as a shell reports it: 128 and the signal's number."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        number = getattr(signal, f"SIG{message.get_text()}", None)
        channel.exit_status = 128 + number if number else 255
        channel.status_event.set()
        return
    message.packet.seek(start)
    _CHANNEL_HANDLERS[MSG_CHANNEL_REQUEST](channel, message)


def _bound_output(handle: Callable[[paramiko.Channel, Message], None]) -> Callable[[paramiko.Channel, Message], None]:
    """Returns a handler of output that ends the connection of a host which sends more than it may ahead."""

    def handle_bounded(channel: paramiko.Channel, message: Message) -> None:
        handle(channel, message)
        if len(channel.in_buffer) + len(channel.in_stderr_buffer) > 2 * channel.in_window_size:
            raise paramiko.SSHException("more output than the window allows")

    return handle_bounded


class OutputEvent(threading.Event):
    """Set while either output of ``channel`` may have new data. Paramiko clears an event when one buffer is empty,
    which says nothing about the other one: here only the reader's `rearm` does."""

    def __init__(self, channel: paramiko.Channel) -> None:
        super().__init__()
        channel.in_buffer.set_event(self)
        channel.in_stderr_buffer.set_event(self)

    def clear(self) -> None:
        pass

    def rearm(self) -> None:
        super().clear()


class SharedAgent(AgentSSH):
    """A connection to the SSH agent behind a socket, which several threads may use. Raises `OSError` where none answers
    there in time, `SSHException` for another program. Signing may take longer: some agents ask their user."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._request_lock = threading.Lock()
        self._deadline: float | None = time.monotonic() + _AGENT_TIMEOUT
        conn = socket.socket(socket.AF_UNIX)
        # Of connecting to one that takes nobody: with a timeout of its own, the socket would not wait for a busy one.
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_AGENT_TIMEOUT), 0))
        try:
            conn.connect(path)
            self._conn = conn
            self._keys = tuple(self._list_keys())
        except BaseException as error:
            conn.close()
            if isinstance(error, (TimeoutError, BlockingIOError)):
                raise TimeoutError(f"no answer within {_AGENT_TIMEOUT:g} s") from None
            raise
        self._deadline = None

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]

    def _list_keys(self) -> Iterator[AgentKey]:
        kind, answer = self._send_message(cSSH2_AGENTC_REQUEST_IDENTITIES)
        if kind != SSH2_AGENT_IDENTITIES_ANSWER:
            raise paramiko.SSHException("could not get keys from ssh-agent")
        for _ in range(answer.get_int()):
            blob, comment = answer.get_binary(), answer.get_binary().decode("utf-8", "replace")
            with suppress(Exception):  # whatever a damaged key makes Paramiko's readers raise
                yield AgentKey(self, blob, comment)

    def _send_message(self, msg: Message | bytes) -> tuple[int, Message]:
        with self._request_lock:
            kind, answer = super()._send_message(msg)  # type: ignore[misc]
        if kind == SSH2_AGENT_IDENTITIES_ANSWER and answer.get_int() > _AGENT_KEYS:
            raise paramiko.SSHException(f"it has more than {_AGENT_KEYS} keys")
        answer.packet.seek(1)
        return kind, answer

    def _read_all(self, wanted: int) -> bytes:
        data = b""
        if wanted > _AGENT_ANSWER:
            raise paramiko.SSHException(f"an answer of {wanted} bytes")
        while len(data) < wanted:
            left = self._deadline - time.monotonic() if self._deadline else None
            if left is not None and left <= 0:
                raise TimeoutError
            self._conn.settimeout(left)
            piece = self._conn.recv(wanted - len(data))
            if not piece:
                raise paramiko.SSHException("lost ssh-agent")
            data += piece
        return data
