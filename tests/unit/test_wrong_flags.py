"""A wrong value of a flag is told in our words: what the flag takes, and what it was given."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner

from ipexctl import loop
from ipexctl.cli import app
from ipexctl.cli.command import make_model
from ipexctl.model.errors import UsageError
from ipexctl.model.tasks import Run
from tests.tables import read_table


@pytest.mark.parametrize(("words", "output"), read_table("wrong_flags/wrong_values", frozen=True))
def test_a_wrong_value_says_what_the_flag_takes(tmp_path: Path, words: tuple[str, str], output: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    reported = CliRunner().invoke(app, ["run", *words, str(script)])
    assert reported.exit_code == 2
    assert output in " ".join(reported.output.split())
    assert "Input should" not in reported.output
    assert "Value error" not in reported.output


@pytest.mark.parametrize(("words", "output"), read_table("wrong_flags/wrong_variables", frozen=True))
def test_a_variable_that_is_none_blames_the_flag_it_was_given_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("play.yaml").write_text("hosts: [node0]\nvars: {ppn: 1}\nsteps: [{doctor: }]\n")
    reported = CliRunner().invoke(app, [*words])
    assert (reported.exit_code, output in reported.output) == (2, True), reported.output


@pytest.mark.parametrize(("script", "output"), read_table("wrong_flags/what_is_no_script_is_reported_as_what_it_is"))
def test_what_is_no_script_is_reported_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s").mkdir()
    os.mkfifo("pipe")
    Path("train.py").touch()
    reported = CliRunner().invoke(app, ["run", "--hosts", "node0", script])
    assert (reported.exit_code, reported.output.splitlines()[0]) == (2, f"error: {output}")
    if script == "node1:2":  # as after the -H of horovodrun and mpirun
        assert reported.output.splitlines()[1:] == ["  hint: several hosts stand between commas: --hosts a:2,b:2"]
    if "did you mean" in output:
        assert reported.output.splitlines()[1:] == ["  hint: ipexctl run --hosts node0 train.py"]
        Path("nodes").touch()
        reported = CliRunner().invoke(app, ["run", "-f", "node", "train.py"])
        assert reported.output.splitlines()[1:] == ["  hint: ipexctl run -f nodes train.py"]


def test_a_hostfile_in_the_place_of_names_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nodes").write_text("node0\n")
    refused = CliRunner().invoke(app, ["hosts", "--hosts=./nodes"])
    assert refused.stderr.splitlines()[1:] == ["  hint: ipexctl hosts --hostfile=./nodes"]
    warned = CliRunner().invoke(app, ["hosts", "--hosts", "nodes"])  # a host may have the name of a file
    assert (warned.exit_code, "nodes is a file here, which -f takes" in warned.output) == (0, True)
    empty = CliRunner().invoke(app, ["hosts", "-f", ""])
    assert empty.stderr == "error: the path of a file is empty\n"


@pytest.mark.parametrize(("line", "error", "hint"), read_table("wrong_flags/paths"))
def test_a_path_that_is_not_what_the_command_needs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, error: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    Path("t.py").write_text("print()\n")
    refused = CliRunner().invoke(app, shlex.split(line))
    assert (refused.exit_code, error in refused.stderr, hint in refused.stderr) == (2, True, True), refused.stderr


def test_without_hosts_those_of_a_running_lab_are_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = tmp_path / "ipexctl/lab/hostfile"
    lab.parent.mkdir(parents=True)
    lab.write_text("lab0\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("IPEXCTL_HOSTFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    reported = CliRunner().invoke(app, ["run", "--ppn", "2", "train.py", "--lr", "3"])
    assert reported.output.splitlines()[-1].strip() == f"ipexctl run -f {lab} --ppn 2 train.py --lr 3"


@pytest.mark.parametrize(("words", "hint"), read_table("wrong_flags/limits_of_the_hostfile"))
def test_hosts_of_the_hostfile_are_chosen_with_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, hint: str
) -> None:
    monkeypatch.setattr(loop, "get_state_directory", lambda: tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    for name in ("hosts", "train.py"):
        Path(name).touch()
    Path("hosts").write_text("node0\nnode1\nnode0.invalid address=127.0.0.1 port=1\nx.invalid\n")
    monkeypatch.setenv("IPEXCTL_HOSTFILE", "hosts")
    reported = CliRunner().invoke(app, words.split(), env={"COLUMNS": "200"})
    assert hint in reported.output, reported.output


def test_a_comparison_is_a_report_of_two_runs() -> None:
    reported = CliRunner().invoke(app, ["compare", "1126-a", "1126-b"])
    assert reported.output.splitlines()[-1] == "  hint: ipexctl report 1126-a 1126-b"
    assert "commands:" not in reported.output


@pytest.mark.parametrize(("words", "output"), read_table("wrong_flags/options_behind_the_script", frozen=True))
def test_an_option_behind_the_script_is_reported_and_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], output: str | None
) -> None:
    monkeypatch.setattr(loop, "get_state_directory", lambda: tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    Path("s").mkdir()
    Path("s/quick.py").write_text("backend = 'nccl'\nworkdir: str\nparser.add_argument('--env', default='CartPole-v1')")
    Path("hosts").write_text("node0 address=127.0.0.1 port=1\n")  # nobody listens there
    run = CliRunner().invoke
    reported = run(app, ["run", "-f", "hosts", "s/quick.py", *words])
    assert reported.exit_code == 3
    given = run(app, ["run", "-f", "hosts", "--ppn", "1", "-n", "1", "s/quick.py", *words])
    assert "the script" not in given.output, "it was meant for both"
    assert [line for line in reported.output.splitlines() if "the script" in line] == (
        [f"warning: {output}"] if output else []
    )


def test_hosts_that_stand_behind_the_script_have_the_line_that_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("parser.add_argument('-f')")
    for words, line in (
        (["--lr", "1", "--hosts", "node0"], "ipexctl run --hosts node0 train.py --lr 1"),
        (["--hosts=node0"], "ipexctl run --hosts=node0 train.py"),
        (["-f", "data"], "ipexctl doctor --hosts node0,node1"),
    ):
        refused = CliRunner().invoke(app, ["run", "train.py", *words], env={"HOME": str(tmp_path)})
        assert (refused.exit_code, refused.output.splitlines()[-1].strip()) == (2, line)


@pytest.mark.parametrize(
    ("words", "read", "warned"),
    [((), 0, True), (("--stdin", "-"), 0, False), ((), 7, False)],
    ids=["given", "wanted", "half-read"],
)
def test_a_file_on_standard_input_that_no_rank_reads_is_a_warning(
    tmp_path: Path, words: tuple[str, ...], read: int, warned: bool
) -> None:
    """A loop of the shell that takes lines of a file leaves the next ones to its commands."""
    (tmp_path / "input").write_text("a line\nanother\n")
    with (tmp_path / "input").open("rb") as file:
        file.seek(read)
        assert is_warned_of_input(tmp_path, file, *words) is warned


@pytest.mark.parametrize("stdin", [subprocess.DEVNULL, subprocess.PIPE])
def test_what_is_no_file_on_standard_input_is_no_warning(tmp_path: Path, stdin: int) -> None:
    assert not is_warned_of_input(tmp_path, stdin)


def is_warned_of_input(place: Path, stdin: IO[bytes] | int, *words: str) -> bool:
    (place / "t.py").touch()
    (place / "hostfile").write_text("node0 address=127.0.0.1 port=1\n")  # nobody listens there
    command = [sys.executable, "-m", "ipexctl", "run", *words, "t.py"]
    with subprocess.Popen(
        command, cwd=place, env={**os.environ, "HOME": str(place)}, stdin=stdin, stderr=subprocess.PIPE
    ) as run:
        messages = run.communicate(timeout=60)[1]
    assert run.returncode == 3
    return b"standard input is a file" in messages


@pytest.mark.parametrize(("verb", "words", "hint"), read_table("wrong_flags/dry_runs_behind_the_script"))
def test_who_asks_behind_the_script_for_a_dry_run_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, words: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.py").write_text("")
    Path("hostfile").write_text("node0 address=127.0.0.1 port=1\n")  # nobody listens there
    reported = CliRunner().invoke(app, [verb, *words.split()])
    assert reported.exit_code == 2
    assert reported.output.splitlines()[-1] == f"  hint: ipexctl {verb} {hint}"
    before, _, behind = words.partition("t.py")
    own = shlex.split(f"{verb} {before} -- t.py {behind}")
    assert shlex.join(["ipexctl", *own]) in reported.output
    assert CliRunner().invoke(app, own).exit_code == 3, "nothing is said against it"


@pytest.mark.parametrize(
    ("option", "value", "output"),
    [
        ("--venv", "/env", "'/env' must be at least two levels deep"),
        ("--venv", "/a/../env", "'/a/../env' is not a plain absolute path"),
        ("--find-links", "nowhere", "--find-links: 'nowhere' is not a directory"),
    ],
)
def test_a_path_of_install_that_cannot_be_meant_is_refused(
    tmp_path: Path, option: str, value: str, output: str
) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1\n")
    words = ["install", option, value, "--torch", "2.8.0", "-f", str(tmp_path / "hosts")]
    reported = CliRunner().invoke(app, words, env={"HOME": str(tmp_path)})
    assert reported.exit_code == 2
    assert output in " ".join(reported.output.split())


def test_a_pattern_is_reported_as_the_words_it_stands_for() -> None:
    with pytest.raises(UsageError) as refused:
        make_model(Run, {"script": "train.py", "mpi": "mvapich", "env_file": None})
    assert refused.value.reasons == (
        "--mpi must be auto, impi, mpich, openmpi or a path that begins with /, not 'mvapich'",
    )
    refused_form = CliRunner().invoke(app, ["hosts", "--as", "ssh", "--hosts", "a"])
    assert refused_form.stderr.splitlines()[0] == "error: --as must be mpi, not 'ssh'"


@pytest.mark.parametrize(("line", "sentence", "hint"), read_table("wrong_flags/unreadable_words"))
def test_words_that_cannot_be_read_are_refused_with_a_line_to_paste(line: str, sentence: str, hint: str) -> None:
    refused = CliRunner().invoke(app, shlex.split(line), env={"COLUMNS": "200"})
    lines = refused.stderr.splitlines()
    assert (refused.exit_code, bool(refused.stdout)) == (2, "--json" in line)
    assert (lines[0], lines[-1]) == (f"error: {sentence}", f"  hint: ipexctl {hint}")


def test_options_of_a_hint_stand_before_the_end_of_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    refused = CliRunner().invoke(app, shlex.split("run --hosts a -- env X=1 python train.py"), env={"COLUMNS": "200"})
    assert refused.stderr.splitlines()[-1] == "  hint: ipexctl run --hosts a -e X=1 train.py"


@pytest.mark.parametrize("path", ["lab", "wheels"])
def test_a_group_without_a_command_prints_its_help(path: str) -> None:
    ended = CliRunner().invoke(app, path.split())
    assert ended.exit_code == 2
    assert ended.output.startswith(f"Usage: ipexctl {path}".rstrip())


def test_every_required_argument_has_an_example_that_is_accepted() -> None:
    for path in ("run", "fetch", "migrate", "wheels fetch", "examples show", "examples copy"):
        refused = CliRunner().invoke(app, path.split(), env={"COLUMNS": "200"})
        words = shlex.split(refused.stderr.splitlines()[-1].removeprefix("  hint: ipexctl "))
        assert words[: len(path.split())] == path.split()
        assert len(words) == len(path.split()) + 1
        assert words[-1]


def test_ctrl_c_while_the_modules_are_read_is_no_error_to_tell_of(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")  # as Python does then
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "ipexctl", "--help"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("words", [("logs", "-f"), ("logs", "-f", "--rank", "0")])
def test_logs_without_the_name_of_a_hostfile_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IPEXCTL_HOSTFILE", raising=False)
    reported = CliRunner().invoke(app, [*words], env={"HOME": str(tmp_path)})
    assert (reported.exit_code, "no hosts were given" in reported.output) == (2, True), reported.output
    lab = tmp_path / ".local/state/ipexctl/lab/hostfile"
    lab.parent.mkdir(parents=True)
    lab.write_text("node0\n")
    reported = CliRunner().invoke(app, [*words], env={"HOME": str(tmp_path), "COLUMNS": "200"})
    assert f"ipexctl logs -f {lab} --follow{' --rank 0' if words[2:] else ''}\n" in reported.stderr
    assert "error: -f needs a value: PATH" in CliRunner().invoke(app, ["ps", "-f"]).output


def test_standard_input_is_no_part_of_a_launch_for_another_program(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    words = ["run", "--hosts", "node0", "--emit", "sbatch", "--stdin", str(script), str(script)]
    reported = CliRunner().invoke(app, words)
    assert (reported.exit_code, "--stdin does not fit --emit sbatch" in reported.output) == (2, True), reported.output


def test_help_is_a_command_and_a_letter_too_many_is_one_too_many() -> None:
    run, root = (CliRunner().invoke(app, words).output for words in (["run", "--help"], ["--help"]))
    assert CliRunner().invoke(app, ["help", "run"]).output == run
    assert CliRunner().invoke(app, ["help"]).output == root
    assert CliRunner().invoke(app, ["help", "run", "train.py"]).output == run
    assert "Usage: ipexctl lab up" in CliRunner().invoke(app, ["help", "lab", "up"]).output
    wrong = CliRunner().invoke(app, ["runn", "train.py"])
    assert (wrong.exit_code, "hint: ipexctl run train.py" in wrong.output) == (2, True)


def test_the_program_alone_names_five_commands_and_where_one_stands(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}

    def ask() -> str:
        done = subprocess.run([sys.executable, "-m", "ipexctl"], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Here: no hostfile: ipexctl init\n" in ask()
    assert sum(line.startswith("  ipexctl ") for line in ask().splitlines()) == 5
    (tmp_path / "hostfile").write_text("node0\n")
    assert "Here: 'hostfile' names the hosts: ipexctl doctor\n" in ask()
    record = tmp_path / ".local/state/ipexctl/runs/1120-083015-k7-run"
    record.mkdir(parents=True, mode=0o700)
    (record / "events.jsonl").touch()
    assert "the last command, 1120-083015-k7-run: unfinished\n" in ask()


def test_logs_f_follows_but_before_a_hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipexctl.cli.runs import _follow_logs

    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("node0\n")
    assert _follow_logs(["-f", "k7"]) == ["--follow", "k7"]
    assert _follow_logs(["k7", "-f"]) == ["k7", "--follow"]
    assert _follow_logs(["k7", "-f", "hosts"]) == ["k7", "-f", "hosts"]


@pytest.mark.parametrize("words", ["frobnicate --json", "stacks --json --why", "migrate --json train.py x"])
def test_wrong_words_are_a_document_for_a_program(words: str) -> None:
    reported = CliRunner().invoke(app, words.split())
    answer = json.loads(reported.stdout)
    assert (reported.exit_code, answer["exit"], answer["codes"]) == (2, 2, ["usage"])
    assert answer["refused"] in reported.stderr
    assert answer["next"] == [answer["hint"].split()] or answer["hint"] == "nothing is run without it"
