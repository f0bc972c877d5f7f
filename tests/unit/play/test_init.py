"""A first playbook: the hosts' facts are the defaults, what is written is read back, and nothing is overwritten."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.act.context import Context
from ipexctl.data import read_data
from ipexctl.decide.launch.accelerate import AccelerateConfig
from ipexctl.decide.parsing import parse_inventory, parse_list
from ipexctl.decide.parsing import playbook as reading
from ipexctl.decide.parsing.validators import TEMPLATE
from ipexctl.decide.planning.init import (
    Answers,
    Script,
    apply_answer,
    describe_hosts,
    find_stock_torch,
    format_hostfile,
    format_playbook,
    is_training,
    list_questions,
    make_backend_question,
    read_script,
    suggest_script,
)
from ipexctl.decide.releases.resolve import resolve_stack
from ipexctl.decide.script_imports import parse_import_table
from ipexctl.model.errors import UsageError
from ipexctl.model.facts import Core, Facts, Installed
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.stack import StackRequest
from ipexctl.model.tasks import Install, Run
from ipexctl.verbs.common.probe import load_releases
from ipexctl.verbs.play.init import Target, init, list_scripts, read_source
from tests.fakes import FakeOpener
from tests.tables import read_table
from tests.unit.test_hints import parse

HOSTS = parse_list("node[0-1]")
TABLE = parse_import_table(read_data("imports.toml"))


def machine(level: str, nodes: int = 2, **more: Any) -> Facts:
    cores = tuple(Core((number,), number * nodes // 8, number * nodes // 8) for number in range(8))
    return Facts(
        isa_level=level, cores=cores, cpus_online=tuple(range(8)), physical_cores=8, model_name="Xeon\x1b[31m\n8480+",
        mem_total_kb=64 << 20, **more,
    )  # fmt: skip


FACTS = {"node0": machine("AMX"), "node1": machine("AVX512_BF16")}


def defaults(
    facts: dict[str, Facts], inventory: Inventory = HOSTS, config: AccelerateConfig | None = None
) -> dict[str, str]:
    return {q.key: q.default for q in list_questions(Answers(), inventory, facts, config, Script(accelerate=True))}


def test_what_the_hosts_say_is_the_default() -> None:
    assert defaults(FACTS) == {"ppn": "2", "ipex": "yes", "precision": "bf16", "port": "auto"}
    weak = {"node0": machine("AMX"), "node1": machine("AVX512_VNNI", nodes=1)}
    assert defaults(weak) == {
        "ppn": "1", "ipex": "yes", "precision": "no", "port": "auto"
    }  # fmt: skip
    assert defaults({"node0": machine("below")})["ipex"] == "no"
    slots = Inventory((Host("a", "a", slots=4), Host("b", "b", slots=4)))
    assert defaults(FACTS, slots)["ppn"] == "4"


@pytest.mark.parametrize(
    ("packages", "ipex", "torch"),
    [
        ([{"torch": "2.13.0+cpu"}, {"torch": "2.13.0"}], "no", "2.13.0"),
        ([{"torch": "2.13.0"}, {"torch": "2.12.0"}], "yes", None),
        ([{"torch": "2.8.0", "intel-extension-for-pytorch": "2.8.0"}] * 2, "yes", None),
        ([{"torch": "2.13.0"}, {}], "yes", None),
        ([{}, {}], "yes", None),
    ],
)
def test_what_every_host_has_installed_stays(packages: list[dict[str, str]], ipex: str, torch: str | None) -> None:
    facts = {
        name: replace(fact, installed=Installed("/env", True, "3.11", each))
        for (name, fact), each in zip(FACTS.items(), packages, strict=True)
    }
    assert (defaults(facts)["ipex"], find_stock_torch(facts)) == (ipex, torch)


@pytest.mark.parametrize(("backend", "output"), [("ccl", "gloo and impi: newer rows"), ("gloo", "")])
def test_the_question_of_the_backend_says_what_another_answer_changes(backend: str, output: str) -> None:
    stack = resolve_stack(StackRequest(torch="2.7.0", backend=backend), {}, load_releases())  # type: ignore[arg-type]
    question = make_backend_question(stack)
    assert (question.default, question.choices) == (backend, ("ccl", "impi", "gloo"))
    assert question.why == "; ".join(filter(None, (stack.name, output)))


def test_an_accelerate_configuration_answers_what_it_says() -> None:
    config = AccelerateConfig(ranks=8, hosts=2, address="10.0.0.1", port=29500, precision="no", ipex=False)
    assert defaults(FACTS, config=config) == {
        "ppn": "4", "ipex": "no", "precision": "no", "port": "29500"
    }  # fmt: skip
    assert "mixed_precision of the configuration; every host computes bf16" in next(
        q.why for q in list_questions(Answers(), HOSTS, FACTS, config, Script(accelerate=True)) if q.key == "precision"
    )


def test_of_several_scripts_the_one_that_trains_is_suggested() -> None:
    data, train = "import torch\n", "loss.backward()\n"
    texts = (data, train, "SFTTrainer(model)", "trainer.fit(model)")
    assert [is_training(text) for text in texts] == [False, True, True, True]
    assert suggest_script({"data.py": False, "main.py": True}) == ("main.py", "the only script here that trains")
    assert suggest_script({"a.py": True, "b.py": True, "c.py": False}) == (
        "", "one of a.py, b.py"
    )  # fmt: skip
    assert suggest_script({"a.py": False}) == ("a.py", "the only script here")
    assert suggest_script({"a.py": False, "b.py": False}) == ("", "one of a.py, b.py")
    assert suggest_script({}) == ("", "")


def test_the_command_for_one_of_several_scripts_has_one_that_trains(tmp_path: Path) -> None:
    for name, text in {"config.py": "", "train_a.py": "loss.backward()", "train_b.py": "loss.backward()"}.items():
        (tmp_path / name).write_text(text)
    target = Target(tmp_path / "playbook.yaml", tmp_path / "hostfile")
    with pytest.raises(UsageError) as refused:
        next(init(Answers(), HOSTS, None, target, Context(FakeOpener({}), tmp_path, tmp_path), None))
    assert [*refused.value.reasons] == ["one of train_a.py, train_b.py"]
    assert "init --yes train_a.py" in str(refused.value)


def test_scripts_of_a_directory_with_very_many_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 files of a megabyte, holes of somebody's archive, were 2 GiB of memory; and texts are not kept."""
    (tmp_path / "test_a.py").write_text("loss.backward()")
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("loss.backward()")
    assert list_scripts(tmp_path) == {"a.py": True, "b.py": True}
    monkeypatch.setattr("ipexctl.verbs.play.init._SCRIPTS_READ", 1)
    assert list_scripts(tmp_path) == {"a.py": False, "b.py": False}


def test_equal_hosts_share_a_line() -> None:
    hosts = parse_list("node[0-2],other")
    lines = describe_hosts(hosts, dict.fromkeys(("node0", "node1", "node2"), FACTS["node0"]))
    assert [line.split("  ")[0].strip() for line in lines] == ["node[0-2]", "other"]
    assert lines[1].endswith("did not answer")


def test_what_is_answered_is_not_asked() -> None:
    answers = Answers(script="t.py", ppn=1, ipex=True, precision="no", port=0)
    assert [*list_questions(answers, HOSTS, FACTS, None, Script(accelerate=True))] == []


def test_a_script_that_does_not_read_it_is_not_asked_about_precision() -> None:
    keys = [question.key for question in list_questions(Answers(), HOSTS, FACTS, None, Script())]
    assert keys == ["ppn", "ipex", "port"]


@pytest.mark.parametrize(("key", "text", "value"), read_table("init/answers_are_taken_or_reported_what_they_must_be"))
def test_answers_are_taken_or_reported_what_they_must_be(key: str, text: str, value: object) -> None:
    result = apply_answer(Answers(), key, text)
    assert isinstance(result, str) if value is None else getattr(result, key) == value


def written(answers: Answers, script: Script, inventory: Inventory = HOSTS) -> str:
    stack = resolve_stack(StackRequest(track="ipex", backend="gloo"), {}, load_releases())
    whys = {"ppn": "one per NUMA node", "precision": "x\ny"}
    named = {"hosts": "hostfile", "name": "playbook.yaml", "when": "2026-11-20"}
    return format_playbook(
        read_data("playbook.j2"), answers, script, TABLE, stack, inventory, FACTS, whys=whys, **named
    )


def test_the_commands_above_a_playbook_stand_in_columns_and_are_some() -> None:
    lines = [line for line in written(Answers("train.py", (), 2), Script()).splitlines() if "  ipexctl play" in line]
    assert len({line.index(line[4:].split("     ")[-1].strip()) for line in lines}) == 1, lines
    assert len(lines) == 2
    for line in lines:
        parse(shlex.split(line[1:].split("     ")[0])[1:])


def test_what_is_written_is_a_playbook_with_these_answers() -> None:
    answers = Answers("train.py", ("--lr", "1e-3"), 2, True, "gloo", None, "bf16", 29500)
    text = written(answers, Script(("accelerate", "transformers"), ("mystuff",), True))
    play = reading.parse_playbook(text, "playbook.yaml", base="/p")
    look, install, train = play.steps
    assert (look.action, play.hostfile, play.name) == ("doctor", "/p/hostfile", "train train.py on 2 hosts")
    assert install.task == Install(
        track="ipex", torch="2.8.0", backend="gloo", with_=("accelerate==1.7.0", "transformers==4.52.4")
    )
    env = {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_IPEX": "true"}
    assert train.task == Run(
        script="/p/train.py", args=("--lr", "1e-3"), ppn=2, backend="gloo", port=29500, env=env
    )  # fmt: skip
    assert "mystuff" in text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_a_script_without_accelerate_learns_nothing_it_does_not_read() -> None:
    text = written(Answers("train.py", (), 1, True, "gloo", None, "no", 0), Script())
    assert "ACCELERATE" not in text
    assert "with:" not in text


PRINTABLE = st.characters(exclude_categories=("C", "Z"), include_characters=" ")


@given(
    st.text(PRINTABLE, min_size=1, max_size=20).filter(lambda name: name.strip() and not TEMPLATE.search(name)),
    st.lists(st.text(PRINTABLE, max_size=12), max_size=3),
)
def test_any_name_and_any_argument_come_back_as_they_are(name: str, args: list[str]) -> None:
    text = written(Answers("/abs/" + name, tuple(args), 1, True, "gloo", None, "no", 0), Script())
    (task,) = [step.task for step in reading.parse_playbook(text, "p.yaml").steps if isinstance(step.task, Run)]
    assert (task.script, task.args) == ("/abs/" + name, tuple(args))


def test_the_hostfile_is_read_back_with_what_the_hosts_reported_beside_it() -> None:
    inventory = parse_inventory("alice@node0 slots=2 port=2222\nnode1 address=10.0.0.2 venv='/a b'\nnode2\n", "x")
    text = format_hostfile(inventory, FACTS, "2026-11-20")
    assert [
        (host.name, host.address, host.user, host.slots, host.vars) for host in parse_inventory(text, "hostfile")
    ] == [(host.name, host.address, host.user, host.slots, host.vars) for host in inventory]
    assert "#   node2  did not answer" in text
    assert "AVX512_BF16 · 8 cores · 64.0 GiB" in text or "AVX512_BF16 · 8 cores · 64 GiB" in text
    assert "\x1b" not in text


def test_what_a_script_imports_is_installed_only_where_it_is_known() -> None:
    text = """\
import os, torch, numpy as np
import intel_extension_for_pytorch as ipex
from transformers import AutoModel
from . import sibling
import helper, mystery.deep
try:
    import sklearn
except ImportError:
    pass
def later():
    import datasets
"""
    result = read_script(text, TABLE, {"helper"})
    assert result == Script(("numpy", "scikit-learn", "transformers"), ("mystery",), True)
    assert read_script("def broken(", TABLE) == Script()
    assert read_script("\x00", TABLE) == Script()


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
ipex_config: {ipex: true}
main_process_ip: 10.0.0.1
main_process_port: 29501
mixed_precision: bf16
mpirun_config: {mpirun_ccl: '1', mpirun_hostfile: hosts}
num_machines: 2
num_processes: 8
use_cpu: true
"""


def test_what_others_have_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "default_config.yaml").write_text(ACCELERATE)
    (tmp_path / "hosts").write_text("node0 slots=4\nnode1 slots=4\n")
    inventory, config = read_source(str(tmp_path / "default_config.yaml"), cwd=tmp_path)
    assert config == AccelerateConfig(8, 2, "10.0.0.1", 29501, "bf16", True, "hosts", 1)
    assert inventory is not None
    assert inventory.names == ("node0", "node1")
    (tmp_path / "inventory.yaml").write_text("all: {hosts: {'xeon[1:2]': {ansible_user: train}}}\n")
    inventory, config = read_source("inventory.yaml", cwd=tmp_path)
    assert config is None
    assert inventory is not None
    assert inventory.names == ("xeon1", "xeon2")
    inventory, _ = read_source("hosts", cwd=tmp_path)  # of DeepSpeed
    assert inventory is not None
    assert inventory.head.slots == 4
    (tmp_path / "hosts").unlink()
    with pytest.raises(UsageError, match="does not exist") as refused:
        read_source("default_config.yaml", cwd=tmp_path)
    assert "mpirun_hostfile of default_config.yaml names it" in str(refused.value)
    (tmp_path / "gpu.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: two\n")
    with pytest.raises(UsageError) as refused:
        read_source("gpu.yaml", cwd=tmp_path)
    assert "gpu.yaml:1:19: distributed_type must be NO or MULTI_CPU" in str(refused.value)


SHARED = "compute_environment: LOCAL_MACHINE\nmixed_precision: bf16\nmachine_rank: 0\ntpu_env: []\nuse_cpu: true\n"
GUIDES = {  # Hugging Face's: one host; four hosts, whose hostfile is on node0; and the first version that knew IPEX
    "one": (
        f"{SHARED}distributed_type: 'NO'\nipex_config:\n  ipex: true\nnum_machines: 1\nnum_processes: 1\n",
        1,
        None,
    ),
    "four": (
        f"{SHARED}distributed_type: MULTI_CPU\nipex_config:\n  ipex: true\nmain_process_ip: 36.112.23.24\n"
        "main_process_port: 29500\nmpirun_config:\n  mpirun_ccl: '1'\n  mpirun_hostfile: /home/user/hostfile\n"
        "num_machines: 4\nnum_processes: 16\n",
        16,
        29500,
    ),
    "0.19": (f"{SHARED}distributed_type: MULTI_CPU\nipex_config: {{ipex_enabled: true}}\nnum_processes: 4\n", 4, None),
}


@pytest.mark.parametrize("name", GUIDES)
def test_init_starts_from_any_file_of_the_guides(tmp_path: Path, name: str) -> None:
    text, ranks, port = GUIDES[name]
    (tmp_path / "default_config.yaml").write_text(text)
    _, config = read_source("default_config.yaml", cwd=tmp_path, hosts=False)
    assert config is not None
    assert (config.ranks, config.port, config.precision, config.ipex) == (ranks, port, "bf16", True)
    if name == "four":  # its hostfile is not here; it is not needed where the hosts are named
        with pytest.raises(UsageError, match="/home/user/hostfile"):
            read_source("default_config.yaml", cwd=tmp_path)


def test_beside_many_scripts_each_is_read_and_the_directory_is_not_listed_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside 100,000 files `init` went on for hours, with one CPU."""
    for number in range(30):
        (tmp_path / f"s{number}.py").touch()
    monkeypatch.delattr(Path, "iterdir")
    context = Context(FakeOpener({}), tmp_path, tmp_path)
    target = Target(tmp_path / "playbook.yaml", tmp_path / "hostfile")
    next(init(Answers(script="s1.py"), HOSTS, None, target, context, None))
