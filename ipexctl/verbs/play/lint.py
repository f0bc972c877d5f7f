"""``ipexctl play lint``: reports every error in the given playbooks. Contacts no host."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ipexctl.decide import parsing
from ipexctl.model.answers.play import LintAnswer, LintedPlaybook
from ipexctl.model.errors import UsageError
from ipexctl.model.events import Message, Started, Workflow, finish_verb
from ipexctl.model.hosts import Inventory
from ipexctl.model.plays import Play
from ipexctl.model.text import pluralize, printable
from ipexctl.verbs.common.playbooks import Permits, read_play_hosts, read_playbook
from ipexctl.verbs.play.play import expand_step_paths, find_errors


def lint(
    files: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: Path,
    variables: Mapping[str, str],
    permits: Permits = Permits(),
) -> Workflow[None]:
    """Reads the playbooks and their hostfiles, and checks that their scripts exist. Raises `UsageError` with all
    errors, before the first event."""
    errors: list[tuple[str, str | None]] = []  # with their hints
    good: list[LintedPlaybook] = []
    warnings: list[str] = []
    unknown = {*variables} if len(files) > 1 else set()  # a variable must be known to at least one of several playbooks
    for file in files:
        try:
            strict = len(files) == 1
            book = read_playbook(file, environ=environ, cwd=cwd, variables=variables, strict=strict, permits=permits)
            unknown -= book.variables.keys()
            in_steps = [*find_errors([*map(expand_step_paths, book.steps)])]
            inventory = _read_hosts(book, cwd)
        except UsageError as refused:
            errors += [(reason, refused.hint) for reason in refused.reasons or (refused.sentence,)]
            unknown.clear()  # this playbook may know them
            continue
        errors += [(reason, None) for reason in in_steps]
        warnings += book.warnings
        hosts = len(inventory) if inventory else None
        good += [] if in_steps else [LintedPlaybook(printable(file, 300), len(book.steps), hosts)]
    errors += [(f"the playbooks have no variable '{printable(name)}'", None) for name in sorted(unknown)]
    if errors:
        reasons, hints = [reason for reason, _ in errors], {hint for _, hint in errors}
        count = pluralize(len(errors), "error")
        subject = printable(files[0], 300) if len(files) == 1 else f"{len(files)} playbooks"
        raise UsageError(f"{subject}: {count}", reasons=reasons, hint=hints.pop() if len(hints) == 1 else None)
    yield Started("lint", "", ())
    for warning in warnings:
        yield Message(warning, "warning")
    yield from finish_verb("lint", LintAnswer(tuple(good)))


def _read_hosts(book: Play, cwd: Path) -> Inventory | None:
    """Returns the playbook's own inventory, after checking its steps' limits; None without one. Raises `UsageError`."""
    inventory = read_play_hosts(book, cwd)
    if inventory:
        for step in book.steps:
            if step.limit is not None:
                parsing.limit_inventory(inventory, step.limit, f"{step.origin}: limit" if step.origin else "limit")
    return inventory
