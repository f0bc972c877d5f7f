"""Secrets that one command was given are in nothing that it or a later command writes of its run."""

import base64
import json
import shutil
import tarfile
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from ipexctl.act.context import Context
from ipexctl.cli import app
from ipexctl.loop import OutputOptions, run_command
from ipexctl.model import events as e
from ipexctl.model.errors import Exit
from ipexctl.model.events import Event
from ipexctl.model.text import printable
from ipexctl.store.masking import SECRETS, EventMasker, Masker, StreamMasker
from ipexctl.verbs.run.profile import make_profile
from tests.unit.show import streams

SECRET = "q7Zk 93mv/Pd1"
CODED = base64.b64encode(SECRET.encode()).decode()
WORD = "q7Zk93mv_Pd1"
PRINTED = f"got {SECRET} as {CODED} and {SECRET!r}"


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of a run that got a secret by `--pass-env` and whose ranks print it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def workflow(context: Context) -> Generator[Event, None, None]:
        context.masker.add_secrets([SECRET, WORD])
        for stamped in streams.run(2, steps=4, fails=1):
            yield stamped.event
            if isinstance(stamped.event, e.RunStarted):
                yield e.Message(PRINTED)
                yield e.Output(0, "xeon01", "out", f"{PRINTED}\n::metric name={WORD} value=1\n".encode())

    run_command(workflow, OutputOptions(output="plain"), acting=True)
    (directory,) = (tmp_path / "ipexctl" / "runs").iterdir()
    return directory


def test_a_strangers_hashes_do_not_hold_a_command(tmp_path: Path) -> None:
    """Of a hash for each length, all of which begin as the text does; and of thousands of salts, with which every line
    took a second."""
    values = [{"head": "aa", "length": 4000 + number, "hash": "0" * 24} for number in range(1000)]
    (tmp_path / SECRETS).write_text(json.dumps([{"salt": "x", "values": values}]))
    masker = Masker({})
    masker.add_kept(tmp_path)
    assert masker.mask_bytes(b"a" * 20_000) == b"***"
    few = [{"salt": str(number), "values": [{**values[0], "length": 6}]} for number in range(10_000)]
    (tmp_path / SECRETS).write_text(json.dumps(few))
    masker = Masker({})
    masker.add_kept(tmp_path)
    for number in range(200):
        masker.mask_bytes(b"%d " % number + b"a" * 50)
    masker, stream = Masker({}), StreamMasker(masker)
    (tmp_path / SECRETS).write_text(json.dumps([{"salt": "x", "values": [{**values[0], "length": 6}] * 1000}]))
    masker.add_kept(tmp_path)
    assert masker.mask_text("aaaaaaaa 0") == "aaaaaaaa 0"
    assert masker.mask_text("aaaaaaaa 1") == "***", "what a text costs does not begin anew with each"
    assert b"".join(stream.feed(b"b", partial=True) for _ in range(2000)) == b"b" * 2000


def test_the_secrets_of_many_variables_are_all_kept(tmp_path: Path) -> None:
    masker, values = Masker({}), [f"{number} q7/{number * 7919:x}&+{number}" for number in range(1000)]
    masker.add_secrets(values)
    (tmp_path / SECRETS).write_bytes(masker.dump_kept())
    later = Masker({})
    later.add_kept(tmp_path)
    assert [value for value in values if value in later.mask_text(f"got {value}")] == []


def test_the_host_is_told_which_of_its_values_are_secret() -> None:
    masker = Masker({})
    masker.add_secrets([SECRET, "elsewhere-only"])
    assert masker.find_declared(f"/bin/python\n{SECRET}") == [SECRET]


def find_secret(text: str | bytes) -> bool:
    data = text if isinstance(text, bytes) else text.encode()
    return SECRET.encode() in data or CODED.encode() in data


@pytest.mark.fault("J1")
def test_only_the_file_of_the_rank_has_what_the_rank_wrote(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    having = [path.name for path in saved.rglob("*") if path.is_file() and find_secret(path.read_bytes())]
    assert having == ["0.out"]
    assert (saved / SECRETS).stat().st_mode & 0o777 == 0o600


@pytest.mark.fault("J1")
@pytest.mark.parametrize("words", [["replay"], ["replay", "--output", "json"], ["logs", "1031-k7"],
                                   ["logs", "1031-k7", "--rank", "0"], ["report"]])  # fmt: skip
def test_no_later_command_shows_it(saved: Path, words: list[str]) -> None:
    shown = CliRunner().invoke(app, words)
    assert not find_secret(shown.output)
    assert words == ["report"] or "got *** as ***" in shown.output
    assert not find_secret((saved / "report.html").read_bytes())


def test_the_page_of_a_report_shows_what_the_rank_wrote_without_it(saved: Path, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["report", "last", "-o", "page.html"]).exit_code == Exit.OK
    text = (tmp_path / "page.html").read_text()
    assert "got *** as *** and" in text
    assert not find_secret(text)


@pytest.mark.parametrize("declared", [[SECRET], []], ids=["now", "by an earlier version"])
def test_no_profile_shows_it(saved: Path, declared: list[str]) -> None:
    folder = saved / "profile/hosts/xeon01/profile"
    folder.mkdir(parents=True)
    (folder / "0.1.steps").write_text(json.dumps({"why": f"no trace of {SECRET}"}))
    masker, running = Masker({}), SimpleNamespace(run="1031-k7", hosts=("xeon01",))
    masker.add_secrets(declared)
    watcher: Any = SimpleNamespace(profile="2:3", running=running, context=SimpleNamespace(masker=masker))
    assert not [*make_profile(watcher, saved)]
    assert find_secret((saved / "profile/profile.json").read_bytes()) == (not declared)
    shown = CliRunner().invoke(app, ["profile"], env={"COLUMNS": "200"})
    assert "no trace of ***" in shown.output


@pytest.mark.parametrize("words", [["runs"], ["runs", "last", "--json"], ["runs", "--prune", "--keep", "0"]])
def test_no_list_of_runs_shows_it(saved: Path, words: list[str]) -> None:
    """What an earlier version, or a command before a later step declared the secret, wrote into the report."""
    report = json.loads((saved / "report.json").read_text())
    report["title"] = report["run"]["command"] = f"train.py {SECRET}"
    report["run"] |= {"first": None, "detail": f"got {CODED}"}
    (saved / "report.json").write_text(json.dumps(report))
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert "train.py ***" in shown.output
    assert not find_secret(shown.output)


def test_no_study_that_is_resumed_shows_it(saved: Path) -> None:
    events = (saved / "events.jsonl").read_text()
    study = {"at": 1, "event": "study-started", "knobs": {}, "task": {"script": "a.py", "backend": SECRET},
             "metric": "", "minimize": False, "budget": 9, "seed": 0, "steps": 2}  # fmt: skip
    (saved / "events.jsonl").write_text(f"{events}{json.dumps(study)}\n")
    shown = CliRunner().invoke(app, ["tune", "--resume", "1031-k7", "--hosts", "localhost"])
    assert "not '***'" in shown.output
    assert not find_secret(shown.output)


def test_no_page_of_several_runs_has_it_among_the_facts(saved: Path, tmp_path: Path) -> None:
    other = shutil.copytree(saved, saved.with_name("1031-z9"))
    for directory, kernel in ((saved, SECRET), (other, "6.1")):
        first, *lines = (directory / "events.jsonl").read_text().splitlines(keepends=True)
        facts = {"at": 1, "event": "facts-read", "host": "xeon01", "facts": {"kernel": kernel}}
        (directory / "events.jsonl").write_text("".join([first, f"{json.dumps(facts)}\n", *lines]))
    done = CliRunner().invoke(app, ["report", str(saved), str(other), "-o", "c.html"])
    assert done.exit_code == Exit.OK, done.output
    text = (tmp_path / "c.html").read_text()
    assert "kernel" in text
    assert not find_secret(text)


@pytest.mark.parametrize("shown", [SECRET, CODED])
def test_no_message_that_is_cut_has_its_beginning(shown: str) -> None:
    masker = Masker({})
    masker.add_secrets([SECRET])
    for left in range(len(shown)):
        text = masker.mask_text(f"xeon01: {printable(shown, left)}: failed")
        assert not any(shown[at : at + 6] in text for at in range(len(shown) - 5)), text
    assert masker.mask_text("q7Zk, … and q7Z…") == "q7Zk, … and q7Z…"


def test_no_progress_shows_it() -> None:
    masker = Masker({})
    masker.add_secrets([SECRET])
    assert [*EventMasker(masker).mask_event(e.Progress("", "fetch", 1, 2, "B", f"a-{SECRET}.whl"))] == [
        e.Progress("", "fetch", 1, 2, "B", "a-***.whl")
    ]


@pytest.mark.parametrize("name", ["figures.csv", "figures.json"])
def test_no_export_has_it_as_a_name_of_a_figure(saved: Path, tmp_path: Path, name: str) -> None:
    assert CliRunner().invoke(app, ["runs", "--export", name]).exit_code == Exit.OK
    text = (tmp_path / name).read_text()
    assert "loss" in text
    assert WORD not in text


def test_no_member_of_the_archive_has_it(saved: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["support", "last", "--yes", "--with-output", "-o", "k7.tar.gz", "--json"])
    assert done.exit_code == Exit.OK, done.output
    with tarfile.open(tmp_path / "k7.tar.gz") as tar:
        members = {each.name.partition("/")[2]: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]
    assert b"got *** as ***" in members["ranks/0.out"]
    assert SECRETS not in members
    assert not any(find_secret(data) for data in members.values())
    masked = {part["name"]: part["masked"] for part in json.loads(done.stdout)["parts"]}
    assert masked["ranks/0.out"] == 4
