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


def read_wins(table: str) -> list[Win]:
    """Returns the entries of ``tuning.toml``."""
    return [Win(**each) for each in parse_toml(table)["win"]]


def name_wins(table: str, facts: Mapping[str, Facts], task: Run) -> Iterator[Message]:
    """Yields one message about those that can matter on these hosts and are not in use, if there are any."""
    has = {
        "numa": any(len({core.numa for core in fact.cores or ()}) > 1 for fact in facts.values()),
        "thp": any(fact.thp == "madvise" for fact in facts.values()),
        "": True,
    }
    preloads = {library.name for fact in facts.values() for library in choose_preloads(task, fact, "")[0]}
    used = {"allocator": preloads & {"tcmalloc", "jemalloc"}, "omp": preloads & {"iomp5"}}
    titles = []
    for win in read_wins(table):
        chosen = any(used.get(name) or getattr(task, name) not in ("auto", False) for name in win.values)
        if has[win.needs] and not chosen:
            titles.append(win.title)
    if titles:
        yield Message(f"tuning usually wins on such hosts: {'; '.join(titles)}", code="tuning")
