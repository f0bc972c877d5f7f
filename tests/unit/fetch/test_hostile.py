"""A host that lies: what it lists and what it sends are two different things."""

import io
import re
import resource
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context
from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.act.transfer.receive import receive_files
from ipexctl.act.transfer.send import make_remote_error
from ipexctl.model.answers.files import FetchAnswer, FetchedHost
from ipexctl.model.answers.hosts import UsageAnswer
from ipexctl.model.errors import Exit, Failure, UsageError
from ipexctl.model.events import Answer, Ended, Event, HostFailed, Message
from ipexctl.model.hosts import Command, Completed, Host, Inventory
from ipexctl.model.tasks import Fetch
from ipexctl.verbs.files import usage
from ipexctl.verbs.files.fetch import fetch
from ipexctl.verbs.files.usage import show_usage
from tests.fakes import FakeLink, FakeOpener
from tests.tables import read_table


def tar(*members: tuple[str, bytes, str]) -> bytes:
    """Members as (name, type, contents or target)."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as stream:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = data if kind in (tarfile.LNKTYPE, tarfile.SYMTYPE) else ""
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            stream.addfile(info, io.BytesIO(data.encode()))
    return made.getvalue()


REG = tarfile.REGTYPE
LISTED = b"/w\0" + b"".join(b"0 f 644 %d 5\0%s\0" % (size, name) for size, name in [(3, b"./out/a"), (3, b"./out/b")])


def fetched(
    tmp_path: Path, sent: bytes, listed: bytes = LISTED, again: bytes = b"", listed_after: bytes | None = None
) -> tuple[list[Event], Failure | str]:
    """``again`` is what the host sends when it is asked once more, for what did not come; ``listed_after`` is its list
    when the files have come (default: the same)."""
    packs, lists = [sent], [listed]

    def answer(_: Host, command: Command) -> Completed:
        if command.argv[1] == "list":
            return Completed(0, lists.pop() if lists else listed if listed_after is None else listed_after)
        return Completed(0, packs.pop() if packs else again)

    inventory = Inventory((Host("n0", "n0"),))
    context = Context(FakeOpener(answer), tmp_path / "state", tmp_path / "cache")
    events = list(fetch(Fetch(paths=("out",), into=str(tmp_path / "in/fetched")), inventory, context))
    failures = [event.failure for event in events if isinstance(event, HostFailed)]
    [end] = [event.value for event in events if isinstance(event, Answer)]
    assert isinstance(end, FetchAnswer)
    [host] = end.hosts
    return events, host.directory if isinstance(host, FetchedHost) else failures[0]


def everything(tmp_path: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("[!.]*") if path.is_file()}


GOOD = ("./out/a", REG, "aaa"), ("out/b", REG, "bbb")


def test_a_host_may_send_before_it_has_read_all_names(tmp_path: Path) -> None:
    """Names of some megabytes: both waited for each other for a minute, then the fetch of all hosts ended with 70."""
    sizes = {f"./{'n' * 200}{number}": 0 for number in range(10000)}
    for name in sizes:
        (tmp_path / name).touch()
    link = LocalLink(Host("n0", "n0"))
    assert sum(1 for _ in receive_files(link, str(tmp_path), sizes)) == len(sizes)


def test_what_was_asked_for_arrives(tmp_path: Path) -> None:
    _, result = fetched(tmp_path, tar(*GOOD))
    assert result == str(tmp_path / "in/fetched/n0")
    assert everything(tmp_path) == {"in/fetched/n0/out/a": b"aaa", "in/fetched/n0/out/b": b"bbb"}


@pytest.mark.fault("K4")
@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/evil", "out/../../evil", "out/c", "out", "out/a", "out/a/x", "\x1b"]
)
def test_what_was_not_asked_for_is_refused_and_not_written(tmp_path: Path, name: str) -> None:
    _, result = fetched(tmp_path, tar(GOOD[0], (name, REG, "evil"), GOOD[1]))
    assert isinstance(result, Failure)
    assert "which was not requested" in result.what
    assert result.what.isprintable()
    assert everything(tmp_path) == {"in/fetched/n0/out/a": b"aaa"}


@pytest.mark.fault("K4")
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_a_name_that_comes_as_something_else_than_a_file_does_not_arrive(tmp_path: Path, kind: bytes) -> None:
    odd = "./out/a", kind, "/etc/passwd"
    events, result = fetched(tmp_path, tar(odd, GOOD[1]), again=tar(odd))
    assert isinstance(result, Failure)
    assert "out/a could not be read on the host" in result.what
    assert everything(tmp_path) == {"in/fetched/n0/out/b": b"bbb"}
    assert events[-1] == Ended("fetch", Exit.STEP)


@pytest.mark.parametrize("sent", [tar(*GOOD)[:700], tar(*GOOD)[:514], b"\xff" * 2000, b"rubbish"])
def test_what_is_cut_or_rubbish_is_reported_and_leaves_no_half_file(tmp_path: Path, sent: bytes) -> None:
    events, result = fetched(tmp_path, sent)
    assert isinstance(result, Failure)
    assert any(isinstance(event, HostFailed) for event in events)
    assert set(everything(tmp_path).values()) <= {b"aaa", b"bbb"}
    assert not list(tmp_path.rglob(".ipexctl-part-*"))


def test_of_a_file_that_grew_what_was_listed_is_taken_and_it_is_named(tmp_path: Path) -> None:
    grown = b"/w\0" + b"0 f 644 9 6\0./out/a\0" + b"0 f 644 3 5\0./out/b\0"
    events, result = fetched(tmp_path, tar(("./out/a", REG, "aaaAAAAAA"), GOOD[1]), listed_after=grown)
    assert isinstance(result, str)
    assert everything(tmp_path) == {"in/fetched/n0/out/a": b"aaa", "in/fetched/n0/out/b": b"bbb"}
    assert [event.text for event in events if isinstance(event, Message) and event.code == "changed"] == [
        "out/a changed while it was read: fetch it again"
    ]


def claiming(size: int, kind: bytes = REG, pax: dict[str, str] | None = None) -> bytes:
    """A header of out/a that claims more than follows it."""
    info = tarfile.TarInfo("out/a")
    info.type, info.size, info.pax_headers = kind, size, pax or {}
    return info.tobuf(tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT) + b"aaa".ljust(1 << 20, b"\0")


SPARSE = {"major": "0", "minor": "1", "name": "out/a", "realsize": str(1 << 40), "map": f"{(1 << 40) - 3},3"}


CLAIMS_MUCH = claiming(1 << 40)


@pytest.mark.parametrize(
    "sent", [CLAIMS_MUCH, claiming(3, pax={f"GNU.sparse.{name}": value for name, value in SPARSE.items()})]
)
def test_what_claims_more_than_was_listed_takes_no_more(tmp_path: Path, sent: bytes) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, before[1]))
    try:
        _, result = fetched(tmp_path, sent, LISTED[: LISTED.index(b"a\0") + 2], again=sent)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    if sent == CLAIMS_MUCH:
        assert list(everything(tmp_path).values()) == [b"aaa"]
    else:
        assert isinstance(result, Failure)
        assert (result.what, everything(tmp_path)) == ("not fetched: out/a could not be read on the host", {})


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_claims_much_takes_no_memory(tmp_path: Path, kind: bytes) -> None:
    sent = claiming(1 << 33, kind) + b"x" * (40 << 20)
    tracemalloc.start()
    try:
        _, result = fetched(tmp_path, sent)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert isinstance(result, Failure)


def change_header(header: bytes, at: int, field: bytes) -> bytes:
    """A header with another field and the sum that goes with it."""
    blank = header[:148] + b" " * 8 + header[156:512]
    blank = blank[:at] + field + blank[at + len(field) :]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


MAP = {"major": "1", "minor": "0", "name": "out/a", "realsize": "3"}
MAPPED = claiming(1 << 40, pax={f"GNU.sparse.{name}": value for name, value in MAP.items()})[: -(1 << 20)]
LONG_NAME = claiming(6, tarfile.GNUTYPE_LONGNAME)[:512] + b"out/a".ljust(512, b"\0")
HOLES = change_header(claiming(0, tarfile.GNUTYPE_SPARSE)[:512], 483, b"%011o" % 3)


@pytest.mark.parametrize(
    "sent",
    [
        bytes(40 << 20),  # no file at all
        LONG_NAME * 3000,  # each within the one before it
        MAPPED + b"99999999\n" + b"0\n" * (1 << 20),
        MAPPED + b"99999999\n" + b"0\n" * 251,
        change_header(HOLES, 124, b"\x80" + (1 << 60).to_bytes(11, "big")),  # so much is skipped
        claiming(3, pax={"size": "-5"}),
    ],
    ids=["zeros", "long names", "a map without end", "a map that is cut", "holes", "a negative size"],
)
def test_a_stream_that_holds_or_breaks_tarfile_is_a_failure_of_that_host(tmp_path: Path, sent: bytes) -> None:
    """Each of them held `fetch` for ever, or ended it for all hosts with exit code 70."""
    events, result = fetched(tmp_path, sent, LISTED[: LISTED.index(b"a\0") + 2])
    assert isinstance(result, Failure)
    assert (result.what, everything(tmp_path)) == ("the file stream is damaged or incomplete", {})
    assert events[-1] == Ended("fetch", Exit.STEP)


def test_of_a_thousand_files_that_do_not_come_a_hundred_are_asked_for_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(_: Host, command: Command) -> Completed:
        asked.append(command.argv[1])
        listed = b"/w\0" + b"".join(b"0 f 644 3 5\0./out/%d\0" % number for number in range(1000))
        return Completed(0, listed if command.argv[1] == "list" else b"")

    context = Context(FakeOpener(answer), tmp_path / "state", tmp_path / "cache")
    task = Fetch(paths=("out",), into=str(tmp_path / "in/fetched"))
    assert [*fetch(task, Inventory((Host("n0", "n0"),)), context)][-1] == Ended("fetch", Exit.STEP)
    assert asked.count("pack") == 101


def test_names_that_lead_out_are_refused_and_the_rest_comes(tmp_path: Path) -> None:
    listed = LISTED + b"0 f 644 1 5\0./out/../../evil\0"
    events, result = fetched(tmp_path, tar(*GOOD), listed)
    assert isinstance(result, Failure)
    assert "./out/../../evil: leads out of the destination" in result.what
    assert len(everything(tmp_path)) == 2
    assert events[-1] == Ended("fetch", Exit.STEP)


@pytest.mark.parametrize("size", [b"-1", b"9" * 400, "٣".encode(), b"x"])
def test_a_size_that_no_file_has_is_a_failure_of_that_host(tmp_path: Path, size: bytes) -> None:
    """The file of -1 bytes was read whole into memory, and took the other sizes' room from what had to be free."""
    _, result = fetched(tmp_path, tar(*GOOD), LISTED + b"0 f 644 " + size + b" 5\0./out/c\0")
    assert isinstance(result, Failure)
    assert (result.code, everything(tmp_path)) == ("malformed", {})


@pytest.mark.parametrize("time", [10**18, -(10**18)])
def test_a_time_that_no_file_system_knows_is_the_nearest_one(tmp_path: Path, time: int) -> None:
    listed = b"/w\0" + b"0 f 644 3 %d\0./out/a\0" % time
    events, result = fetched(tmp_path, tar(GOOD[0]), listed)
    assert (result, events[-1]) == (str(tmp_path / "in/fetched/n0"), Ended("fetch", Exit.OK))
    assert (tmp_path / "in/fetched/n0/out/a").stat().st_mtime == (1 << 33 if time > 0 else 0)


def test_more_files_than_can_be_listed_become_no_objects_here(tmp_path: Path) -> None:
    _, result = fetched(tmp_path, b"", b"/w\0" + b"\0" * 2_000_002)
    assert isinstance(result, Failure)
    assert result.what == "more files than can be listed"


def test_only_the_last_words_of_a_script_become_lines_here() -> None:
    """256 MiB of short lines took 6 GiB."""
    done = Completed(3, b"", b"ab\n" * 1_000_000 + b"no space left\n")
    tracemalloc.start()
    failure = make_remote_error(FakeLink(Host("n0", "n0"), {}), done.status, done.err).failure
    tail, (_, peak) = done.get_tail(1), tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (failure.code, tail) == ("no-space", "no space left")
    assert peak < 3 * len(done.err)


@pytest.mark.parametrize("place", [b"wheels " + b"9" * 4000, b"wheels -1", b"\x1b[2J 1", b"wheels"])
def test_a_place_that_no_host_has_is_a_failure_of_that_host(tmp_path: Path, place: bytes) -> None:
    """A size of 4000 digits ended `du` with exit code 70."""
    context = Context(FakeOpener({"": Completed(0, place + b"\0/x\0")}), tmp_path / "state", tmp_path / "cache")
    events = [*show_usage(Inventory((Host("n0", "n0"),)), context)]
    [failed] = [event.failure for event in events if isinstance(event, HostFailed)]
    assert (failed.code, events[-1]) == ("malformed", Ended("du", Exit.STEP))


def test_the_lists_of_a_hosts_projects_have_a_size_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 10,000 had 256 MiB, and what was parsed of three hosts took 2.7 GB at a time."""
    monkeypatch.setattr(usage, "_PROJECTS_SIZE_LIMIT", 100)
    commands: list[Command] = []

    def answer(_: Host, command: Command) -> Completed:
        commands.append(command)
        project = b"/p\0mark\0" + b'{"ipexctl": 1, "files": {}}' + b"\0f 644 1 1\0a\0\0"
        return Completed(0, project if len(commands) > 1 else b"project 0\0/p\0" * 9999)

    context = Context(FakeOpener(answer), tmp_path / "state", tmp_path / "cache")
    events = [*show_usage(Inventory((Host("n0", "n0"),)), context)]
    [failed] = [event.failure for event in events if isinstance(event, HostFailed)]
    assert (failed.what, len(commands)) == ("more files than can be listed", 4)
    assert [command.cap >> 20 for command in commands[:2]] == [4, 128]


@pytest.mark.parametrize("way", ["link", "above", "mount"])
def test_wheels_that_stay_are_not_reported_as_removed(
    tmp_path: Path, mount: Callable[[Path, str], None], way: str
) -> None:
    """What was mounted in the cache was removed, and what another user, who could write above it, put in its place."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    if way == "link":
        cache.symlink_to(data)
    elif way == "above":
        (tmp_path / "above").symlink_to(tmp_path)
        tmp_path.chmod(0o777)
        cache = tmp_path / "above/data"
    else:
        cache.mkdir()
        data = data.rename(cache / "data")
        mount(data, "mode=0755")
    (data / "keep").touch()
    context = Context(FakeOpener({}), tmp_path / "state", cache, clock=lambda: 1e10)
    events = [*show_usage(Inventory(()), context, older_than="30d", dry=False)]
    [answer] = [event.value for event in events if isinstance(event, Answer)]
    assert isinstance(answer, UsageAnswer)
    [place] = answer.places
    assert (data / "keep").exists()
    assert not place.removed
    assert place.stays


def test_a_second_list_without_sense_is_a_failure_of_that_host(tmp_path: Path) -> None:
    events, result = fetched(tmp_path, tar(*GOOD), listed_after=b"/w\0rubbish")
    assert isinstance(result, Failure)
    assert result.code == "malformed"
    assert events[-1] == Ended("fetch", Exit.STEP)


def test_a_disk_that_is_full_here_is_reported_as_such(tmp_path: Path, mount: Callable[[Path, str], None]) -> None:
    (tmp_path / "in").mkdir()
    mount(tmp_path / "in", "size=64k")
    listed = b"/w\0" + b"0 f 644 200000 5\0./out/a\0"
    events, result = fetched(tmp_path, tar(("./out/a", REG, "x" * 200_000)), listed)
    assert isinstance(result, Failure)
    assert result.what.startswith("no space left on this machine: need 195 KiB, 64 KiB free in ")
    listed = b"/w\0" + b"".join(b"0 f 644 %d 5\0./out/%d\0" % (13_000, number) for number in range(5))
    files = [(f"out/{number}", REG, "x" * 13_000) for number in range(5)]
    events, result = fetched(tmp_path, tar(*files), listed)  # what fills it is not only what was listed
    assert isinstance(result, Failure)
    assert re.fullmatch(r"out/\d: no space left on this machine", result.what)
    assert events[-1] == Ended("fetch", Exit.RECORD)


@pytest.mark.parametrize(("task", "why"), read_table("hostile/impossible", frozen=True))
def test_what_cannot_be_is_refused_before_anybody_is_asked(tmp_path: Path, task: dict[str, Any], why: str) -> None:
    opener = FakeOpener({})
    with pytest.raises(UsageError, match=why.replace(".", r"\.")):
        next(fetch(Fetch(**task), Inventory((Host("n0", "n0"),)), Context(opener, tmp_path, tmp_path)))
    assert not opener.links


@pytest.mark.parametrize(
    ("words", "helps"),
    [
        ("cannot create /home/a/ipexctl/x: Read-only file system", True),
        ("cannot create /home/a/ipexctl/x: Permission denied", True),
        ("cannot create /home/a/ipexctl/x: a file has this name", False),
    ],
)
def test_where_this_login_cannot_write_another_directory_helps(words: str, helps: bool) -> None:
    failure = make_remote_error(FakeLink(Host("n0", "n0"), {}), 1, words.encode()).failure
    assert (failure.what, "--workdir" in (failure.hint or "")) == (words, helps)
