"""Runs the benchmarks of scripts.toml, and writes RESULTS.md with its plots.

    python benchmarks/run_all.py --peers DIRECTORY [--quick] [--rounds N] [--only launch,push]
    python benchmarks/run_all.py --pages                 # measures nothing: only the pages anew

What a script measures replaces results/NAME.json; of the others RESULTS.md shows what is there, with its date. With
``--quick``, or with ``--to``, everything is written into another directory.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from plots import draw_verdicts
from tables import Measurement, read_measurement
from targets import Target, Verdict, judge, read_targets

from ipexctl.model.toml import parse_toml

PLACE = Path(__file__).parent
RESULTS, PLOTS, PAGE = "results", "plots", "RESULTS.md"


@dataclass(frozen=True)
class Script:
    """An entry of scripts.toml."""

    name: str
    title: str
    arguments: Sequence[str]
    quick: Sequence[str]
    rounds: int | None = None
    needs: Sequence[str] = ()

    def build_argv(self, given: argparse.Namespace, output: Path) -> list[str]:
        """The command that measures and writes ``output``."""
        places = {"peers": str(given.peers), "stack": f"{given.peers}/stack"}
        words = [word.format_map(places) for word in (self.quick if given.quick else self.arguments)]
        rounds = given.rounds or (1 if given.quick else self.rounds)
        words += ["--rounds", str(rounds)] if self.rounds else []
        return [sys.executable, str(PLACE / f"{self.name}.py"), *words, "--json", str(output)]


@dataclass(frozen=True)
class Section:
    """What the page says of one script. ``note`` is hand-written Markdown (notes/NAME.md); ``plot`` an SVG or empty."""

    script: str
    title: str
    measurement: Measurement | None
    note: str
    plot: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="directory that peers.py --stack has made")
    parser.add_argument("--quick", action="store_true", help="small measurements, to see that everything works")
    parser.add_argument("--rounds", type=int, help="of each script that has rounds")
    parser.add_argument("--only", help="names of scripts, with commas between")
    parser.add_argument("--pages", action="store_true", help="measure nothing")
    parser.add_argument("--to", type=Path, help="directory of results, plots and page (default: that of this script)")
    given = parser.parse_args()
    if not given.pages and not given.peers:
        parser.error("--peers is needed to measure")
    scripts = read_scripts()
    chosen = given.only.split(",") if given.only else [script.name for script in scripts]
    if unknown := set(chosen) - {script.name for script in scripts}:
        parser.error(f"no such script: {', '.join(sorted(unknown))}")
    target: Path = given.to or (Path(tempfile.mkdtemp(prefix="ipexctl-bench-quick-")) if given.quick else PLACE)
    failed = []
    if not given.pages:
        given.peers = given.peers.absolute()
        measured = [script for script in scripts if script.name in chosen]
        failed = [script.name for script in measured if not measure(script, given, target / RESULTS)]
    verdicts = write_pages(scripts, target)
    for verdict in verdicts:
        print(f"{verdict.word:12}  {verdict.target.what}")
    print(f"\n{target / PAGE}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def read_scripts(file: Path = PLACE / "scripts.toml") -> list[Script]:
    """Raises `TypeError` for an unknown key."""
    return [Script(**entry) for entry in parse_toml(file.read_text("utf-8"))["script"]]


def measure(script: Script, given: argparse.Namespace, results: Path) -> bool:
    """Runs a script; what it has measured lies in ``results`` then. False where it failed or cannot be run here."""
    if lacking := [program for program in script.needs if not shutil.which(program)]:
        print(f"{script.name}: not without {', '.join(lacking)}", file=sys.stderr)
        return False
    results.mkdir(parents=True, exist_ok=True)
    begun, output = time.monotonic(), results / f"{script.name}.new"
    print(f"\n== {script.name}", file=sys.stderr, flush=True)
    output.unlink(missing_ok=True)
    status = subprocess.run(script.build_argv(given, output), stdin=subprocess.DEVNULL).returncode
    print(f"== {script.name}: {time.monotonic() - begun:.0f} s, status {status}", file=sys.stderr, flush=True)
    if status or not output.exists():
        return False
    output.replace(results / f"{script.name}.json")
    return True


def write_pages(
    scripts: Sequence[Script], target: Path, notes: Path = PLACE / "notes", targets: Sequence[Target] | None = None
) -> list[Verdict]:
    """Writes RESULTS.md and its plots into ``target``, from ``target``/results and the notes; returns the verdicts on
    ``targets`` (those of targets.toml)."""
    files = {script.name: target / RESULTS / f"{script.name}.json" for script in scripts}
    measured = {name: read_measurement(file.read_text("utf-8")) for name, file in files.items() if file.exists()}
    verdicts = [judge(each, measured.get(each.script)) for each in (read_targets() if targets is None else targets)]
    (target / PLOTS).mkdir(exist_ok=True)
    sections = []
    for script in scripts:
        own = [verdict for verdict in verdicts if verdict.target.script == script.name]
        plot = draw_verdicts(f"{script.title}, parts of the targets", own)
        if plot:
            (target / PLOTS / f"{script.name}.svg").write_text(plot, encoding="utf-8")
        note = read_note(notes / f"{script.name}.md")
        sections.append(Section(script.name, script.title, measured.get(script.name), note, plot))
    frame = {"intro": read_note(notes / "intro.md"), "outro": read_note(notes / "outro.md")}
    text = build_page(sections, verdicts, frame)
    (target / PAGE).write_text(text, encoding="utf-8")
    return verdicts


def read_note(file: Path) -> str:
    return file.read_text("utf-8").strip() if file.exists() else ""


def build_page(sections: Sequence[Section], verdicts: Sequence[Verdict], frame: Mapping[str, str]) -> str:
    """RESULTS.md, from its template."""
    template = (PLACE / "RESULTS.md.j2").read_text("utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(template).render(sections=sections, verdicts=verdicts, **frame).rstrip() + "\n"


if __name__ == "__main__":
    main()
