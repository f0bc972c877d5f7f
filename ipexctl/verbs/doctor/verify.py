"""``ipexctl doctor --verify``: is it still what was installed? Asked often, so it loads little."""

from ipexctl.act.context import Context
from ipexctl.decide.releases.env_health import find_unhealthy_envs
from ipexctl.model.answers.install import VerifiedHost, VerifyAnswer
from ipexctl.model.errors import choose_exit
from ipexctl.model.events import HostFailed, Workflow, finish_verb
from ipexctl.model.hosts import Inventory
from ipexctl.verbs.common.probe import probe_hosts
from ipexctl.verbs.common.select import make_started


def verify(venv: str | None, inventory: Inventory, context: Context) -> Workflow[VerifyAnswer]:
    """One look at each host: the marker, and every locked package by its version. Imports nothing, changes nothing."""
    yield make_started("verify", "verify the environments", inventory, venv)
    facts, failed = yield from probe_hosts(inventory, context, venv=venv)
    failures = [*failed.values()]
    for failure in find_unhealthy_envs(facts):
        failures.append(failure)
        yield HostFailed(failure)
    markers = {name: fact.installed.marker for name, fact in facts.items() if fact.installed}
    hosts = (VerifiedHost(name, it.id if it else None, it.stack if it else None) for name, it in markers.items())
    answer = VerifyAnswer(tuple(hosts), {failure.host: failure.what for failure in failures})
    yield from finish_verb("verify", answer, choose_exit(failures))
    return answer
