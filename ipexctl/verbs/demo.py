"""``ipexctl demo``: the main job on this machine, from nothing to a trained model, on an embedded cluster."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from ipexctl.act.bundled_files import playbook
from ipexctl.act.context import Context
from ipexctl.model.errors import Exit
from ipexctl.model.events import Answer, Ended, Event, Message, Started
from ipexctl.verbs import lab
from ipexctl.verbs.common.nested import inner
from ipexctl.verbs.common.select import read_play, select
from ipexctl.verbs.play.play import play


def demo(
    hosts: int, context: Context, environ: Mapping[str, str], *, keep: bool = False
) -> Generator[Event, None, None]:
    """Lab up, the playbook ``demo.yaml``, lab down, also when something failed on the way; ``keep`` leaves it up."""
    book = read_play(str(playbook("demo.yaml")), environ=environ, cwd=Path.cwd())
    directory = context.state / "lab"
    yield Started("demo", "the main job on an embedded cluster", ())
    if (yield from inner(lab.up(hosts, directory))) is None:
        yield Ended("demo", Exit.STEP)
        return
    inventory = select(hostfile=str(directory / "hostfile"), hosts=None, limit=None, environ={}, cwd=Path.cwd())
    exit = Exit.OK
    summary: Mapping[str, Any] = {}
    try:
        story = play(book, inventory, context, environ)
        exit, summary = yield from _summed(story)
    finally:
        context.links.close()
        if keep:
            yield Message(f"the lab stays up: ipexctl doctor -f {directory / 'hostfile'}")
        else:
            yield from inner(lab.down(directory))
    yield Answer(summary)
    yield Ended("demo", exit)


def _summed(story: Generator[Event, None, Exit]) -> Generator[Event, None, tuple[Exit, Mapping[str, Any]]]:
    """The play's events but its end; its exit code and its answer."""
    answer: Mapping[str, Any] = {}
    while True:
        try:
            event = next(story)
        except StopIteration as end:
            return end.value, answer
        if isinstance(event, Answer):
            answer = event.value
        if isinstance(event, Ended):
            continue
        try:
            yield event
        except BaseException as interruption:
            story.throw(interruption)
            raise
