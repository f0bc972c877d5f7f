"""ipexctl's way of a rank's line, from the wire to file and screen, without starting a run:

``python ours.py HOSTFILE FILE NONCE RANKS plain|live`` reads mpirun's output, as the keeper stores it, from the head.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.decide.run.journal_events import JournalReader
from ipexctl.loop import OutputOptions, run_command
from ipexctl.model.errors import Exit
from ipexctl.model.events import Ended, Event, RunStarted, Started
from ipexctl.model.hosts import Command
from ipexctl.model.launch import Running
from ipexctl.verbs.common.select import select_hosts

hostfile, file, nonce, ranks, screen = sys.argv[1:]


def read_stored_run(context: Context) -> Generator[Event, None, None]:
    inventory = select_hosts(hostfile=hostfile, hosts=None, limit=None, environ={}, cwd=Path.cwd())
    hosts = inventory.names[: int(ranks)]
    running = Running("bench", hosts[0], hosts, {}, f"cat {file}")
    yield Started("run", "a stored run", hosts)
    yield RunStarted(running.run, running.head, running.hosts, running.command)
    log = JournalReader(nonce, running)
    with context.links.open(next(iter(inventory))).stream(Command(("cat", file))) as channel:
        channel.end_input()
        for _, data in channel:
            yield from log.read("o", data)
    yield from log.end()
    yield Ended("run", Exit.OK)


sys.exit(run_command(read_stored_run, OutputOptions(output="live" if screen == "live" else "plain"), acting=True))
