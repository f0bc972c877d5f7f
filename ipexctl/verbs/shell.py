"""``shell`` and ``forward``: one host in the user's terminal, one of its ports on this machine."""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, cast

from ipexctl.act.context import Context
from ipexctl.model.errors import Exit, Failure, Kind, LinkError, UsageError, advise
from ipexctl.model.events import Ended, HostFailed, Message, Output, Started, Workflow
from ipexctl.model.hosts import Command, Host, Link
from ipexctl.store.private_files import refuse_os_errors

if TYPE_CHECKING:
    from ipexctl.act.ssh.link import SSHLink

_OUTPUT_LIMIT = 64 << 20  # bytes of output of one command that is not shown in a terminal


def shell(
    host: Host, argv: tuple[str, ...], context: Context, *, terminal: bool, on_status: Callable[[int], object]
) -> Workflow[None]:
    """Opens a login shell on the host in the user's ``terminal``, or runs one command, whose output is passed on.

    ``on_status`` gets the exit status of the shell or the command."""
    if not terminal and not argv:
        hint = advise("shell", host.name, "--", "uptime", text="with a command it needs none:")
        raise UsageError("shell needs a terminal", hint=hint)
    yield Started("shell", "", (host.name,))
    link = yield from _open_link(host, context)
    # No time limit: a session lasts as long as the user wants.
    command = Command(argv, timeout=float("inf"), cap=_OUTPUT_LIMIT)
    if terminal and not host.is_local:
        from ipexctl.act.ssh.terminal import open_shell

        status = open_shell(cast("SSHLink", link), command.format_line() if argv else None)
        if status < 0:
            raise LinkError(Failure(host.name, Kind.UNREACHABLE, "the connection was lost", code="lost"))
    elif not argv:
        raise UsageError(f"{host.name} is this machine: it has a shell already")
    else:
        completed = link.run(command)
        yield Output(0, host.name, "out", completed.out)
        yield Output(0, host.name, "err", completed.err)
        status = completed.status
        if completed.truncated:
            what = f"output beyond {_OUTPUT_LIMIT >> 20} MiB is missing"
            yield HostFailed(Failure(host.name, Kind.RECORD, what, code="cut"))
    on_status(status)
    yield Ended("shell", Exit.OK)


def forward(host: Host, port: int, remote_port: int, context: Context) -> Workflow[None]:
    """Forwards a loopback port of this machine to a port of the host, until a signal or the end of the connection."""
    if host.is_local:
        raise UsageError(f"{host.name} is this machine: nothing has to be forwarded")
    yield Started("forward", "", (host.name,))
    link = cast("SSHLink", (yield from _open_link(host, context)))
    from ipexctl.act.ssh.terminal import forward_port

    refusals = SimpleQueue[str]()
    used = refuse_os_errors(f"port {port} of this machine", "cannot be used")
    with used, forward_port(link, port, remote_port, refusals.put):
        yield Message(f"127.0.0.1:{port} is port {remote_port} of {host.name} (Ctrl-C ends this)", code="serving")
        while link.alive:
            time.sleep(0.1)
            try:
                yield Message(f"port {remote_port}: {refusals.get_nowait()}", "warning", host.name, "refused")
            except Empty:
                continue
    raise LinkError(Failure(host.name, Kind.UNREACHABLE, "the connection was lost", code="lost"))


def _open_link(host: Host, context: Context) -> Workflow[Link]:
    link = context.links.open(host)
    for note in link.notes():
        yield Message(note, host=host.name)
    return link
