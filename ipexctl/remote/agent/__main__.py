"""``python agent.pyz ROLE RUNDIR …``: one file on a host, several roles."""

import os
import sys
from importlib import import_module
from typing import List

from ipexctl.protocol.paths import GONE_STATUS, Role

PROGRAMS = {
    Role.RANK: ("wrapper", "main"), Role.GUARD: ("guard_start", "main"), Role.KEEPER: ("head", "main"),
    Role.WATCH: ("watcher", "watch"), Role.ORDER: ("client", "order"), Role.STACKS: ("client", "stacks"),
    Role.LIST: ("client", "list_runs"), Role.SHOW: ("client", "show"),
}  # fmt: skip


def main(argv: "List[str]") -> int:
    if argv[1] not in PROGRAMS:
        sys.stderr.write("unknown role %r\n" % argv[1])
        return 2
    module, function = PROGRAMS[argv[1]]
    program = import_module("ipexctl.remote.agent." + module)
    try:
        status: int = getattr(program, function)(argv[2:])
    except FileNotFoundError:
        if os.path.isdir(argv[2]):
            raise
        return GONE_STATUS
    return status


if __name__ == "__main__":
    ended = main(sys.argv)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(ended)  # to take the interpreter down as well would only cost time
