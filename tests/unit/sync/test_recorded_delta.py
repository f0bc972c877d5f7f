"""Who records what rsync sends, and who applies the record."""

import threading
from pathlib import Path

from ipexctl.act.transfer.recorded_delta import RecordedDelta, Recording


def take(delta: RecordedDelta) -> Recording:
    turn = delta.take_turn()
    assert isinstance(turn, Recording)
    return turn


def test_the_first_caller_records_and_the_others_wait_for_its_record(tmp_path: Path) -> None:
    delta = RecordedDelta(tmp_path / "record", 1000)
    results: list[object] = []
    with take(delta) as recording:
        threads = [threading.Thread(target=lambda: results.append(delta.take_turn()), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        threads[0].join(0.1)
        assert results == []
        recording.path.write_bytes(bytes(100))
        recording.end(complete=True)
        for thread in threads:
            thread.join(10)
        assert results == [tmp_path / "record"] * 3
    assert delta.take_turn() == tmp_path / "record"


def test_a_recording_that_was_given_up_is_begun_again_by_the_next(tmp_path: Path) -> None:
    delta = RecordedDelta(tmp_path / "record", 1000)
    with take(delta):
        pass
    with take(delta) as second:
        second.path.write_bytes(b"x")
        second.end(complete=True)
    assert delta.take_turn() == tmp_path / "record"


def test_a_record_that_cannot_be_made_or_saves_too_little_is_of_no_use(tmp_path: Path) -> None:
    delta = RecordedDelta(tmp_path / "record", 1000)
    with take(delta) as recording:
        recording.end(complete=False)
    assert delta.take_turn() is None
    for size, usable in ((250, True), (251, False)):
        delta = RecordedDelta(tmp_path / f"record{size}", 1000)
        with take(delta) as recording:
            recording.path.write_bytes(bytes(size))
            recording.end(complete=True)
        assert (delta.take_turn() is not None) is usable


def test_a_recording_that_takes_long_is_not_waited_for(tmp_path: Path) -> None:
    delta = RecordedDelta(tmp_path / "record", 1000, patience=0.05)
    with take(delta) as recording:
        assert delta.take_turn() is None
        recording.path.write_bytes(b"x")
        recording.end(complete=True)
    assert delta.take_turn() == tmp_path / "record"


def test_a_record_that_becomes_too_large_is_given_up_at_once_and_removed(tmp_path: Path) -> None:
    delta = RecordedDelta(tmp_path / "record", 1000)
    with take(delta) as recording:
        recording.path.write_bytes(bytes(10))
        recording.add_bytes(250)
        recording.add_bytes(1)
        assert delta.take_turn() is None
        recording.add_bytes(1000)
        recording.end(complete=True)
    assert delta.take_turn() is None
    assert not recording.path.exists()


def test_a_record_that_was_given_up_is_removed_before_the_next_one_begins(tmp_path: Path) -> None:
    delta = RecordedDelta(tmp_path / "record", 1000)
    with take(delta) as recording:
        recording.path.write_bytes(b"half of it")
    assert not recording.path.exists()
    with take(delta) as second:
        second.path.write_bytes(b"x")
        second.end(complete=True)
    assert second.path.read_bytes() == b"x"
