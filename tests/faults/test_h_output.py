"""What ranks write, where it is shown and where it is kept (cases H1 to H7)."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import LIGHT, Desk, Started, Terminal, open_gates, wait
from tests.faults.checks import expect

PLAYER = Path(__file__).parent / "ranks/player.py"
RUN = ("run", "--venv", LIGHT, "--limit", "node[0-2]")
Start = Callable[..., Started]
LEDGER = "/root/ledger"
# What no terminal may get; a sequence split over two writes and one that never ends among them.
ESCAPES = [
    b"\x1b[2J\x1b[H",
    b"\x1b[10A\x1b[99C",
    b"\x1b]0;title\x07",
    b"\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\",
    b"\x1b]52;c;ZXZpbA==\x07",
    b"\x1bPq#0\x1b\\",
    b"\x1b[6n\x1b[c",
    b"\x1b[?1049h",
    b"\x9b2J",
    "\u009b2J".encode(),
    b"\x07\n",
    b"\x1b",
    b"]0;split\x07\n",
    "a \u202e b \u2066 c\n".encode(),
    b"\x1b[5mblink\x1b[8mhidden\n",
    b"\x1b]0;never ended\n",
    b"last line\n",
]
FORBIDDEN = (
    b"\x1b[2J",
    b"\x1b]",
    b"\x1bP",
    b"\x1b[6n",
    b"\x1b[c",
    b"\x1b[?1049h",
    b"\x9b2J",
    b"\xc2\x9b",
    b"\x07",
    b"\x1b[5m",
    b"\x1b[8m",
    "\u202e".encode(),
    "\u2066".encode(),
)
MARKUP = "[/foo]\n[bold red]x\n[link=https://evil.example]ok[/link]\n[@click=app.bell]y\n:smile:\n\\[b\n[\n"


def ledger(mpi: Cluster, rank: int, stream: str = "out") -> bytes:
    """What the rank, alone on its host, was about to write."""
    place = mpi.path(f"node{rank}", f"{LEDGER}/{rank}.{stream}")
    return place.read_bytes() if place.exists() else b""


def forget_ledgers(mpi: Cluster) -> None:
    """Before a second run, which begins its own."""
    for host in mpi.names:
        mpi.exec(host, ["sh", "-c", f"rm -f {LEDGER}/*"])


def wait_for_done(mpi: Cluster, hosts: tuple[str, ...]) -> None:
    """Until a rank on each of these hosts has written all it had."""
    wait(lambda: all(mpi.path(host, f"{LEDGER}/done").exists() for host in hosts), 120.0)


def measure(going: Started, timeout: float = 200.0) -> tuple[int, int]:
    """How a command ended, and the most memory it had, in bytes."""
    peak = 0  # not of getrusage: that begins with what the forked tests had before the command's own program

    def look() -> bool:
        nonlocal peak
        status = Path(f"/proc/{going.process.pid}/status").read_text()
        peak = max([peak, *(int(kib) << 10 for kib in re.findall(r"VmHWM:\s+(\d+)", status))])
        return going.process.poll() is not None

    wait(look, timeout, lambda: str(going.said))
    return going.process.returncode, peak


@pytest.mark.fault("H1")
def test_h1_ranks_print_as_fast_as_they_can(start: Start, controller: Desk, mpi: Cluster) -> None:
    """``IPEXCTL_FAULTS_LINES=1000000`` prints the whole million of each rank."""
    lines = int(os.environ.get("IPEXCTL_FAULTS_LINES", "50000"))
    code, memory = measure(start("run", "--venv", LIGHT, "--ppn", "2", PLAYER, "flood", str(lines)), 280.0)
    assert code == 0
    assert memory < 500 << 20
    for rank in range(8):
        for stream in ("out", "err"):
            assert controller.written(rank, stream) == mpi.read(f"node{rank // 2}", f"{LEDGER}/{rank}.{stream}")
    rows = controller.report()["run"]["ranks"]
    assert sum(controller.written(rank, stream).count(b"\n") for rank in range(8) for stream in ("out", "err")) == (
        8 * lines
    )
    assert all(row["state"] == "ok" for row in rows)


@pytest.mark.fault("H2")
def test_h2_a_pipe_that_nobody_reads_for_a_while(controller: Desk, mpi: Cluster) -> None:
    process = subprocess.Popen(
        controller.words(*RUN, PLAYER, "flood", "40000"), env=controller.env, cwd=controller.path,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_done(mpi, ("node0", "node1", "node2"))  # while nothing is read
        assert process.poll() is None
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
    finally:
        process.kill()
    assert b"0 processes left on 3 hosts" in out
    for rank in range(3):
        assert controller.written(rank) == ledger(mpi, rank)


@pytest.mark.fault("H2")
def test_h2_a_terminal_that_is_held(controller: Desk, mpi: Cluster) -> None:
    terminal = Terminal(controller, *RUN, PLAYER, "flood", "40000")
    try:
        wait_for_done(mpi, ("node0", "node1", "node2"))  # while nothing is read
        assert terminal.end(120) == 0
    finally:
        terminal.kill()
    for rank in range(3):
        assert controller.written(rank) == ledger(mpi, rank)


@pytest.mark.fault("H3")
@pytest.mark.parametrize("lines", [5, 2000])
def test_h3_a_reader_that_goes_away(controller: Desk, mpi: Cluster, lines: int) -> None:
    process = subprocess.Popen(
        controller.words(*RUN, PLAYER, "flood", "20000"), env=controller.env, cwd=controller.path,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(120) == 0, err
        assert b"Traceback" not in err
        process.stderr.close()
    finally:
        process.kill()
    for rank in range(3):
        assert controller.written(rank) == ledger(mpi, rank)


@pytest.mark.fault("H4")
def test_h4_bytes_that_are_no_text(controller: Desk, mpi: Cluster) -> None:
    told = controller(*RUN, PLAYER, "noise")
    expect(told, 0)
    assert not {char for char in told.out if ord(char) < 32} - {"\n", "\t"}
    assert "end \ufffd" in told.out
    for rank in range(3):
        for stream in ("out", "err"):
            assert controller.written(rank, stream) == ledger(mpi, rank, stream)


@pytest.mark.fault("H4")
def test_h4_characters_that_every_read_cuts(controller: Desk, mpi: Cluster) -> None:
    told = controller(*RUN, PLAYER, "text")
    expect(told, 0)
    assert "\ufffd" not in told.out
    lines = [line for line in told.out.splitlines() if line[1:2] == "│"]
    for char in "ä€\U0001f600":
        assert sum(line.count(char) for line in lines) == 3 * 30_000
    for rank in range(3):
        assert controller.written(rank) == ledger(mpi, rank)


@pytest.mark.fault("H5")
def test_h5_escape_sequences_on_a_terminal(controller: Desk, mpi: Cluster) -> None:
    terminal = Terminal(controller, *RUN, PLAYER, "hex", *(piece.hex() for piece in ESCAPES), columns=160)
    try:
        assert terminal.end(120) == 0
        screen, shown = terminal.read(), terminal.show()
    finally:
        terminal.kill()
    for never in FORBIDDEN:
        assert never not in screen, never
    assert rb"\x1b]52;c;ZXZpbA==\x07" in shown
    assert b"last line" in shown
    for rank in range(3):
        assert controller.written(rank) == ledger(mpi, rank)


@pytest.mark.fault("H5")
def test_h5_escape_sequences_in_a_pipe(controller: Desk, mpi: Cluster) -> None:
    told = controller(*RUN, PLAYER, "hex", *(piece.hex() for piece in ESCAPES))
    expect(told, 0, r"\x1b]52;c;ZXZpbA==\x07", r"\x1b]0;split\x07", r"\u202e")
    assert not {char for char in told.out + told.err if ord(char) < 32 or 127 <= ord(char) < 160} - {"\n", "\t"}
    assert "\u202e" not in told.out
    forget_ledgers(mpi)
    out, _ = controller.raw(*RUN, "--raw", PLAYER, "hex", *(piece.hex() for piece in ESCAPES))
    assert b"\x1b]52;c;ZXZpbA==\x07" in out


@pytest.mark.fault("H6")
def test_h6_markup_in_what_ranks_say(controller: Desk, mpi: Cluster) -> None:
    told = controller(*RUN, PLAYER, "hex", MARKUP.encode().hex())
    expect(told, 0)
    for rank in range(3):
        for line in MARKUP.splitlines():
            assert f"{rank}│{line}\n" in told.out
    forget_ledgers(mpi)
    terminal = Terminal(controller, *RUN, PLAYER, "show", MARKUP.encode().hex(), columns=160)
    try:
        wait(lambda: all(line in terminal.show().decode("utf-8", "replace") for line in MARKUP.splitlines()), 60.0)
        for host in ("node0", "node1", "node2"):
            mpi.write(host, "/root/ledger/go", b"")
        assert terminal.end(120) == 0
        screen = terminal.show().decode()
    finally:
        terminal.kill()
    assert "\U0001f604" not in screen


@pytest.mark.fault("H6")
def test_h6_markup_in_names_of_files_and_steps(controller: Desk, mpi: Cluster) -> None:
    name = "[bold red]x:smile:[link=https:evil]"
    folder = controller.path / "proj"
    folder.mkdir()
    (folder / name).write_text("data")
    told = controller("sync", "--dry-run", "proj")
    expect(told, 0, name)
    missing = controller("run", "--venv", LIGHT, f"{name}.py")
    expect(missing, 2, f"{name}.py")
    book = controller.path / "book.yaml"
    book.write_text(f"hosts: {mpi.hostfile}\nsteps:\n  - name: '{name}'\n    run: {{script: '{name}.py'}}\n")
    for words in (("--check", "book.yaml"), ("book.yaml",)):
        told = controller("play", *words, f"--allow-path={mpi.hostfile.parent}")
        assert told.code != 0
        assert name in told.out + told.err, told
        assert "Traceback" not in told.err


@pytest.fixture
def small_state(controller: Desk) -> Iterator[Path]:
    """Where the controller saves runs is a file system of 8 MiB, of which 7 are in use."""
    state = controller.home / ".local/state"
    state.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", state], check=True)
    (state / "filler").write_bytes(bytes(7 << 20))
    yield state
    subprocess.run(["umount", "-l", state], check=True)


@pytest.mark.fault("H7")
def test_h7_a_full_disk_under_the_record(start: Start, controller: Desk, mpi: Cluster, small_state: Path) -> None:
    going = start(*RUN, PLAYER, "full")
    told = going.until("no space left on device", timeout=120)
    assert told.err.count("no space left on device") == 1
    wait(lambda: all(ledger(mpi, rank).count(b"\n") > 30_000 for rank in range(3)), 60.0)
    (small_state / "filler").unlink()
    open_gates(mpi)
    told = going.end()
    expect(told, 9, "bytes")
    lost = controller.report()["lost"]["ranks"]  # not of a rank whose output came while there was room
    assert lost
    for rank in range(3):
        kept, written, gone = controller.written(rank), ledger(mpi, rank), lost.get(str(rank), 0)
        assert kept.endswith(b"after 99\n")
        whole = b"".join(line for line in kept.splitlines(keepends=True) if not line.startswith(b"[ipexctl: "))
        missing = len(written) - len(whole)
        assert 0 <= gone - missing <= 1, lost  # a mark stands on a line of its own
        assert not gone or f"{gone} bytes missing here".encode() in kept
    assert [row["state"] for row in controller.report()["run"]["ranks"]] == ["ok"] * 3
