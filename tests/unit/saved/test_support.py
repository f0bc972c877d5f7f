"""``support``: what goes into the archive of a saved run, and what never does."""

import json
import os
import resource
import stat
import tarfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ipexctl.act.context import Context
from ipexctl.act.ssh import Links
from ipexctl.cli import app
from ipexctl.model import events as e
from ipexctl.model.answers.saved import SupportAnswer
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Stamped
from ipexctl.store.masking import Masker
from ipexctl.verbs.run.support import support
from tests.unit.saved.test_runs import save
from tests.unit.show import streams

SECRET = "s3cr3t-value-of-a-variable"  # of the environment of whoever packs
TOKEN = "hf_abcdefghijklmnopqrstuv"
ENVIRON = {"MY_API_KEY": SECRET}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "ipexctl" / "runs"


@pytest.fixture
def saved(runs: Path) -> Path:
    """A failed run, with secrets in every file."""
    stream = list(streams.run(2, steps=4, fails=1))
    planted = f"{SECRET} {TOKEN} password=hunter22 https://me:pass1234@host/x"
    extra: list[e.Event] = [
        e.Message(planted),
        e.LauncherOutput("err", planted.encode() + b"\xff\n"),
        e.FactsRead("xeon01", streams.facts()),
        e.RankStack(0, "xeon01", 7, "S", "", f"File {planted}"),
        e.Output(0, "xeon01", "out", f"{planted}\n".encode()),
    ]
    directory = save(runs, [*stream[:-1], *(Stamped(stream[-1].at, event) for event in extra), stream[-1]])
    (directory / "debug.log").write_text(f"DEBUG {planted}\n")
    (directory / "report.html").write_text(planted)
    (directory / "plan.txt").write_text(f"-e TOKEN={SECRET}\n")
    (directory / "profile").mkdir()
    (directory / "profile" / "profile.json").write_text(json.dumps({"api_key": "x1y2z3", "note": planted, "tokens": 5}))
    (directory / "profile" / "trace.json.gz").write_bytes(b"x")
    (directory / "report.json").write_text((directory / "report.json").read_text().replace("train_ddp", f"t {TOKEN}"))
    return directory


def make_context(runs: Path, environ: Mapping[str, str] = ENVIRON) -> Context:
    return Context(Links(), runs.parent, runs.parent, masker=Masker(environ))


def pack(runs: Path, target: Path, environ: Mapping[str, str] = ENVIRON, **how: Any) -> SupportAnswer:
    events = list(support(make_context(runs, environ), "last", str(target), **how))
    [answer] = [event.value for event in events if isinstance(event, e.Answer)]
    assert isinstance(answer, SupportAnswer)
    return answer


def unpack(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {member.name.partition("/")[2]: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


ALWAYS = {"debug.log", "events.jsonl", "facts.json", "plan.txt", "profile/profile.json", "report.json",
          "stacks-0-7.txt", "versions.json"}  # fmt: skip


def test_the_archive_has_what_a_maintainer_needs(runs: Path, saved: Path, tmp_path: Path) -> None:
    answer = pack(runs, tmp_path / "k7.tar.gz")
    members = unpack(tmp_path / "k7.tar.gz")
    assert {*members} == {part.name for part in answer.parts} == ALWAYS
    assert {part.name: part.bytes for part in answer.parts} == {name: len(data) for name, data in members.items()}
    left_out = {left.name: left.why for left in answer.left_out}
    assert left_out["ranks/0.out"] == left_out["report.html"] == "what ranks printed: --with-output"
    assert left_out["profile/trace.json.gz"] == "not needed"
    assert b"step 3 loss" not in b"".join(members.values()), "the last lines of ranks are their output, too"
    assert json.loads(members["facts.json"])["xeon01"]["isa_level"] == "AMX"
    assert "ipexctl" in json.loads(members["versions.json"])
    assert all(json.loads(line) for line in members["events.jsonl"].splitlines())
    assert json.loads(members["report.json"])["run"]["first"] == 1
    assert json.loads(members["profile/profile.json"])["tokens"] == 5


@pytest.mark.parametrize("with_output", [False, True])
def test_no_secret_is_in_any_member(runs: Path, saved: Path, tmp_path: Path, with_output: bool) -> None:
    answer = pack(runs, tmp_path / "k7.tar.gz", with_output=with_output)
    members = unpack(tmp_path / "k7.tar.gz")
    for name, data in members.items():
        for secret in (SECRET, TOKEN, "hunter22", "pass1234", "x1y2z3"):
            assert secret.encode() not in data, name
    masked = {part.name: part.masked for part in answer.parts}
    assert all(masked[name] for name in ("debug.log", "plan.txt", "profile/profile.json", "stacks-0-7.txt"))
    assert masked["versions.json"] == 0
    if with_output:
        assert {"ranks/0.out", "ranks/0.err", "report.html"} <= {*members}
        assert masked["ranks/0.out"]
        assert b"step 3 loss" in members["ranks/0.out"]
        assert b"step 3 loss" in members["report.json"], "the last lines of a rank"


def test_the_archive_is_private_in_order_and_the_same_each_time(runs: Path, saved: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.tar.gz", tmp_path / "b.tar.gz"
    answer = pack(runs, first)
    pack(runs, second)
    assert first.read_bytes() == second.read_bytes()
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert answer.bytes == first.stat().st_size
    with tarfile.open(first) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(member.uid, member.gid, member.uname, member.mode) for member in members} == {(0, 0, "", 0o600)}
    assert {member.name.partition("/")[0] for member in members} == {f"ipexctl-support-{saved.name}"}


def test_links_are_left_out(runs: Path, saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "0.out").write_text("of others")
    (saved / "debug.log").unlink()
    (saved / "debug.log").symlink_to(other / "0.out")
    (saved / "x\n  12  0  events.jsonl").touch()
    for path in (saved / "ranks").iterdir():
        path.unlink()
    (saved / "ranks").rmdir()
    (saved / "ranks").symlink_to(other)
    answer = pack(runs, tmp_path / "k7.tar.gz", with_output=True)
    members = unpack(tmp_path / "k7.tar.gz")
    assert "debug.log" not in members
    assert b"of others" not in b"".join(members.values())
    left_out = {left.name: left.why for left in answer.left_out}
    assert left_out["debug.log"] == "not a regular file"
    assert left_out["x\\x0a  12  0  events.jsonl"] == "not needed", "one line"


def test_a_hole_in_the_record_of_somebody_else_is_the_end_of_its_file(runs: Path, saved: Path, tmp_path: Path) -> None:
    """One of a terabyte filled the disk with zeros, or the memory."""
    for name in ("report.json", "plan.txt", "events.jsonl", "profile/profile.json"):
        os.truncate(saved / name, 1 << 40)
    (saved / "debug.log").write_bytes(b"")
    parts = {part.name: part.bytes for part in pack(runs, tmp_path / "a.tar.gz").parts}
    assert parts.keys() == ALWAYS
    assert parts["debug.log"] == 0
    assert max(parts.values()) < 1 << 20


def test_a_document_of_millions_of_values_is_masked_as_text(runs: Path, saved: Path, tmp_path: Path) -> None:
    """64 MiB of empty lists took 3 GiB."""
    (saved / "report.json").write_bytes(b"[" + b"[]," * 3_100_000 + b"[]]")
    tracemalloc.start()
    pack(runs, tmp_path / "a.tar.gz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20


def test_what_goes_in_is_listed_before_it_is_written(runs: Path, saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "k7.tar.gz"
    questions: list[str] = []
    messages: list[str] = []

    def refuse(question: str) -> bool:
        assert "debug.log" in messages[0], "listed before it is asked"
        questions.append(question)
        return False

    for event in support(make_context(runs), "last", str(target), ask=refuse):
        messages += [event.text] if isinstance(event, e.Message) else []
        assert not isinstance(event, e.Answer)
    assert messages[-1] == "nothing was written"
    assert questions[0].startswith(f"Write {len(ALWAYS)} files, ")
    assert not target.exists()
    dry = pack(runs, target, dry=True)
    assert dry.dry
    assert dry.plan
    assert "left out: ranks/*.out (what ranks printed: --with-output)" in dry.plan
    assert not target.exists()


def test_an_existing_file_stays(runs: Path, saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "k7.tar.gz"
    target.write_text("mine")
    with pytest.raises(UsageError, match=r"k7\.tar\.gz exists"):
        pack(runs, target)
    assert target.read_text() == "mine"
    with pytest.raises(UsageError, match="cannot be written: no such file"):
        pack(runs, tmp_path / "none" / "k7.tar.gz")


def test_the_command_asks_on_a_terminal_only(
    runs: Path, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    call = CliRunner().invoke
    refused = call(app, ["support"])
    assert refused.exit_code == Exit.INPUT
    assert "which needs a terminal" in refused.output
    listed = call(app, ["support", "last", "--dry-run"])
    assert listed.exit_code == Exit.OK
    assert "events.jsonl" in listed.stdout
    done = call(app, ["support", "1031-k7", "--yes", "--json"])
    assert done.exit_code == Exit.OK, done.output
    assert json.loads(done.stdout)["path"] == f"ipexctl-support-{saved.name}.tar.gz"
    assert (tmp_path / f"ipexctl-support-{saved.name}.tar.gz").exists()


def test_a_record_has_more_files_than_may_be_open(runs: Path, saved: Path, tmp_path: Path) -> None:
    """Stacks of a few hundred ranks, or a record of somebody else: "too many open files"."""
    for rank in range(300):
        (saved / f"stacks-{rank}-1.txt").write_text(f"of {rank}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        pack(runs, tmp_path / "a.tar.gz")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    members = unpack(tmp_path / "a.tar.gz")
    assert all(members[f"stacks-{rank}-1.txt"] == b"of %d" % rank for rank in range(300))
