"""A saved run: private, exact, and honest about what it could not store."""

import io
import json
import os
import re
import resource
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ipexctl.cli import app
from ipexctl.decide.run.report import make_report
from ipexctl.model import events as e
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Stamped
from ipexctl.model.reports import LostOutput
from ipexctl.show.pipe import Pipe
from ipexctl.show.sinks import Plain
from ipexctl.store.masking import Masker
from ipexctl.store.record import RunRecord, list_saved_runs, make_name, prune_records, read_report, remove_record
from ipexctl.verbs.run.replay import find_saved_run, read_run_ids, read_saved_run
from tests.unit.show import streams
from tests.unit.show.streams import fold
from tools.picture import draw_saved_run

AT = streams.START


def lost_of(made: RunRecord) -> LostOutput:
    lost = made.count_lost_output()
    assert lost
    return lost


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "state" / "runs"


def record(runs: Path, stream: list[Stamped], verb: str = "run", report: bool = True) -> RunRecord:
    return streams.save(RunRecord(runs, f"1120-103112-{len([*runs.glob('*')]):x}000"), stream, report=report)


def out(rank: int, data: bytes, at: float = AT, stream: e.Stream = "out") -> Stamped:
    return Stamped(at, e.Output(rank, f"h{rank}", stream, data, not data.endswith(b"\n")))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    """Writing past ``size`` bytes fails, as on a full disk (the error is EFBIG instead of ENOSPC)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.fault("J4")
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_everything_is_private_whatever_the_umask(runs: Path, mask: int) -> None:
    with umask(mask):
        made = record(runs, list(streams.run(2, fails=1)))
    for path in [runs.parent, runs, made.directory, *made.directory.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_record_holds_events_plan_report_and_the_ranks_bytes(runs: Path) -> None:
    made = record(runs, list(streams.run(2, 1, fails=1)))
    names = sorted(str(path.relative_to(made.directory)) for path in made.directory.rglob("*") if path.is_file())
    ranks = ["ranks/0.err", "ranks/0.out", "ranks/1.err", "ranks/1.out"]
    assert names == ["events.jsonl", "plan.txt", *ranks, "report.json"]
    assert (made.directory / "plan.txt").read_text() == "mpirun -n 8 …\n"
    assert json.loads((made.directory / "report.json").read_text())["exit"] == Exit.RANK
    assert made.count_lost_output() is None


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["out", "err"]), st.binary(max_size=30)), max_size=20))
def test_ranks_files_hold_exactly_what_the_ranks_wrote(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, e.Stream, bytes]]
) -> None:
    runs = tmp_path_factory.mktemp("state") / "runs"
    stream = [out(rank, data, AT + n / 20, name) for n, (rank, name, data) in enumerate(pieces)]
    made = record(runs, stream, report=False)
    expected: dict[str, bytes] = {}
    for rank, name, data in pieces:
        expected[f"{rank}.{name}"] = expected.get(f"{rank}.{name}", b"") + data
    assert {path.name: path.read_bytes() for path in (made.directory / "ranks").iterdir()} == expected
    back: dict[str, bytes] = {}
    for stamped in read_saved_run(made.directory, Masker({})) if pieces else ():
        if isinstance(stamped.event, e.Output):
            key = f"{stamped.event.rank}.{stamped.event.stream}"
            back[key] = back.get(key, b"") + stamped.event.data
    assert back == {key: data for key, data in expected.items() if data}


def test_output_is_referred_to_and_not_copied_into_the_events(runs: Path) -> None:
    stream = [out(0, b"secret words\n", AT + n / 100) for n in range(30)]
    made = record(runs, stream)
    lines = (made.directory / "events.jsonl").read_text().splitlines()
    assert "secret" not in "".join(lines)
    assert len(lines) < 6
    assert sum(json.loads(line)["length"] for line in lines) == 30 * 13


def test_two_records_of_one_minute_have_names_of_their_own(runs: Path) -> None:
    names = {record(runs, list(streams.doctor(2)), "doctor").directory.name for _ in range(5)}
    assert len(names) == 5


def test_more_ranks_than_open_files_are_recorded(runs: Path) -> None:
    stream = [out(rank, b"%d\n" % rank, AT + rank / 1000) for rank in [*range(300), *range(300)]]
    made = record(runs, stream)
    assert all((made.directory / "ranks" / f"{n}.out").read_bytes() == b"%d\n" % n * 2 for n in range(300))


@pytest.mark.fault("J4")
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722])
def test_a_directory_that_others_can_write_is_refused_and_not_repaired(runs: Path, mode: int) -> None:
    runs.mkdir(parents=True)
    runs.chmod(mode)
    with pytest.raises(UsageError, match="writable by others") as refused:
        RunRecord(runs, make_name(AT))
    assert refused.value.exit is Exit.STEP
    assert list(runs.iterdir()) == []
    assert stat.S_IMODE(runs.stat().st_mode) == mode


def test_a_link_in_place_of_the_directory_is_refused(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    runs.parent.mkdir()
    runs.symlink_to(tmp_path / "victim")
    with pytest.raises(UsageError, match="is not a directory"):
        RunRecord(runs, make_name(AT))
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_link_planted_for_a_ranks_file_is_not_followed(runs: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    made = RunRecord(runs, make_name(AT))
    (made.directory / "ranks" / "0.out").symlink_to(victim)
    made.handle_event(out(0, b"words\n"))
    made.close()
    assert victim.read_text() == "as it was"
    assert lost_of(made).bytes == 6


@pytest.mark.fault("H7")
def test_a_full_disk_stops_nothing_and_every_lost_byte_is_counted_and_marked(runs: Path) -> None:
    reported: list[str] = []
    made = RunRecord(runs, make_name(AT), trouble=reported.append)
    line = b"0123456789abcdef" * 64 + b"\n"
    with no_file_grows_beyond(5000):
        for n in range(10):
            made.handle_event(out(0, line, AT + n))
    assert len(reported) == 1
    assert lost_of(made).ranks == {"0": 10 * len(line) - 5000}
    made.handle_event(out(0, b"space again\n", AT + 20))
    made.close()
    kept = (made.directory / "ranks" / "0.out").read_bytes()
    gap = 10 * len(line) - 5000
    assert kept[:5000] == (line * 5)[:5000]
    assert kept[5000:] == b"\n[ipexctl: %d bytes missing here: not stored]\nspace again\n" % gap
    shown = [stamped.event for stamped in read_saved_run(made.directory, Masker({}))]
    assert b"".join(event.data for event in shown if isinstance(event, e.Output)) == kept[:5000] + b"space again\n"
    output = [event.text for event in shown if isinstance(event, e.Message) and "bytes of rank 0" in event.text]
    assert sum(int(text.split(": ")[1].split()[0]) for text in output) == gap
    assert fold([], lost=made.count_lost_output()).causes[-1] is Exit.RECORD


def remove(file: Path) -> None:
    file.unlink()


def rotate(file: Path) -> None:
    file.rename(file.with_name("old"))


def replace_by_link(file: Path) -> None:
    victim = file.parents[2] / "victim"
    victim.write_bytes(b"precious")
    file.unlink()
    file.symlink_to(victim)


@pytest.mark.fault("K9")
@pytest.mark.parametrize("change", [remove, rotate, replace_by_link])
@pytest.mark.parametrize("moment", ["between", "at the end"])
def test_a_removed_or_replaced_file_is_written_again(runs: Path, change: Callable[[Path], None], moment: str) -> None:
    notices: list[str] = []
    made = RunRecord(runs, make_name(AT), notices.append)
    made.handle_event(out(0, b"one\n"))
    if moment == "between":
        change(made.directory / "ranks/0.out")
    made.handle_event(out(0, b"two\n", AT + 1))
    if moment == "at the end":
        change(made.directory / "ranks/0.out")
    assert made.count_lost_output() is None
    made.close()
    assert (made.directory / "ranks/0.out").read_bytes() == b"one\ntwo\n"
    assert not (made.directory / "ranks/0.out").is_symlink()
    assert sum("0.out was removed or replaced; it is written again" in notice for notice in notices) == 1
    assert (runs / "victim").read_bytes() == b"precious" if (runs / "victim").exists() else True


@pytest.mark.fault("K9")
def test_bytes_of_a_rank_that_somebody_truncates_are_counted_and_marked(runs: Path) -> None:
    made = RunRecord(runs, make_name(AT))
    made.handle_event(out(0, b"one\n"))
    os.truncate(made.directory / "ranks/0.out", 1)
    made.handle_event(out(0, b"two\n", AT + 1))
    lost = lost_of(made)
    made.close()
    kept = (made.directory / "ranks/0.out").read_bytes()
    assert lost.ranks == {"0": 3}, "those that were cut off; what came after them is stored"
    assert lost.why == "0.out was truncated"
    assert b"two\n" in kept
    assert b"3 bytes missing here" in kept


@pytest.mark.fault("K9")
def test_a_directory_of_ranks_that_becomes_a_link_loses_its_bytes(runs: Path, tmp_path: Path) -> None:
    made = RunRecord(runs, make_name(AT))
    made.handle_event(out(0, b"one\n"))
    victim = tmp_path / "victim"
    victim.mkdir()
    (made.directory / "ranks").rename(made.directory / "old")
    (made.directory / "ranks").symlink_to(victim)
    made.handle_event(out(0, b"two\n", AT + 1))
    made.handle_event(out(1, b"three\n", AT + 1))
    assert lost_of(made).ranks == {"0": 8, "1": 6}
    made.close()
    assert not list(victim.iterdir())
    assert (made.directory / "old/0.out").read_bytes() == b"one\ntwo\n"


def test_output_of_a_restarted_run_begins_on_a_line_of_its_own(runs: Path) -> None:
    made = RunRecord(runs, make_name(AT))
    for name, data in ("brave-elm", b"one\nunfinished"), ("calm-oak", b"two\n"):
        made.handle_event(Stamped(AT, e.RunStarted(name, "h0", ("h0", "h1"), "mpirun")))
        made.handle_event(out(0, data))
    made.handle_event(out(1, b"only now\n"))
    made.close()
    files = [(made.directory / "ranks" / name).read_bytes() for name in ("0.out", "1.out")]
    assert files == [b"one\nunfinished\n[ipexctl: calm-oak begins here]\ntwo\n", b"only now\n"]

    def replayed(rank: int) -> list[bytes]:
        events = [stamped.event for stamped in read_saved_run(made.directory, Masker({}))]
        return [event.data for event in events if isinstance(event, e.Output) and event.rank == rank]

    assert b"".join(replayed(0)) == b"one\nunfinishedtwo\n"
    events = (made.directory / "events.jsonl").read_text().splitlines(keepends=True)
    second = [at for at, line in enumerate(events) if json.loads(line)["event"] == "run-started"][1]
    (made.directory / "events.jsonl").write_text("".join(events[: second + 1]))
    assert replayed(0)[-1] == b"two\n", "the mark is no output, what stands behind it is"


def test_starts_and_stacks_without_an_end_take_little_of_the_disk(runs: Path) -> None:
    """70 bytes of a head's journal were a line in the file of each rank, or a file of their own."""
    made = RunRecord(runs, make_name(AT))
    for name in ("brave-elm", "calm-oak", "dry-fir"):
        made.handle_event(Stamped(AT, e.RunStarted(name, "h0", ("h0",), "mpirun")))
        if name != "calm-oak":
            made.handle_event(out(0, b"one\n"))
    for pid in range(140):
        made.handle_event(Stamped(AT, e.RankStack(0, "h0", pid, "S", "", "File x")))
    made.close()
    assert (made.directory / "ranks/0.out").read_bytes() == b"one\n\n[ipexctl: dry-fir begins here]\none\n"
    assert {path.name for path in made.directory.glob("stacks-*")} == {f"stacks-0-{pid}.txt" for pid in range(12, 140)}


def test_a_strangers_report_takes_little_more_than_its_bytes(tmp_path: Path) -> None:
    """60 MiB of empty lists took 1.6 GiB and 10 s, in each `runs`."""
    data = b'{"x": [' + b"[]," * 3_000_000 + b"[]]}"
    (tmp_path / "report.json").write_bytes(data)
    tracemalloc.start()
    assert read_report(tmp_path) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20, "64 MiB of it are the room for the file"


def test_a_ranks_file_whose_place_is_taken_by_a_directory_is_lost_and_counted(runs: Path) -> None:
    made = RunRecord(runs, make_name(AT))
    made.handle_event(out(0, b"one\n"))
    (made.directory / "ranks/0.out").unlink()
    (made.directory / "ranks/0.out").mkdir()
    made.handle_event(out(0, b"two\n", AT + 1))
    assert lost_of(made).ranks == {"0": 8}
    made.close()


def test_events_that_do_not_fit_are_cut_off_whole_and_counted(runs: Path) -> None:
    made = RunRecord(runs, make_name(AT))
    with no_file_grows_beyond(500):
        for n in range(20):
            made.handle_event(Stamped(AT + n, e.Message(f"words number {n}")))
        for line in (made.directory / "events.jsonl").read_text().splitlines():
            json.loads(line)
    lost = lost_of(made).events
    assert lost > 0
    made.handle_event(Stamped(AT + 30, e.Message("space again")))
    made.close()
    texts = [
        stamped.event.text
        for stamped in read_saved_run(made.directory, Masker({}))
        if isinstance(stamped.event, e.Message)
    ]
    assert f"missing here, since they could not be stored: {lost} events" in texts
    assert "space again" in texts


@pytest.mark.parametrize("stream", [streams.doctor(12), streams.install(5), streams.run(3), streams.run(3, fails=2)])
def test_a_replay_shows_and_judges_what_was_shown_and_judged(runs: Path, stream: Iterator[Stamped]) -> None:
    events = list(stream)
    back = list(read_saved_run(record(runs, events).directory, Masker({})))
    assert fold(back) == fold(events)
    assert shown(back) == shown(events)


def shown(stream: list[Stamped]) -> list[bytes]:
    screen = io.BytesIO()
    sink = Plain(Pipe(screen), Pipe(screen))
    sink.close(make_report(streams.feed(sink, stream)))
    return sorted(screen.getvalue().splitlines())  # ranks that spoke in the same tenth of a second may change places


def test_a_record_cut_off_anywhere_is_shown_up_to_there(runs: Path) -> None:
    made = record(runs, list(streams.run(2, 1, steps=3)))
    events = made.directory / "events.jsonl"
    whole = events.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(len(whole) - 1, first, -97):
        events.write_bytes(whole[:size])
        messages = [
            line.event for line in read_saved_run(made.directory, Masker({})) if isinstance(line.event, e.Message)
        ]
        texts = [message.text for message in messages]
        assert texts[-1] == "the record ends here: its command is still at work, or was killed"
        assert fold(read_saved_run(made.directory, Masker({}))).exit is not Exit.OK
    events.write_bytes(whole[: first - 1])
    with pytest.raises(UsageError, match="holds no event"):
        list(read_saved_run(made.directory, Masker({})))


def test_a_damaged_line_is_reported_and_the_rest_is_shown(runs: Path) -> None:
    made = record(runs, list(streams.doctor(2)))
    events = made.directory / "events.jsonl"
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join([lines[0], b"\xff{]\n", b"[1]\n", b'{"event": "x"}\n', *lines[1:]]))
    back = [stamped.event for stamped in read_saved_run(made.directory, Masker({}))]
    output = [event.text for event in back if isinstance(event, e.Message)]
    assert [text.partition(" of ")[0] for text in output] == ["line 2", "line 3", "line 4"]
    assert isinstance(back[-1], e.Ended)


def test_output_without_a_reference_is_shown_at_the_end(runs: Path) -> None:
    made = RunRecord(runs, make_name(AT))
    made.handle_event(out(0, b"one\n", AT))
    made.handle_event(Stamped(AT, e.Message("x")))
    with (made.directory / "ranks" / "0.out").open("ab") as file:
        file.write(b"two\n")
    data = [
        stamped.event.data
        for stamped in read_saved_run(made.directory, Masker({}))
        if isinstance(stamped.event, e.Output)
    ]
    assert data == [b"one\n", b"two\n"]


def test_missing_bytes_are_reported(runs: Path) -> None:
    made = record(runs, [out(0, b"0123456789\n")])
    (made.directory / "ranks" / "0.out").write_bytes(b"0123")
    texts = [
        stamped.event.text
        for stamped in read_saved_run(made.directory, Masker({}))
        if isinstance(stamped.event, e.Message)
    ]
    assert "missing here: 7 bytes of rank 0 (out)" in texts


def test_a_record_from_elsewhere_cannot_show_other_files(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("a private key\n")
    made = record(runs, [out(0, b"0123456789\n")])
    (made.directory / "ranks" / "0.out").unlink()
    (made.directory / "ranks" / "0.out").symlink_to(tmp_path / "private")
    assert not any(isinstance(stamped.event, e.Output) for stamped in read_saved_run(made.directory, Masker({})))


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 1 << 63},
        {"length": 1 << 63},
        {"offset": (1 << 63) - 1, "length": 1},
        {"at": 10**30},
        {"at": -(10**30)},
        {"at": float("nan")},
        {"at": float("inf")},
    ],
)
def test_a_number_that_no_record_has_is_damage(runs: Path, changes: dict[str, float]) -> None:
    made = record(runs, [out(0, b"0123456789\n"), *streams.doctor(2)])
    events = made.directory / "events.jsonl"
    lines = events.read_text().splitlines()
    (first,) = [number for number, line in enumerate(lines) if '"offset"' in line]
    lines[first] = json.dumps(json.loads(lines[first]) | changes)
    events.write_text("\n".join(lines) + "\n")
    back = [stamped.event for stamped in read_saved_run(made.directory, Masker({}))]
    assert isinstance(back[0], e.Message)
    assert back[0].text.startswith("line 1 of events.jsonl is damaged")
    assert isinstance(back[-1], e.Ended)


@pytest.mark.parametrize(
    "make", ["fifo", "held fifo", "link", '"started": NaN', '"ended": 1e999', '"first": 99', '"followers": [7]', "deep"]
)
def test_a_report_of_a_stranger_is_read_or_is_none(runs: Path, tmp_path: Path, make: str) -> None:
    """A FIFO held `runs`, `report` and `logs` for ever; numbers that nothing is ended them with 70."""
    stream = list(streams.run(2, 2, steps=3))
    made = record(runs, stream)
    report = made.directory / "report.json"
    assert read_report(made.directory) is not None
    text = report.read_text()
    report.unlink()
    writer = -1
    if "fifo" in make:
        os.mkfifo(report)
        writer = os.open(report, os.O_RDWR | os.O_NONBLOCK) if make == "held fifo" else -1
    elif make == "link":
        (tmp_path / "other").write_text(text)
        report.symlink_to(tmp_path / "other")
    elif make == "deep":
        report.write_text("[" * 200_000)
    else:
        key = make.partition(":")[0]
        report.write_text(re.sub(rf"{key}: (null|\[\]|[0-9.]+)", make, text))
        assert report.read_text() != text
    assert read_report(made.directory) is None
    assert CliRunner().invoke(app, ["report", str(made.directory), "-o", str(tmp_path / "page.html")]).exit_code == 0
    if writer >= 0:
        os.close(writer)


def test_a_page_is_not_written_over_another_file(runs: Path, tmp_path: Path) -> None:
    made = record(runs, list(streams.run(2, 2, steps=3)))
    script = tmp_path / "train.py"
    script.write_text("print()\n")
    refused = CliRunner().invoke(app, ["report", str(made.directory), "-o", str(script)])
    assert (refused.exit_code, script.read_text()) == (2, "print()\n")


@pytest.mark.parametrize("make", ["nothing", "directory", "fifo", "empty"])
def test_what_is_no_record_is_refused(tmp_path: Path, make: str) -> None:
    path = tmp_path / "events.jsonl"
    makers: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "directory": path.mkdir,
        "fifo": lambda: os.mkfifo(path),
        "empty": path.touch,
    }
    makers[make]()
    with pytest.raises(UsageError):
        list(read_saved_run(tmp_path, Masker({})))


def test_runs_are_found_by_name_beginning_id_path_and_as_the_last(runs: Path) -> None:
    first = record(runs, list(streams.doctor(2)), "doctor").directory
    second = record(runs, list(streams.run(2)), "run").directory
    os.utime(first, (1, 1))
    assert find_saved_run(runs, "last") == second
    assert find_saved_run(runs, first.name) == first
    assert find_saved_run(runs, "1031-k7") == second
    assert find_saved_run(runs, str(first)) == first
    assert find_saved_run(runs, first.name[:-3]) == first
    with pytest.raises(UsageError, match="matches 2 saved runs"):
        find_saved_run(runs, first.name[:10])
    with pytest.raises(UsageError, match="no saved run is called zzz"):
        find_saved_run(runs, "zzz")
    with pytest.raises(UsageError, match="no run is saved"):
        find_saved_run(runs / "none", "last")


def test_the_last_run_for_a_page_or_logs_is_the_last_one_with_ranks(runs: Path) -> None:
    first = record(runs, list(streams.doctor(2)), "doctor").directory
    assert find_saved_run(runs, "last", with_ranks=True) == first, "there is no other to speak of"
    second = record(runs, list(streams.run(2)), "run").directory
    third = record(runs, list(streams.doctor(2)), "doctor").directory
    for at, directory in enumerate((first, second, third)):
        os.utime(directory, (at, at))
    assert find_saved_run(runs, "last") == third
    assert find_saved_run(runs, "last", with_ranks=True) == second


def test_old_records_are_removed_and_unfinished_ones_stay(runs: Path) -> None:
    made = [record(runs, list(streams.doctor(2)), report=n != 0).directory for n in range(5)]
    for age, path in enumerate(made):
        os.utime(path, (age, age))
    prune_records(runs, 2)
    assert set(list_saved_runs(runs)) == {made[0], *made[3:]}


def test_pictures_of_a_run_are_well_formed_and_the_same_each_time(runs: Path) -> None:
    from xml.etree import ElementTree

    for stream in (list(streams.run(4, fails=3)), list(streams.hostile()), list(streams.doctor(8))):
        directory = record(runs, stream).directory
        for at in (None, 0.05, 12.0):
            svg = draw_saved_run(directory, width=90, height=20, at=at)
            ElementTree.fromstring(svg)
            assert "\x1b" not in svg
            assert not re.search(r"@font-face|@import|href|url\((?!#)", svg)
            assert svg == draw_saved_run(directory, width=90, height=20, at=at)


def test_a_hole_in_a_record_is_its_end_for_whoever_looks_for_its_runs(tmp_path: Path) -> None:
    """`report` and `logs` read all of it: a minute for 8 GiB, hours for what a file system allows."""
    line = '{"event": "run-started", "run": "%s"}\n'
    (tmp_path / "events.jsonl").write_text(line % "r1")
    os.truncate(tmp_path / "events.jsonl", 1 << 26)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write("\n" + line % "r2")
    assert [*read_run_ids(tmp_path)] == ["r1"]


def test_a_record_in_which_something_is_mounted_stays_with_all_that_is_there(
    tmp_path: Path, mount: Callable[[Path, str], None]
) -> None:
    """What was mounted was removed, and then the record was not."""
    data = tmp_path / "a run" / "data"
    data.mkdir(parents=True)
    mount(data, "mode=0755")
    (data / "keep").touch()
    with pytest.raises(OSError, match="something is mounted in it"):
        remove_record(data.parent)
    assert (data / "keep").exists()
