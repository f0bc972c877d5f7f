"""The catalogue of known errors is true to its own messages, and says one thing of a failure."""

import importlib
import re
import string
import sys
from dataclasses import replace
from typing import Any

import pytest

from ipexctl.decide.diagnosis.evidence import collect_evidence
from ipexctl.decide.diagnosis.known_errors import KnownError, make_diagnosis, match_evidence
from ipexctl.decide.run.circumstances import CIRCUMSTANCES
from ipexctl.model.errors import Hint, complete_hint
from ipexctl.model.reports import Diagnosis, RankOutcome
from ipexctl.protocol import hooks
from ipexctl.verbs.common.known_errors import read_known_errors
from tests.stopwatch import Stopwatch
from tests.tables import read_table
from tests.unit.messages import read_catalogue, read_messages, read_sources

ERRORS = read_known_errors()
OWN = 'Traceback (most recent call last):\n  File "/home/u/job/train.py", line 3, in <module>\n    main()\n'
RAISED = re.compile(
    r"(?:  File .*\n(?:    .*\n)*)*"
    r"[\w.]*(?:Error|Exception|Timeout|Missing|Disconnected|InvalidBackend|OfflineModeIsEnabled)(?:: |\Z)"
)


def diagnose(message: str, signal: int = 0, status: int | None = 1) -> Diagnosis | None:
    """What a rank is known to have failed of: by an exception, where the message is one, else by what it wrote."""
    rank = RankOutcome(1, "a", "failed", status=None if signal else status, signal=signal)
    crashed = message.startswith("Fatal Python error")
    raised = replace(rank, traceback=message if crashed else OWN + message)
    wrote = replace(rank, tail=f"step 1\n{message}\nstep 2")
    match = match_evidence(ERRORS, collect_evidence(raised if crashed or RAISED.match(message) else wrote))
    return make_diagnosis(match) if match else None


SOURCES = read_sources(read_catalogue("errors"))
REAL = read_messages("errors")
MESSAGES = [pytest.param(known, text, id=known.code) for known in ERRORS if known.pattern for text in REAL[known.code]]


@pytest.mark.parametrize(("known", "message"), MESSAGES)
def test_each_entry_is_what_each_of_its_messages_is_taken_for(known: KnownError, message: str) -> None:
    result = diagnose(message, known.signal)
    assert result is not None
    assert result.code == known.code
    assert known.signal or result.evidence
    assert result.evidence in message
    assert not re.search(r"\{(?!(?:run|script|workdir)\})", result.title + result.why + result.fix + result.command)


@pytest.mark.parametrize(("message", "letter"), [("File size limit exceeded", "f"), ("CPU time limit exceeded", "t")])
def test_a_command_of_the_hosts_shell_is_one_word_and_gets_the_hosts_of_the_run(message: str, letter: str) -> None:
    """No host has a program ulimit, and its -f was taken for a hostfile."""
    diagnosis = diagnose(message)
    assert diagnosis is not None
    command = complete_hint(diagnosis.command, ("--hosts", "node[0-1]"))
    assert isinstance(command, Hint)
    assert [*command.words] == ["exec", "--hosts", "node[0-1]", f"ulimit -{letter}"]


@pytest.mark.parametrize("known", ERRORS, ids=lambda known: known.code)
def test_each_entry_says_why_what_to_do_and_where_it_was_met(known: KnownError) -> None:
    assert known.why.endswith(".")
    assert known.fix or known.command
    assert known.fix != known.command
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|[\w./ -]+: \S+", source) for source in SOURCES[known.code])


def test_no_entry_of_a_message_is_missing() -> None:
    assert REAL.keys() == {known.code for known in ERRORS if known.pattern}


@pytest.mark.parametrize("code", [hooks.ENV_GONE, hooks.EXIT_VALUE, hooks.FILE_LIMIT])
def test_what_a_ranks_own_python_observes_comes_before_what_is_written(code: str) -> None:
    rank = RankOutcome(1, "a", "failed", status=1, traceback=f"{OWN}ImportError: no", observed=(code, "VALUE"))
    match = match_evidence(ERRORS, collect_evidence(rank))
    assert match is not None
    assert match.known.code == code
    diagnosis = make_diagnosis(match)
    assert ("VALUE" in diagnosis.title + diagnosis.why) == (match.known.pattern is None)


def test_each_circumstance_of_an_entry_is_looked_for_and_changes_it() -> None:
    cases = [(known, name, case) for known in ERRORS for name, case in known.circumstances.items()]
    assert {name for _, name, _ in cases} == CIRCUMSTANCES.keys()
    texts = [({case.title, case.why, case.more, case.fix, case.command}, known, name) for known, name, case in cases]
    same = [name for new, known, name in texts if new <= {known.title, known.why, known.more, known.fix, known.command}]
    assert same == ["warned"], "its command is made of the warning's"


@pytest.mark.parametrize("message", [line for lines in read_messages("harmless").values() for line in lines])
def test_no_harmless_message_is_an_error(message: str) -> None:
    assert diagnose(message) is None


def test_what_is_in_no_entry_is_not_explained() -> None:
    assert diagnose("ValueError: the answer is not 42") is None
    assert diagnose("the answer is not 42") is None


@pytest.mark.parametrize(("message", "fix"), read_table("errors/names_in_the_message_are_in_the_command"))
def test_names_in_the_message_are_in_the_command(message: str, fix: str) -> None:
    result = diagnose(message)
    assert result is not None
    assert result.fix == fix


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("RuntimeError: Distributed package doesn't have NCCL built in", "ipexctl migrate "),
        ("RuntimeError: can't start new thread", "(ulimit -v)"),
    ],
)
def test_an_explanation_names_all_that_may_help(message: str, advice: str) -> None:
    result = diagnose(message)
    assert result is not None
    assert advice in f"{result.why} {result.fix} {result.command}"


def test_a_module_that_may_be_somebody_elses_package_is_not_installed() -> None:
    result = diagnose("ModuleNotFoundError: No module named 'utils'")
    assert result is not None
    assert "utils" in result.title
    assert not result.command


PARSER, COMPILER = (
    importlib.import_module(f"re._{name}r" if sys.version_info >= (3, 11) else f"sre_{name}")
    for name in ("parse", "compile")
)
LETTERS = frozenset(string.printable)
Ways = set[frozenset[frozenset[str]]]  # to a place in a pattern: the letters that each part before it takes


def find_squares(items: Any, ways: Ways, faults: set[str]) -> Ways:
    """Adds why a search for these parts takes the square of a text's length; returns the ways to their end."""
    for item in items:
        code, value = str(item[0]), item[1]
        if code == "SUBPATTERN":
            ways = find_squares(value[3], ways, faults)
        elif code == "BRANCH":
            ways = set().union(*(find_squares(branch, ways, faults) for branch in value[1]))
        elif code in ("AT", "ASSERT", "ASSERT_NOT"):
            ways = {way | {LETTERS} for way in ways} if code == "AT" or value[0] < 0 else ways
        elif code in ("MAX_REPEAT", "MIN_REPEAT"):
            passed = find_squares(value[2], ways, faults)
            [taken, *more] = {letters for way in find_squares(value[2], {frozenset()}, set()) for letters in way}
            for way in ways if value[1] >= 100 and not more else ():
                if not way:
                    faults.add("begins anew at each letter of what it repeats")
                elif "\n" in taken and all(taken & letters for letters in way):
                    faults.add("begins anew in what it repeats over all lines")
            ways = passed | ways if value[0] == 0 else passed
        else:
            one = COMPILER.compile(PARSER.SubPattern(PARSER.State(), [item]))
            ways = {way | {frozenset(filter(one.fullmatch, LETTERS))} for way in ways}
    return ways


PATTERNS = [known.pattern for entry in ERRORS for known in (entry, *entry.circumstances.values()) if known.pattern]
PATTERNS += [known.raised_in for known in ERRORS if known.raised_in]


@pytest.mark.parametrize("pattern", {pattern.pattern: None for pattern in PATTERNS})
def test_no_pattern_takes_the_square_of_a_text_that_a_rank_wrote(pattern: str) -> None:
    """64 KiB of ``_.so`` held the diagnosis for a minute, and such of an import for three."""
    faults: set[str] = set()
    find_squares(PARSER.parse(pattern), {frozenset()}, faults)
    assert not faults


def test_megabytes_of_one_letter_take_no_time() -> None:
    assert diagnose("a" * 5_000_000) is None
    assert diagnose("undefined /dev/shm CCL_ERROR ibv_" * 100_000) is None
    assert diagnose("OSError: " + "/dev/shm UCX  ERRO gloo/ unable to open impi: " * 100_000) is None


@pytest.mark.parametrize("line", ["device(", "/python3.1/", "a-packages/"])
def test_a_long_line_of_source_code_takes_no_time(line: str) -> None:
    """One of 60 KB in the stack of an exception held the diagnosis of each rank for 13 s."""
    watch = Stopwatch()
    frame = f'  File "/{line * (60_000 // len(line))}", line 1, in a\n    {line * (60_000 // len(line))}\n'
    assert diagnose(frame + '  File "/b.py", line 1, in b\n    b()\nValueError: a') is None
    assert watch.read() < 1


@pytest.mark.parametrize(
    ("message", "code"),
    read_table("errors/errors_of_one_word_in_two_worlds_are_distinguished"),
)  # fmt: skip
def test_errors_of_one_word_in_two_worlds_are_distinguished(message: str, code: str | None) -> None:
    result = diagnose(message)
    assert (result.code if result else None) == code


@pytest.mark.parametrize(("message", "title"), read_table("errors/a_title_names_what_is_missing_and_nothing_more"))
def test_a_title_names_what_is_missing_and_nothing_more(message: str, title: str) -> None:
    result = diagnose(message)
    assert result is not None
    assert result.title == title
