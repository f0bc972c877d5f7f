"""How long until every host has answered, connections and all: ``ipexctl doctor`` and other ways to ask many hosts.

``small`` is one command with an answer of 20 KB; ``probe`` is doctor's own question, so that the work on the hosts,
which share our cores, is the same for all. Only ipexctl carries the question to the hosts (20 KB; the others find it in
a file there), and reads and judges the answers.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from ground import (
    CLIENTS,
    IPEXCTL,
    WORKERS,
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
    tool,
)
from tables import Cell, Measurement, Table, publish

import ipexctl
from ipexctl.decide.facts.probe_output import build_probe_command
from ipexctl.verbs.common.probe import VENV

LIMIT = 600.0


def main() -> None:
    parser = arguments(__doc__ or "", hosts=64)
    parser.add_argument("--slow", action="store_true", help="also ansible and pyinfra (peers.py --slow)")
    parser.add_argument("--same", action="store_true", help="only doctor's own question, not the small command")
    given = parser.parse_args()
    said = conditions()
    with hosts(given.hosts) as ground:
        end = f"end-{secrets.token_hex(8)}"
        (ground.place / "answer").write_text("x" * 79 * 1 + "\n" + ("y" * 79 + "\n") * 255 + end + "\n")
        text = (Path(ipexctl.__file__).parent / "remote/probe.sh").read_text()
        command = build_probe_command(text, end, venv=VENV, workdir=f"{ground.place}/hosts/h000")
        (ground.place / "probe").write_bytes(command.stdin)
        words = " ".join(word or "''" for word in command.argv).replace("sh -s --", f"sh {ground.place}/probe")
        doctor = Case(
            "ipexctl doctor",
            [*IPEXCTL, "doctor", "--json", "--pairwise", "off", "-f", ground.hostfile, "--timeout", "120"],
            ground.env(),
            answers(given.hosts),
            statuses=(0, 4),
        )
        small = chosen(cases(ground, given.peers, f"cat {ground.place}/answer", end, given.slow), given.only)
        asked = chosen(cases(ground, given.peers, words, f"{end} done", False), given.only)
        if given.same:
            small = []
        results = interleaved([doctor, *small, *asked], given.rounds, LIMIT)
    rows = [row(costs, results[0], given.hosts, "probe") for costs in results[:1]]
    rows += [row(costs, results[0], given.hosts, "small") for costs in results[1 : 1 + len(small)]]
    rows += [row(costs, results[0], given.hosts, "probe") for costs in results[1 + len(small) :]]
    heads = ["tool", "asked", "wall s", "× ipexctl", "client CPU ms/host", "client RSS MiB"]
    table = Table(heads, rows, digits={"client CPU ms/host": 1, "client RSS MiB": 0})
    subject = f"{given.hosts} hosts, {WORKERS} at once, medians of {given.rounds} interleaved rounds"
    publish(Measurement("fanout", subject, said, [table], list_loads(results)), given)


def row(costs: Costs, ours: Costs, count: int, asked: str) -> list[Cell]:
    if costs.wrong:
        return [costs.name, asked, f"({costs.wrong[:60]})", "", "", ""]
    return [costs.name, asked, costs.wall, costs.wall / ours.wall, 1000 * costs.cpu / count, costs.rss]


def answers(count: int) -> Callable[[Path], str]:
    def fits(out: Path) -> str:
        text = out.read_text()
        try:
            read = json.loads(text[text.index("{") :])
        except ValueError:
            return "no JSON"
        known = [host for host in read["hosts"] if host["facts"] and host["facts"]["logical_online"]]
        return "" if len(known) == count else f"facts of {len(known)} hosts only"

    return fits


def ends(count: int, end: str) -> Callable[[Path], str]:
    """Every host's answer has come to its end."""

    def fits(out: Path) -> str:
        found = out.read_bytes().count(end.encode())
        return "" if found == count else f"{found} answers only"

    return fits


def cases(ground: Ground, peers: Path | None, command: str, end: str, slow: bool) -> list[Case]:
    fits, env, found = ends(len(ground.addresses), end), ground.env(), []
    if interpreter := python(peers):
        for library in ("transport", "sshclient", "fabric", "asyncssh"):
            words: Words = [
                interpreter,
                CLIENTS,
                "fanout",
                library,
                ground.place,
                str(ground.port),
                str(WORKERS),
                command,
            ]
            names = {"transport": "Paramiko Transport, tuned", "sshclient": "Paramiko SSHClient"}
            found.append(Case(names.get(library, library), [*words, "--", *ground.addresses], env, fits))
    listed = ground.place / "addresses"
    listed.write_text("\n".join(ground.addresses) + "\n")
    xargs: Words = ["xargs", "-a", listed, "-P", str(WORKERS), "-I", "{}", *ground.ssh(tuned=True), "{}", command]
    found.append(Case("xargs ssh, tuned", xargs, env, fits))
    where = ",".join(ground.addresses)
    if pdsh := tool("pdsh", peers):
        more = {"PDSH_SSH_ARGS_APPEND": f"-F {ground.place}/default"}
        found.append(Case("pdsh", [pdsh, "-R", "ssh", "-f", str(WORKERS), "-w", where, command], env | more, fits))
    if clush := tool("clush", peers):
        options = ["-f", str(WORKERS), "-q", "-o", f"-F {ground.place}/default", "-w", where]
        found.append(Case("clush", [clush, *options, command], env, fits))
    if slow and (ansible := tool("ansible", peers)):
        inventory = ground.place / "inventory"
        inventory.write_text("".join(f"{address} ansible_port={ground.port}\n" for address in ground.addresses))
        more = {
            "ANSIBLE_SSH_ARGS": f"-F {ground.place}/default",
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "ANSIBLE_LOCAL_TEMP": str(ground.place / "ansible"),
        }
        words = [ansible, "all", "-i", inventory, "-f", str(WORKERS), "-m", "setup"]
        everywhere = ends(len(ground.addresses), "ansible_facts")
        found.append(Case("ansible setup", words, env | more, everywhere))
    if slow and (pyinfra := tool("pyinfra", peers)):
        listing = ground.place / "inventory.py"
        data = {"ssh_port": ground.port, "ssh_key": str(ground.key), "ssh_user": os.environ.get("USER", "root")}
        listing.write_text(f"hosts = {[(address, data) for address in ground.addresses]!r}\n")
        found.append(Case("pyinfra", [pyinfra, "-y", listing, "exec", "--", command], env, fits))
    return found


if __name__ == "__main__":
    main()
