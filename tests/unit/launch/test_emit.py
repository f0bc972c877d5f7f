"""The launch written for other programs. ``golden/`` holds each form; `python -m tests.unit.launch.test_emit`
writes it anew (then read the difference)."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ipexctl.data import read_data
from ipexctl.decide.launch.accelerate import AccelerateConfig, make_run_config, write_config
from ipexctl.decide.launch.emit import write_launch
from ipexctl.decide.releases.framework_options import parse_options
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.launch import Launch, NodePlan, Setting
from ipexctl.model.tasks import Run
from tests.unit.launch.two import launch

GOLDEN = Path(__file__).parent / "golden"
SCRIPTS = ("sh", "sbatch", "torchrun", "accelerate")
FORMS = (*SCRIPTS, "ansible", "pytorchjob")
SECRET = Setting("hunter2", "--pass-env", secret=True, by_user=True)
ODD = Setting('it\'s $HOME; `x` "y" {{ z }}\nnext', "--env", by_user=True)


def example(form: str, engine: str = "impi") -> Launch:
    """With all that is awkward: secrets, quotes, lines; preloads, bound memory."""
    task = Run(script="train.py", args=("--name", "two words", "$(touch x)"), ppn=2, membind=True, backend="gloo")
    first = {"allocators": {"tcmalloc": "/usr/lib/libtcmalloc.so.4", "iomp5": "/opt/ai/lib/libiomp5.so"}}
    return launch(task, {"HF_TOKEN": SECRET, "ODD": ODD}, engine=engine, first=first)


def written(launch: Launch, form: str, config: AccelerateConfig | None = None, **packages: str) -> str:
    options = parse_options(read_data("options.toml"))
    found = {name.replace("_", "-"): version for name, version in packages.items()}
    asked = make_run_config(launch, config, found, {})
    text, _ = write_config(asked, found.get("accelerate", "1.15.0"), options)
    return write_launch(launch, form, read_data("emit.j2"), text)


def test_accelerate_is_given_the_precision_and_ipex_of_the_run() -> None:
    one = AccelerateConfig(precision="bf16", ipex=True)
    text = written(example("accelerate"), "accelerate", one, accelerate="1.7.0", intel_extension_for_pytorch="2.8.0")
    config = yaml.safe_load(text.partition("<<'CONFIG'\n")[2].partition("\nCONFIG\n")[0])
    assert (config["mixed_precision"], config["ipex_config"]) == ("bf16", {"ipex": True})
    assert (config["num_machines"], config["num_processes"], config["main_process_ip"]) == (2, 4, "192.0.2.10")
    new = written(example("accelerate"), "accelerate", one, accelerate="1.15.0")
    assert "mixed_precision: bf16" in new
    assert "ipex" not in new.partition("CONFIG")[2].partition("CONFIG")[0]  # it would refuse the key


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_as_it_was_read_last(form: str) -> None:
    assert written(example(form), form) == (GOLDEN / f"{form}.txt").read_text()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", ["impi", "mpich", "openmpi"])
def test_no_form_holds_a_secret_and_all_ask_for_it(form: str, engine: str) -> None:
    text = written(example(form, engine), form)
    assert "hunter2" not in text
    assert "HF_TOKEN" in text


@pytest.mark.parametrize("form", FORMS)
def test_impi_is_written_only_for_what_starts_an_mpirun(form: str) -> None:
    two = launch(Run(script="train.py", ppn=2, backend="impi"), impi=True)
    if form in {"sbatch", "torchrun", "pytorchjob"}:
        with pytest.raises(UsageError, match="without mpirun"):
            written(two, form)
    else:
        assert "IPEXCTL_BACKEND" in written(two, form)


def many(count: int, engine: str) -> Launch:
    """So many hosts of two ranks each, whose mpirun does nothing."""
    base = example("sh", engine)
    first = base.nodes[0]

    def seat(number: int) -> NodePlan:
        ranks = tuple(replace(place, host=f"n{number}", rank=2 * number + place.local) for place in first.ranks)
        return replace(first, host=f"n{number}", address=f"192.0.2.{number}", ranks=ranks)

    return replace(base, nodes=tuple(map(seat, range(count))), mpiexec=("/bin/true", *base.mpiexec[1:]))


def test_a_script_for_hundreds_of_hosts_starts(tmp_path: Path) -> None:
    """A word of a command may have 128 KiB, and all of them what the stack allows."""
    text = written(many(400, "impi"), "sh").replace("$(/opt/ai/bin/python", f"$({sys.executable}")
    done = subprocess.run(["/bin/sh"], input=text, text=True, capture_output=True, env={"HF_TOKEN": "x"}, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("engine", ["mpich", "openmpi"])
def test_an_mpirun_that_takes_one_word_for_all_hosts_is_not_given_more_than_fits(engine: str) -> None:
    assert "$each" in written(many(16, engine), "sh")
    with pytest.raises(UsageError, match="does not fit into one word") as refused:
        written(many(400, engine), "sh")
    assert refused.value.exit == Exit.STEP
    assert "ansible" in (refused.value.hint or "")


def test_accelerate_is_told_that_a_module_is_one() -> None:
    text = written(launch(Run(script="pkg.train", launcher="module", args=("--x", "1"), ppn=2)), "accelerate")
    assert text.rstrip().endswith('--mpirun_hostfile "$directory/hostfile" --module pkg.train --x 1')


@pytest.mark.parametrize("form", SCRIPTS)
@pytest.mark.parametrize("engine", ["impi", "mpich", "openmpi"])
def test_a_shell_can_read_each_script(form: str, engine: str) -> None:
    done = subprocess.run(["/bin/sh", "-n"], input=written(example(form, engine), form), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("engine", ["impi", "mpich", "openmpi"])
def test_the_playbook_is_yaml_with_the_same_words(engine: str) -> None:
    class Reader(yaml.SafeLoader):
        pass

    Reader.add_constructor("!unsafe", lambda loader, node: str(node.value))
    copy, start = Reader(written(example("ansible", engine), "ansible")).get_single_data()
    each = copy["tasks"][1]["ansible.builtin.copy"]["content"]
    assert subprocess.run(["/bin/sh", "-n"], input=each, text=True, capture_output=True).returncode == 0
    argv = start["tasks"][0]["ansible.builtin.command"]["argv"]
    assert argv[0] == launch(engine=engine).mpiexec[0]
    assert copy["tasks"][1]["ansible.builtin.copy"]["dest"] in argv


@pytest.mark.parametrize("form", ["torchrun", "accelerate", "pytorchjob"])
def test_a_form_that_wants_equal_hosts_refuses_others(form: str) -> None:
    with pytest.raises(UsageError) as refused:
        written(launch(), form)
    assert list(refused.value.reasons) == ["node0: 2", "node1: 1"]


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for form in FORMS:
        (GOLDEN / f"{form}.txt").write_text(written(example(form), form))


def test_a_job_for_kubernetes_has_a_pod_a_host_and_nothing_of_the_hosts() -> None:
    job = yaml.safe_load(written(example("pytorchjob"), "pytorchjob"))
    assert (job["apiVersion"], job["kind"], job["metadata"]["name"]) == ("kubeflow.org/v1", "PyTorchJob", "train")
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    elastic = job["spec"]["elasticPolicy"]
    assert worker["replicas"] == elastic["minReplicas"] == elastic["maxReplicas"] == 2
    (container,) = worker["template"]["spec"]["containers"]
    assert container["name"] == "pytorch", "the operator looks for this name"
    torchrun = ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", "python", "-u"]
    assert container["command"] == [*torchrun, "train.py", "--name", "two words", "$$(touch x)"]
    env = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "train", "key": "HF_TOKEN"}}
    assert env["ODD"] == ODD.value
    assert env["OMP_NUM_THREADS"] == "3", "of the smaller host"
    assert container["resources"]["limits"] == container["resources"]["requests"] == {"cpu": 6, "memory": "MEMORY"}
    text = json.dumps(env)
    assert not [word for word in ("/opt/ai", "192.0.2", "eth0", "ens3", "alice") if word in text]


def test_a_job_for_kubernetes_sources_the_variables_of_oneccl() -> None:
    two = launch(Run(script="/a/9 Train!.py", ppn=2, backend="ccl"), module="oneccl_bindings_for_pytorch")
    job = yaml.safe_load(written(two, "pytorchjob"))
    assert job["metadata"]["name"] == "job-9-train"
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    shell, flag, line = container["command"]
    assert (shell, flag) == ("/bin/sh", "-c")
    assert line.startswith('. "$$(python -c ')
    assert "/env/setvars.sh" in line
    env = {one["name"]: one["value"] for one in container["env"]}
    assert (env["CCL_WORKER_COUNT"], env["CCL_ATL_TRANSPORT"]) == ("1", "ofi")


def test_threads_that_the_user_has_chosen_are_the_pods_too() -> None:
    two = launch(
        Run(script="train.py", ppn=2, backend="gloo"), {"OMP_NUM_THREADS": Setting("1", "--env", by_user=True)}
    )
    job = yaml.safe_load(written(two, "pytorchjob"))
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert [one for one in container["env"] if one["name"] == "OMP_NUM_THREADS"] == [
        {"name": "OMP_NUM_THREADS", "value": "1"}
    ]


def test_a_script_whose_name_looks_like_an_option_is_started_by_accelerate_too() -> None:
    text = write_launch(
        launch(Run(script="-train.py", args=("--name", "x"), ppn=1)), "accelerate", read_data("emit.j2")
    )
    assert " ./-train.py --name x" in text
    assert "-u ./-train.py" not in text
