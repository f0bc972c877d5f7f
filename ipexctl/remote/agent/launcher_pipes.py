"""What the launcher asks for through `remote/shim.sh`: named pipes in the run's directory, which is its owner's alone.

A shim opens its host's pipe, writes the words of a proxy into a file and the file's name into one pipe for all, and
reads from its host's how it is to end."""

import os
from contextlib import suppress
from typing import Iterable, List, Tuple

from ipexctl.protocol import paths

REQUESTS = "requests"  # no label of a host: those have a dot


class LauncherPipes:
    """Both ends of each pipe are held open, so that nobody waits to open one; with the keeper they end."""

    def __init__(self, directory: str, labels: "Iterable[str]") -> None:
        """Raises OSError."""
        self.place = os.path.join(directory, paths.PIPES)
        self.elsewhere = ""
        os.mkdir(self.place, 0o700)
        try:
            os.mkfifo(os.path.join(self.place, REQUESTS), 0o600)
        except OSError:  # a file system without named pipes, as AFS
            os.rmdir(self.place)
            import tempfile  # each start of the keeper would pay for it

            self.elsewhere = tempfile.mkdtemp(prefix="ipexctl-")
            os.symlink(self.elsewhere, self.place)
            os.mkfifo(os.path.join(self.place, REQUESTS), 0o600)
        self.waiting = dict.fromkeys(labels, 0)  # shims by host
        for label in self.waiting:
            os.mkfifo(os.path.join(self.place, label), 0o600)
        self.answers = {label: self._open_pipe(label) for label in self.waiting}
        self.requests = self._open_pipe(REQUESTS)
        self.unread = b""

    def _open_pipe(self, name: str) -> int:
        return os.open(os.path.join(self.place, name), os.O_RDWR | os.O_NONBLOCK)

    def take_requests(self) -> "List[Tuple[str, List[str]]]":
        """Returns the hosts' labels, and the words of a proxy for each."""
        with suppress(BlockingIOError):
            self.unread += os.read(self.requests, 1 << 16)
        *names, self.unread = self.unread.split(b"\n")
        requests = []
        for name in map(os.fsdecode, names):
            label = name.rpartition(".")[0]
            if label not in self.waiting:
                continue
            path = os.path.join(self.place, name)
            with suppress(OSError):  # the name of no file: whoever may write here may write nonsense
                with open(path, "rb") as file:
                    words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
                os.unlink(path)
                self.waiting[label] += 1
                requests.append((label, words))
        return requests

    def release_shims(self, label: str, status: int = 0) -> None:
        """Lets the shims of a host end with this status."""
        waiting, self.waiting[label] = self.waiting[label], 0
        os.write(self.answers[label], b"%d\n" % status * waiting)

    def close(self) -> None:
        """Lets all shims end."""
        for label in self.answers:
            self.release_shims(label)

    def remove(self) -> None:
        """Makes room for those of another attempt."""
        for end in (*self.answers.values(), self.requests):
            os.close(end)
        with suppress(OSError):
            for name in os.listdir(self.place):
                os.unlink(os.path.join(self.place, name))
            if self.elsewhere:
                os.unlink(self.place)
            os.rmdir(self.elsewhere or self.place)
