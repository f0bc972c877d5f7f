"""Observe: one exchange a host, all hosts at once. The first thing every verb does that needs to know its hosts."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, each
from ipexctl.data import read_data
from ipexctl.decide.facts import Bundle, Uarchs, parse_facts, parse_uarchs, probe, unframe
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import Event, FactsRead, StepOutcome
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.links import Link
from ipexctl.model.text import printable

VENV = "~/.local/share/ipexctl/env"  # where install puts the environment unless told otherwise


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one host's text means, and the text, where it was to be kept."""

    facts: Facts
    bundle: Bundle | None = None


def probe_hosts(
    inventory: Inventory,
    context: Context,
    *,
    venv: str | None = None,
    workdir: str | None = None,
    timeout: float = 10.0,
) -> Generator[Event, None, dict[str, Facts | Failure]]:
    """The facts of every host, or why there are none, by name in the order of the inventory.

    ``venv`` and ``workdir`` are paths on the hosts (absolute, or from ``~/``); where they are not given, the host's own
    ``venv=`` and ``workdir=`` count. ``timeout`` in seconds bounds each question to a host. Yields `FactsRead` a host.
    """
    seen = yield from collect_probe_results(inventory, context, venv=venv, workdir=workdir, timeout=timeout)
    return {host: found.facts if isinstance(found, ProbeResult) else found for host, found in seen.items()}


def collect_probe_results(
    inventory: Inventory,
    context: Context,
    *,
    venv: str | None = None,
    workdir: str | None = None,
    timeout: float = 10.0,
    names: Sequence[str] = (),
    keep: bool = False,
    once: bool = False,
) -> Generator[Event, None, dict[str, ProbeResult | Failure]]:
    """`observe`, with more to ask. ``names`` are looked up on every host; ``keep`` keeps the text, too.
    ``once``: nothing more will be asked, so each link is closed behind its answer; hundreds need not stay open."""
    text, uarchs = files("ipexctl.remote").joinpath("probe.sh").read_text("utf-8"), load_uarchs()

    def ask(link: Link, emit: Emit) -> ProbeResult | Failure:
        nonce = secrets.token_hex(16)
        paths = {
            "venv": venv or link.host.vars.get("venv") or VENV,
            "workdir": workdir or link.host.vars.get("workdir", ""),
        }
        begun = context.clock()
        answer = link.run(probe(text, nonce, **paths, names=names, limit=timeout))
        ended = context.clock()
        if once:
            link.close()
        bundle = unframe(answer.out, nonce, limit=timeout)
        if not bundle.commands:
            return _silent(link.host, answer.last_words(1))
        facts = _with_clock(parse_facts(bundle, uarchs), begun, ended)
        emit(FactsRead(link.host.name, facts))
        return ProbeResult(facts, bundle if keep else None)

    return (yield from each(context, inventory, "look", ask, outcome=_outcome))


def load_uarchs() -> Uarchs:
    """The microarchitectures that come with ipexctl."""
    return parse_uarchs(read_data("cpus.toml"))


def _silent(host: Host, words: str) -> Failure:
    said = f": {printable(words)}" if words else ""
    return Failure(
        host.name, Kind.STEP, f"the login shell did not run the probe{said}", f"ssh {host.name} true", "no-probe"
    )


def _with_clock(facts: Facts, begun: float, ended: float) -> Facts:
    """The host read its clock somewhere between the two times of ours."""
    if facts.clock is None:
        return facts
    return replace(facts, clock_offset=facts.clock - (begun + ended) / 2, clock_error=(ended - begun) / 2)


def _outcome(seen: ProbeResult) -> tuple[StepOutcome, str]:
    unread: Mapping[str, str] = seen.facts.unread
    return "ok", "; ".join(f"{item}: {why}" for item, why in unread.items())
