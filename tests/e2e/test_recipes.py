"""The recipes of Hugging Face's two guides for CPUs, on separate hosts that do not know each other: Accelerate on one
host and on several, in both of its ways; the Trainer on one host and on two. Real libraries, all of them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.questionnaire import DOWN, ENTER, answer
from tests.e2e.trained import BF16, LAYERS, PRECISION, answered, learnt, output, ranks_of
from tests.e2e.workspace import ROOT, Workspace, find_orphans

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

NLP, QA = ROOT / "examples/nlp_example.py", ROOT / "examples/run_qa.py"
ACCELERATE = ("--launcher", "accelerate", "--accelerate-config")
QUICK = ("--cpu", "--epochs", "2", "--pairs", "512", "--batch", "8")  # for one rank or two
GUIDE = ("--do_train", "--do_eval", "--per_device_train_batch_size", "12", "--learning_rate", "3e-3",
         "--num_train_epochs", "2", "--max_train_samples", "480", "--max_seq_length", "384", "--doc_stride", "128",
         "--output_dir", "/tmp/debug_squad", "--overwrite_output_dir", "--save_strategy", "no", "--no_cuda",
         "--ddp_backend", "gloo", "--use_ipex", "--disable_tqdm", "true", *(("--bf16",) if BF16 else ()))  # fmt: skip


# the configuration --------------------------------------------------------------------------------------------------


def questions(ranks: int, ipex: bool) -> list[tuple[str, str]]:
    """What `accelerate config` asks, and the guide's answers; a version without IPEX asks less."""
    several = [
        ("How many different machines", "2" + ENTER),
        ("rank of this machine", ENTER),
        ("IP address", "10.77.0.10" + ENTER),
        ("What is the port", "29500" + ENTER),
        ("same local network", "yes" + ENTER),
        ("checked while running", "no" + ENTER),
    ]
    mpirun = [("launch mpirun", "yes" + ENTER), ("path to the hostfile", "/root/hostfile" + ENTER)]
    return [
        ("In which compute environment", ENTER),
        ("Which type of machine", (DOWN if ranks > 1 else "") + ENTER),
        *(several if ranks > 1 else [("CPU only", "yes" + ENTER)]),
        *([("IPEX", "yes" + ENTER)] if ipex else []),
        *(mpirun if ranks > 1 else []),
        *([("oneCCL worker", "1" + ENTER)] if ipex and ranks > 1 else []),
        ("torch dynamo", "no" + ENTER),
        ("How many processes", f"{ranks}{ENTER}") if ranks > 1 else ("DeepSpeed", "no" + ENTER),
        ("mixed precision", DOWN * 2 + ENTER),
    ]


@pytest.mark.parametrize(
    ("version", "ranks"),
    [
        ("1.7.0", 4),
        ("1.15.0", 1),
        pytest.param("1.7.0", 1, marks=pytest.mark.beyond_core),
        pytest.param("1.15.0", 4, marks=pytest.mark.beyond_core),
    ],
)
def test_accelerate_config_writes_what_the_questionnaire_of_that_version_writes(
    recipes: str, workspace: Workspace, hosts: Cluster, tmp_path: Path, version: str, ranks: int
) -> None:
    place = "/root/accelerate-new"
    if version != "1.7.0" and not hosts.path("node0", place).exists():  # its own files, beside the same torch
        uv = Path(sys.executable).with_name("uv")
        new = (f"accelerate=={version}", "--no-deps", "--target", str(tmp_path / "it"))
        subprocess.run([uv, "pip", "install", "-q", *new], check=True)
        subprocess.run(["cp", "-r", tmp_path / "it", hosts.path("node0", place)], check=True)
    python = ("env", f"PYTHONPATH={place}", "HOME=/root", f"{recipes}/bin/python", "-m")
    asked = ("accelerate.commands.accelerate_cli", "config", "--config_file", "/root/q.yaml")
    answer([*hosts.entrance("node0"), *python, *asked], questions(ranks, ipex=version == "1.7.0"))
    theirs = hosts.path("node0", "/root/q.yaml").read_text()
    words = ["--limit", "node0"] if ranks == 1 else ["--limit", "node[0-1]", "--ppn", "2"]
    words += ["--mpirun-hostfile", "~/hostfile"] if ranks > 1 else []
    if version == "1.7.0":  # found on the hosts
        result = workspace("accelerate", "config", *words)
    else:
        (workspace.path / "addresses").write_text("10.77.0.10 slots=1\n10.77.0.11 slots=1\n")
        of = ["--ppn", "2", "--mpirun-hostfile", "/root/hostfile"] if ranks > 1 else ["--limit", "10.77.0.10"]
        result = workspace(
            "accelerate", "config", "-f", workspace.path / "addresses", *of, "--accelerate-version", version
        )
        assert "does not know ipex_config any more" in result.err
    assert result.code == 0, result
    assert result.out == theirs


# 1: Accelerate on one host ------------------------------------------------------------------------------------------


def test_the_playbook_of_recipe_1_plays(recipes: str, settings: dict[str, str], workspace: Workspace) -> None:
    words = ("--limit", "node0", *variables(f"precision={PRECISION}"), *prepared())
    result = workspace("play", ROOT / "playbooks/accelerate-one-host.yaml", *words, timeout=600, **settings)
    (rank,) = output(workspace, result, 1)
    assert re.search(rf"rank 0 of 1 on node0: NO, backend none, {PRECISION}, {LAYERS} layers of IPEX", rank), rank
    assert learnt(rank), rank


def variables(*values: str) -> list[str]:
    return [word for value in values for word in ("--var", value)]


def prepared() -> tuple[str, ...]:
    """A lent environment was not made by install, which would rightly leave it alone."""
    return ("--skip-tags", "prepare") if os.environ.get("IPEXCTL_TEST_ENV") else ()


# 2: Accelerate on many hosts ----------------------------------------------------------------------------------------


@pytest.mark.beyond_core
def test_recipe_2_mpirun_starts_accelerate_for_each_of_16_ranks_on_four_hosts(four: Workspace) -> None:
    """The guide's own numbers."""
    words = ("-n", "16", "--ppn", "4", "--launcher", "accelerate", "--env", f"ACCELERATE_MIXED_PRECISION={PRECISION}")
    result = four("run", *words, NLP, "--cpu", "--epochs", "2", "--pairs", "1024", "--batch", "4", timeout=900)
    ranks_of(output(four, result, 16), 4)


def test_recipe_2_interrupted_leaves_nothing(recipes: str, workspace: Workspace, hosts: Cluster) -> None:
    config = ROOT / "examples/accelerate_cluster.yaml"
    args = ("--cpu", "--epochs", "1000", "--mixed_precision", PRECISION)
    words = ("--limit", "node[0-1]", "--ppn", "1", *ACCELERATE, config, NLP, *args)
    running = workspace.start("run", *words)
    try:
        running.until("layers of IPEX", timeout=400)  # training has begun
        running.signal(signal.SIGINT)
        result = running.end(60)
    finally:
        running.close()
    assert result.code == 130, result
    assert "0 processes left on 2 hosts" in result.out
    assert not find_orphans(hosts)
    mine = [each.argv for host in hosts.names for each in hosts.processes(host) if "accelerate" in " ".join(each.argv)]
    assert not mine


def test_the_playbook_of_recipe_2_plays(
    recipes: str, settings: dict[str, str], workspace: Workspace, hosts: Cluster
) -> None:
    values = ("ppn=1", "epochs=1", f"precision={PRECISION}")
    words = ("--limit", "node[0-1]", *variables(*values), *prepared())
    result = workspace.succeed("play", ROOT / "playbooks/accelerate-cluster.yaml", *words, timeout=900, **settings)
    assert "0 processes left on 2 hosts" in result.out
    assert f"rank 1 of 2 on node1: MULTI_CPU, backend gloo, {PRECISION}, " in result.out
    assert not find_orphans(hosts)


# 3: the Trainer -----------------------------------------------------------------------------------------------------


@pytest.mark.beyond_core
def test_recipe_3_the_trainer_runs_two_ranks_on_one_host_with_a_core_each(recipes: str, workspace: Workspace) -> None:
    plan = workspace.succeed("run", "--dry-run", "--limit", "node0", "--ppn", "2", "--json", QA, *GUIDE)
    cores = [tuple(rank["cpus"]) for rank in plan.answer["launch"]["ranks"]]
    assert len(set(cores)) == 2, "a rank a part of the host"
    assert {rank["env"]["OMP_NUM_THREADS"] for rank in plan.answer["launch"]["ranks"]} == {"1"}
    answered(output(workspace, workspace("run", "--limit", "node0", "--ppn", "2", QA, *GUIDE, timeout=900), 2), 1)


def test_the_playbook_of_recipe_3_plays(
    recipes: str, settings: dict[str, str], workspace: Workspace, hosts: Cluster
) -> None:
    values = ("ppn=1", "epochs=1", "samples=96", f"bf16={str(BF16).lower()}")
    words = ("--limit", "node[0-1]", *variables(*values), *prepared())
    result = workspace.succeed("play", ROOT / "playbooks/trainer.yaml", *words, timeout=900, **settings)
    assert f"rank 1 of 2 on node1: backend gloo, {'bf16' if BF16 else 'fp32'}, " in result.out
    assert not find_orphans(hosts)
