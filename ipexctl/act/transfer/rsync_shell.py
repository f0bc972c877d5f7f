"""What rsync takes for its remote shell: hands its pipes to ipexctl, which joins them to a channel of the link it has.

Run by rsync as ``python -I -S rsync_shell.py FD HOST WORD…``: FD is one end of a socket that ipexctl made and rsync
inherited. The words, and this program's standard input and output, go through it; one byte comes back: the exit status.
"""

import array
import os
import sys
from _socket import SCM_RIGHTS, SOL_SOCKET, socket  # "socket" costs each host's rsync a third of this program's start


def main() -> int:
    there = socket(fileno=int(sys.argv[1]))
    words = b"\0".join(map(os.fsencode, sys.argv[3:]))
    there.sendmsg([words], [(SOL_SOCKET, SCM_RIGHTS, array.array("i", [0, 1]))])
    os.close(0)  # only ipexctl holds them now: when it lets go, rsync sees the end
    os.close(1)
    status = there.recv(1)
    return status[0] if status else 255


if __name__ == "__main__":
    sys.exit(main())
