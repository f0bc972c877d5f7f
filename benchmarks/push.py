"""How long until a directory is on every host: ``ipexctl sync`` and other ways to push files, connections and all.

Two pushes: 200 small files to empty hosts; and the same again, where nothing has changed. Each push of every tool
begins from the same state, with nothing left to write to disk.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

from ground import (
    CLIENTS,
    IPEXCTL,
    Case,
    Costs,
    Ground,
    Words,
    arguments,
    chosen,
    conditions,
    hosts,
    interleaved,
    list_loads,
    python,
)
from tables import Cell, Measurement, Table, publish

LIMIT = 300.0


def main() -> None:
    given = arguments(__doc__ or "", hosts=16, files=200).parse_args()
    said = conditions()
    tables: list[Table] = []
    loads: list[float] = []

    def measure(title: str, cases: list[Case]) -> None:
        results = interleaved(cases, given.rounds, LIMIT)
        tables.append(build_table(title, results))
        loads.extend(list_loads(results))

    chance = random.Random(1)
    with hosts(given.hosts) as ground:
        source, there, numbers = ground.place / "source", ground.place / "hosts", itertools.count()
        for i in range(given.files):
            (source / f"pkg{i % 10}").mkdir(parents=True, exist_ok=True)
            (source / f"pkg{i % 10}/module{i}.py").write_bytes(chance.randbytes(5000))

        def empty() -> None:
            """Gives the hosts new directories. The old ones are removed at the end only: for some time ext4 does not
            use the inodes of removed files again, and looks at each of them for every new file (`recently_deleted`
            in fs/ext4/ialloc.c), which took longer than the push."""
            if there.exists():
                there.rename(ground.place / f"old-hosts-{next(numbers)}")
            there.mkdir(mode=0o700)
            os.sync()

        whole = same(source, ground)
        first = chosen(cases(ground, given.peers, source, whole, empty), given.only)
        measure(f"{given.files} files, 1 MB, to empty hosts", first)

        settled = [case for case in cases(ground, given.peers, source, whole, lambda: None) if again(case.name)]
        for case in settled[:1]:
            interleaved([case], 1, LIMIT)  # so that there is something that has not changed
        measure("the same again, nothing has changed", settled)

    subject = f"{given.hosts} hosts, all at once, medians of {given.rounds} interleaved rounds"
    publish(Measurement("push", subject, said, tables, loads), given)


def again(name: str) -> bool:
    """Does the tool look at what is there?"""
    return "ipexctl" in name or "rsync" in name


def build_table(title: str, results: list[Costs]) -> Table:
    rows: list[list[Cell]] = [
        [costs.name, f"({costs.wrong[:60]})", "", ""]
        if costs.wrong
        else [costs.name, costs.wall, costs.wall / results[0].wall, costs.cpu]
        for costs in results
    ]
    return Table(["tool", "wall s", "× ipexctl", "client CPU s"], rows, title)


def same(source: Path, ground: Ground) -> Callable[[Path], str]:
    """Is everything on every host?"""

    def fits(out: Path) -> str:
        for i in range(len(ground.addresses)):
            for path in source.rglob("*"):
                there = ground.place / f"hosts/h{i:03}" / path.relative_to(source)
                if path.is_file() and (not there.is_file() or there.stat().st_size != path.stat().st_size):
                    return f"{there} is not there"
        return ""

    return fits


def cases(
    ground: Ground, peers: Path | None, source: Path, fits: Callable[[Path], str], before: Callable[[], None]
) -> list[Case]:
    env = ground.env()
    listed = ground.place / "pairs"
    listed.write_text("".join(f"{address} h{i:03}\n" for i, address in enumerate(ground.addresses)))

    def shell(name: str, line: str) -> Case:
        """A line of shell for each host, with its address in $0 and its directory in $1."""
        words: Words = ["xargs", "-a", listed, "-P", str(len(ground.addresses)), "-L", "1", "sh", "-c", line]
        return Case(name, words, env, fits, before=before)

    ssh = " ".join(ground.ssh(tuned=True))
    there = f"{ground.place}/hosts/$1"
    found = [
        Case("ipexctl sync", [*IPEXCTL, "sync", source, "-f", ground.hostfile], env, fits, before=before),
        shell("rsync, tuned ssh", f"rsync -a -e '{ssh}' {source}/ $0:{there}/"),
        # It waits for the disk, as sync does, so that a host that loses power keeps what was answered.
        shell("rsync --fsync, tuned ssh", f"rsync -a --fsync -e '{ssh}' {source}/ $0:{there}/"),
        shell("tar over tuned ssh", f'tar -C {source} -cf - . | {ssh} $0 "mkdir -p {there} && tar -C {there} -xf -"'),
        shell("scp -r, tuned ssh", f"scp -q -r -F {ground.place}/tuned {source} $0:{there}"),
    ]  # fmt: skip
    if interpreter := python(peers):
        for library in ("transport", "fabric"):
            start: Words = [interpreter, CLIENTS, "push", library, ground.place, str(ground.port)]
            words = [*start, str(len(ground.addresses)), source, "--", *ground.addresses]
            names = {"transport": "tar over Paramiko Transport, tuned", "fabric": "Fabric put"}
            found.append(Case(names[library], words, env, fits, before=before))
    return found


if __name__ == "__main__":
    main()
