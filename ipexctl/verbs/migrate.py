"""``ipexctl migrate``: lists a script's uses of IPEX and oneCCL with their replacements; compares both on one host."""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.act.inputs import read_input
from ipexctl.data import read_data
from ipexctl.decide import migration
from ipexctl.decide.launch.launch_line import find_launches_of_file, translate_found, translate_line
from ipexctl.decide.launch.launch_script import FoundLaunch
from ipexctl.decide.launch.launch_table import parse_launch_table
from ipexctl.decide.launch.launch_words import Translation
from ipexctl.decide.releases.framework_options import parse_options
from ipexctl.decide.run.report import make_report
from ipexctl.model.answers import tools as answers
from ipexctl.model.errors import Exit
from ipexctl.model.events import Answer, Ended, Event, Message, Started
from ipexctl.model.hosts import Inventory
from ipexctl.model.json_values import Record
from ipexctl.model.tasks import Run
from ipexctl.verbs.common.nested import fold_run
from ipexctl.verbs.run.run import run


class ComparedRuns(Record):
    """The runs of ``--compare``: the script in the environment with IPEX, ``migrated`` in the one without.
    Environments are paths on the host (None: the installed one)."""

    inventory: Inventory
    migrated: str
    ipex_venv: str | None
    native_venv: str
    ppn: int
    args: Sequence[str]


class LaunchLines:
    """Finds and translates launch lines; batch files and hostfiles that they name are looked up in ``cwd``."""

    def __init__(self, cwd: Path = Path()) -> None:
        self.table, self.cwd = parse_launch_table(read_data("launchers.toml")), cwd

    def find(self, text: str, file: str) -> list[FoundLaunch]:
        """Returns the launch lines of a file."""
        return find_launches_of_file(text, file, self.table)

    def translate(self, launch: FoundLaunch) -> Translation:
        """Returns what takes the place of one in its file. Raises `UsageError`, or `ValueError` for open quotes."""
        return translate_found(launch, self.table, self._read)

    def translate_line(self, line: str) -> Translation:
        """Returns what a line alone becomes. Raises as `translate`."""
        return translate_line(line, self.table, self._read)

    def _read(self, name: str) -> str:
        return read_input(name, cwd=self.cwd).text


def migrate(
    file: str, comparison: ComparedRuns | None, context: Context, environ: Mapping[str, str]
) -> Generator[Event, None, None]:
    """Yields a `MigrateAnswer` with the uses in ``file`` and, with ``comparison``, the times of both runs."""
    text = read_input(file).text
    changed_options = migration.list_rules_of_retired_options(parse_options(read_data("options.toml")))
    rules = (*migration.parse_rules(read_data("migrate.toml")), *changed_options)
    hits = migration.find_uses(text, file, rules, LaunchLines(Path(file).parent))
    yield Started("migrate", file, comparison.inventory.names[:1] if comparison else ())
    report = migration.format_report(hits, file)
    exit = Exit.OK
    compared: answers.Comparison | None = None
    if comparison:
        compared, exit = yield from _compare_scripts(file, comparison, context, environ)
        report += "\n\n" + migration.describe_speedup(compared)
    yield Answer(answers.MigrateAnswer(file, hits, report, compared))
    yield Ended("migrate", exit)


def _compare_scripts(
    file: str, comparison: ComparedRuns, context: Context, environ: Mapping[str, str]
) -> Generator[Event, None, tuple[answers.Comparison, Exit]]:
    """Runs both scripts in turn, the second only if the first succeeds; returns their times and the exit code."""
    head = comparison.inventory.hosts[0]
    inventory = Inventory((head,))
    rows: list[answers.ComparedRun] = []
    exit = Exit.OK
    ways = (("with IPEX", file, comparison.ipex_venv), ("without", comparison.migrated, comparison.native_venv))
    for name, script, venv in ways:
        yield Message(f"{script}, {name}: {venv or 'the installed environment'}")
        task = Run(script=script, args=tuple(comparison.args), ppn=comparison.ppn, venv=venv, backend="gloo")
        state = yield from fold_run(run(task, inventory, context, environ), context.clock)
        report, exit = make_report(state), state.exit
        good = report.run is not None and report.run.good and exit is Exit.OK
        rank = state.ranks[0] if state.ranks else None
        seconds = rank.ended.at - rank.stages[0].own if rank and rank.ended and rank.stages else None
        rate = _read_rate(rank.tail) if rank else None
        rows.append(answers.ComparedRun(name, script, venv, good, seconds, rate))
        if not good:
            break
    return migration.compare_runs(head.name, rows), exit


def _read_rate(tail: bytes) -> float | None:
    """The samples a second of the last line of JSON that has them."""
    for line in reversed(tail.decode("utf-8", "replace").splitlines()):
        with suppress(ValueError, KeyError, RecursionError):
            rate = json.loads(line)["samples_per_s"] if line.startswith("{") else None
            if isinstance(rate, int | float):
                return rate
    return None
