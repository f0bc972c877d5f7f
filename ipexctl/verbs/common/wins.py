"""What tuning usually wins on hosts, said before anything runs."""

from collections.abc import Iterator, Mapping

from ipexctl.data import read_data
from ipexctl.decide.tune.wins import Win, describe_wins, find_wins
from ipexctl.model.events import Message
from ipexctl.model.facts import Facts
from ipexctl.model.tasks import Run
from ipexctl.model.toml import parse_toml


def list_wins(facts: Mapping[str, Facts], task: Run) -> tuple[Win, ...]:
    """Returns the entries of the table that can matter on these hosts."""
    return find_wins([Win(**each) for each in parse_toml(read_data("tuning.toml"))["win"]], facts, task)


def name_wins(facts: Mapping[str, Facts], task: Run) -> Iterator[Message]:
    """Yields one message about them, if there are any."""
    if text := describe_wins(list_wins(facts, task)):
        yield Message(text, code="tuning")
