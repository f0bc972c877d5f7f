"""``ipexctl lab demo``: a training from installation to results, on a cluster of servers on this machine."""

from pathlib import Path

from ipexctl.act.bundled_files import find_bundled_file
from ipexctl.act.context import Context
from ipexctl.model.errors import Exit, advise
from ipexctl.model.events import Ended, Message, Started, Workflow
from ipexctl.verbs import lab
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.common.playbooks import read_playbook
from ipexctl.verbs.common.select import select_hosts
from ipexctl.verbs.play.play import play

PLAYBOOKS = {"native": "demo.yaml", "ipex": "demo-ipex.yaml"}


def demo(hosts: int, stack: str, context: Context, *, keep: bool = False) -> Workflow[None]:
    """Starts a lab, plays a stack's playbook on it and stops the lab, also after a failure; ``keep`` leaves it up."""
    book = read_playbook(str(find_bundled_file("playbooks", PLAYBOOKS[stack])), environ=context.environ, cwd=Path.cwd())
    directory = context.state / "lab"
    yield Started("demo", "installation and training on servers of this machine", ())
    if (yield from run_nested(lab.up(hosts, directory))) is None:
        yield Ended("demo", Exit.STEP)
        return
    exit, hostfile = Exit.OK, str(directory / "hostfile")
    try:
        inventory = select_hosts(hostfile=hostfile, hosts=None, limit=None, environ={}, cwd=Path.cwd())
        workflow = play(book, inventory, context)  # its answer is the demo's
        exit = yield from run_nested(workflow, lambda event: not isinstance(event, Ended))
    finally:
        context.links.close()
        if keep:
            yield Message(advise("doctor", "-f", str(directory / "hostfile"), text="the lab stays up:"))
        else:
            yield from run_nested(lab.down(directory))
    yield Ended("demo", exit)
