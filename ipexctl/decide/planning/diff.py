"""How a text file differs from the one on a host: bounded, and harmless to show."""

import difflib
from collections.abc import Iterator, Mapping, Sequence

from ipexctl.decide.planning.sync import RemoteTree, SyncPlan
from ipexctl.model.text import group_pairs, pluralize, printable
from ipexctl.model.trees import TreeEntry

DIFFABLE = 256 << 10  # bytes of a file that is compared line by line
FILES = 20  # compared per host
_LINE_LIMIT = 10_000  # of both files: the comparison takes the square of them
_SHOWN_LINES = 200  # shown per file
_SHOWN_WIDTH = 200  # characters shown of a line


def select_comparable_files(plan: SyncPlan, remote_tree: RemoteTree) -> tuple[TreeEntry, ...]:
    """Of what is to be sent: files that are there in an old version, and small enough to be compared."""

    def fits(entry: TreeEntry) -> bool:
        remote = remote_tree.entries.get(entry.path)
        return (
            entry.kind == "f" and remote is not None and remote.kind == "f" and max(entry.size, remote.size) <= DIFFABLE
        )

    return tuple(entry for entry in plan.send if fits(entry))[:FILES]


def format_diff(path: str, old: bytes, new: bytes) -> str:
    """As ``diff -u`` says it, every line escaped; one sentence for a file that is no text, "" where nothing differs."""
    if old == new:
        return ""
    try:
        before, after = _split_lines(old), _split_lines(new)
    except UnicodeDecodeError:
        return f"{printable(path, 300)} differs, and is no text"
    shown = printable(path, 300)
    if len(before) + len(after) > _LINE_LIMIT:
        return f"{shown} differs, and has too many lines to compare"
    lines = [*difflib.unified_diff(before, after, f"{shown} (there)", f"{shown} (here)", lineterm="")]
    if not lines:
        return f"{shown} differs in how its last line ends"
    more = [f"… and {pluralize(len(lines) - _SHOWN_LINES, 'more line')}"] if len(lines) > _SHOWN_LINES else []
    return "\n".join([*(printable(line.replace("\t", "    "), _SHOWN_WIDTH) for line in lines[:_SHOWN_LINES]), *more])


def _split_lines(data: bytes) -> list[str]:
    if b"\0" in data:
        raise UnicodeDecodeError("utf-8", data, 0, 1, "a NUL")
    return data.decode("utf-8").splitlines()


def group_by_hosts(differences: Mapping[str, Sequence[str]]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields each difference once, with the hosts of which it is true."""
    for text, names in group_pairs((text, name) for name, texts in differences.items() for text in texts).items():
        if text:
            yield tuple(names), text
