"""``python agent.pyz ROLE RUNDIR …``: one file on a host, several roles."""

import sys
from typing import List

from ipexctl.protocol.paths import Role


def main(argv: "List[str]") -> int:
    role, words = argv[1], argv[2:]
    if role == Role.RANK:
        from ipexctl.remote.agent import wrapper as module
    elif role == Role.GUARD:
        from ipexctl.remote.agent import guard as module  # type: ignore[no-redef]
    elif role == Role.KEEPER:
        from ipexctl.remote.agent import keeper as module  # type: ignore[no-redef]
    elif role in {Role.WATCH, Role.ORDER, Role.SHIM, Role.LIST, Role.SHOW}:
        from ipexctl.remote.agent import client as module  # type: ignore[no-redef]

        words = [role, *words]
    else:
        sys.stderr.write("unknown role %r\n" % role)
        return 2
    return module.main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
