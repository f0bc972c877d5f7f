"""The screen of files that were sent or fetched."""

from rich.console import RenderableType

from ipexctl.model.answers.files import FailedTransfer, FetchAnswer, FetchedHost, SyncAnswer, SyncedHost
from ipexctl.model.text import format_size, pluralize
from ipexctl.show import phrases
from ipexctl.show.typeset import GOOD, QUIET, STRONG, Line, Part, text


def format_answer(value: SyncAnswer | FetchAnswer) -> list[RenderableType]:
    """What was sent or fetched, how much and where to; equal hosts share a line. Failures are shown elsewhere."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for transfer in value.hosts:
        host = transfer.host
        if not isinstance(transfer, FailedTransfer):
            into, name = transfer.workdir if isinstance(transfer, SyncedHost) else transfer.directory, ""
            if isinstance(transfer, FetchedHost) and into.endswith(f"/{host}"):  # a directory for each host
                into, name = into.removesuffix(host), "each"
            groups.setdefault((_format_amount(transfer), into, name), []).append(host)
    items: list[RenderableType] = []
    for (what, into, each), names in groups.items():
        directory = into + phrases.format_hosts(names if each else ())
        mark: Part = ("✓ ", GOOD) if what != _NOTHING else ("- ", QUIET)
        items.append(Line(text(mark, (phrases.format_hosts(names), STRONG), f"  {what.replace('{}', directory)}"), 2))
    return items


def _format_amount(transfer: SyncedHost | FetchedHost) -> str:
    """``3 files, 1.2 KiB to {}``, with a placeholder for the directory."""
    sync = isinstance(transfer, SyncedHost)
    removed = transfer.removed if isinstance(transfer, SyncedHost) else 0
    if transfer.files:
        size = f"{pluralize(transfer.files, 'file')}, {format_size(transfer.bytes)} {'to' if sync else 'into'} {{}}"
        return f"{size}, {removed} removed" if removed else size
    if removed:
        return f"{pluralize(removed, 'file')} removed from {{}}"
    if isinstance(transfer, SyncedHost):
        return "directories only, to {}" if transfer.changed else "nothing to do, {} is the same"
    same = f"{pluralize(transfer.same, 'file')} the same in {{}}"
    return f"nothing to do, {same}" if transfer.same else _NOTHING


_NOTHING = "nothing there"
