"""What the host that leads a run reports to a command of the user, and a command that fails, hangs or is not there."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ipexctl.protocol import journal
from ipexctl.protocol.journal import Reason
from ipexctl.protocol.rank_records import RankEnded
from ipexctl.remote.agent import notices
from ipexctl.remote.agent.notices import NoticeQueue, describe_record
from tests.unit.agent.runs import SPEC

PLACED = {"a": [0, 1], "b": [2], "spare": []}


def make_queue(tmp_path: Path, *command: str) -> tuple[NoticeQueue, list[str]]:
    spec = SPEC._replace(workdir=str(tmp_path), env={"TOKEN": "of the ranks"})
    assert spec.head is not None
    failures: list[str] = []
    return NoticeQueue(spec._replace(head=spec.head._replace(notify=list(command))), failures.append), failures


@pytest.mark.parametrize(
    ("record", "event", "text", "hosts"),
    [
        (journal.Launched(1, 2, placed=PLACED), "start", "started, ranks: 3, hosts: 2", ["a", "b"]),
        (journal.Launched(1, 2, placed=PLACED, restart=2), "start", "started again (restart 2)", ["a", "b"]),
        (
            RankEnded(1, "a", 3, error="ValueError: x"),
            "failure",
            "rank 1 on a failed (exit code 3): ValueError: x",
            ["a"],
        ),
        (RankEnded(1, "a", signal=9), "failure", "rank 1 on a failed (signal 9)", ["a"]),
        (RankEnded(1, "a", abort=7), "failure", "MPI_Abort(7)", ["a"]),
        (journal.HostLost("b", "no sign of life"), "failure", "b: lost (no sign of life)", ["b"]),
        (journal.Stall([0], False, True, 120.0, {}), "stall", "no progress for 120 s", []),
        (journal.RunEnd("r", Reason.DONE), "end", "ended well", []),
        (journal.RunEnd("r", Reason.LIMIT, "time limit"), "end", "limit: time limit", []),
    ],
)
def test_what_is_reported(record: Any, event: str, text: str, hosts: list[str]) -> None:
    notice = describe_record(record)
    assert notice is not None
    assert (notice.event, notice.hosts) == (event, hosts)
    assert text in notice.text


@pytest.mark.parametrize(
    "record",
    [
        RankEnded(0, "a", 0),
        RankEnded(0, "a", None, signal.SIGTERM, by_us=True),
        journal.Stall([0], False, False, 20.0, {}, early=True),
    ],
)
def test_what_is_not(record: Any) -> None:
    assert describe_record(record) is None


def test_a_command_gets_the_first_failure_of_each_attempt_in_order(tmp_path: Path) -> None:
    queue, failures = make_queue(tmp_path, "sh", "-c", 'echo "$IPEXCTL_EVENT $TOKEN" >> events; cat >> notices')
    for record in (
        journal.Launched(1, 2, placed=PLACED, at=5.0),
        RankEnded(1, "a", 3),
        RankEnded(2, "b", 3),
        journal.Launched(1, 2, placed=PLACED, restart=1),
        journal.HostLost("b", "gone"),
        journal.RunEnd("r", Reason.LOST),
    ):
        queue.note_record(record)
    queue.finish()
    lines = [json.loads(line) for line in (tmp_path / "notices").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "failure", "start", "failure", "end"]
    assert [line["ranks"] for line in lines] == [[0, 1, 2], [1], [0, 1, 2], [], []]
    assert (lines[0]["at"], lines[0]["title"], lines[-1]["result"]) == (5.0, "train.py", "lost")
    assert lines[0]["text"].startswith("train.py: started")
    assert (tmp_path / "events").read_text().splitlines()[0] == "start of the ranks"
    assert not failures


def test_what_a_rank_writes_is_one_harmless_line_without_secrets(tmp_path: Path) -> None:
    queue, _ = make_queue(tmp_path, "sh", "-c", "cat >> notices")
    assert queue.spec.head is not None
    queue.spec = queue.spec._replace(head=queue.spec.head._replace(secrets=["q7Zk93mvPd1"]))
    queue.note_record(RankEnded(1, "a", 1, error="key q7Zk93mvPd1 refused\x1b]0;x\x07 \u202e\n\x00"))
    queue.finish()
    text = json.loads((tmp_path / "notices").read_text())["text"]
    assert text == "train.py: rank 1 on a failed (exit code 1): key *** refused?]0;x? ? ?"


def test_of_thousands_of_ranks_no_more_are_listed_than_a_pipe_takes(tmp_path: Path) -> None:
    """The command got half an object."""
    queue, _ = make_queue(tmp_path, "sh", "-c", "cat >> notices")
    queue.note_record(journal.Launched(1, 2, placed={f"node{each}": list(range(20)) for each in range(1000)}))
    queue.finish()
    value = json.loads((tmp_path / "notices").read_text())
    assert (len(value["hosts"]), len(value["ranks"])) == (500, 500)
    assert value["text"] == "train.py: started, ranks: 20000, hosts: 1000"


@pytest.mark.parametrize(
    ("word", "why"), [("/no/such/command", "no such file or directory"), ("false", "exit status 1")]
)
def test_a_command_that_fails_is_reported_once(tmp_path: Path, word: str, why: str) -> None:
    queue, failures = make_queue(tmp_path, word)
    for restart in range(3):
        queue.note_record(journal.Launched(1, 2, placed=PLACED, restart=restart))
    queue.finish()
    assert failures == [why]


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "LIMIT", 0.5)
    queue, failures = make_queue(tmp_path, "sh", "-c", "echo $$ > pid; sleep 600; true")
    queue.note_record(journal.RunEnd("r", Reason.DONE))
    begun = time.monotonic()
    queue.finish()
    assert time.monotonic() - begun < 30.0
    assert failures == ["not done after 0 s, killed"]
    group = (tmp_path / "pid").read_text().strip()
    stats = [stat.read_text().rpartition(")")[2].split() for stat in Path("/proc").glob("[0-9]*/stat")]
    assert [state for state, _, of, *_ in stats if of == group and state != "Z"] == []


def test_nothing_is_called_where_no_command_was_given(tmp_path: Path) -> None:
    queue, _ = make_queue(tmp_path)
    queue.note_record(journal.RunEnd("r", Reason.DONE))
    assert not queue.waiting


def test_an_end_with_nothing_left_to_tell_is_not_held_up(tmp_path: Path) -> None:
    queue, _ = make_queue(tmp_path, "true")
    queue.note_record(journal.RunEnd("r", Reason.DONE))
    queue.finish()
    queue.work = None  # type: ignore[method-assign, assignment]  # there is nothing to do any more
    queue.finish()
