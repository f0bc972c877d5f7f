"""``ipexctl migrate``: lists a script's uses of IPEX and oneCCL with their replacements; compares both on one host."""

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.act.inputs import read_input
from ipexctl.data import read_data
from ipexctl.decide import migration
from ipexctl.decide.launch.launch_line import LaunchLine, LaunchTable
from ipexctl.decide.releases.framework_options import parse_options
from ipexctl.model.answers import tools as answers
from ipexctl.model.errors import Exit
from ipexctl.model.events import Answer, Ended, Event, Message, Started
from ipexctl.model.hosts import Inventory
from ipexctl.model.json_values import Record
from ipexctl.model.tasks import Run
from ipexctl.model.toml import parse_toml
from ipexctl.verbs.common.nested import RunMetrics, collect_metrics
from ipexctl.verbs.run.run import run


class Comparison(Record):
    """The runs of ``--compare``: the script in the environment with IPEX, ``migrated`` in the one without.
    Environments are paths on the host (None: the installed one)."""

    inventory: Inventory
    migrated: str
    ipex_venv: str | None
    native_venv: str
    ppn: int
    args: Sequence[str]


def convert_launch_line(line: str, cwd: Path = Path()) -> tuple[list[str], list[str]]:
    """The options of ``run`` and the words of the script; a batch file is looked up in ``cwd``. Raises `UsageError`, or
    `ValueError` for open quotes."""
    table = LaunchTable(**parse_toml(read_data("launchers.toml")))
    return LaunchLine(line, table, lambda name: read_input(name, cwd=cwd).text).convert()


def migrate(
    file: str, comparison: Comparison | None, context: Context, environ: Mapping[str, str]
) -> Generator[Event, None, None]:
    """Yields a `MigrateAnswer` with the uses in ``file`` and, with ``comparison``, the times of both runs."""
    text = read_input(file).text
    changed_options = migration.list_rules_of_retired_options(parse_options(read_data("options.toml")))
    rules = (*migration.parse_rules(read_data("migrate.toml")), *changed_options)
    hits = migration.find_uses(text, file, rules, partial(convert_launch_line, cwd=Path(file).parent))
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
    file: str, comparison: Comparison, context: Context, environ: Mapping[str, str]
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
        metrics: RunMetrics = yield from collect_metrics(run(task, inventory, context, environ))
        rates = (line.get("samples_per_s") for _, line in reversed(metrics.lines))
        rate = next((rate for rate in rates if isinstance(rate, int | float)), None)
        rows.append(answers.ComparedRun(name, script, venv, metrics.good, metrics.seconds, rate))
        exit = metrics.exit
        if not metrics.good:
            break
    return migration.compare_runs(head.name, rows), exit
