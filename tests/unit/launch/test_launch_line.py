"""Launch lines of other programs become the `ipexctl run` that does the same, or are refused; nothing is guessed."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ipexctl.cli import app
from ipexctl.cli.command import make_model
from ipexctl.cli.job import _expand_mpirun_line
from ipexctl.data import read_data
from ipexctl.decide.launch.environment import parse_user_env
from ipexctl.decide.launch.launch_line import LaunchLineReader, find_launches_of_file, translate_found, translate_line
from ipexctl.decide.launch.launch_table import parse_launch_table
from ipexctl.decide.launch.launch_words import list_run_options
from ipexctl.model.errors import UsageError
from ipexctl.model.tasks import Run
from ipexctl.verbs.run.request import check_options
from tests.stopwatch import Stopwatch
from tests.tables import read_table
from tests.unit.launch.launch_lines import FILES, LINES, REFUSED

TABLE = parse_launch_table(read_data("launchers.toml"))
COMMAND: Any = typer.main.get_command(app)


def read_file(name: str) -> str:
    if name in FILES:
        return FILES[name]
    raise UsageError(f"{name} does not exist")


def find(text: str, file: str = "go.sh") -> list[tuple[int, str, list[str]]]:
    """The launch lines of a shell file: line, what takes their place or the error, and codes of notes."""
    rows = []
    for launch in find_launches_of_file(text, file, TABLE):
        try:
            translation = translate_found(launch, TABLE, read_file)
            rows.append(
                (launch.line, f"ipexctl run {translation.format_words()}", [note.code for note in translation.notes])
            )
        except UsageError as error:
            rows.append((launch.line, error.sentence, []))
    return rows


def test_a_line_is_not_copied_for_each_of_its_words() -> None:
    """A script of 1 MiB took `migrate` 78 s."""
    watch = Stopwatch()
    assert find("numactl " + "a " * 300_000) == []
    assert watch.read() < 12.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mpirun -n 2 " + "eval " * 500 + "python train.py\n", "commands in commands, more than 8 deep"),
        ("mpirun -n 2 python " + "-W a " * 40_000 + "train.py\n", "more than 10,000 words, or 1,000 variables"),
        (
            "".join(f"export a{number}=1\n" for number in range(12_000)) + "mpirun -n 2 python train.py\n" * 150,
            "more than 10,000 words, or 1,000 variables",
        ),
    ],
)
def test_a_line_costs_no_square_of_its_length(text: str, why: str) -> None:
    """15 KB of eval took `migrate` minutes, and so did 500 KB of variables above 200 lines."""
    watch = Stopwatch()
    assert {row[1] for row in find(text)} == {f"the launch line has {why}"}
    assert watch.read() < 6.0


@pytest.mark.parametrize(("line", "words", "codes"), LINES, ids=[line for line, _, _ in LINES])
def test_a_line_becomes_these_words(line: str, words: str, codes: str) -> None:
    translation = translate_line(line, TABLE, read_file)
    assert shlex.join([*translation.options, *translation.script]) == words
    assert " ".join(note.code for note in translation.notes) == codes


@pytest.mark.parametrize("line", [line for line, _, _ in LINES])
def test_every_translation_is_accepted_by_the_command_line_of_run(line: str) -> None:
    translation = translate_line(line, TABLE, read_file)
    context = COMMAND.commands["run"].make_context("run", [*translation.options, *translation.script])
    task: Run = make_model(Run, {name: value for name, value in context.params.items() if hasattr(Run, name)
                                 or name == "script"})  # fmt: skip
    assert [task.script, *task.args] == [*translation.script]
    check_options(task)
    parse_user_env(task.env, {}, task.pass_env, dict.fromkeys(task.pass_env, "1"))
    hosts = context.params["hosts"], context.params["hostfile"]
    assert not all(hosts)


@pytest.mark.parametrize(("line", "why"), REFUSED, ids=[line for line, _ in REFUSED])
def test_what_is_not_known_is_refused(line: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        translate_line(line, TABLE, read_file)
    assert why in refused.value.sentence


@given(st.lists(st.sampled_from([word for line, _, _ in LINES for word in line.split(" ")] + ["'", "<<E", "$("])))
@example(["deepspeed", "PET_NNODES=2", "-ppn"])
def test_any_line_is_translated_or_refused(words: list[str]) -> None:
    text = " ".join(words)
    find(text)
    try:
        translation = translate_line(text, TABLE, read_file)
    except (UsageError, ValueError):
        return
    COMMAND.commands["run"].make_context("run", [*translation.options, *translation.script])


SCRIPT = """\
#!/bin/bash
# mpirun -n 9 python old.py
export MASTER_ADDR=$(hostname) HF_TOKEN=hf_abc DATA=/d PYTHONPATH=$PWD/src:$PYTHONPATH
export OMP_NUM_THREADS=$(nproc)
if [ -n "$1" ]; then
    time mpirun -n $NP -ppn 1 \\
        python train.py --out "$OUT" 'two words' $ARGS "$(date +%F)" *.txt > log 2>&1
fi
for lr in 0.1 0.2; do torchrun --nproc_per_node 2 train.py --lr $lr; done
ARGS2=(--nproc_per_node 4 --nnodes 2)
torchrun ${ARGS2[@]} train.py
CMD="cd x && mpirun -n 2 python train.py"
if command -v mpirun >/dev/null; then mpirun --version; fi
echo "use mpirun -n 2 train.py"; pip install deepspeed; python train.py --launcher torchrun x
"""


def test_launch_lines_of_a_script_are_found_with_what_a_shell_does_for_them() -> None:
    given = '--pass-env HF_TOKEN -e DATA=/d --pass-env PYTHONPATH --threads "$OMP_NUM_THREADS"'
    assert find(SCRIPT) == [
        (6, f"ipexctl run -n $NP --ppn 1 {given} train.py --out \"$OUT\" 'two words' $ARGS \"$(date +%F)\" *.txt",
         ["variable", "shell", "prefix"]),
        (9, f"ipexctl run -n 2 --ppn 2 {given} train.py --lr $lr", ["variable"]),
        (11, f"ipexctl run -n 8 --ppn 4 {given} train.py", ["variable"]),
        (12, "ipexctl run -n 2 train.py", []),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "rows"), read_table("launch_line/launch_lines_are_found_where_they_stand"))
def test_launch_lines_are_found_where_they_stand(text: str, rows: list[list[Any]]) -> None:
    assert find(text) == [tuple(row) for row in rows]


def test_other_texts_are_read_line_by_line() -> None:
    text = (
        "jobs:\n  - run: |\n      mpirun -n 2 python t.py\n  - {name: it's}\n  - command: torchrun t.py\n  - x: it's\n"
    )
    assert [row[0] for row in find(text, "jobs.yaml")] == [3, 5]
    guide = (
        "- Added a check to mpirun of t.py.\n\n    $ torchrun t.py --model <MODEL NAME> --x <X>\nname: torchrun t.py\n"
    )
    assert find(guide, "guide.md") == [(3, "ipexctl run -n 1 --ppn 1 t.py --model '<MODEL NAME>' --x '<X>'", [])]


def expand(*words: str) -> tuple[list[str], list[str]]:
    context: Any = SimpleNamespace(meta={})
    return _expand_mpirun_line([*words], context), next(iter(context.meta.values()), [])


def test_options_beside_the_line_win_and_words_of_a_script_are_its_own() -> None:
    words = ["--dry-run", "--from-mpirun", "mpirun -n 4 python x.py --from-mpirun y", "-n", "2"]
    assert expand(*words) == (["-n", "4", "--dry-run", "-n", "2", "x.py", "--from-mpirun", "y"], [])
    assert expand("x.py", "--epochs", "3") == (["x.py", "--epochs", "3"], [])
    beside = expand("-f", "h", "--from-mpirun=nohup mpirun -hosts a:2,b:2 -n 4 python x.py")
    assert beside == (["-n", "4", "-f", "h", "x.py"], ["--from-mpirun: left out: nohup (run starts without it)"])
    with pytest.raises(UsageError, match="closing quotation"):
        expand("--from-mpirun", "mpirun 'x")


def test_a_variable_that_the_line_passes_on_and_nobody_set_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLUE", "1")
    words, notes = expand("--from-mpirun", "mpirun -x GONE -x BLUE -x LOST -n 2 python x.py")
    assert words == ["-n", "2", "--pass-env", "BLUE", "x.py"]
    assert notes == [f"--from-mpirun: left out: {name} (it is not set on this machine)" for name in ("LOST", "GONE")]


def test_the_command_says_what_is_wrong_with_a_line_and_what_is_left_out(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", "--hosts", "a", "--from-mpirun", "mpirun --frobnicate python x.py"])
    assert done.exit_code == 2
    assert "mpirun's option --frobnicate is not known here" in done.output
    done = CliRunner().invoke(app, ["run", "--from-mpirun", "for h in a b; do ssh $h torchrun t.py & done"])
    assert (done.exit_code, "ipexctl run --hosts HOST,HOST SCRIPT" in done.output) == (2, True)
    script = tmp_path / "x.py"
    script.write_text("")
    line = f"mpirun -n 2 -x PATH python {script} > log"
    done = CliRunner().invoke(app, ["run", "--dry-run", "--hosts", "none.invalid", "--from-mpirun", line])
    assert "left out: > log (run stores the output of each rank)" in done.output
    assert "left out: PATH (run sets it on each host)" in done.output


def test_every_meaning_of_the_table_is_an_option_of_run_or_has_its_method() -> None:
    own = {*list_run_options(), "--limit"}
    meanings = {
        meaning.rstrip("!").split(" ")[0] for each in TABLE.programs.values() for meaning in each.options.values()
    }
    meanings |= {each.rest for each in TABLE.programs.values() if each.rest}
    meanings |= {*TABLE.variables.values()} | {*TABLE.mca.values()} - {"refused"}
    assert {each for each in meanings if each.startswith("--")} <= own
    words = {each for each in meanings if not each.startswith("-")}
    assert {each for each in words if not hasattr(LaunchLineReader, "_take_" + each.replace("-", "_"))} == set()
    assert {each.unless for each in TABLE.programs.values()} <= {"", *(name for each in TABLE.programs.values()
                                                                       for name in each.options)}  # fmt: skip
