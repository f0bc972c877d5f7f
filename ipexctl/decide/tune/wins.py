"""What tuning usually wins on hosts like these, before anything is run."""

from collections.abc import Iterator, Mapping

from ipexctl.decide.launch.tuning import choose_preloads
from ipexctl.model.events import Message, Values
from ipexctl.model.facts import Facts
from ipexctl.model.json_values import Record
from ipexctl.model.tasks import Run
from ipexctl.model.toml import parse_toml


class Win(Record):
    """An entry of the table: the ``values`` that win, and where that was read."""

    values: Values
    needs: str
    title: str


def find_wins(table: str, facts: Mapping[str, Facts], task: Run) -> list[Win]:
    """Returns the entries of ``tuning.toml`` that can matter on these hosts and are not in use."""
    has = {
        "numa": any(len({core.numa for core in fact.cores or ()}) > 1 for fact in facts.values()),
        "thp": any(fact.thp == "madvise" for fact in facts.values()),
        "": True,
    }
    wins = [Win(**each) for each in parse_toml(table)["win"]]
    used = {library.name for fact in facts.values() for library in choose_preloads(task, fact, "")[0]}
    return [win for win in wins if has[win.needs] and not _is_used(win.values, used, task)]


def _is_used(values: Values, preloads: set[str], task: Run) -> bool:
    if "allocator" in values:
        return bool(preloads & {"tcmalloc", "jemalloc"}) or task.allocator != "auto"
    if "omp" in values:
        return "iomp5" in preloads or task.omp != "auto"
    return all(getattr(task, name) == value for name, value in values.items())


def name_wins(table: str, facts: Mapping[str, Facts], task: Run) -> Iterator[Message]:
    """Yields one message about them, if there are any."""
    if wins := find_wins(table, facts, task):
        text = f"tuning usually wins on such hosts: {'; '.join(win.title for win in wins)}"
        yield Message(text, code="tuning")
