"""Shell text is split as bash splits it, without running any of it; bash itself is the judge."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.decide.parsing.shell import list_expansions, quote_word, remove_marks, split_commands
from ipexctl.decide.parsing.shell_variables import ShellVariables, name_parameters
from tests.tables import read_table

PRINT = r"printf '%s\0' "


def run_bash(text: str) -> list[str]:
    """The words that bash gives a command."""
    env = {"PATH": "/usr/bin:/bin", "X": "x y", "N": "3", "HOME": "/home/me"}
    done = subprocess.run(["bash", "-c", PRINT + text], env=env, capture_output=True, text=True, check=True, cwd="/")
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("words", read_table("shell/words_are_those_of_bash"))
def test_words_are_those_of_bash(words: str) -> None:
    if words.endswith("("):
        words = words[:-1]
    if "=(" in words:
        assert dict(split_commands(words)[0].arrays) == {"x": ("1",)}
        return
    (command,) = split_commands(PRINT + words)
    assert run_bash(" ".join(map(quote_word, command.words[2:]))) == run_bash(words)


@given(st.lists(st.text(alphabet="ab $'\"\\`*?~{},;&|<>()#\n\t", max_size=6), min_size=1, max_size=4))
def test_a_word_without_anything_to_replace_is_quoted_so_that_it_stays(words: list[str]) -> None:
    text = " ".join(map(quote_word, words))
    (command,) = split_commands(f"run {text}")
    assert [*command.words[1:]] == words
    assert not list_expansions(command.words)


@given(st.text(alphabet="a1 $'\"\\`*{}[]();&|<>#\n=-if do\ue000\ue001\ue002", max_size=40))
def test_any_text_is_split_or_refused(text: str) -> None:
    try:
        commands = split_commands(text)
    except ValueError:
        return
    assert all(1 <= command.line <= text.count("\n") + 1 for command in commands)


TEXT = """\
#!/bin/bash
# a comment; with | operators
if [ -z "$N" ]; then N=4; fi   # tail
time mpirun -n 2 \\
    python t.py > out.log 2>&1 | tee -a log &
for i in 0 1; do srun t$i; done
case $x in
    one|two) first;;
    *) second ;;
esac
cat > job.sh <<'END' && submit
srun it's
END
(cd x && run) >> l; { a; } 2>/dev/null
f() { inner <<< "text"; }
"""


def test_operators_redirections_and_lines_are_distinguished() -> None:
    rows = [
        (command.line, " ".join(map(remove_marks, command.words)), command.redirections, command.after, command.inside)
        for command in split_commands(TEXT)
    ]
    assert rows == [
        (3, "[ -z $N ]", (), ";", ("if",)),
        (3, "N=4", (), ";", ("if",)),
        (4, "time mpirun -n 2 python t.py", ("> out.log", "2>&1"), "|", ()),
        (5, "tee -a log", (), "&", ()),
        (6, "for i in 0 1", (), ";", ("for",)),
        (6, "srun t$i", (), ";", ("for",)),
        (7, "case $x in", (), "\n", ("case",)),
        (8, "one", (), "|", ("case",)),
        (8, "first", (), ";;", ("case",)),
        (9, "second", (), ";;", ("case",)),
        (11, "cat", ("> job.sh", "<<'END'"), "&&", ()),
        (11, "submit", (), "\n", ()),
        (14, "cd x", (), "&&", ()),
        (14, "run", (), ")", ()),
        (14, "", (">> l",), ";", ()),
        (14, "a", (), ";", ()),
        (14, "", ("2>/dev/null",), "\n", ()),
        (15, "f", (), "(", ()),
        (15, "inner", ('<<< "text"',), ";", ()),
    ]
    here = next(command.here for command in split_commands(TEXT) if command.here)
    assert here == ("srun it's\n", 12)


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a $(b", "a ${b", "a `b", "x=(1 2"])
def test_what_is_not_closed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no closing"):
        split_commands(text)


SCRIPT = """\
A=1
export B="$A two" C
N=2; P=$((N * 4))
ARGS=(--a "$B" --c)
TWICE=1
TWICE=2
MORE=1
MORE+="0 $N"
ARGS+=(--d)
NEXT=1
NEXT=$((NEXT + 1))
[ -n "$X" ] && EITHER=1
LATER=1
read LATER
if true; then MAYBE=1; fi
for LOOP in 1 2; do :; done
export D=$(hostname) MAYBE
"""


@pytest.mark.parametrize(
    ("shift", "becomes"), [("shift 2", "--lr"), ("shift $n", "$1"), ("if true; then shift; fi", "$1")]
)
def test_parameters_are_others_behind_a_shift(shift: str, becomes: str) -> None:
    *commands, last = split_commands(f"{shift}\nx $1")
    variables = ShellVariables(commands, name_parameters(["4", "out", "--lr", "2"]))
    for command in commands:
        variables.read(command)
    assert [*map(remove_marks, variables.expand(last.words[1]))] == [becomes]


def test_what_is_not_known_is_quoted_as_the_variable_that_has_it() -> None:
    *commands, last = split_commands('A=$X\nB="--b $X"\nx "$A" $B --c="$B"')
    variables = ShellVariables(commands, {})
    for command in commands:
        variables.read(command)
    words = [quote_word(each) for word in last.words[1:] for each in variables.expand(word)]
    assert words == ['"$X"', "--b", "$X", '"--c=--b $X"']


def test_a_variable_of_csh_is_known_unless_a_condition_sets_another() -> None:
    *commands, last = split_commands("setenv A 1\nsetenv B 2\nif true; then setenv B 3; fi\nx $A $B")
    variables = ShellVariables(commands, {})
    for command in commands:
        variables.read(command)
    assert [remove_marks(each) for word in last.words[1:] for each in variables.expand(word)] == ["1", "$B"]
    assert {name: remove_marks(value) for name, value in variables.exports.items()} == {"A": "1", "B": "$B"}


@pytest.mark.parametrize("function", ["f() {", "function f {"])
def test_a_function_may_be_called_after_another_assignment(function: str) -> None:
    commands = split_commands(f"A=1\n{function}\nx $A\n}}\nA+=0\nf")
    variables = ShellVariables(commands, {})
    variables.read(commands[0])
    (word,) = (command.words[1] for command in commands if command.words[0] == "x")
    assert [*map(remove_marks, variables.expand(word))] == ["$A"]


def test_shifts_look_at_no_more_than_variables_may_stand_for() -> None:
    """Each looked at all variables: a script of 280 KB took minutes."""
    *commands, last = split_commands("A=x\n" + "".join(f"A{n}=x\n" for n in range(3000)) + "shift\n" * 3000 + "x $A")
    variables = ShellVariables(commands, {})
    for command in commands:
        variables.read(command)
    assert [*map(remove_marks, variables.expand(last.words[1]))] == ["$A"]


@pytest.mark.parametrize(("word", "becomes"), read_table("shell/a_variable_is_known_if_it_is_always_assigned"))
def test_a_variable_is_known_if_it_is_always_assigned(word: str, becomes: list[str]) -> None:
    commands = split_commands(SCRIPT)
    variables = ShellVariables(commands, {})
    for command in commands:
        variables.read(command)
    (command,) = split_commands(f"x {word}")
    assert [*map(remove_marks, variables.expand(command.words[1]))] == becomes
    assert {name: remove_marks(value) for name, value in variables.exports.items()} == {
        "B": "1 two", "C": "$C", "D": "$(hostname)", "MAYBE": "$MAYBE"
    }  # fmt: skip
