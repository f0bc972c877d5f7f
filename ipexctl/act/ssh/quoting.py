"""Quoting of remote commands: through any login shell into `/bin/sh`, with a nonce before the output.

sshd hands the one string it gets to the user's login shell (bash, dash, csh, fish …), whose startup files may print,
change directory or set variables first. So the string is plain enough for all of them, `/bin/sh` does the work, and
prints a nonce with its process id on both outputs before the command starts: output before the nonce is noise."""

import os
import re
import secrets
from dataclasses import dataclass, field

from ipexctl.act.bundled_files import read_script
from ipexctl.model.hosts import Command
from ipexctl.model.json_values import Record
from ipexctl.model.text import parse_integer

# The kernel takes no single argument longer than 128 KiB (MAX_ARG_STRLEN); longer scripts come in through stdin.
_ARGUMENT_LIMIT = 100_000
_NOISE_LIMIT = 1 << 20  # bytes of startup noise that are searched for the nonce

# Read the same inside single quotes by sh, csh and fish: no such quotes, backslash, "!" or line ends among them.
_UNSAFE = re.compile(rb"[^A-Za-z0-9 _.,:;/=@%+~#&|<>(){}\[\]*?$^\"-]")
_UNSAFE_IN_DOUBLE = re.compile(rb"[^A-Za-z0-9 _.,:;/=@%+~#&|<>(){}\[\]*?^-]")


def format_shell_line(command: Command) -> bytes:
    """Returns the command as one line of sh. Raises `ValueError` for what no argument list can hold."""
    line = os.fsencode(command.format_line())
    if b"\0" in line:
        raise ValueError(f"{command.argv[0]}: an argument has a NUL byte in it, which no program can be given")
    return line


class ShellCommand(Record):
    """The line for the login shell, and the bytes for its stdin before the command's own input."""

    line: bytes
    stdin: bytes = b""


def fit_argument_limit(text: bytes) -> ShellCommand:
    """Returns a line of sh of any length."""
    return ShellCommand(text) if len(text) < _ARGUMENT_LIMIT else _pass_through_stdin(text)


def _pass_through_stdin(text: bytes) -> ShellCommand:
    """Returns a line of sh that executes ``text`` from its stdin, and leaves what follows there to what ``text``
    starts. In braces: of a text that did not arrive whole, sh executes nothing. dd with ``fullblock`` takes exactly
    these bytes out of a pipe, that of coreutils and that of busybox. busybox's head reads ahead, up to 4 KiB of the
    command's own input, and throws them away; coreutils' does not, and stands in for a dd that does not know the word
    (which then has read nothing)."""
    whole = b"{ " + text + b"\n}"
    size = len(whole)
    return ShellCommand(b'eval "$(dd bs=%d count=1 iflag=fullblock 2>/dev/null || head -c %d)"' % (size, size), whole)


def wrap_command(text: bytes, nonce: bytes) -> ShellCommand:
    """A line of sh through any login shell: prints nonce and process id, then runs ``text`` in the home directory."""
    greeting = b"echo " + nonce + b" $$"
    command = fit_argument_limit(b'cd "${HOME:-/}" 2>/dev/null; %s; %s >&2; %s' % (greeting, greeting, text))
    if len(_quote_for_any_shell(command.line)) >= _ARGUMENT_LIMIT:
        command = _pass_through_stdin(command.line)
    return ShellCommand(b"exec /bin/sh -c " + _quote_for_any_shell(command.line), command.stdin)


def _quote_for_any_shell(text: bytes) -> bytes:
    if not _UNSAFE.search(text):
        return b"'" + text + b"'"
    octal = _UNSAFE_IN_DOUBLE.sub(lambda match: b"\\0%03o" % match.group()[0], text)
    return b'\'eval "$(printf %b "' + octal + b'")"\''


def make_nonce() -> bytes:
    """Unguessable, so that noise cannot look like it."""
    return b"ipexctl-" + secrets.token_hex(8).encode()


@dataclass(slots=True)
class OutputSplitter:
    """Splits one output into noise, the nonce with the process id, and the command's own output."""

    nonce: bytes
    pid: int = 0
    started: bool = False
    noise: bytearray = field(default_factory=bytearray)
    searched: int = 0  # bytes of it, in which no nonce is looked for again

    def extract_output(self, data: bytes) -> bytes:
        """Returns the part of ``data`` that is the command's output."""
        if self.started:
            return data
        self.noise += data
        mark = self.nonce + b" "
        start = self.noise.find(mark, self.searched)
        while start >= 0 and (end := self.noise.find(b"\n", start)) >= 0:
            pid = parse_integer(bytes(self.noise[start + len(mark) : end]))
            if pid is not None:  # else a login shell shows what it executes (`set -x`)
                output = bytes(self.noise[end + 1 :])
                self.pid, self.started = pid, True
                del self.noise[start:]
                return output
            self.searched = end
            start = self.noise.find(mark, end)
        if start < 0:
            self.searched = max(self.searched, len(self.noise) - len(mark))
        if len(self.noise) > _NOISE_LIMIT:  # keep the end, which may hold half a nonce, and a sample of the beginning
            del self.noise[4096 : len(self.noise) - 4096]
            self.searched = 4096
        return b""


def make_stop_script(pid: int) -> str:
    """A script that stops the process group of ``pid``: SIGTERM, then SIGKILL. Prints "alive" if it still runs."""
    return f"p={pid}\n{read_script('stop.sh')}"
