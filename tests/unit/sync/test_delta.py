"""What has to be sent."""

from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.act.transfer.send import send_file
from ipexctl.decide.planning.ignore import DEFAULT, compile_ignore
from ipexctl.decide.planning.sync import (
    RemoteEntry,
    RemoteTree,
    SyncPlan,
    choose_destination,
    describe_other_source,
    find_stale_directories,
    format_manifest,
    format_plans,
    parse_remote_tree,
    plan_sync,
    validate_destination,
)
from ipexctl.model.hosts import Completed, Host, LinkError
from ipexctl.model.trees import FileTree, TreeEntry
from tests.fakes import FakeLink

IGNORED = compile_ignore(DEFAULT)


def file(path: str, size: int = 10, at: int = 1_700_000_000, executable: bool = False) -> TreeEntry:
    return TreeEntry(path, "f", size, (size, at * 10**9 + 5, at * 10**9 + 7, 1), executable)


def tree(*entries: TreeEntry) -> FileTree:
    return FileTree(Path("/src"), "laptop:/src", tuple(sorted(entries, key=lambda entry: entry.path)))


def there(entry: TreeEntry) -> RemoteEntry:
    if entry.kind == "d":
        return RemoteEntry("d", 0o700, 4096, 1)
    if entry.kind == "l":
        return RemoteEntry("l", 0o777, len(entry.target), 1, entry.target)
    return RemoteEntry("f", 0o700 if entry.executable else 0o600, entry.size, entry.mtime)


def after_sync(source: FileTree, **more: RemoteEntry) -> RemoteTree:
    """What a host says when the source was just copied there."""
    import json

    entries = {entry.path: there(entry) for entry in source.entries}
    return RemoteTree("/home/u/p", json.loads(format_manifest(source)), {**entries, **more})


EMPTY = RemoteTree("/home/u/p", None, {})
SOURCE = tree(
    TreeEntry("pkg", "d"),
    file("pkg/a.py"),
    file("run.sh", executable=True),
    TreeEntry("latest", "l", target="pkg/a.py"),
)


def asked(source: FileTree, state: RemoteTree, *, delete: bool = False) -> SyncPlan:
    return plan_sync(source, state, delete=delete, ignored=IGNORED)


def paths(result: SyncPlan) -> list[str]:
    return [entry.path for entry in result.send]


def test_everything_is_sent_to_an_empty_place() -> None:
    assert paths(asked(SOURCE, EMPTY)) == [entry.path for entry in SOURCE.entries]


def test_nothing_is_sent_when_nothing_has_changed() -> None:
    result = asked(SOURCE, after_sync(SOURCE))
    assert result.is_empty
    assert result.summary() == "nothing to do"


def test_a_plan_says_how_much_is_sent_and_removed() -> None:
    assert asked(SOURCE, EMPTY).summary() == "3 files, 20 B"
    assert asked(tree(TreeEntry("pkg", "d")), EMPTY).summary() == "directories"
    fewer = tree(*(entry for entry in SOURCE.entries if entry.path != "run.sh"))
    assert asked(fewer, after_sync(SOURCE), delete=True).summary() == "1 removed"


def test_a_link_that_leads_elsewhere_now_is_sent() -> None:
    moved = tree(*(replace(each, target="run.sh") if each.kind == "l" else each for each in SOURCE.entries))
    assert paths(asked(moved, after_sync(SOURCE))) == ["latest"]


@pytest.mark.parametrize(
    "now",
    [file("pkg/a.py", size=11), file("pkg/a.py", at=1_700_000_001), file("pkg/a.py", executable=True)],
    ids=["size", "time", "mode"],
)
def test_a_file_that_changed_here_is_sent_with_its_directory(now: TreeEntry) -> None:
    changed = tree(*(now if entry.path == now.path else entry for entry in SOURCE.entries))
    assert paths(asked(changed, after_sync(SOURCE))) == ["pkg", "pkg/a.py"]


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_sent() -> None:
    # cp -p over it: only the time of the last change of its inode tells
    old = file("run.sh")
    new = TreeEntry("run.sh", "f", old.size, (old.stamp[0], old.stamp[1], old.stamp[2] + 1, old.stamp[3]))
    assert paths(asked(tree(new), after_sync(tree(old)))) == ["run.sh"]


@pytest.mark.parametrize(
    "result",
    [
        RemoteEntry("f", 0o600, 99, 1_700_000_000),
        RemoteEntry("f", 0o600, 10, 1_700_000_001),
        RemoteEntry("f", 0o700, 10, 1_700_000_000),
    ],
    ids=["size", "time", "mode"],
)
def test_a_file_that_changed_on_the_host_is_sent_again(result: RemoteEntry) -> None:
    state = after_sync(SOURCE, **{"pkg/a.py": result})
    assert paths(asked(SOURCE, state)) == ["pkg", "pkg/a.py"]


def test_another_source_for_the_same_place_is_sent_whole() -> None:
    other = FileTree(Path("/src"), "desktop:/src", SOURCE.entries)
    assert asked(other, after_sync(SOURCE)).files == 2


def test_a_link_somebody_planted_blocks_the_sync_and_is_named() -> None:
    for path, why in (
        ("pkg", "/home/u/p/pkg is a symbolic link there, a directory here"),
        ("run.sh", "/home/u/p/run.sh is a symbolic link that ipexctl did not make"),
    ):
        state = RemoteTree("/home/u/p", None, {path: RemoteEntry("l", 0o777, 4, 1, "/etc")})
        result = asked(SOURCE, state)
        assert result.blocked == (why,)
        assert result.send == ()


def test_a_directory_where_a_file_shall_be_blocks_unless_deleting_was_asked_for() -> None:
    source = tree(file("x"))
    state = after_sync(tree(file("y")), x=RemoteEntry("d", 0o700, 1, 1), **{"x/old": RemoteEntry("f", 0o600, 1, 1)})
    assert asked(source, state).blocked == ("/home/u/p/x is a directory there, a file here",)
    assert asked(source, state, delete=True).to_delete == ("x", "y")


def test_deleting_removes_what_is_not_in_the_source_but_never_what_syncs_leave_out() -> None:
    extra = {
        "old.py": RemoteEntry("f", 0o600, 1, 1),
        "gone": RemoteEntry("d", 0o700, 1, 1),
        "gone/x": RemoteEntry("f", 0o600, 1, 1),
        "half": RemoteEntry("d", 0o700, 1, 1),
        "half/x": RemoteEntry("f", 0o600, 1, 1),
        "half/.venv": RemoteEntry("d", 0o700, 1, 1),
        "half/.venv/python": RemoteEntry("f", 0o700, 1, 1),
        ".ipexctl-sync.json": RemoteEntry("f", 0o600, 1, 1),
    }
    state = after_sync(SOURCE, **extra)
    assert asked(SOURCE, state).to_delete == ()
    assert asked(SOURCE, state, delete=True).to_delete == ("gone", "half/x", "old.py")


def test_a_module_that_the_source_has_no_more_is_removed_unless_it_changed_on_the_host() -> None:
    """A script went on with a module that its project had lost."""
    earlier = tree(*SOURCE.entries, file("pkg/b.py"), file("c.py"), file("data.csv"), file("d.so"))
    assert asked(SOURCE, after_sync(earlier)).to_delete == ("c.py", "d.so", "pkg/b.py")
    edited = after_sync(earlier, **{"c.py": RemoteEntry("f", 0o600, 10, 1_800_000_000)})
    assert asked(SOURCE, edited).to_delete == ("d.so", "pkg/b.py")
    written = {"made.py": RemoteEntry("f", 0o600, 1, 1), "c.py": RemoteEntry("l", 0o777, 10, 1_700_000_000, "x")}
    assert asked(earlier, after_sync(SOURCE, **written)).to_delete == ()
    left_out = plan_sync(SOURCE, after_sync(earlier), delete=False, ignored=compile_ignore((*DEFAULT, "*.py", "d.so")))
    assert left_out.to_delete == ()
    other = FileTree(Path("/src"), "desktop:/src", SOURCE.entries)
    assert asked(other, after_sync(earlier)).to_delete == ()


@pytest.mark.parametrize("stamp", [None, "x", [], [10], ["10", "1700000000000000005"], {"0": 10}])
def test_a_host_that_lists_a_module_with_no_stamp_keeps_it(stamp: object) -> None:
    state = after_sync(tree(*SOURCE.entries, file("c.py")))
    assert state.manifest is not None
    listed = {**state.manifest, "files": {**state.manifest["files"], "c.py": stamp}}
    assert asked(SOURCE, RemoteTree(state.path, listed, state.entries)).to_delete == ()


@pytest.mark.fault("E5")
def test_nothing_is_deleted_in_a_place_without_our_mark() -> None:
    state = RemoteTree("/home/u/p", None, {"precious": RemoteEntry("f", 0o600, 1, 1)})
    result = asked(SOURCE, state, delete=True)
    assert result.to_delete == ()
    assert "no manifest of an earlier sync" in result.blocked[0]
    assert asked(SOURCE, EMPTY, delete=True).blocked == ()


def test_what_another_directory_has_brought_is_not_deleted_and_that_directory_is_named() -> None:
    state = after_sync(SOURCE, **{"ckpt.pt": RemoteEntry("f", 0o600, 1, 1)})
    other = FileTree(Path("/src"), "desktop:/src", SOURCE.entries)
    result = asked(other, state, delete=True)
    assert result.to_delete == ()
    assert result.blocked == (
        f"{state.path} was last synced from {SOURCE.origin}: run sync once without --delete first",
    )
    plan = asked(other, state)
    assert plan.previous_source == SOURCE.origin
    what_to_do = "files of the same names are replaced, the others stay; --workdir DIRECTORY keeps the two apart"
    assert describe_other_source(plan).endswith(f"{SOURCE.origin}: {what_to_do}")
    assert asked(other, after_sync(SOURCE), delete=True).blocked == ()  # nothing would be deleted
    assert asked(SOURCE, state, delete=True).to_delete == ("ckpt.pt",)


def test_what_a_host_says_is_read_with_any_name_in_it() -> None:
    data = b"/home/u/p\0mark\0" + format_manifest(SOURCE) + b"\0"
    data += b"f 600 3 1700000000\0a\nb $(id) \xff\0\0l 777 3 1\0ln\0../x\0p 0 0 0\0.ipexctl-part-ab-1-2\0\0"
    state = parse_remote_tree(data)
    assert state.entries == {
        "a\nb $(id) \udcff": RemoteEntry("f", 0o600, 3, 1_700_000_000),
        "ln": RemoteEntry("l", 0o777, 3, 1, "../x"),
    }
    assert state.manifest is not None
    assert state.parts == (".ipexctl-part-ab-1-2",)


@pytest.mark.parametrize("data", [b"", b"/p\0\0", b"/p\0\0\0f 600 1\0x\0\0", b"/p\0\0\0f 600 1 1\0x\0"])
def test_half_a_list_makes_no_sense(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - what it says depends on where it was cut
        parse_remote_tree(data)


@pytest.mark.parametrize(
    "mark",
    [
        b'{"ipexctl": 1, "files": {}, "links": [[]]}',
        b'{"ipexctl": 1, "files": {}, "links": 5}',
        b"",
        b"{",
        b"[]",
        b'{"ipexctl": 99, "files": {}}',
        b"[" * 100_000,
        b'{"ipexctl": 1, "files": {"a": [' + b"[]," * 6_000_000 + b"[]]}}",  # gigabytes, as values
    ],
    ids=range(8),
)
def test_a_damaged_mark_counts_as_none(mark: bytes) -> None:
    assert parse_remote_tree(b"/p\0mark\0" + mark + b"\0").manifest is None


@pytest.mark.parametrize("size", [b"-1", b"9" * 400, b"x"])
def test_a_size_that_no_file_has_makes_no_sense(size: bytes) -> None:
    with pytest.raises(ValueError, match="without a size"):
        parse_remote_tree(b"/p\0\0\0f 600 " + size + b" 5\0a\0\0")


@pytest.mark.parametrize("name", [b"/x", b"a/b", b"a/" * 20_000 + b"b"], ids=["absolute", "no directory", "deep"])
def test_a_path_that_no_directory_holds_makes_no_sense(name: bytes) -> None:
    """To look for its directories would take as many gigabytes as a host likes, or have no end."""
    with pytest.raises(ValueError, match=r"no system|not there"):
        parse_remote_tree(b"/p\0\0\0f 600 1 5\0" + name + b"\0\0")


@pytest.mark.parametrize("answer", [b"", b"- 0", b"- -1 9", b"- 0 " + b"9" * 5000, b"- x 1", b"- 0 1 2"])
def test_a_host_that_says_no_numbers_of_its_part_of_a_file_fails_alone(tmp_path: Path, answer: bytes) -> None:
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(b"a")
    with pytest.raises(LinkError, match="unexpected response from the host"):
        send_file(FakeLink(Host("n0", "n0"), lambda *_: Completed(0, answer)), wheel, "/env.d/a.whl", print, "send")


def test_only_private_directories_whose_writer_is_gone_are_stale() -> None:
    strange = f".ipexctl-part-ab12-{'9' * 300}-7"  # a host says so: no process has it, and no path its number
    names = (".ipexctl-part-ab12-100-7", ".ipexctl-part-ab12-200-8", ".ipexctl-part-ffff-100-9", strange)
    state = RemoteTree("/p", None, {}, names)
    assert find_stale_directories(state, "ab12", {200}.__contains__) == (".ipexctl-part-ab12-100-7",)


def test_the_place_is_the_hosts_then_the_tasks_then_one_named_like_the_source() -> None:
    assert choose_destination(None, Host("a", "a"), "proj") == "ipexctl/proj"
    assert choose_destination("~/w", Host("a", "a"), "proj") == "w"
    assert choose_destination(None, Host("a", "a", vars={"workdir": "/scratch/w"}), "proj") == "/scratch/w"
    assert choose_destination("~/w", Host("a", "a", vars={"workdir": "/scratch/w"}), "proj") == "w"


@pytest.mark.parametrize(
    "where", ["", " ", "~", "/", "//", "..", "a/../..", "$UNSET/x", "/etc", "/tmp/", "~root/x", "."]
)
def test_places_that_are_too_big_are_refused(where: str) -> None:
    assert validate_destination(where)


@pytest.mark.parametrize("where", ["w", "ipexctl/proj", "/scratch/me/proj", "/workspace", "a b", "-x"])
def test_ordinary_places_are_fit(where: str) -> None:
    assert validate_destination(where) == ""


def test_the_plan_names_every_file_escaped_and_puts_like_hosts_together() -> None:
    source = tree(file("a\x1b[31m", 2000), TreeEntry("l", "l", target="a"))
    same = asked(source, EMPTY)
    done = asked(source, after_sync(source))
    assert format_plans({"n1": same, "n2": same, "n3": done}, "/src") == (
        "n[1-2]: /src → /home/u/p\n  send a\\x1b[31m (2.0 KiB)\n  send l → a\nn3: /src → /home/u/p\n  nothing to do"
    )
