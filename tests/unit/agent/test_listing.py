"""The runs of a host are found although the environments they were started from are gone."""

import json
import os
import re
import select
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act import run_control
from ipexctl.act.context import Context
from ipexctl.act.run_dir import RemoteRunDir, create_run_dir
from ipexctl.act.ssh import Links
from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.model.answers.manage import PsAnswer, RankStacksAnswer
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Answer, CleanupChecked, Message, RankStack, RunStarted, StepEnded, StepStarted
from ipexctl.model.hosts import Host, Inventory, LinkError
from ipexctl.protocol import frames, journal, messages, rank_records
from ipexctl.protocol.messages import RunListing, StopRun
from ipexctl.protocol.paths import AGENTS, ERR, OUT, OWNER, PART, ROLE, RUNS
from ipexctl.protocol.paths import SPEC as SPEC_FILE
from ipexctl.protocol.run_spec import NodeSpec
from ipexctl.remote.agent import client
from ipexctl.verbs.run import manage
from tests.unit.agent.runs import SPEC, TIMINGS, Kept, keeping
from tests.unit.agent.test_watching import at
from tests.waiting import wait

HERE = Host("here", "localhost")
GONE = "/removed/bin/python"


@pytest.fixture
def link(tmp_path: Path) -> LocalLink:
    return LocalLink(HERE, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]})


@pytest.fixture
def context(link: LocalLink, tmp_path: Path) -> Context:
    return make_context(link, tmp_path)


def make_context(link: LocalLink, tmp_path: Path) -> Context:
    """Whose hosts are all at the end of this link."""

    class Here(Links):
        def open(self, host: Host) -> Any:
            return link

    return Context(Here(config=None), tmp_path / "state", tmp_path / "cache")


def ended(link: LocalLink, home: Path, run: str, python: str, ended_at: float = 0.0, **spec: Any) -> RemoteRunDir:
    """A run that ended there."""
    site = RemoteRunDir(HERE, f"{home}/{RUNS}/{run}-h0", python)
    head = SPEC.head_spec._replace(hosts={"a": NodeSpec("h0.ipexctl", [0], site.directory, python)})
    create_run_dir(link, site, SPEC._replace(run=run, head=head, **spec))
    end = journal.KINDS.to_object(journal.RunEnd(run, "done", at=ended_at))
    (home / RUNS / f"{run}-h0" / "end.json").write_text(json.dumps(end))
    (home / RUNS / f"{run}-h0" / "journal.jsonl").write_text(json.dumps(end) + "\n")
    return site


def test_who_comes_later_knows_backend_and_precision(link: LocalLink, tmp_path: Path, context: Context) -> None:
    directory = f"{tmp_path}/{RUNS}/k7-h0"
    nodes = {"a": NodeSpec("h0.ipexctl", [0], directory, "python3", "AVX512_BF16")}
    spec = SPEC._replace(run="k7", head=SPEC.head_spec._replace(hosts=nodes), backend="impi", precision="bf16")
    create_run_dir(link, RemoteRunDir(HERE, directory, "python3"), spec)
    Path(directory, "journal.jsonl").write_bytes(journal.encode_record(journal.Launched(5, 29500, 3.0)))
    [started] = [event for event in manage.logs("k7", Inventory((HERE,)), context) if isinstance(event, RunStarted)]
    assert (started.backend, started.precision, started.isas) == ("impi", "bf16", {"a": "AVX512_BF16"})


def without_fallback(site: RemoteRunDir) -> None:
    """As versions before wrote it."""
    Path(site.directory, ROLE).write_text(f'#!/bin/sh\nexec {GONE} -E -s -S {site.directory}/agent.pyz "$@"\n')


def test_where_the_environment_is_gone_the_hosts_own_python_does(link: LocalLink, tmp_path: Path) -> None:
    site = ended(link, tmp_path, "0101-old", GONE)
    assert [row.run for row in run_control.list_runs_on_head(link).runs] == ["0101-old"]
    assert run_control.read_run_description(link, site.directory).run == "0101-old"
    assert not run_control.send_order(link, site, StopRun("test")), "its keeper is gone"
    assert run_control.find_leftover_processes(link, site, "0101-old") == ()
    done = link.run(site.build_command("watch", site.directory, "0", "0", "0", "once"))
    assert done.out.endswith(b"now"), done.err


def test_an_old_agent_that_does_not_start_hides_no_run(link: LocalLink, tmp_path: Path) -> None:
    without_fallback(ended(link, tmp_path, "0101-old", GONE))
    assert [row.run for row in run_control.list_runs_on_head(link).runs] == ["0101-old"]
    Path(tmp_path, RUNS, "0101-old-h0/agent.pyz").write_bytes(b"rubbish")
    ended(link, tmp_path, "0102-new", "python3")
    assert [row.run for row in run_control.list_runs_on_head(link).runs] == ["0101-old", "0102-new"]


def test_when_no_agent_starts_that_is_not_taken_for_no_runs(link: LocalLink, tmp_path: Path) -> None:
    assert run_control.list_runs_on_head(link) == RunListing()
    Path(ended(link, tmp_path, "0101-old", GONE).directory, "agent.pyz").write_bytes(b"rubbish")
    assert [row.run for row in run_control.list_runs_on_head(link).runs] == ["0101-old"], "by the kept agent"
    (kept,) = (tmp_path / AGENTS).iterdir()
    kept.write_bytes(b"print('another one')")
    with pytest.raises(LinkError, match="its runs cannot be listed: "):
        run_control.list_runs_on_head(link)


def test_what_was_half_made_is_listed_where_no_run_is(link: LocalLink, tmp_path: Path) -> None:
    shutil.rmtree(ended(link, tmp_path, "0101-old", GONE).directory)
    half = tmp_path / RUNS / "0102-new-h1"
    (half / f"{PART}put-5").mkdir(parents=True)
    os.utime(half, (0.0, 0.0))
    assert [orphan.run for orphan in run_control.list_runs_on_head(link).orphans] == ["0102-new"]


def test_logs_of_a_rank_that_is_not_of_the_run_are_refused(link: LocalLink, context: Context, tmp_path: Path) -> None:
    ended(link, tmp_path, "0101-old", "python3")
    with pytest.raises(UsageError, match="run 0101-old has no rank 3, 9") as refused:
        list(manage.logs(None, Inventory((HERE,), "test"), context, frozenset({0, 3, 9})))
    assert refused.value.exit is Exit.INPUT
    assert refused.value.reasons == ("it has 1 rank, counted from 0",)


def test_logs_of_a_run_that_goes_on_say_how_to_follow_it(link: LocalLink, context: Context, tmp_path: Path) -> None:
    inventory = Inventory((HERE,), "test")
    with keeping(tmp_path / RUNS) as kept:
        at(kept)
        events = list(manage.logs(None, inventory, context, frozenset({0})))
    text = f"run {SPEC.run} goes on; to follow it:\nipexctl logs {SPEC.run} --follow --rank 0"
    assert events[-2] == Message(text, code="goes-on")
    assert not [event for event in events if isinstance(event, StepStarted | StepEnded)], "they are not asked for"


def test_logs_take_the_newest_of_runs_that_ended(link: LocalLink, context: Context, tmp_path: Path) -> None:
    for run, started in (("0102-new", 20.0), ("0101-old", 10.0)):
        ended(link, tmp_path, run, "python3", started=started)
    inventory = Inventory((HERE,), "test")
    with pytest.raises(UsageError, match="run 0102-new has no rank 3"):
        list(manage.logs(None, inventory, context, frozenset({3})))
    with pytest.raises(UsageError, match="the 2 runs that are kept on these hosts have ended"):
        list(manage.attach(None, inventory, context))


def test_a_listed_run_has_its_time_and_last_figures(link: LocalLink, context: Context, tmp_path: Path) -> None:
    site = ended(link, tmp_path, "0101-old", "python3", command=["train.py"])
    directory = Path(site.directory)
    (directory / OWNER).write_text("{}")
    began = (directory / OWNER).stat().st_mtime
    assert (directory / SPEC_FILE).stat().st_mtime == 0, "files that are sent have no time"
    ahead = began + 86400.0  # by the clock of the host, which is not that of the file system
    end = journal.KINDS.to_object(journal.RunEnd("0101-old", "done", at=ahead))
    (directory / "end.json").write_text(json.dumps(end))
    os.utime(directory / "end.json", (began + 754.0,) * 2)
    lines = [
        write(SPEC.nonce, rank, b"step %d loss 0.5 %.1f it/s\n" % (step, 2.5 - rank))
        for step in range(4000)
        for rank in (0, 1)
    ]
    (directory / f"{OUT}.000000").write_bytes(b"".join(lines))
    (directory / f"{ERR}.000000").write_bytes(b"mpirun talks\n")
    (row,) = run_control.list_runs_on_head(link).runs
    assert round(row.seconds) == 754
    assert (row.command, row.workdir) == (["train.py"], "/")
    assert len(row.output) < 3000
    assert "1.5 it/s" not in row.output, "that is rank 1"
    (answer,) = [event.value for event in manage.ps(Inventory((HERE,), "test"), context) if isinstance(event, Answer)]
    assert isinstance(answer, PsAnswer)
    (run,) = answer.runs
    assert (run.step, run.pace, round(run.elapsed or 0)) == (3999, 2.5, 754)


@pytest.mark.parametrize(("sign", "expected"), [("8000", 2), ("", None)])
def test_a_listed_run_says_how_many_of_its_processes_are_up(
    link: LocalLink, context: Context, tmp_path: Path, sign: str, expected: int | None
) -> None:
    site = ended(link, tmp_path, "0101-old", "python3", ready=sign, size=3)
    with Path(site.directory, "journal.jsonl").open("ab") as out:
        for rank, stage in ((0, "program"), (0, "ready"), (2, "ready"), (2, "ready"), (1, "program")):
            out.write(journal.encode_record(rank_records.RankStage(rank, "a", stage, 1.0)))
    answer = next(event.value for event in manage.ps(Inventory((HERE,), "test"), context) if isinstance(event, Answer))
    assert isinstance(answer, PsAnswer)
    assert answer.runs[0].ready == expected


def test_a_run_that_goes_on_is_as_old_as_the_file_system_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with keeping(tmp_path) as kept:
        (kept.directory / OWNER).touch()
        os.utime(kept.directory / OWNER, (kept.directory.stat().st_mtime - 100.0,) * 2)
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 86400.0)
        assert client.list_runs([str(tmp_path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert 90.0 < row["seconds"] < 1000.0


@pytest.mark.parametrize("cut", [0, 3, 9, 13])
def test_one_ranks_output_is_selected_from_anywhere(cut: int) -> None:
    pieces = [(1, b"first of 1\n"), (0, b"a\x01b\n"), (1, b"x\n"), (10, b"y\n"), (0, b"z")]
    data = b"".join(write("n0", rank, piece) for rank, piece in pieces) + write("n0", 0, b"error", "e")
    assert frames.select_rank_output(data[cut:], "n0", 0, "o") == b"a\x01b\nz"
    assert frames.select_rank_output(data[cut:], "n0", 0, "e") == b"error"
    assert frames.select_rank_output(data, "n0", 2, "o") == b""


def write(nonce: str, rank: int, data: bytes, stream: str = "o") -> bytes:
    return b"".join(frames.split_into_frames(frames.build_head(nonce, rank), stream, data))


def test_stop_of_a_run_that_ended_says_when(link: LocalLink, context: Context, tmp_path: Path) -> None:
    ended(link, tmp_path, "0101-old", "python3", ended_at=1_763_631_060.0)
    events = list(manage.stop(None, Inventory((HERE,), "test"), context))
    [text] = [event.text for event in events if isinstance(event, Message)]
    assert text.startswith("run 0101-old had ended already at 2025-11-2")


@pytest.mark.parametrize(("name", "over"), [("a", True), ("here", False)])  # its host is "a"
def test_stop_that_loses_the_run_says_when_it_may_be_running(tmp_path: Path, name: str, over: bool) -> None:
    timings, host = TIMINGS._replace(quiet=1.0, give_up=1.0), Host(name, "localhost")
    context = make_context(LocalLink(host, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]}), tmp_path)
    with keeping(tmp_path / RUNS, timings=timings) as kept:
        whole = at(kept).wrap_agent().decode()
        at(kept, f'case "$1" in watch) exit 1;; esac\n{whole}')
        events = list(manage.stop(None, Inventory((host,), "test"), context))
    [proof] = [event for event in events if isinstance(event, CleanupChecked)]
    texts = [event.text for event in events if isinstance(event, Message)]
    assert proof.unchecked == (() if over else ("a",))
    assert (
        any(re.match(r"no answer since [\d:]{8} \(.*\); run .* may still be running", text) for text in texts) != over
    )
    assert not any("goes on" in text for text in texts), texts


def play_guard(kept: Kept, over: threading.Event) -> None:
    """The guard of host a: its rank stands in `STACK` whenever it is asked."""
    guard = kept.join()
    while not over.is_set():
        select.select([guard], [], [], 0.05)
        for message in guard.receive():
            if isinstance(message, messages.Ping):
                guard.send(messages.Pong(message.sent, message.sent, asked=message.steady))
            elif isinstance(message, messages.ReportStacks):
                guard.send(rank_records.RankStack(0, "a", 7, "S", "do_wait", STACK, 1.0))
                guard.send(messages.StacksReported())
    guard.close()


STACK = 'Current thread 0x1 (most recent call first):\n  File "/w/train.py", line 7 in step\n'


def test_stacks_of_a_run_that_goes_on_are_collected(link: LocalLink, context: Context, tmp_path: Path) -> None:
    inventory, over = Inventory((HERE,), "test"), threading.Event()
    with keeping(tmp_path / RUNS) as kept:
        at(kept)
        with pytest.raises(UsageError, match=f"run {SPEC.run} is starting") as refused:
            list(manage.print_stacks(None, inventory, context))
        assert refused.value.exit is Exit.STEP
        guard = threading.Thread(target=play_guard, args=(kept, over))
        guard.start()
        try:
            wait(lambda: kept.state().state == "running")
            for _ in range(2):
                events = list(manage.print_stacks(None, inventory, context))
                [answer] = [event.value for event in events if isinstance(event, Answer)]
                assert isinstance(answer, RankStacksAnswer)
                assert [(place.ranks, place.where) for place in answer.places] == [((0,), "train.py:7 step")]
                assert answer.stacks == (RankStack(0, "a", 7, "S", "do_wait", STACK),)
            assert kept.state().state == "running"
            with pytest.raises(UsageError, match=f"run {SPEC.run} has no rank 5"):
                list(manage.print_stacks(None, inventory, context, {5}))
        finally:
            over.set()
            guard.join()


def test_a_run_that_is_over_has_no_stacks(link: LocalLink, context: Context, tmp_path: Path) -> None:
    ended(link, tmp_path, "0101-old", "python3")
    with pytest.raises(UsageError, match="run 0101-old is over") as refused:
        list(manage.print_stacks(None, Inventory((HERE,), "test"), context))
    assert refused.value.hint == "ipexctl logs 0101-old"


def test_an_agent_of_an_earlier_version_is_distinguished(link: LocalLink, tmp_path: Path) -> None:
    with keeping(tmp_path / RUNS) as kept:
        site = at(kept, "echo \"unknown role 'stacks'\" >&2; exit 2")
        with pytest.raises(LinkError, match="its ranks' stacks cannot be read: unknown role"):
            run_control.collect_stacks(link, site, "r1", kept.spec.timings)


def test_stacks_of_a_hundred_ranks_are_collected_and_those_without_an_end_are_named(
    link: LocalLink, tmp_path: Path
) -> None:
    """1 MiB of them was cut, and its last line, a piece of JSON, was the reason."""
    record, end = (journal.encode_record(each).decode() for each in (
        rank_records.RankStack(0, "a", 7, "S", "", "x" * 20_000), journal.InquiryEnded([])
    ))  # fmt: skip
    (tmp_path / "answer").write_text(record * 100 + end)
    with keeping(tmp_path / RUNS) as kept:
        stacks, _ = run_control.collect_stacks(link, at(kept, f"cat {tmp_path}/answer"), "r1", kept.spec.timings)
        assert len(stacks) == 100
        with pytest.raises(LinkError, match="its ranks' stacks cannot be read: they are larger than 64 MiB"):
            run_control.collect_stacks(link, at(kept, "head -c 70000000 /dev/zero"), "r1", kept.spec.timings)
