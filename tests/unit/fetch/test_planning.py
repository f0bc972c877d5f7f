"""What is to come from a host: decided from its list, whatever is in it."""

import os

import pytest

from ipexctl.decide.planning.fetch import Listing, RemoteFile, anchor_pattern, format_plans, parse_listing, plan_fetch
from ipexctl.decide.planning.ignore import compile_ignore
from ipexctl.decide.planning.sync import find_path_fault
from tests.tables import read_table

NOTHING = compile_ignore(())


def listing(*records: tuple[str, bytes], left_out: tuple[str, ...] = (), folds: bool = False) -> Listing:
    data = b"/home/ada/work\0" + b"".join(words.encode() + b"\0" + name + b"\0" for words, name in records)
    return parse_listing(data, compile_ignore(left_out), folds=folds)


def test_a_list_is_files_with_their_place_here() -> None:
    result = listing(
        ("0 d 755 4096 10", b"./out"),
        ("0 f 644 5 11", b"./out/a.pt"),
        ("0 f 755 6 12", b"./out//./run.sh"),
        ("1 f 600 7 -3", b"/scratch/x/log"),
        ("0 l 777 4 13", b"./out/latest"),
        ("0 s 600 0 13", b"./out/socket"),
    )
    assert result.path == "/home/ada/work"
    assert result.items == (
        RemoteFile("./out/a.pt", "out/a.pt", 5, 11),
        RemoteFile("./out//./run.sh", "out/run.sh", 6, 12, True),
        RemoteFile("/scratch/x/log", "scratch/x/log", 7, 0),
    )
    assert (result.matched, result.links, result.refused) == (frozenset({0, 1}), ("out/latest",), ())


@pytest.mark.parametrize("name", [b"./../evil", b"./a/../../evil", b"/../evil", b"..", b"./a/.."])
def test_no_name_leads_out_of_the_destination(name: bytes) -> None:
    result = listing(("0 f 644 1 1", name), ("0 f 644 1 1", b"./good"))
    assert [item.local for item in result.items] == ["good"]
    assert "leads out of the destination" in result.refused[0]


def test_odd_bytes_stay_what_they_are_and_are_shown_escaped() -> None:
    result = listing(("0 f 644 1 1", b"./out/\xff\n\x1b[31m"), ("0 f 644 1 1", b"./" + b"x" * 300))
    assert os.fsencode(result.items[0].local) == b"out/\xff\n\x1b[31m"
    assert result.refused[0].endswith("its name is too long")
    shown = format_plans({"n0": plan_fetch(result, lambda _: None)}, "fetched")
    assert shown == "n0: /home/ada/work → fetched/n0\n  get out/\\xff\\x0a\\x1b[31m (1 B)"


def test_what_is_left_out_and_what_is_ours_does_not_come() -> None:
    records = [("0 f 644 1 1", name) for name in (b"./a/b.tmp", b"./cache/x", b"./a/keep", b"./.ipexctl-sync.json")]
    result = listing(*records, ("0 f 644 1 1", b"./.ipexctl-part-1/x"), left_out=("*.tmp", "cache/"))
    assert [item.local for item in result.items] == ["a/keep"]


def test_two_patterns_that_meet_one_file_bring_it_once() -> None:
    result = listing(("0 f 644 1 1", b"./a"), ("1 f 644 1 1", b"./a"))
    assert len(result.items) == 1
    assert result.matched == {0, 1}


def test_names_that_are_one_here_do_not_overwrite_each_other() -> None:
    records = [("0 f 644 1 1", name) for name in (b"./A.pt", b"./a.pt", "./é".encode(), "./e\u0301".encode(), b"./b")]
    assert len(listing(*records).items) == 5
    result = listing(*records, folds=True)
    assert [item.local for item in result.items] == ["A.pt", "b", "e\u0301"]
    assert result.refused[0] == "a.pt: here it would be the same file as A.pt"


@pytest.mark.parametrize(
    "data", [b"", b"/p", b"/p\0x", b"/p\0" + b"0 f 644 1 1\0", b"/p\0" + b"0 f x 1 1\0./a\0", b"/p\0f 1\0./a\0"]
)
def test_a_list_that_was_cut_makes_no_sense(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_listing(data, NOTHING)


def test_only_what_is_not_here_already_is_wanted() -> None:
    result = listing(("0 f 644 5 11", b"./same"), ("0 f 644 5 11", b"./grew"), ("0 f 644 5 11", b"./new"))
    here = {"same": (5, 11), "grew": (4, 11)}
    need = plan_fetch(result, here.get)
    assert [item.local for item in need.items] == ["grew", "new"]
    assert (need.unchanged, need.size, need.summary()) == (1, 10, "2 files, 10 B")
    assert plan_fetch(listing(("0 f 644 5 11", b"./same")), here.get).summary() == "nothing to do, 1 file the same"
    assert plan_fetch(listing(), here.get).summary() == "nothing there"


@pytest.mark.parametrize(("pattern", "why"), read_table("planning/patterns_are_checked_before_anybody_is_asked"))
def test_patterns_are_checked_before_anybody_is_asked(pattern: str, why: str) -> None:
    assert find_path_fault(pattern) == why


def test_no_pattern_looks_like_an_option_on_the_host() -> None:
    assert [anchor_pattern(pattern) for pattern in ("-x", "out", "./a", "~/b", "/c")] == [
        "./-x",
        "./out",
        "./a",
        "~/b",
        "/c",
    ]


def test_a_plan_without_files_says_why_nothing_comes() -> None:
    result = listing(("0 f 644 5 11", b"./out/a.pt"))
    plan = plan_fetch(result, lambda _: (5, 11))
    assert format_plans({"n0": plan}, "fetched").splitlines() == [
        "n0: /home/ada/work → fetched/n0",
        f"  {plan.summary()}",
    ]


def test_of_a_deep_list_each_directory_is_looked_at_once_and_paths_that_no_system_takes_are_refused() -> None:
    deep, looked_at = b"./" + b"d/" * 1_500, []

    def note(path: str, _: bool) -> None:
        looked_at.append(path)

    names = [*(deep + b"%d" % number for number in range(100)), deep + b"e/" * 1_000 + b"f"]
    listing = parse_listing(b"/w\0" + b"".join(b"0 f 644 1 1\0%s\0" % name for name in names), note)
    assert (len(listing.items), len(looked_at)) == (100, 1_600)
    assert [why.rpartition(": ")[2] for why in listing.refused] == ["its path is too long"]


def test_of_many_names_that_are_refused_some_are_kept() -> None:
    """Each had a text of its own: minutes and 2 GB."""
    data = b"/d\0" + b"".join(b"0 f 644 1 1\0./%06d%s\0" % (number, b"\x1b" * 290) for number in range(2000))
    refused = parse_listing(data).refused
    assert (len(refused), len(set(refused))) == (2000, 1001)


def test_more_directories_than_a_list_can_have_are_refused_before_they_take_gigabytes() -> None:
    records = b"".join(b"0 f 644 1 1\0%d/%sf\0" % (number, b"d/" * 2_000) for number in range(100))
    with pytest.raises(ValueError, match="more directories"):
        parse_listing(b"/w\0" + records, NOTHING)
