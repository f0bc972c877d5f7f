"""A number of thousands of digits, which `int` refuses, or of other digits than those of ASCII, from a stranger; and a
long text of one kind, which a regular expression tries from each of its characters on."""

from collections.abc import Callable
from typing import Any

import pytest

from ipexctl.act.ssh.shared_shell import EndFinder
from ipexctl.decide.diagnosis.stack_traces import describe_position, find_script_line, parse_main_thread
from ipexctl.decide.facts.cpu import _group_cpus_by_core
from ipexctl.decide.facts.probe_output import _extract_questions
from ipexctl.decide.launch.instances import _count_host_instances
from ipexctl.decide.launch.placement import Cores
from ipexctl.decide.launch.script_arguments import find_checkpoint_directory
from ipexctl.decide.parsing.conditions import evaluate_condition
from ipexctl.decide.parsing.ranges import RangeError, expand_ranges
from ipexctl.decide.parsing.shell import split_commands
from ipexctl.decide.planning.requirements import parse_requirements
from ipexctl.decide.releases.table import parse_version
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host
from ipexctl.model.tasks import Run
from ipexctl.model.text import fold_names
from ipexctl.show.frame_lines import fit_bar

LENGTH = 200_000
NODES, BLANKS = "n" * LENGTH, " " * LENGTH
NINES = "9" * 5000
HOST = Host("a", "a")
NONCE = "n" * 24 + "seamseam"
FAULT = f'Thread 0x1 (most recent call first):\n  File "/x.py", line {NINES} in f\n  File "/x.py", line 3 in <module>\n'
RAISED = f'Traceback (most recent call last):\n  File "/x.py", line 3, in f\nE: x\n  File "/x.py", line {NINES}, in g\n'


def find_status(finder: EndFinder, data: bytes) -> int:
    finder.extract_output(data)
    return finder.status


def find_range_error(text: str) -> None:
    with pytest.raises(RangeError, match="brackets do not match"):
        expand_ranges(text)


@pytest.mark.parametrize(
    "read",
    [
        lambda: find_range_error(f"{NODES}["),
        lambda: [
            getattr(each, "target", "")
            for each in parse_requirements(f"a{BLANKS}b\n{'[ ' * LENGTH}\nb{BLANKS}x", "list.txt")
        ],
        lambda: find_checkpoint_directory((), BLANKS.replace(" ", "\n")),
        lambda: split_commands(f"echo {{{'.' * LENGTH}"),
        lambda: fit_bar("0" * LENGTH, 80),
    ],
)
def test_long_texts_of_one_kind_are_read_once(read: Callable[[], object]) -> None:
    """Each took minutes to hours, of a file of a megabyte or of one line of a rank."""
    read()


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda: describe_position(parse_main_thread(FAULT)), "x.py:3 <module>"),
        (lambda: find_script_line(RAISED, ""), "x.py:3"),
        (lambda: [*_extract_questions(f"{NONCE} ended {NINES} q\t\n".encode(), NONCE)[0]], ["q"]),
        (lambda: fold_names([f"a{NINES}", f"a{NINES}1"]).count("9") > 4000, True),
        (lambda: fold_names(["a\u0663", "a\u0664"]), "a\u0663, a\u0664"),
        (lambda: _group_cpus_by_core([{"processor": NINES}], 1)[0].cpus, (0,)),
        (lambda: evaluate_condition(f"glibc < '{NINES}'", HOST, Facts(hostname="a", glibc="2.28")), True),
        (lambda: parse_version(NINES) < parse_version("0.1"), True),
        (lambda: find_status(EndFinder(b"n"), b"out\nn" + NINES.encode() + b"\n"), 255),
        (lambda: find_status(EndFinder(b"n"), b"out\nn 7\n"), 7),
        (lambda: _count_host_instances(Run(script="x", instances="\u00b2"), Cores(())), 1),
    ],
)  # fmt: skip
def test_no_number_ends_a_command(read: Callable[[], Any], expected: Any) -> None:
    assert read() == expected
