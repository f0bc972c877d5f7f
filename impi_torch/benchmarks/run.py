"""All-reduce of impi against Gloo and against IMB-MPI1, and DDP steps a second; as Markdown and a plot.

    python benchmarks/run.py OUT.json [--quick]      measure a round, added to those in OUT.json (as root)
    python benchmarks/run.py --report OUT.json DIR   write DIR/impi-benchmark.md and DIR/impi-benchmark.svg

Every figure is a median; impi, Gloo and a backend that does nothing alternate in blocks within one job, IMB's jobs
alternate with theirs. What else runs on the machine hits all of them alike; the load is written down with each round.
Each rank has one core of its own, as long as there are enough: two hosts of the test are then two machines with a core
each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import isnan
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
import hosts as namespaces  # noqa: E402

CORES = sorted(os.sched_getaffinity(0))
# Intel MPI would give a rank that is alone on a "host" all cores of the machine, those of the other host too.
PINNED = ["sh", "-c", f'exec taskset -c $((PMI_RANK % {len(CORES)})) "$@"', "sh"]
SIZES = [1 << n for n in range(10, 29, 2)]  # 1 KB to 256 MB
PLACES = [(2, 1), (4, 1), (2, 2), (4, 2)]  # ranks, hosts


def run(argv: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        print(done.stdout[-500:], done.stderr[-2000:], file=sys.stderr)
    return done.stdout


def results(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.split("RESULT ", 1)[1]) for line in text.splitlines() if "RESULT {" in line]


def imb(text: str) -> dict[int, float]:
    """Bytes → seconds, IMB's t_avg."""
    rows = [line.split() for line in text.splitlines()]
    return {int(r[0]): float(r[4]) / 1e6 for r in rows if len(r) == 5 and r[0].isdigit() and r[1].isdigit()}


def measure(out: Path, quick: bool) -> None:
    sizes = SIZES[1:-2:2] if quick else SIZES  # 4 KB, 64 KB, 1 MB, 16 MB
    blocks = 5
    data: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"allreduce": [], "ddp": [], "imb": []}
    turn = max((row["round"] + 1 for row in data["allreduce"]), default=0)
    with namespaces.hosts(2) as made:
        for ranks, hosts in PLACES:
            env = {**namespaces.environment(), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "I_MPI_PIN": "0"}
            if hosts == 1:
                start = ["mpirun", "-n", str(ranks)]
                env["GLOO_SOCKET_IFNAME"] = "lo"
            else:
                start = made.mpirun(ranks, ranks // hosts)
                env |= {"GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": made.addresses[0]}
            place = {"ranks": ranks, "hosts": hosts, "round": turn, "load": os.getloadavg()[0]}
            start += PINNED
            words = [str(blocks), *map(str, sizes)]
            text = run([*start, sys.executable, str(HERE / "allreduce_ranks.py"), *words], env)
            data["allreduce"] += [{**place, **row} for row in results(text)]
            logs = f"{sizes[0].bit_length() - 1}:{sizes[-1].bit_length() - 1}"
            words = ["-npmin", str(ranks), "-msglog", logs, "-mem", "4", "-time", "1", "-iter", "200"]
            text = run([*start, "IMB-MPI1", "Allreduce", *words], env)
            data["imb"] += [{**place, "size": size, "time": time} for size, time in imb(text).items()]
            text = run([*start, sys.executable, str(HERE / "ddp_ranks.py"), str(blocks)], env)
            data["ddp"] += [{**place, **row} for row in results(text)]
            out.write_text(json.dumps(data))
            print(f"round {turn + 1}: {ranks} ranks, {hosts} hosts, load {place['load']:.1f}", flush=True)


def collected(rows: list[dict[str, Any]], key: str, place: tuple[int, int]) -> dict[Any, dict[str, list[float]]]:
    found: dict[Any, dict[str, list[float]]] = {}
    for row in rows:
        if (row["ranks"], row["hosts"]) == place:
            into = found.setdefault(row[key], {})
            for name in ("impi", "gloo", "nothing", "time"):
                into.setdefault(name, []).extend(
                    row[name] if isinstance(row.get(name), list) else [row[name]] if name in row else []
                )
    return found


def bytes_in_words(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def seconds(value: float) -> str:
    if isnan(value):
        return "–"
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.2f} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"


def report(source: Path, folder: Path) -> None:
    data = json.loads(source.read_text())
    lines = []
    drawn: dict[str, list[tuple[int, float, float, float]]] = {}
    for place in PLACES:
        table = collected(data["allreduce"], "size", place)
        peer = collected(data["imb"], "size", place)
        if not table:
            continue
        title = f"{place[0]} ranks on {place[1]} host{'s' * (place[1] > 1)}"
        lines += [
            f"### All-reduce, {title}",
            "",
            "| size | impi | Gloo | IMB | Gloo ÷ impi | impi ÷ IMB | nothing ÷ IMB |",
            "|---:|---:|---:|---:|---:|---:|---:|",
        ]
        drawn[title] = []
        for size in sorted(table):
            ours, gloo = median(table[size]["impi"]), median(table[size]["gloo"])
            theirs = median(peer[size]["time"]) if peer.get(size, {}).get("time") else float("nan")
            least = median(table[size]["nothing"]) if table[size].get("nothing") else float("nan")
            drawn[title].append((size, ours, gloo, theirs))
            lines.append(
                f"| {bytes_in_words(size)} | {seconds(ours)} | {seconds(gloo)} | {seconds(theirs)} | "
                f"{gloo / ours:.1f} | {'–' if isnan(theirs) else f'{ours / theirs:.2f}'} | "
                f"{'–' if isnan(theirs) or isnan(least) else f'{least / theirs:.2f}'} |"
            )
        lines.append("")
    heading = "| model | placement | impi | Gloo | impi ÷ Gloo |"
    lines += ["### DDP steps a second", "", heading, "|---|---|---:|---:|---:|"]
    bars = []
    for place in PLACES:
        for model, times in collected(data["ddp"], "model", place).items():
            ours, gloo = 1 / median(times["impi"]), 1 / median(times["gloo"])
            bars.append((model, place, ours / gloo))
            where = f"{place[0]} ranks, {place[1]} host{'s' * (place[1] > 1)}"
            lines.append(f"| {model} | {where} | {ours:.1f} | {gloo:.1f} | {ours / gloo:.2f} |")
    loads = [row["load"] for row in data["allreduce"]]
    lines += ["", f"Load of the machine while measuring (two cores): {min(loads):.1f} to {max(loads):.1f}.", ""]
    Path(folder, "impi-benchmark.md").write_text("\n".join(lines))
    plot(drawn, bars, Path(folder, "impi-benchmark.svg"))


def plot(drawn: dict[str, list[tuple[int, float, float, float]]], bars: list[Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "impi", "svg.fonttype": "none", "font.size": 8})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(drawn) + 1, figsize=(3.1 * (len(drawn) + 1), 3.2))
    for axis, (title, rows) in zip(axes, drawn.items()):
        sizes = [row[0] for row in rows]
        for column, (name, style) in enumerate((("impi", "o-"), ("Gloo", "s--"), ("IMB-MPI1", "^:")), start=1):
            axis.loglog(sizes, [row[column] for row in rows], style, label=name, markersize=3, linewidth=1)
        axis.set_title(title)
        axis.set_xlabel("bytes")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds for one all-reduce")
    axes[0].legend()
    last = axes[-1]
    names = [f"{model[:11]}\n{place[0]}r {place[1]}h" for model, place, _ in bars]
    last.barh(names, [ratio for _, _, ratio in bars])
    last.axvline(1.0, color="black", linewidth=0.8)
    last.tick_params(axis="y", labelsize=5)
    last.set_title("DDP steps/s, impi ÷ Gloo")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1] == "--report":
        report(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        measure(Path(sys.argv[1]), "--quick" in sys.argv)
