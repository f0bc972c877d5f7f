"""Probing hosts: one exchange per host, all hosts at once; the first step of every command that needs their facts."""

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from ipexctl.act.bundled_files import read_script
from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.threads import start_thread
from ipexctl.data import read_data
from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.facts.probe_output import ProbeOutput, build_probe_command, parse_probe_answer
from ipexctl.decide.facts.uarch import Uarchs, parse_uarchs
from ipexctl.decide.releases.table import ReleaseTable, parse_table
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import FactsRead, StepOutcome, Workflow
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Inventory, Link
from ipexctl.model.text import printable

VENV = "~/.local/share/ipexctl/env"  # where install puts the environment by default


def probe_hosts(
    inventory: Inventory,
    context: Context,
    *,
    venv: str | None = None,
    workdir: str | None = None,
    timeout: float = 10.0,
    resolve_names: Sequence[str] = (),
    bundles: dict[str, ProbeOutput] | None = None,
    close_links: bool = False,
    meanwhile: Callable[[], object] | None = None,
) -> Workflow[tuple[dict[str, Facts], dict[str, Failure]]]:
    """Returns the facts of hosts, and why others have none, by name in the order of the inventory. ``venv`` and
    ``workdir`` are paths on the hosts (absolute, or from ``~/``); by default those of the host's ``venv=`` and
    ``workdir=``. ``timeout`` in seconds bounds each question to a host; all hosts resolve ``resolve_names``. The text
    that the facts were parsed from is put into ``bundles``. ``close_links`` closes each link after its answer, for
    commands that ask nothing more: hundreds need not stay open. ``meanwhile`` is called in the background once a host
    is connected (logins come first: they need the interpreter). Yields `FactsRead` per host."""
    first, reading = threading.Lock(), threading.Lock()
    text = read_script("ownership.sh") + read_script("probe.sh")

    def probe_host(link: Link, emit: Emit) -> Facts | Failure:
        if meanwhile and first.acquire(blocking=False):
            start_thread(meanwhile)  # what fails in it fails again where it is needed
        nonce = secrets.token_hex(16)
        own = link.host.vars
        paths = {"venv": venv or own.get("venv") or VENV, "workdir": workdir or own.get("workdir", "")}
        command = build_probe_command(text, nonce, **paths, names=resolve_names, limit=timeout)
        begun = context.clock()
        completed = link.run(replace(command, brief=not close_links))  # where nothing follows, nothing is to be shared
        ended = context.clock()
        if close_links:
            link.close()
        bundle = parse_probe_answer(completed.out, nonce, limit=timeout)
        if not bundle.commands:
            output = completed.get_tail(1)
            what = "the login shell did not run the probe" + (f": {printable(output)}" if output else "")
            return Failure(link.host.name, Kind.STEP, what, code="no-probe")
        with reading:  # else all hosts that answer at once read the table, each for itself
            uarchs = load_uarchs()
        facts = parse_facts(bundle, uarchs)
        if facts.clock is not None:  # the host read it somewhere between the two times of the controller's
            facts = replace(facts, clock_offset=facts.clock - (begun + ended) / 2, clock_error=(ended - begun) / 2)
        emit(FactsRead(link.host.name, facts))
        if bundles is not None:
            bundles[link.host.name] = bundle
        return facts

    def describe_outcome(facts: Facts) -> tuple[StepOutcome, str]:
        return "ok", "; ".join(f"{item}: {why}" for item, why in facts.unread.items())

    return (yield from run_on_hosts(context, inventory, "probe", probe_host, outcome=describe_outcome))


@cache
def load_uarchs() -> Uarchs:
    """Returns the table of microarchitectures, ``data/cpus.toml``; read once, when the first host has answered."""
    return parse_uarchs(read_data("cpus.toml"))


def load_releases() -> ReleaseTable:
    """Returns the version table, ``data/stacks.toml``."""
    return parse_table(read_data("stacks.toml"))
