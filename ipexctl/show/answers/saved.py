"""The screens of saved runs."""

from rich.console import RenderableType

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.answers.saved import (
    CompareAnswer,
    ExportAnswer,
    PruneAnswer,
    ReportAnswer,
    RunsAnswer,
    SupportAnswer,
)
from ipexctl.model.text import format_size, pluralize
from ipexctl.show.compare_screen import format_comparison
from ipexctl.show.saved_runs_screen import format_pruned_runs, format_saved_runs
from ipexctl.show.tables import format_rows_of_answer
from ipexctl.show.typeset import labelled, text, whole


def format_answer(value: AnyAnswer) -> list[RenderableType]:
    match value:
        case RunsAnswer():
            return format_saved_runs(value)
        case PruneAnswer():
            return format_pruned_runs(value)
        case SupportAnswer():
            return whole(value.plan or f"{value.path}: {format_size(value.bytes or 0)}")
        case ExportAnswer():
            many = pluralize(len(value.runs), "run")
            return [text(f"{pluralize(value.values, 'value')} of {many} in {value.path} ({value.format})")]
        case CompareAnswer():
            return format_comparison(value)
        case ReportAnswer():
            return [labelled("page", value.page), labelled("size", format_size(value.bytes))]
        case _:
            return format_rows_of_answer(value)
