"""What people read at the end of a verb, as Rich renderables: which screen an answer has, and the small ones."""

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from rich.console import Console, ConsoleOptions, RenderableType

from ipexctl.model import answers as a
from ipexctl.model.grouping import group_pairs
from ipexctl.model.json_values import to_json
from ipexctl.model.reports import CommandReport, HostOutcome, LostOutput
from ipexctl.model.text import format_size, pluralize
from ipexctl.show import bench_table, phrases, typeset
from ipexctl.show.compare_screen import format_comparison
from ipexctl.show.hosts_screen import format_doctor
from ipexctl.show.profile_screen import format_profile
from ipexctl.show.run_screen import (
    format_cleanup_proof,
    format_next_step,
    format_orphans_step,
    format_run_card,
    format_runs,
    format_stacks,
)
from ipexctl.show.saved_runs_screen import format_pruned_runs, format_saved_runs
from ipexctl.show.tables import format_any_answer
from ipexctl.show.typeset import (
    BAD,
    GOOD,
    QUIET,
    STRONG,
    WARN,
    Line,
    Part,
    labelled,
    outcome,
    split_harmless_lines,
    text,
    whole,
)


def format_answer(value: a.AnyAnswer) -> list[RenderableType]:
    """The screen of an answer; of a dry run, its plan. The card of a run is made from the report (`format_ending`)."""
    match value:
        case a.PlayAnswer():
            return format_play_steps(value.steps, dry=bool(value.dry))
        case a.PlayListAnswer():
            return format_any_answer({"steps": to_json(value.list_)})
        case a.RunPlanAnswer():
            return whole(value.plan)
        case a.DryRun():
            return typeset.format_plan(value.plan)
        case a.SyncAnswer() | a.FetchAnswer() | a.WheelsAnswer() | a.InstallAnswer() if value.dry:
            return typeset.format_plan(value.plan or "")
        case a.DoctorAnswer():
            return format_doctor(value)
        case a.ExplainAnswer():
            return typeset.format_paragraphs(value.text)
        case a.InstallAnswer():
            return format_install(value)
        case a.CommandAnswer():
            return format_command_outputs(value.hosts)
        case a.VerifyAnswer():
            return format_verify(value)
        case a.PsAnswer():
            return format_runs(value)
        case a.RankStacksAnswer():
            return format_stacks(value)
        case a.RunsAnswer():
            return format_saved_runs(value)
        case a.SupportAnswer():
            return whole(value.plan or f"{value.path}: {format_size(value.bytes or 0)}")
        case a.ExportAnswer():
            many = pluralize(len(value.runs), "run")
            return [text(f"{pluralize(value.values, 'value')} of {many} in {value.path} ({value.format})")]
        case a.PruneAnswer():
            return format_pruned_runs(value)
        case a.SyncAnswer() | a.FetchAnswer():
            return format_transfers(value.hosts)
        case a.CompareAnswer():
            return format_comparison(value)
        case a.ReportAnswer():
            return [labelled("page", f"{value.page}  ({format_size(value.bytes)})")]
        case a.RunAnswer():
            return format_profile(value.profile, value.trace or "") if value.profile else []
        case a.ProfileAnswer():
            return format_profile(value.profile, value.trace or "")
        case a.StopAnswer():
            reason = format_any_answer({"run": value.run, "reason": value.reason})
            return [*reason, *format_cleanup_proof(value)]
        case a.ReapAnswer():
            return [*format_any_answer({"removed": value.removed}), *format_cleanup_proof(value)]
        case a.StacksAnswer():
            return [_StackTable(value.text)]
        case a.StacksWhyAnswer() | a.MigrateAnswer():
            return typeset.format_plan(value.text)
        case a.EmitAnswer() | a.HostsAnswer():
            return whole(value.text)
        case a.ShownExampleAnswer():
            return whole(value.text)
        case a.ExamplesAnswer():
            return format_examples(value.examples)
        case a.CopiedExampleAnswer():
            return [labelled("into", value.directory), labelled("files", ", ".join(value.files))]
        case a.BenchAnswer() if value.title:
            return [_BenchTable(value)]
        case a.BenchAnswer():
            return whole(value.text)
        case a.AccelerateAnswer() if value.text is not None:
            return whole(value.text)
        case a.UnknownAnswer():
            return format_any_answer(value.value)
        case _:  # those without a screen of their own
            return format_any_answer({key: part for key, part in to_json(value).items() if key not in _STEPS})


_STEPS = ("next", "then")  # keys of answers: commands that come next


class _StackTable:
    """The version table. On a narrow screen the MPI gives way, then oneCCL, then the processor; what follows the table
    is broken between words."""

    LEAST = ("MPI", "oneccl", "CPU")

    def __init__(self, words: str) -> None:
        table, _, self._notes = words.partition("\n\n")
        rows = [re.split(" {2,}", line) for line in split_harmless_lines(table)]  # no cell but the last is empty
        self._rows = [[*row, *[""] * (len(rows[0]) + 1 - len(row))] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        rows = self._rows
        for name in ("", *self.LEAST):  # at first as they are
            columns = [index for index, head in enumerate(rows[0]) if not name or head != name]
            rows = [[row[index] for index in columns] for row in rows]
            widths = [max(map(phrases.count_cells, column)) for column in zip(*rows, strict=True)]
            if sum(widths) + 2 * len(widths) - 2 <= options.max_width:
                break
        for row in rows:
            cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            yield Line(text("  ".join(cells).rstrip()), whole=True)
        yield from (["", *typeset.format_plan(self._notes)] if self._notes else [])


class _BenchTable:
    """The table of ``bench`` in the width of the screen."""

    def __init__(self, answer: a.BenchAnswer) -> None:
        self._answer = answer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        rows, title, notes = self._answer.rows, self._answer.title, self._answer.notes
        lines = bench_table.format_rows(rows, title, notes, min(options.max_width, bench_table.WIDTH))
        yield from (Line(text(line), 2) for line in lines)


def format_ending(report: CommandReport, *, dry: bool = False) -> list[RenderableType]:
    """The screen of a report: the run's card, the recap, what is not stored. Failures are shown before."""
    # Of a bench, what its runs measured is the answer; only a run that went wrong has something to add.
    measured = report.verb == "bench" and report.run is not None and report.run.reason == "done"
    items: list[RenderableType] = format_run_card(report.run) if report.run and not measured else []
    if report.hosts and not dry and report.verb in ("play", "demo"):
        items += ["", *format_recap(report.hosts)] if items else format_recap(report.hosts)
    return [*items, *(format_lost_output(report.lost) if report.lost else [])]


def format_saved_path(report: CommandReport) -> list[RenderableType]:
    """Where the run is saved."""
    return [labelled("saved", report.saved)] if report.saved else []


def format_next_steps(
    report: CommandReport | None, answer: a.AnyAnswer | None = None, hints: Sequence[str] = ()
) -> list[RenderableType]:
    """The end of every screen: the hints of failures, then what to do next. The last line is a command where there is
    one."""
    items = [item for hint in dict.fromkeys(hints) for item in typeset.format_hint(hint)]
    place = report.place if report else ()
    match answer:
        case a.StopAnswer(run=run):
            items += format_orphans_step(run, answer, place)
        case a.ReapAnswer():
            items += format_orphans_step("", answer, place)
        case a.InitAnswer(next=command, then=then):
            items += typeset.format_next_step(f"first what it would do, then: {then}", command)
        case a.InstallAnswer() | a.LabAnswer() | a.CopiedExampleAnswer() | a.PlayAnswer() | a.PruneAnswer() if (
            answer.next and not hints
        ):
            items += typeset.format_next_step("", answer.next)
    return [*items, *(format_next_step(report.run, place) if report and report.run else [])]


def format_lost_output(output: LostOutput) -> list[RenderableType]:
    """What the record could not store."""
    parts = [f"{pluralize(count, 'byte')} of rank {rank}" for rank, count in list(output.ranks.items())[:8]]
    parts += [f"{output.bytes} bytes in all"] if len(output.ranks) > 8 else []
    parts += [pluralize(output.events, "event")] if output.events else []
    return [Line(text(("! ", WARN), f"not stored: {', '.join([*parts, *output.files])} ({output.why})"), 2)]


def format_install(value: a.InstallAnswer) -> list[RenderableType]:
    """Which stack the hosts have now, and on which of them that changed. Failures are shown by themselves."""
    items: list[RenderableType] = []
    if stack := value.stack:
        versions = (("torch", stack.torch), ("ipex", stack.ipex), ("oneccl", stack.oneccl))
        parts = [f"{name} {version}" for name, version in versions if version]
        parts += [f"{stack.mpi.kind} {stack.mpi.version}".rstrip(), f"Python {stack.python}"]
        items.append(text((" · ".join(parts), STRONG)))
    checks = group_pairs((_describe_check(check), host) for host, check in (value.hosts or {}).items())
    items += [
        Line(text(("✓ ", GOOD), (phrases.format_hosts(hosts), STRONG), f"  {what}"), 2)
        for what, hosts in checks.items()
    ]
    groups = (("changed", value.changed, GOOD), ("unchanged", value.unchanged, QUIET), ("failed", value.failed, BAD))
    items += [labelled(name, (phrases.format_hosts(hosts), style)) for name, hosts, style in groups if hosts]
    return [*items, labelled("venv", value.venv)] if value.venv else items


def _describe_check(check: a.ImportCheck) -> str:
    """What was tried on a host and worked: ``imports torch 2.8.0 · bfloat16 step · AVX512_BF16 · a rank of …``."""
    names = ", ".join(f"{name} {version}".rstrip() for name, version in check.versions.items())
    parts = [f"imports {names}"] if names else []
    parts += [f"{check.same:,} files are those of the environment before, which was checked"] if check.same else []
    parts += [f"{check.dtype} step"] if check.step_ms is not None else []
    parts += [check.isa] if check.isa else []
    return " · ".join([*parts, *([f"a rank of {check.mpi}"] if check.mpi else [])])


def format_transfers(hosts: Mapping[str, a.SyncedHost | a.FetchedHost | a.FailedTransfer]) -> list[RenderableType]:
    """What was sent or fetched, how much and where to; equal hosts share a line. Failures are shown elsewhere."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for host, transfer in hosts.items():
        if not isinstance(transfer, a.FailedTransfer):
            into, name = transfer.workdir if isinstance(transfer, a.SyncedHost) else transfer.directory, ""
            if isinstance(transfer, a.FetchedHost) and into.endswith(f"/{host}"):  # a directory for each host
                into, name = into.removesuffix(host), "each"
            groups.setdefault((_format_amount(transfer), into, name), []).append(host)
    items: list[RenderableType] = []
    for (what, into, each), names in groups.items():
        directory = into + phrases.format_hosts(names if each else ())
        mark: Part = ("✓ ", GOOD) if what != _NOTHING else ("- ", QUIET)
        items.append(Line(text(mark, (phrases.format_hosts(names), STRONG), f"  {what.replace('{}', directory)}"), 2))
    return items


def _format_amount(transfer: a.SyncedHost | a.FetchedHost) -> str:
    """``3 files, 1.2 KiB to {}``, with a placeholder for the directory."""
    sync = isinstance(transfer, a.SyncedHost)
    parts = [f"{pluralize(transfer.files, 'file')}, {format_size(transfer.bytes)}"] if transfer.files else []
    if isinstance(transfer, a.SyncedHost) and transfer.removed:
        parts.append(f"{transfer.removed} removed")
    if parts:
        return f"{', '.join(parts)} {'to' if sync else 'into'} {{}}"
    if isinstance(transfer, a.SyncedHost):
        return "directories only, to {}" if transfer.changed else "nothing to do, {} is the same"
    same = f"{pluralize(transfer.same, 'file')} the same in {{}}"
    return f"nothing to do, {same}" if transfer.same else _NOTHING


_NOTHING = "nothing there"


def format_examples(examples: Sequence[a.ListedExample]) -> list[RenderableType]:
    """Playbooks and examples by their names, each with its first line."""
    items: list[RenderableType] = []
    width = max((len(each.name) for each in examples), default=0)
    for kind in dict.fromkeys(each.kind for each in examples):
        items.append(text((f"{kind}s", STRONG)))
        items += [
            Line(text(f"  {each.name:{width}}  {each.title}"), width + 4) for each in examples if each.kind == kind
        ]
    return items


def format_verify(value: a.VerifyAnswer) -> list[RenderableType]:
    """Which stack each host has; hosts with the same one share a line. Failures are shown elsewhere."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for host, verified in value.hosts.items():
        stack, failed = verified.stack and verified.stack.name, host in value.failed
        if stack or not failed:
            groups.setdefault((str(stack or "no name"), failed), []).append(host)
    items: list[RenderableType] = []
    for (stack_name, failed), names in groups.items():
        same = "" if failed else f": complete{' and the same' if len(names) > 1 else ''}"
        items.append(outcome(not failed, (phrases.format_hosts(names), STRONG), f"  {stack_name}{same}"))
    return items


def format_command_outputs(rows: Sequence[a.CommandOutput | a.FailedCommand]) -> list[RenderableType]:
    """What a command wrote on each host; hosts where it wrote the same share an entry."""
    outputs = group_pairs(((row.status, row.out, row.err), row) for row in rows if isinstance(row, a.CommandOutput))
    items: list[RenderableType] = []
    for (status, *output), group in outputs.items():
        names = phrases.format_hosts(row.host for row in group)
        items.append(outcome(not status, (names, STRONG), f" exit {status}" if status else ""))
        items += [line for part in output if str(part).strip() for line in whole(str(part), 2)]
    return items


def format_play_steps(rows: Sequence[a.PlayedStep], *, dry: bool = False) -> list[RenderableType]:
    """How each step of a play ended; in a dry run nothing was done."""
    items: list[RenderableType] = []
    for row in rows:
        mark: Part = ("✗ ", BAD) if row.exit else ("- ", QUIET) if row.exit is None or dry else ("✓ ", GOOD)
        words = [f"exit {row.exit}"] if row.exit else []
        words += [row.note] if row.note else ["not begun"] if row.exit is None else []
        items.append(Line(text(mark, row.step, (f"  {', '.join(words)}" if words else "", QUIET)), 2))
    return items


_COUNTS = ("ok", "changed", "unreachable", "failed", "skipped")


def format_recap(hosts: Sequence[HostOutcome]) -> list[RenderableType]:
    """``ok=4 changed=2 unreachable=0 failed=0 skipped=0`` per host, as Ansible's; of many hosts, equal rows are one."""
    return [_Recap(hosts)]


class _Recap:
    """A line per host. Where it has no room, why a host failed is below it, then what is 0 is left out."""

    def __init__(self, hosts: Sequence[HostOutcome]) -> None:
        alone = {host.host: index for index, host in enumerate(hosts) if len(hosts) <= 24}
        get_counts = attrgetter(*_COUNTS)
        rows = group_pairs(((get_counts(host), _explain_host(host), alone.get(host.host)), host) for host in hosts)
        self._blank = "" if all(host.good for host in hosts) else "  "
        self._rows = [
            (phrases.format_hosts(host.host for host in group), counts, why, group[0].good)
            for (counts, why, _), group in rows.items()
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        names = max((phrases.count_cells(name) for name, *_ in self._rows), default=0)
        widths = [max(len(f"{key}={row[1][index]}") for row in self._rows) for index, key in enumerate(_COUNTS)]
        room = options.max_width - len(self._blank) - names - sum(widths) - 2 * len(widths)
        beside = all(phrases.count_cells(why) + 2 <= room for _, _, why, _ in self._rows)
        for name, counts, why, good in self._rows:
            cells = [(f"{key}={count}", count) for key, count in zip(_COUNTS, counts, strict=True)]
            if room >= 0:
                cells = [(f"{cell:<{width}}", count) for (cell, count), width in zip(cells, widths, strict=True)]
            else:
                cells = [cell for cell in cells if cell[1]] or cells[:1]
            styles = {"changed": WARN, "ok": GOOD}
            parts: list[Part] = [(f"{self._blank}{name:<{names}}", STRONG) if good else (f"✗ {name:<{names}}", BAD)]
            for cell, count in cells:
                parts += ["  ", (cell, styles.get(cell.split("=")[0], BAD) if count else QUIET)]
            line = text(*parts, *(["  ", why] if why and beside else []))
            line.rstrip()
            yield Line(line, 4)
            if why and not beside:
                yield Line(text("    ", why), 4)


def _explain_host(host: HostOutcome) -> str:
    step = next((step.step for step in host.steps if step.outcome == "failed"), "")
    what = next((failure.code or failure.what for failure in host.failures), "")
    return " ".join(": ".join(word for word in (step, what) if word).splitlines())
