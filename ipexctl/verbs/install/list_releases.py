"""``ipexctl stacks``: the version table, what hosts can hold of it, and why a combination is refused."""

from contextlib import suppress

from ipexctl.act.context import Context
from ipexctl.decide.releases.listing import format_releases, list_releases
from ipexctl.decide.releases.resolve import explain_request, resolve_stack
from ipexctl.model.answers.install import StacksAnswer, StacksWhyAnswer
from ipexctl.model.errors import UsageError
from ipexctl.model.events import Started, Workflow, finish_verb
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Inventory
from ipexctl.model.stack import StackRequest
from ipexctl.verbs.common.probe import load_releases, probe_hosts


def stacks(
    *, torch: str | None = None, inventory: Inventory | None = None, context: Context | None = None
) -> Workflow[None]:
    """Yields the answer's ``rows`` are what ``--json`` prints, ``text`` is for people. Without an inventory nobody is
    contacted; with one, each row says whether these hosts can hold it. Raises `UsageError` for an unknown torch."""
    found, taken, facts = list_releases(load_releases(), torch=torch), None, dict[str, Facts]()
    yield Started("stacks", "the version table", inventory.names if inventory else ())
    if inventory and context:
        facts, _ = yield from probe_hosts(inventory, context)
        found = list_releases(load_releases(), torch=torch, facts=facts) if facts else found
    with suppress(UsageError):  # these hosts support none
        taken = None
        if facts or not inventory:
            taken = resolve_stack(StackRequest(), facts, load_releases()).release
    folded = list_releases(load_releases(), torch=torch, facts=facts, most=3) if facts else found
    yield from finish_verb("stacks", StacksAnswer(found, format_releases(folded, taken)))


def stacks_why(wish: StackRequest) -> Workflow[None]:
    """Why this wish is met as it is, or refused; the answer's ``ok`` says which. Contacts nobody, refuses nothing."""
    rows, name, hint = load_releases(), None, None
    yield Started("stacks why", str(wish), ())
    try:
        name = resolve_stack(wish, {}, rows).name
    except UsageError as refusal:
        hint = refusal.hint
    reasons = explain_request(wish, rows)
    lines = [*reasons, *([f"hint: {hint}"] if hint else [])]
    answer = StacksWhyAnswer(name is not None, name, tuple(reasons), hint, "\n".join(lines))
    yield from finish_verb("stacks why", answer)
