"""The start of node0's part of a run: its keeper, and the guard of the same host."""

import os
from typing import List

from ipexctl.protocol import messages
from ipexctl.protocol.messages import KINDS
from ipexctl.protocol.paths import BOTH, Role
from ipexctl.remote.agent import files, keeper, procs, rpc


def main(argv: "List[str]") -> int:
    """``keeper RUNDIR [both]``: listens, prints where, and goes on in the background; with ``both`` this program then
    becomes the guard of the same host. (To start a Python costs more than all that either does before the launch.)"""
    directory, both = argv[0], argv[1:] == [BOTH]
    umask = os.umask(0o077)  # what we make here is for nobody else, whatever the account's files say
    spec = files.read_spec(directory)
    address = spec.head_spec.address
    try:
        listener = rpc.listen_on_free_port(address, spec.head_spec.ports)
    except OSError as error:
        print(KINDS.write(messages.AgentFailed("cannot listen on %s: %s" % (address, error))).decode())
        return 1
    port = listener.getsockname()[1]
    print(KINDS.write(messages.KeeperListening(port)).decode())
    if procs.daemonize():
        files.run_then_record_crash(
            directory, Role.KEEPER, lambda: keeper.Keeper(directory, spec, listener, umask).serve()
        )
    listener.close()
    if not both:
        return 0
    from ipexctl.remote.agent import guard_start  # while the keeper begins its work

    procs.rename_word(Role.KEEPER.encode(), Role.GUARD.encode())
    os.umask(umask)
    return guard_start.main([directory, address, str(port)])
