"""How text files differ: bounded, escaped, each difference told once."""

from ipexctl.decide.planning import sync
from ipexctl.decide.planning.sync import RemoteEntry, RemoteTree, SyncPlan, format_diff
from ipexctl.model.trees import TreeEntry


def test_a_change_is_shown_as_diff_shows_it() -> None:
    assert format_diff("a.py", b"one\ntwo\n", b"one\n2\n").splitlines() == [
        "--- a.py (there)", "+++ a.py (here)", "@@ -1,2 +1,2 @@", " one", "-two", "+2"
    ]  # fmt: skip
    assert format_diff("a.py", b"same", b"same") == ""
    assert format_diff("a.py", b"same", b"same\n") == "a.py differs in how its last line ends"


def test_what_is_no_text_is_only_named() -> None:
    assert format_diff("m.bin", b"\0\1", b"\0\2") == "m.bin differs, and is no text"
    assert format_diff("m.bin", b"caf\xe9", b"cafe") == "m.bin differs, and is no text"


def test_nothing_in_it_reaches_the_terminal_and_it_is_bounded() -> None:
    output = format_diff("a\x1b[2J.py", b"", b"\x1b]0;title\x07\t\xe2\x80\xae\n" + b"x\n" * 999 + b"y" * 10_000)
    assert all(char.isprintable() or char == "\n" for char in output)
    assert output.splitlines()[-1] == "… and 804 more lines"
    assert len(output.splitlines()) == 201
    assert max(map(len, output.splitlines())) <= 201


def test_lines_that_are_many_are_not_compared() -> None:
    """A file of 47 KiB took seven seconds, one of 256 KiB minutes."""
    there, here = b"a\n" * 5001, b"b\n" * 5000
    assert format_diff("a.py", there, here) == "a.py differs, and has too many lines to compare"


def test_only_old_versions_of_small_files_are_compared() -> None:
    there = {name: RemoteEntry("f", 0o600, 5, 1) for name in ("old", "big", *map(str, range(50)))} | {
        "huge-there": RemoteEntry("f", 0o600, sync.DIFFABLE + 1, 1),
        "link": RemoteEntry("l", 0o777, 5, 1, "x"),
    }
    sent = [TreeEntry(name, "f", 5) for name in ("old", "new", "huge-there", "link")]
    sent += [TreeEntry("big", "f", sync.DIFFABLE + 1), TreeEntry("dir", "d")]
    state = RemoteTree("/w", None, there)
    assert [entry.path for entry in sync.select_comparable_files(SyncPlan("/w", tuple(sent)), state)] == ["old"]
    many = tuple(TreeEntry(str(number), "f", 5) for number in range(50))
    assert len(sync.select_comparable_files(SyncPlan("/w", many), state)) == sync.DIFF_FILES


def test_a_difference_is_reported_once_with_its_hosts() -> None:
    reported = {"n0": ["a", "b", ""], "n1": ["a"], "n2": []}
    assert [*sync.group_by_hosts(reported)] == [(("n0", "n1"), "a"), (("n0",), "b")]
