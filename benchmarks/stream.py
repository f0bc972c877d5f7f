"""How fast lines come from the hosts to a file here, each with its rank or host before it.

Peers read one file on each of the hosts. ipexctl reads what mpirun on the head wrote of as many ranks, tagged and
mixed; takes it apart, records every rank in a file of its own, folds the report and shows it, plain or on a terminal.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from fanout import cases as asking
from ground import CLIENTS, Case, Costs, Words, arguments, chosen, conditions, hosts, interleaved, list_loads, python
from tables import Cell, Measurement, Table, publish

from ipexctl.protocol import frames

LIMIT = 300.0
OURS = Path(__file__).with_name("ours.py")


def main() -> None:
    given = arguments(__doc__ or "", hosts=4, lines=200_000).parse_args()
    total = given.hosts * given.lines
    said = conditions()
    with hosts(given.hosts) as ground:
        plain, mixed, nonce = ground.place / "lines", ground.place / "mixed", secrets.token_hex(8)
        with plain.open("wb") as out:
            out.writelines(line(i) for i in range(given.lines))
        with mixed.open("wb") as out:
            for start in range(0, given.lines, 20):
                for rank in range(given.hosts):
                    block = b"".join(line(i) for i in range(start, min(start + 20, given.lines)))
                    out.writelines(frames.split_into_frames(frames.build_head(nonce, rank), frames.OUT, block))
        env = ground.env()
        recorded = ground.place / "client/.local/state/ipexctl/runs"

        def clean() -> None:
            shutil.rmtree(recorded, ignore_errors=True)

        words = [sys.executable, str(OURS), str(ground.hostfile), str(mixed), nonce, str(given.hosts)]
        saved = kept(recorded, given.hosts, plain.stat().st_size)
        live = ["script", "-q", "-e", "-c", " ".join([*words, "live"]), "/dev/null"]
        tried = [
            Case("ipexctl, plain", [*words, "plain"], env, saved, before=clean),
            Case("ipexctl, live", live, env | {"TERM": "xterm-256color"}, saved, before=clean),
        ]
        every = lines_in(total)
        if interpreter := python(given.peers):
            client: Words = [interpreter, CLIENTS, "stream", "asyncssh", ground.place, str(ground.port), "32"]
            told = [*client, f"cat {plain}", "--", *ground.addresses]
            tried.append(Case("asyncssh, a line at a time", told, env, every))
        for case in asking(ground, given.peers, f"cat {plain}", "", False):
            if case.name.startswith(("xargs", "pdsh", "clush")):
                name = case.name.replace("xargs ssh", "ssh without prefixes")
                tried.append(Case(name, case.argv, case.env, every))
        results = interleaved(chosen(tried, given.only), given.rounds, LIMIT)
    heads = ["tool", "wall s", "million lines/s", "client CPU µs/line", "RSS MiB"]
    table = Table(heads, [row(costs, total) for costs in results], digits={"RSS MiB": 0})
    subject = f"{given.hosts} × {given.lines:,} lines of 100 bytes, medians of {given.rounds} interleaved rounds"
    publish(Measurement("stream", subject, said, [table], list_loads(results)), given)


def line(number: int) -> bytes:
    return (b"step %07d " % number).ljust(99, b".") + b"\n"


def lines_in(total: int) -> Callable[[Path], str]:
    def fits(out: Path) -> str:
        with out.open("rb") as file:  # in pieces: what this process holds would count as its children's memory
            found = sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))
        return "" if found == total else f"{found} lines only"

    return fits


def kept(recorded: Path, ranks: int, size: int) -> Callable[[Path], str]:
    """Every rank's file is whole."""

    def fits(_: Path) -> str:
        sizes = sorted(path.stat().st_size for path in recorded.glob("*/ranks/*.out"))
        return "" if sizes == [size] * ranks else f"ranks' files of {sizes} bytes, not {size}"

    return fits


def row(costs: Costs, total: int) -> list[Cell]:
    if costs.wrong:
        return [costs.name, f"({costs.wrong[:60]})", "", "", ""]
    return [costs.name, costs.wall, total / costs.wall / 1e6, costs.cpu / total * 1e6, costs.rss]


if __name__ == "__main__":
    main()
