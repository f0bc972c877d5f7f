"""What of a launch is varied, and the task and the words that come of it."""

from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ipexctl.decide.launch.tuning import name_wins
from ipexctl.decide.tune import knobs
from ipexctl.model.errors import UsageError
from ipexctl.model.launch import Launch
from ipexctl.model.run_words import list_run_words
from ipexctl.model.tasks import Run, Tune
from ipexctl.store.masking import Masker
from ipexctl.verbs.tune import tune
from tests.tables import read_table
from tests.unit.launch.two import facts, launch

WIN = 'membind = "one rank on each NUMA node (a guide)"'


def run(**settings: Any) -> Run:
    return Run(script="train.py", **settings)


def test_what_the_user_sets_or_fixes_is_not_varied() -> None:
    names, task = knobs.parse_knobs((), {"ppn": "2", "membind": "yes"}, run(allocator="jemalloc"))
    assert names == ("threads", "backend", "ccl_workers", "omp", "hugepages", "compile")
    assert (task.ppn, task.membind, task.allocator) == (2, True, "jemalloc")
    assert knobs.parse_knobs(("ppn,omp",), {}, run())[0] == ("ppn", "omp")


@pytest.mark.parametrize(("vary", "fixed", "sentence"), read_table("knobs/refusals", frozen=True))
def test_a_wrong_name_or_value_is_refused(vary: tuple[str, ...], fixed: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        knobs.parse_knobs(vary, fixed, run())
    assert any(words.startswith(sentence) for words in (refused.value.sentence, *refused.value.reasons))


def test_the_values_follow_the_hosts() -> None:
    of: Launch = launch(run())
    hosts = {"node0": facts(2, 8), "node1": facts(2, 8)}
    values = knobs.list_knobs(run(), of, hosts, knobs.KNOBS)
    assert 1 in values["ppn"]
    assert not values["compile"]  # no Accelerate
    assert values["membind"] == [True]


def test_the_same_launch_in_other_words_is_the_same() -> None:
    default = knobs.identify_launch(launch(run()))
    assert knobs.identify_launch(launch(run(ccl_workers=4))) == default  # no oneCCL
    chosen, named = (knobs.identify_launch(launch(run(**more), impi=True)) for more in ({}, {"backend": "impi"}))
    assert chosen == named, "the backend that is planned in any case"
    assert knobs.identify_launch(launch(run(hugepages=True))) not in (None, default)
    assert knobs.identify_launch(launch(run(allocator="jemalloc"))) is None  # no host has one
    assert knobs.identify_launch(launch(run(ppn=99)))  # more ranks than cores, as three hosts of the lab have


@pytest.mark.parametrize(
    ("args", "size", "kept"),
    [
        (("--batch", "32"), 8, ("--batch", "16")),
        (("--lr", "1", "--batch=32", "--x"), 2, ("--lr", "1", "--batch=64", "--x")),
    ],
)
def test_the_global_batch_is_kept(args: tuple[str, ...], size: int, kept: tuple[str, ...]) -> None:
    assert knobs.keep_batch(run(args=args), "batch", 4, size).args == kept


def test_dashes_and_underscores_are_the_same_and_a_missing_batch_is_refused() -> None:
    task = knobs.keep_batch(run(args=("--per-device-batch", "8")), "per_device_batch", 2, 4)
    assert task.args[-1] == "4"
    with pytest.raises(UsageError, match="--keep-batch batch"):
        knobs.keep_batch(run(args=("--lr", "3")), "batch", 2, 4)
    with pytest.raises(UsageError, match="3 ranks cannot have the global batch of 4"):
        knobs.keep_batch(run(args=("--batch", "32")), "batch", 4, 3)

    nothing: Any = None
    masker, arguments = Masker({}), {"api_token": "geheim1,geheim2", "lr": "0.1,0.2"}
    context: Any = SimpleNamespace(masker=masker)
    with pytest.raises(UsageError, match="--keep-batch batch"):
        next(tune(Tune(script="train.py", keep_batch="batch", arg=arguments), nothing, context))
    # The second value of an argument was in the record of a study.
    values = {"--api_token": ("geheim1", "geheim2"), "--lr": ("0.1", "0.2")}
    assert masker.mask_value(values) == {"--api_token": ("***", "***"), "--lr": ("0.1", "0.2")}


@pytest.mark.parametrize(("text", "reads"), read_table("knobs/compile_is_varied_where_the_script_names_what_reads_it"))
def test_compile_is_varied_where_the_script_names_what_reads_it(text: str, reads: bool) -> None:
    assert bool(knobs.ACCELERATED.search(text)) == reads


def test_the_command_and_the_playbook_have_all_that_is_not_as_usual_and_no_secret() -> None:
    values: dict[str, bool | int | str] = {"ppn": 2, "membind": True, "--dtype": "bf16", "compile": True}
    task = knobs.set_values(run(args=("--lr", "3"), env={"HF_TOKEN": "hf_x", "A": "${b}"}, sync=False), values)
    words = list_run_words(task)
    assert words[:1] == ["run"]
    assert words[-5:] == ["train.py", "--lr", "3", "--dtype", "bf16"]
    assert {"--ppn", "--membind", "--no-sync", "A=${b}", "--pass-env", "HF_TOKEN"} <= {*words}
    assert "hf_x" not in " ".join(words)
    book = yaml.safe_load(knobs.write_playbook(task, "faster"))
    keys = book["steps"][0]["run"]
    assert keys["env"] == {"A": "$${b}", knobs.COMPILE: "inductor"}
    assert (keys["ppn"], keys["membind"], keys["pass_env"]) == (2, True, ["HF_TOKEN"])


def test_wins_are_named_where_they_can_matter_and_are_not_used() -> None:
    two, one = {"node0": facts(2, 4)}, {"node0": facts(1, 4)}
    messages = [message.text for message in name_wins(WIN, two, run())]
    assert messages == ["tuning usually wins on such hosts: one rank on each NUMA node (a guide)"]
    assert not [*name_wins(WIN, one, run())]
    assert not [*name_wins(WIN, two, run(membind=True))]
