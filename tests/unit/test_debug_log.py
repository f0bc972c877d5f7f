"""The log of one command: what it masks, where it goes, what -v shows."""

import logging
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.testing

from ipexctl.cli import app
from ipexctl.store.debug_log import DebugLog

SECRET = "s3cr3t-value"
LOGGER = logging.getLogger("ipexctl.test")


@pytest.fixture
def level() -> Iterator[logging.Logger]:
    logger = logging.getLogger("ipexctl")
    yield logger
    logger.setLevel(logging.NOTSET)


def open_log(path: Path, shown: list[str] | None = None) -> DebugLog:
    environ = {"HF_TOKEN": SECRET, "HOME": "/home/ada"}
    return DebugLog(path, write=(shown if shown is not None else []).append, environ=environ)


def test_nothing_is_written_before_something_is_done_on_a_host(tmp_path: Path) -> None:
    path = tmp_path / "state" / "debug.log"
    with open_log(path):
        LOGGER.debug("read the hostfile")
        assert not path.parent.exists()
        LOGGER.info("node0: status 0")
        LOGGER.debug("chose a release")
    assert [line.rpartition(": ")[2] for line in path.read_text().splitlines()[2:]] == [
        "read the hostfile", "status 0", "chose a release",
    ]  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_log_begins_with_arguments_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ipexctl", "run", "-e", "DB_PASSWORD=a b,c", "-e", f"X={SECRET}", "x\x1b.py"])
    with open_log(tmp_path / "debug.log") as log:
        log.set_directory(tmp_path)
    versions, argv = (tmp_path / "debug.log").read_text().splitlines()
    assert versions.startswith("ipexctl ")
    assert "paramiko" in versions
    assert argv == r"argv: ipexctl run -e 'DB_PASSWORD=***' -e 'X=***' 'x\x1b.py'"


def test_what_was_logged_before_the_saved_run_existed_is_in_its_log(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with open_log(tmp_path / "debug.log") as log:
        LOGGER.debug("first")
        log.set_directory(tmp_path / "run")
        LOGGER.debug("second")
        assert log.path == tmp_path / "run" / "debug.log"
    assert (tmp_path / "run" / "debug.log").read_text().count("\n") == 4
    assert not (tmp_path / "debug.log").exists()


def test_the_shared_log_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "state" / "debug.log"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"x" * (1 << 21))
    with open_log(path):
        LOGGER.info("node0: status 0")
    assert path.stat().st_size < 1 << 20
    assert path.with_name("debug.log.1").stat().st_size == 1 << 21


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "debug.log").symlink_to(victim)
    with open_log(tmp_path / "debug.log") as log:
        LOGGER.info("node0: status 0")
        assert log.path is None
    assert victim.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("hosts --hosts a", logging.NOTSET),
        ("hosts --hosts a -v", logging.INFO),
        ("-v hosts --hosts a", logging.INFO),
        ("-v hosts --hosts a -v", logging.DEBUG),
        ("hosts -vv --hosts a", logging.DEBUG),
        ("-vvv hosts --hosts a", logging.DEBUG),
    ],
)
def test_every_command_takes_v_before_and_after_its_name(words: str, expected: int, level: logging.Logger) -> None:
    level.setLevel(logging.DEBUG)  # of a command before
    assert typer.testing.CliRunner().invoke(app, words.split()).exit_code == 0
    assert level.level == expected


@pytest.mark.parametrize(("shown", "lines"), [(logging.NOTSET, 0), (logging.INFO, 1), (logging.DEBUG, 2)])
def test_v_shows_commands_and_vv_everything(tmp_path: Path, level: logging.Logger, shown: int, lines: int) -> None:
    level.setLevel(shown)
    written: list[str] = []
    with open_log(tmp_path / "debug.log", written):
        LOGGER.debug(f"before {SECRET}")
        LOGGER.info("node0: status 0")
    assert len(written) == lines
    assert SECRET not in "".join(written)
    assert level.level == shown
