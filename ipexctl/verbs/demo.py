"""``ipexctl lab demo``: the main job on this machine, from nothing to a trained model, on an embedded cluster."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path

from ipexctl.act.bundled_files import playbook
from ipexctl.act.context import Context
from ipexctl.model.errors import Exit
from ipexctl.model.events import Ended, Event, Message, Started
from ipexctl.verbs import lab
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.common.select import read_playbook, select_hosts
from ipexctl.verbs.play.play import play


def demo(
    hosts: int, context: Context, environ: Mapping[str, str], *, keep: bool = False
) -> Generator[Event, None, None]:
    """Lab up, the playbook ``demo.yaml``, lab down, also when something failed on the way; ``keep`` leaves it up."""
    book = read_playbook(str(playbook("demo.yaml")), environ=environ, cwd=Path.cwd())
    directory = context.state / "lab"
    yield Started("demo", "the main job on an embedded cluster", ())
    if (yield from run_nested(lab.up(hosts, directory))) is None:
        yield Ended("demo", Exit.STEP)
        return
    inventory = select_hosts(hostfile=str(directory / "hostfile"), hosts=None, limit=None, environ={}, cwd=Path.cwd())
    exit = Exit.OK
    try:
        exit = yield from _unended(play(book, inventory, context, environ))
    finally:
        context.links.close()
        if keep:
            yield Message(f"the lab stays up: ipexctl doctor -f {directory / 'hostfile'}")
        else:
            yield from run_nested(lab.down(directory))
    yield Ended("demo", exit)


def _unended(story: Generator[Event, None, Exit]) -> Generator[Event, None, Exit]:
    """The play's events but its end; its exit code. Its answer is that of the demo."""
    while True:
        try:
            event = next(story)
        except StopIteration as end:
            return Exit(end.value)
        if isinstance(event, Ended):
            continue
        try:
            yield event
        except BaseException as interruption:
            story.throw(interruption)
            raise
