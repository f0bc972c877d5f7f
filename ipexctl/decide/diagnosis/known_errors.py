"""The catalogue of known errors in ``ipexctl/data/errors.toml``, and which of them evidence is known as."""

import re
import shlex
from collections.abc import Mapping, Sequence

from ipexctl.decide.diagnosis.evidence import Evidence, RaisedException
from ipexctl.model.errors import Hint, advise
from ipexctl.model.json_values import Record, field
from ipexctl.model.reports import Diagnosis
from ipexctl.model.toml import Table

_PATTERNS = ("pattern", "raised_in")
_SEARCHED_LENGTH = 1 << 16  # letters of each text
_LINE_LIMIT = 1000  # letters of a line: no pattern may take long over one that has no end


class KnownError(Record):
    """One entry: `pattern` is searched in what was written, `raised_in` in the files of the exception's stack, `signal`
    is the one that ended the rank (0: any way). A `symptom` is the consequence of what happened to another rank."""

    code: str
    title: str
    why: str
    pattern: re.Pattern[str] | None = None  # None: only a rank's own Python observes it
    fix: str = ""  # else the command
    raised_in: re.Pattern[str] | None = None
    signal: int = 0
    command: str = ""
    symptom: bool = False
    vague: bool = False  # the exception that this one names as its cause comes before it, where it is known
    names: Mapping[str, str] = field(default_factory=dict)  # words of the message → those to say instead
    more: str = ""  # added to `why`
    circumstances: Mapping[str, "KnownError"] = field(default_factory=dict)  # the entry in each, the first counts


KnownErrors = Sequence[KnownError]


class ErrorMatch(Record):
    """An entry that fits: `words` of the groups of its pattern, `line` that shows it, `command` in place of its own."""

    known: KnownError
    words: Mapping[str, str] = field(default_factory=dict)
    line: str = ""
    command: Hint | None = None


def parse_known_errors(tables: Sequence[Table], packages: Mapping[str, str]) -> KnownErrors:
    """Of the program's own tables, the first of which win: a malformed one is a bug. ``packages`` maps modules to what
    is installed for them."""
    modules = "|".join(map(re.escape, packages))
    errors = []
    for code, item in (item for table in tables for item in table.items()):
        patterns = {key: re.compile(item[key].replace("{packages}", modules)) for key in _PATTERNS if key in item}
        names = packages if "{packages}" in item.get("pattern", "") else {}
        cases = {name: case for name, case in item.items() if isinstance(case, dict)}
        own = {**{name: item[name] for name in item.keys() - cases.keys()}, **patterns, "names": names}
        known = {name: KnownError(code, **{**own, **case}) for name, case in cases.items()}
        errors.append(KnownError(code, **own, circumstances=known))
    return tuple(errors)


def match_evidence(errors: KnownErrors, evidence: Evidence) -> ErrorMatch | None:
    """Returns what the strongest of this evidence is known as; weaker evidence never decides instead of it. What the
    rank's own Python observed comes before all messages."""
    code, value = evidence.observed or ("", "")
    for known in errors:
        if known.code == code:
            return ErrorMatch(known, {"observed": value})
    if evidence.exceptions:
        matches = [match for raised in evidence.exceptions if (match := _search(errors, raised))]
        return next((match for match in matches if not match.known.vague), next(iter(matches), None))
    crash = _bound_text(evidence.crash)
    for known in errors:
        ended_so = evidence.signal and known.signal == evidence.signal
        if ended_so and (known.raised_in is None or known.raised_in.search(crash)):
            return ErrorMatch(known)
    return _search(errors, RaisedException(evidence.output))


def make_diagnosis(match: ErrorMatch, host: str = "") -> Diagnosis:
    """Returns the match in words. ``host`` is one of the run, whose environment an advised install keeps."""
    known = match.known

    def fill(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda name: match.words.get(name[1], name[0]), text)

    command: Hint | str = advise(*map(fill, shlex.split(known.command)[1:])) if known.command else ""
    if isinstance(command, Hint) and host:
        command = command.keep_installed(host)
    command = match.command or command
    why = fill(f"{known.why} {known.more}".rstrip())
    return Diagnosis(known.code, fill(known.title), why, fill(known.fix) or command, match.line, command)


def fill_command(fix: str, command: str, run: str, script: str) -> tuple[str, str]:
    """Returns what helps, and the command, with these values. Only a file of Python can be migrated."""
    if isinstance(command, Hint) and command.words[0] == "migrate" and not script.endswith(".py"):
        return fix.rpartition("; ")[0], ""
    fix, command = (text.fill(run=run, script=script) if isinstance(text, Hint) else text for text in (fix, command))
    return fix, command


def _bound_text(text: str) -> str:
    return "\n".join(line[:_LINE_LIMIT] for line in text[-_SEARCHED_LENGTH:].splitlines())


def _search(errors: KnownErrors, raised: RaisedException) -> ErrorMatch | None:
    text, files = map(_bound_text, (raised.text, raised.files))
    for known in errors:
        if known.raised_in and not known.raised_in.search(files):
            continue
        if known.pattern and (match := known.pattern.search(text)):
            words = {name: known.names.get(word, word) for name, word in match.groupdict("?").items()}
            line = text[: match.start()].rpartition("\n")[2] + text[match.start() :].partition("\n")[0]
            return ErrorMatch(known, words, line.strip()[:500])
    return None
