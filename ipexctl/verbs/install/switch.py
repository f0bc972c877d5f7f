"""The switch to the new environment: marked complete, switched with the old one kept, confirmed, each on all hosts
before the next. All hosts or none, wherever it is cut short."""

from collections.abc import Mapping, Sequence

from ipexctl.act.context import Emit
from ipexctl.model.errors import Kind
from ipexctl.model.events import Message, StepOutcome, Workflow
from ipexctl.model.hosts import Link
from ipexctl.model.json_values import to_json
from ipexctl.model.stack import InstallMarker
from ipexctl.model.text import join_names, printable
from ipexctl.protocol.session import Inspection, Nothing, Offer, Removed, Used
from ipexctl.verbs.install.install_sessions import InstallJob

NOT_SWITCHED = Message(
    "no host was switched: every host has the environment it had before", "warning", code="not-switched"
)


def switch_environments(
    job: InstallJob,
    markers: Mapping[str, InstallMarker],
    states: Mapping[str, Inspection],
    addresses: Mapping[str, str],
) -> Workflow[tuple[set[str], set[str]]]:
    """Switches the hosts of ``markers``, one of each file system. Returns the hosts that are on the new environment,
    and those of which that is not known. Until the first host is confirmed, all go back if one fails; from then on all
    go forward. A host that has lost the controller between the two asks that first one."""
    yield from job.start_phase("switch")
    partial, names = job.task.partial, [*markers]
    yield from job.request(names, "mark", "mark", Nothing, lambda name: {"marker": to_json(markers[name])})
    if job.failed and not partial:
        yield NOT_SWITCHED
        return set(), set()
    marked = [name for name in names if name not in job.failed]
    first, others = marked[:1], marked[1:]
    address = addresses.get(first[0], "") if others else ""
    offers = yield from job.request(first, "switch", "switch", Offer, lambda _: {"ask": None, "address": address})
    host = f"[{address}]" if ":" in address else address
    ask = next(({"base": f"http://{host}:{o.port}", "token": o.token} for o in offers.values() if address), None)
    if offers or partial:
        offers |= yield from job.request(others, "switch", "switch", Offer, lambda _: {"ask": ask, "address": ""})
    switched, confirmed = [*offers], set[str]()

    def describe(_: Nothing) -> tuple[StepOutcome, str]:
        return "changed", f"{job.venv} is {job.lock.id}"

    for turn in (switched[:1], switched[1:]):
        if partial or (switched == marked and (confirmed or turn == first)):
            confirmed |= (yield from job.request(turn, "confirm", "confirm", Nothing, outcome=describe)).keys()
    if confirmed or partial:
        lost = {name for name in switched if name not in confirmed}
        unknown = yield from _confirm_or_go_back(job, sorted(lost), states, forward=True)
        return confirmed | lost - unknown, unknown
    unknown = yield from _confirm_or_go_back(job, marked, states, forward=False)
    what = "may have switched and could not be told to go back: install again when it answers"
    text = f"{join_names(sorted(unknown), 8)} {what}"
    yield Message(text, "warning", code="not-switched") if unknown else NOT_SWITCHED
    return set(), unknown


def _confirm_or_go_back(
    job: InstallJob, names: Sequence[str], states: Mapping[str, Inspection], *, forward: bool
) -> Workflow[set[str]]:
    """Makes hosts stay with the new environment, or go back; one that has lost its session gets another. Those of which
    it is not known what they have done. The first failure of a host stays."""
    causes = dict(job.failed)

    def settle(link: Link, _: Emit) -> Nothing:
        name = link.host.name
        if name in causes and causes[name].kind is Kind.UNREACHABLE:
            job.reopen(link)
        if not forward:
            return job.call(name, "go_back", Nothing, before=states[name].active or "")
        job.call(name, "switch", Offer, ask=None, address="")
        return job.call(name, "confirm", Nothing)

    answers = yield from job.run(names, "finish the switch" if forward else "go back", settle)
    job.failed.update(causes)
    return set(names) - answers.keys()


def tidy_environments(job: InstallJob, groups: Sequence[Sequence[str]]) -> Workflow[set[str]]:
    """Removes what no job uses any more, on one host of each file system; the hosts where that removed something."""
    yield from job.start_phase("tidy")
    alive = [name for group in groups for name in group if name not in job.failed]
    used = yield from job.request(alive, "look for running jobs", "find_used", Used)
    keep = sorted({job.lock.id}.union(*(answer.used for answer in used.values())))
    leaders = [group[0] for group in groups if group[0] in alive and group[0] not in job.failed]
    answers = yield from job.request(
        leaders, "tidy", "remove_unused", Removed, lambda _: {"keep": keep}, outcome=_describe_removed
    )
    return {name for name, answer in answers.items() if answer.removed}


def _describe_removed(answer: Removed) -> tuple[StepOutcome, str]:
    names = printable(", ".join(answer.removed[:3]), 200)
    return ("changed", f"removed {names}") if names else ("ok", "")
