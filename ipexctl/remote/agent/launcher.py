"""mpirun of one attempt, as the keeper starts it on its own host."""

import os
import selectors
import subprocess
import time
from typing import Callable, Iterator, Optional, Set, Tuple

from ipexctl.protocol.mpi_abort import Abort, find_aborts
from ipexctl.protocol.run_spec import HeadSpec
from ipexctl.remote.agent import procs, rpc
from ipexctl.remote.agent.launcher_pipes import LauncherPipes

READ_SIZE = 1 << 16  # bytes taken from a pipe at a time
SEARCHED_TAIL = 1 << 13  # bytes of mpirun's output that are searched for the end of a rank


class Launcher:
    """``selector`` calls what it is told of; ``take_output`` gets what mpirun writes, ``take_requests`` is called when
    its shims want a proxy. ``umask`` is the login's, for mpirun and the ranks that it starts itself."""

    def __init__(
        self,
        directory: str,
        head: "HeadSpec",
        umask: int,
        selector: "selectors.BaseSelector",
        take_output: "Callable[[bytes], object]",
        take_requests: "Callable[[object], object]",
    ) -> None:
        self.directory, self.head, self.umask, self.selector = directory, head, umask, selector
        self.take_output, self.take_requests = take_output, take_requests
        self.process: "Optional[subprocess.Popen[bytes]]" = None
        self.pipes: "Optional[LauncherPipes]" = None
        self.outputs: "Set[int]" = set()
        self.tail = b""

    def start(self) -> "Tuple[int, str]":
        """Chooses a free port for the ranks, then starts mpirun. Returns the port, and why it could not start or ""."""
        head = self.head
        try:
            port = self.find_free_port()
        except OSError as error:
            return 0, "no port for the rendezvous: %s" % error.strerror
        try:
            self.pipes = LauncherPipes(self.directory, [node.label for node in head.hosts.values()])
        except OSError as error:
            return 0, "no pipes for the launcher: %s" % error.strerror
        self.selector.register(self.pipes.requests, selectors.EVENT_READ, self.take_requests)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            for name, text in head.files.items():
                with open(os.path.join(self.directory, name), "w", encoding="utf-8") as file:
                    file.write(text.replace("{port}", str(port)))
            self.process = subprocess.Popen(
                head.mpiexec,
                env=head.mpiexec_env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out_write,
                stderr=err_write,
                start_new_session=True,
                preexec_fn=self.prepare_process,
            )
        except OSError as error:
            return 0, "cannot start %s: %s" % (head.mpiexec[0], error)
        finally:
            os.close(out_write)
            os.close(err_write)
        for fd in (out_read, err_read):
            os.set_blocking(fd, False)
            self.outputs.add(fd)
            self.selector.register(fd, selectors.EVENT_READ, self.read_output)
        end = procs.open_end(self.process.pid)
        if end is not None:
            self.selector.register(end, selectors.EVENT_READ, self.close_end)
        return port, ""

    def find_free_port(self) -> int:
        head = self.head
        with rpc.listen_on_free_port(head.address, [head.port] * 2 if head.port else head.ports) as probe:
            return int(probe.getsockname()[1])

    def prepare_process(self) -> None:
        """In mpirun's process, before it is mpirun."""
        procs.die_with_parent()
        os.umask(self.umask)

    def find_status(self) -> "Optional[int]":
        """Returns its exit status, once it has ended."""
        return self.process.poll() if self.process else None

    def close_end(self, end: int) -> None:
        """It has ended, which `find_status` tells."""
        self.selector.unregister(end)
        os.close(end)

    def read_output(self, fd: int) -> None:
        try:
            piece = os.read(fd, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if piece:
            self.tail = (self.tail + piece)[-SEARCHED_TAIL:]
            self.take_output(piece)
        else:
            self.close_output(fd)

    def close_output(self, fd: int) -> None:
        self.selector.unregister(fd)
        self.outputs.discard(fd)
        os.close(fd)

    def find_aborts(self) -> "Iterator[Abort]":
        """Yields what its last words say of ranks that ended the whole job."""
        return find_aborts(self.tail)

    def end(self, patience: float, last: float) -> "Optional[int]":
        """Lets it end by itself for ``patience`` seconds, and reads the rest of its output for ``last`` seconds. Its
        exit status, if it was there."""
        if self.pipes:  # Open MPI does not wait for its shims, and they hold its outputs open
            self.selector.unregister(self.pipes.requests)
            self.pipes.close()
        if self.process and self.process.poll() is None:
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        until = time.monotonic() + last
        while self.outputs and time.monotonic() < until:
            for key, _ in self.selector.select(0.1):
                if key.fd in self.outputs or key.data == self.close_end:
                    key.data(key.fd)
        for fd in list(self.outputs):
            self.close_output(fd)
        if self.pipes:
            self.pipes.remove()
        return self.process.returncode if self.process else None
