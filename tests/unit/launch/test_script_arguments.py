"""Where a script's checkpoints are, and the words that make it go on from one."""

from pathlib import Path

import pytest

from ipexctl.decide.launch.script_arguments import (
    describe_rank_argument,
    describe_unread_checkpoint,
    find_checkpoint_directory,
    find_resume_words,
)
from ipexctl.decide.script_imports import Module
from ipexctl.model.errors import UsageError
from ipexctl.model.tasks import Run
from ipexctl.verbs.run.request import RunRequest, read_request
from tests.tables import read_table

TRAINER = "from transformers import Trainer, TrainingArguments\nargs = TrainingArguments(output_dir='out', seed=3)\n"
PARSER = "from transformers import HfArgumentParser\n"
CLI = "from lightning.pytorch.cli import LightningCLI\n"
RESUMES = "parser.add_argument('--resume-from-checkpoint')\n"


@pytest.mark.parametrize(
    ("args", "text", "directory"),
    [
        (("--output_dir", "o", "--seed", "1"), PARSER, "o"),
        (("--output-dir=o",), PARSER, "o"),
        (("fit", "--trainer.default_root_dir", "logs"), CLI, "logs"),
        (("fit",), CLI, "lightning_logs"),
        ((), TRAINER, "out"),
        (("--output_dir",), TRAINER, None),
        ((), TRAINER.replace("'out'", "place"), None),
        ((), TRAINER.replace("transformers", "mine"), None),
        ((), "not python (", None),
    ],
)
def test_the_directory_is_what_the_script_is_told(args: tuple[str, ...], text: str, directory: str | None) -> None:
    assert find_checkpoint_directory(args, text) == directory


@pytest.mark.parametrize(
    ("program", "text", "option"),
    [
        ("train.py", PARSER, "--resume_from_checkpoint"),
        ("trl", "", "--resume_from_checkpoint"),
        ("train.py", RESUMES, "--resume-from-checkpoint"),
        ("train.py", CLI, "--ckpt_path"),
        ("train.py", TRAINER, None),
    ],
)
def test_a_resume_argument_is_given_only_where_it_is_read(program: str, text: str, option: str | None) -> None:
    assert find_resume_words(program, text) == ((option, "{checkpoint}") if option else ())


@pytest.mark.parametrize(
    ("args", "text", "warned"),
    read_table("checkpoint_words/a_script_that_does_not_read_its_checkpoint_is_named", frozen=True),
)
def test_a_script_that_does_not_read_its_checkpoint_is_named(args: tuple[str, ...], text: str, warned: bool) -> None:
    notes = describe_unread_checkpoint("train.py", args, text)
    assert [note.code for note in notes] == ["unread-checkpoint"] * warned


@pytest.mark.parametrize(("declared", "args", "warned"), read_table("script_arguments/waits_for_a_rank", frozen=True))
def test_a_script_that_waits_for_a_rank_that_nobody_gives_is_named(
    declared: str, args: tuple[str, ...], warned: bool
) -> None:
    notes = describe_rank_argument(f"import argparse\nparser.add_argument({declared})\n", "train.py", args, list)
    assert [note.text.partition(",")[0].rpartition(" waits")[2] for note in notes] == [
        f" for {declared[1:13]} (line 2)"
    ] * warned


def test_a_deep_default_of_an_argument_ends_nothing() -> None:
    assert describe_rank_argument(f"parser.add_argument('--x', default={'1+' * 900}1)\n", "train.py", (), list) == ()


def test_a_module_of_the_project_may_read_the_rank() -> None:
    text, modules = "parser.add_argument('--local_rank')", [Module("setup.py", "", "os.environ['LOCAL_RANK']")]
    assert describe_rank_argument(text, "train.py", (), list)
    assert describe_rank_argument(text, "train.py", (), lambda: modules) == ()


def read(task: Run) -> RunRequest:
    return read_request(task, {}, dry=True, emit=None)


def test_a_run_that_may_start_again_keeps_what_its_framework_writes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    assert read(Run(script=str(script), restarts=1)).task.keep == "out"
    assert read(Run(script=str(script))).task.keep is None
    assert read(Run(script=str(script), keep="mine", restarts=1)).task.keep == "mine"


@pytest.mark.parametrize("keep", ["", ".", "/", "..", "a/.."])
def test_the_project_itself_is_no_directory_of_checkpoints(tmp_path: Path, keep: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    with pytest.raises(UsageError, match="is not a directory of checkpoints alone"):
        read(Run(script=str(script), keep=keep))
    with pytest.raises(UsageError, match="does not know where the checkpoints are"):
        read(Run(script=str(script), resume="auto"))
