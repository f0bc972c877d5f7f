"""``ipexctl migrate``: what a script uses of IPEX and oneCCL, what each became; and both ways timed on one host."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from ipexctl.act.context import Context
from ipexctl.act.inputs import read_input
from ipexctl.data import read_data
from ipexctl.decide import migration
from ipexctl.decide.releases.framework_options import parse_options
from ipexctl.model import answers
from ipexctl.model.errors import Exit
from ipexctl.model.events import Answer, Ended, Event, Message, Started
from ipexctl.model.hosts import Inventory
from ipexctl.model.tasks import Run
from ipexctl.verbs.run.metrics import RunMetrics, collect_metrics
from ipexctl.verbs.run.run import run


@dataclass(frozen=True, slots=True)
class Comparison:
    """What ``--compare`` runs: the script in the environment with IPEX, ``migrated`` in the one without. The
    environments are paths on the host (None: the installed one)."""

    inventory: Inventory
    migrated: str
    ipex_venv: str | None
    native_venv: str
    ppn: int
    args: Sequence[str]


def load_words() -> tuple[migration.MigrationRule, ...]:
    """All words that are looked for."""
    return (
        *migration.parse_rules(read_data("migrate.toml")),
        *migration.rules_from_options(parse_options(read_data("options.toml"))),
    )


def migrate(
    file: str, comparison: Comparison | None, context: Context, environ: Mapping[str, str]
) -> Generator[Event, None, None]:
    """The answer has ``uses``, and with a comparison ``compare``; ``text`` is for people."""
    text = read_input(file).text
    found = migration.find_hits(text, file, load_words())
    yield Started("migrate", file, comparison.inventory.names[:1] if comparison else ())
    report = migration.format_report(found, file)
    exit = Exit.OK
    compared: answers.Comparison | None = None
    if comparison:
        compared, exit = yield from _compare(file, comparison, context, environ)
        report += "\n\n" + migration.describe_speedup(compared)
    yield Answer(answers.MigrateAnswer(file, found, report, compared))
    yield Ended("migrate", exit)


def _compare(
    file: str, asked: Comparison, context: Context, environ: Mapping[str, str]
) -> Generator[Event, None, tuple[answers.Comparison, Exit]]:
    """Both, one after the other; the second only if the first ended well, so that the report is of what failed."""
    head = asked.inventory.hosts[0]
    inventory = Inventory((head,))
    rows: list[answers.ComparedRun] = []
    exit = Exit.OK
    for name, script, venv in (
        ("with IPEX", file, asked.ipex_venv),
        ("without", asked.migrated, asked.native_venv),
    ):
        yield Message(f"{script}, {name}: {venv or 'the installed environment'}")
        task = Run(script=script, args=tuple(asked.args), ppn=asked.ppn, venv=venv, backend="gloo")
        seen: RunMetrics = yield from collect_metrics(run(task, inventory, context, environ))
        rows.append(_compared_run(name, script, venv, seen))
        exit = seen.exit
        if not seen.good:
            break
    return migration.compare(head.name, rows), exit


def _compared_run(name: str, script: str, venv: str | None, seen: RunMetrics) -> answers.ComparedRun:
    values = (line.get("samples_per_s") for _, line in seen.lines)
    rates = [value for value in values if isinstance(value, int | float)]
    return answers.ComparedRun(name, script, venv, seen.good, seen.seconds, rates[-1] if rates else None)
