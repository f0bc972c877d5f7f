"""Does the installed stack load? Asked where nobody has tried it yet, or where its versions do not fit together."""

import json

from ipexctl.act.agent import read_source
from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.decide.checks.software import needs_import_check
from ipexctl.decide.releases.table import get_public_version
from ipexctl.model.errors import LinkError
from ipexctl.model.events import Workflow
from ipexctl.model.facts import HostFacts
from ipexctl.model.hosts import Command, Inventory, Link
from ipexctl.model.text import printable
from ipexctl.protocol.codec import DamagedError, decode, load_object
from ipexctl.protocol.session import ImportReport

_IMPORT_TIMEOUT = 60.0  # seconds: torch from a cold network file system is slow
_ANSWER = "ipexctl-verify "


def try_imports(
    inventory: Inventory, facts: HostFacts, context: Context, *, everywhere: bool = False
) -> Workflow[dict[str, tuple[str, ...]]]:
    """Host → what went wrong when its Python imported torch and what is installed beside it, empty where all is well.
    Hosts that were not tried are left out: those without torch, and (unless ``everywhere``) those without a doubt."""
    all_envs = {name: env for name, fact in facts.items() if (env := fact.installed) and env.exists}
    with_torch = {name: env for name, env in all_envs.items() if "torch" in env.packages}
    envs = {name: env for name, env in with_torch.items() if everywhere or needs_import_check(env)}
    hosts = [host for host in inventory if host.name in envs]
    if not hosts:
        return {}
    script = read_source("remote.session.verify").encode()

    def attempt(link: Link, emit: Emit) -> tuple[str, ...]:
        env = envs[link.host.name]
        ipex = get_public_version(env.packages.get("intel-extension-for-pytorch", ""))
        argv = (f"{env.venv}/bin/python", "-I", "-", json.dumps({"ipex": ipex, "step": False}))
        try:
            done = link.run(Command(argv, stdin=script, timeout=_IMPORT_TIMEOUT))
        except LinkError as error:
            return (f"import: {error.failure.what}",)
        answer = next((line for line in reversed(done.text.splitlines()) if line.startswith(_ANSWER)), None)
        if answer is None:
            return (f"the import ended the process with status {done.status}: {done.get_tail(1)}",)
        try:
            report = decode(ImportReport, load_object(answer.removeprefix(_ANSWER).encode()))
        except DamagedError:
            return ("unexpected response of the import check",)
        return tuple(printable(problem, 300) for problem in report.problems)

    problems, _ = yield from run_on_hosts(
        context, hosts, "import", attempt, outcome=lambda problems: ("ok", problems[0] if problems else "")
    )
    return problems
