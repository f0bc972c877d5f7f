"""What tuning usually wins on hosts like these (``data/tuning.toml``), before anything is run."""

from collections.abc import Mapping, Sequence

from ipexctl.decide.launch.tuning import choose_preloads
from ipexctl.model.events import Values
from ipexctl.model.facts import Facts
from ipexctl.model.json_values import Record
from ipexctl.model.tasks import Run


class Win(Record):
    """An entry of the table."""

    values: Values
    needs: str
    title: str
    source: str


def find_wins(wins: Sequence[Win], facts: Mapping[str, Facts], task: Run) -> tuple[Win, ...]:
    """Returns those that can matter on these hosts, and that the task does not have already."""
    has = {
        "numa": any(len({core.numa for core in fact.cores or ()}) > 1 for fact in facts.values()),
        "thp": any(fact.thp == "madvise" for fact in facts.values()),
        "": True,
    }
    return tuple(win for win in wins if has[win.needs] and not _is_used(win.values, facts, task))


def _is_used(values: Values, facts: Mapping[str, Facts], task: Run) -> bool:
    """Whether the launch of the task has it by itself on every host."""
    preloads = {library.name for fact in facts.values() for library in choose_preloads(task, fact, "")[0]}
    if "allocator" in values:
        return bool(preloads & {"tcmalloc", "jemalloc"}) or task.allocator != "auto"
    if "omp" in values:
        return "iomp5" in preloads or task.omp != "auto"
    return all(getattr(task, name) == value for name, value in values.items())


def describe_wins(wins: Sequence[Win]) -> str:
    """Returns them as one sentence with their sources; empty without any."""
    named = "; ".join(f"{win.title} ({win.source})" for win in wins)
    return f"tuning usually wins on such hosts: {named}" if wins else ""
