"""Messages of runs that are known to be harmless, as the catalogue ``ipexctl/data/harmless.toml`` lists them."""

import re
from collections.abc import Mapping, Sequence
from functools import cache

from ipexctl.data import read_data
from ipexctl.model.engines import read_engines
from ipexctl.model.json_values import Record
from ipexctl.model.toml import parse_toml

LIMIT = 400  # characters of a line that are searched


class HarmlessMessage(Record):
    """One entry of the catalogue: ``pattern`` is searched in each line, one of ``words`` is in each line that it finds,
    ``why`` is one sentence."""

    code: str
    pattern: re.Pattern[str]
    words: Sequence[str]
    why: str


@cache
def read_harmless() -> Mapping[str, HarmlessMessage]:
    """Returns the catalogue of this version by code, with the lines of engines. A malformed one is a bug."""
    tables = [parse_toml(read_data("harmless.toml")), *(engine.harmless for engine in read_engines().values())]
    items = [item for table in tables for item in table.items()]
    return {code: HarmlessMessage(code, **{**item, "pattern": re.compile(item["pattern"])}) for code, item in items}


@cache
def _compile_words() -> re.Pattern[str]:
    """Returns the words of all entries. A page has tens of thousands of lines, nearly all without any: this search
    takes a fifth of the time of all patterns, or less."""
    return re.compile("|".join(re.escape(word) for entry in read_harmless().values() for word in entry.words))


def find_harmless(line: str) -> str | None:
    """Returns the code of the known harmless message of which this line is a part; None of any other line."""
    line = line[:LIMIT]
    if _compile_words().search(line) is None:
        return None
    return next((code for code, entry in read_harmless().items() if entry.pattern.search(line)), None)
