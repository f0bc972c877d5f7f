"""The catalogue of known errors in ``ipexctl/data/errors.toml``, and the diagnosis of a failure by it."""

import re
import shlex
from collections.abc import Iterable, Sequence

from ipexctl.model.findings import Diagnosis
from ipexctl.model.hints import advise
from ipexctl.model.json_values import Record
from ipexctl.model.toml import parse_toml

_LOOKED_AT = 1 << 16  # letters of each text
_LINE = 1000  # letters of a line: no pattern may take long over one that has no end


class KnownError(Record):
    """One entry: `pattern` is searched in what was written, `signal` is the one that ended the rank (0: any way)."""

    code: str
    pattern: re.Pattern[str]
    message: str
    title: str
    why: str
    fix: str
    source: Sequence[str]
    signal: int = 0
    command: str = ""


KnownErrors = Sequence[KnownError]


def parse_known_errors(text: str) -> KnownErrors:
    """Of the program's own table: a malformed one is a bug."""
    items = parse_toml(text).items()
    return tuple(KnownError(code, **{**item, "pattern": re.compile(item["pattern"])}) for code, item in items)


def diagnose(errors: KnownErrors, texts: Iterable[str], signal: int = 0) -> Diagnosis | None:
    """The first entry that fits the first of these texts (the most telling first); else that of the signal."""
    for text in texts:
        text = "\n".join(line[:_LINE] for line in text[-_LOOKED_AT:].splitlines())
        for known in errors:
            if match := known.pattern.search(text):
                return _make_diagnosis(known, match)
    return next((_make_diagnosis(known) for known in errors if signal and known.signal == signal), None)


def _make_diagnosis(known: KnownError, match: re.Match[str] | None = None) -> Diagnosis:
    words, line = {}, ""
    if match:
        words = {name: word or "?" for name, word in match.groupdict().items()}
        line = match.string[: match.start()].rpartition("\n")[2] + match.string[match.start() :].partition("\n")[0]

    def fill(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda m: words.get(m[1], m[0]), text)

    command = advise(*map(fill, shlex.split(known.command)[1:])) if known.command else ""
    fix = command if known.fix == known.command else fill(known.fix)
    return Diagnosis(known.code, fill(known.title), known.why, fix, line.strip()[:500], command)
