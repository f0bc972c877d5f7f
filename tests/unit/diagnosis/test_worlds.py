"""What a rank's Python tells of the worlds that its process is in, and what is said of it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act import agent
from ipexctl.decide.diagnosis.worlds import describe_rendezvous, describe_worlds, find_hopeless_rendezvous
from ipexctl.protocol import hooks, journal, rank_records
from ipexctl.protocol.rank_records import RankAlone, RankNote, RankRendezvous, RankWorld
from tests.stub_torch import MPI, write_packages
from tests.tables import read_table

TRAIN = "import torch\n{before}\nfor _ in range(4): torch.optim.Optimizer().step()\n{after}\n"
JOIN = "torch.distributed.init_process_group('gloo')"


def run(place: Path, script: str, *words: str, files: Mapping[str, str] = {}, **env: str) -> list[Any]:
    """What rank 1 of 4 has told after this script, without times."""
    library = place / "lib/python3.11/site-packages"
    write_packages(library, files)
    (place / "run/ranks").mkdir(parents=True, exist_ok=True)
    for name, data in agent.read_hooks().items():
        (place / name).write_bytes(data)
    (place / "train.py").write_text(script)
    known = {
        "PYTHONPATH": f"{place}:{library}", hooks.DIRECTORY_ENV: str(place / "run"), hooks.RANK_ENV: "1", "RANK": "1",
        "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", hooks.MEETING_ENV: "10.0.0.1 29500 1",
        "MPI_SIZE": "4",
    }  # fmt: skip
    command = [sys.executable, str(place / "train.py"), *words]
    done = subprocess.run(command, env={**os.environ, **known, **env}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    reported = []
    for path in sorted((place / "run/ranks").glob(f"[01].*{hooks.RECORD}")):
        if path.name.split(".")[1] not in hooks.STAGES:
            record = rank_records.KINDS.from_object(json.loads(path.read_text()))
            assert isinstance(record, RankWorld | RankAlone | RankRendezvous | RankNote)
            reported.append(record._replace(at=0.0))
    return reported


def train(before: str = "", after: str = "") -> str:
    return TRAIN.format(before=before, after=after)


def world(via: str = "torch", size: int = 4, *, used: bool = True) -> RankWorld:
    return RankWorld(1, "", via, size, 1, used)


def alone(steps: int = 3, *causes: tuple[str, str, str]) -> RankAlone:
    return RankAlone(1, "", steps, list(causes))


@pytest.mark.parametrize(
    ("script", "reported"),
    [
        (train(), [alone()]),
        (train(JOIN), [alone(3, ("unused", "", "")), world(used=False)]),
        # only a barrier: no data; and then as much as anybody likes
        (train(f"{JOIN}; torch.distributed.barrier()"), [alone(3, ("unused", "", "")), world(used=False)]),
        (train(f"{JOIN}; torch.distributed.barrier(); torch.distributed.all_reduce()"), [world(), world(used=False)]),
        # by a function that is not wrapped, as DTensor's
        (train(f"{JOIN}; torch.distributed.used()"), [world(), world(used=False)]),
        # called by the name in the module that defines it, as init_device_mesh does
        (train("from torch.distributed import distributed_c10d as c; c.init_process_group(); c.all_reduce()"),
         [world(), world(used=False)]),
        # after the first steps: said, and taken back
        (train(JOIN, "torch.distributed.all_reduce()"), [alone(3, ("unused", "", "")), world(), world(used=False)]),
        # a world of one process
        (train("torch.distributed.init_process_group(world_size=1, rank=0); torch.distributed.all_reduce()"),
         [alone(3, ("torch", "", ""))]),
        # no steps: at the end
        ("import torch", [alone(0)]),
        (f"import torch; {JOIN}; torch.distributed.destroy_process_group()", [world(used=False)]),
        ("print('no torch')", []),
        # other ways to meet, in whatever order
        ("import torch; from mpi4py import MPI", [world("mpi")]),
        ("from mpi4py import MPI; MPI.Finalize(); import torch", [world("mpi")]),
        (train("from horovod.common.basics import HorovodBasics; HorovodBasics().init()"), [world("horovod")]),
        (train("from torch.distributed import rpc; rpc.init_rpc('one', rank=1, world_size=4)"), [world("rpc")]),
        # why
        (train("import accelerate.state"), [alone(3, ("accelerate", "", ""))]),
        (f"import accelerate.state, torch; {JOIN}", [alone(0, ("accelerate", "", "")), world(used=False)]),
        (train("import pytorch_lightning"), [alone(3, ("lightning", "", ""))]),
    ],
)  # fmt: skip
def test_a_rank_tells_its_worlds_and_whether_it_is_alone(tmp_path: Path, script: str, reported: list[Any]) -> None:
    assert run(tmp_path, script) == reported


def test_mpi_that_is_initialised_later_counts_and_one_that_is_alone_is_reported_without_torch(tmp_path: Path) -> None:
    later = {"mpi4py/MPI": MPI % False}
    assert run(tmp_path / "a", "from mpi4py import MPI; MPI.Init_thread(2)", files=later) == [world("mpi")]
    assert run(tmp_path / "b", "from mpi4py import MPI", files=later) == []
    assert run(tmp_path / "c", "from mpi4py import MPI", MPI_SIZE="1") == [alone(0, ("mpi", "", ""))]


@pytest.mark.parametrize("finalize", [None, False])
def test_mpi4py_ends_the_job_of_a_rank_that_ends_unless_another_finalises(
    tmp_path: Path, finalize: bool | None
) -> None:
    """The ranks of impi learn from each other why they end; the others were aborted before they could say it."""
    files = {
        "mpi4py/__init__": "from . import rc",
        "mpi4py/rc": f"finalize = {finalize}",
        "mpi4py/run": f"def set_abort_status(error): open({str(tmp_path / 'aborted')!r}, 'w')",
    }
    run(tmp_path, "import sys; from mpi4py import MPI; sys.exit(0)", files=files)
    assert (tmp_path / "aborted").exists() is (finalize is None)


def test_mpi_that_impi_has_loaded_is_no_exchange_before_its_group_is_used(tmp_path: Path) -> None:
    """Ranks that trained alone with a group of impi ended well without a word, and over Gloo were reported."""
    files = {"impi_torch/__init__": "def load():\n    from mpi4py import MPI\n"}
    join = f"import impi_torch; impi_torch.load(); {JOIN}"
    unused = alone(3, ("unused", "", ""))
    assert run(tmp_path / "a", train(join), files=files) == [unused, world(used=False)]
    script = train(f"{join}; torch.distributed.all_reduce()")
    assert run(tmp_path / "b", script, files=files) == [world(), world(used=False)]


def test_a_script_that_waits_for_local_rank_is_named_with_its_line(tmp_path: Path) -> None:
    script = 'import argparse, torch\np = argparse.ArgumentParser()\np.add_argument("--local_rank", type=int)\n'
    assert run(tmp_path, script) == [alone(0, ("local-rank", f"{tmp_path}/train.py:3", ""))]
    assert run(tmp_path / "given", script, "--local_rank=1") == [alone(0)]
    script += 'p.add_argument("--launcher", default="none")\n'
    assert run(tmp_path / "l", script) == [alone(0, ("launcher", f"{tmp_path}/l/train.py:4", ""))]


WRAPPER = """
class Group:
    size, rank = (lambda self: 4), (lambda self: 0)
class DistributedDataParallel:
    process_group, _lazy_init_ran, _use_python_reducer = Group(), False, False
    def __init__(self, module): self.module = module
    def parameters(self): return self.module
    def __call__(self): self._lazy_init_ran = True
"""
STEPS = """
import torch
from torch.nn.parallel.distributed import DistributedDataParallel
class Parameter:
    requires_grad, grad, numel = True, 1, (lambda self: 4)
class Other(list):
    def named_parameters(self): return [(f"{n}.weight", each) for n, each in enumerate(self)]
class Net(Other): pass
torch.distributed.init_process_group("gloo"); torch.distributed.all_reduce()
kinds = Other([Parameter()]), Net([Parameter()]), Other([Parameter()])
called, bypassed, frozen = map(DistributedDataParallel, kinds)
def make_optimizer(*models):
    optimizer = torch.optim.Optimizer()
    optimizer.param_groups = [{"params": model.module} for model in models]
    return optimizer
def unfreeze(model, count=1):
    model()
    model.module.extend(Parameter() for _ in range(count))
"""
WRAPPED = {"torch/nn/__init__": "", "torch/nn/parallel/__init__": "", "torch/nn/parallel/distributed": WRAPPER}


def run_steps(place: Path, steps: str, **env: str) -> list[str]:
    """What is noted of these steps of optimizers."""
    records = run(place, STEPS + steps, files=WRAPPED, **env)
    return [each.text for each in records if isinstance(each, RankNote) and not each.info]


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ("optimizer = make_optimizer(called, bypassed)\nfor _ in range(3): called(); optimizer.step()", True),
        ("optimizer = make_optimizer(called, bypassed)\nfor _ in range(2): called(); optimizer.step()", False),
        ("optimizer = make_optimizer(called)\nfor _ in range(4): called(); optimizer.step()", False),
        # as many optimizers as parts of the model, each after its own first backward
        ("for each in [make_optimizer(bypassed) for _ in range(4)]: each.step()", False),
    ],
)
def test_a_model_whose_wrapper_is_never_called_is_named(tmp_path: Path, steps: str, named: bool) -> None:
    """Its gradients were averaged by nobody, and the run ended well without a word: the wrapper had sent parameters."""
    assert ["gradients of Net:" in note for note in run_steps(tmp_path, steps)] == [True] * named


@pytest.mark.parametrize(
    ("steps", "late"),
    [
        # an adapter, and layers that were frozen
        ("unfreeze(bypassed)\noptimizer = make_optimizer(bypassed)\nfor _ in range(3): optimizer.step()", "1.weight"),
        ("unfreeze(bypassed, 4)\noptimizer = make_optimizer(bypassed)\nfor _ in range(3): optimizer.step()",
         "1.weight, 2.weight, 3.weight, …"),
        ("bypassed()\noptimizer = make_optimizer(bypassed)\nfor _ in range(3): optimizer.step()\n"
         "unfreeze(bypassed)\noptimizer.add_param_group({'params': []})", "1.weight"),
        ("optimizer = make_optimizer(bypassed)\nbypassed()\nfor _ in range(3): optimizer.step()\n"
         "optimizer.add_param_group({'params': []})", ""),
        ("unfreeze(bypassed)\nbypassed.module[1].requires_grad = False\n"
         "optimizer = make_optimizer(bypassed)\nfor _ in range(3): optimizer.step()", ""),
    ],
)  # fmt: skip
def test_parameters_that_came_after_the_wrapper_are_named(tmp_path: Path, steps: str, late: str) -> None:
    """DistributedDataParallel never averaged them, and the run ended well without a word."""
    notes = run_steps(tmp_path, steps)
    assert [f"gradients of {late} of Net: what is added" in note for note in notes] == [True] * bool(late)


@pytest.mark.parametrize(
    ("change", "rank", "named"),
    [
        ("Parameter.grad = None", "0", True),
        ("Parameter.grad = None", "1", False),
        ("Parameter.grad = None; Parameter.numel = lambda self: 0", "0", False),
        ("", "0", False),
    ],
)
def test_an_optimizer_whose_parameters_have_no_gradients_is_named(
    tmp_path: Path, change: str, rank: str, named: bool
) -> None:
    """As one that was made before fully_shard took the parameters away: the loss stayed what it was."""
    steps = f"{change}\noptimizer = make_optimizer(called)\nfor _ in range(3): called(); optimizer.step()"
    notes = run_steps(tmp_path, steps, **{hooks.RANK_ENV: rank, "RANK": rank})
    assert ["no parameter of Optimizer had a gradient at its step 3" in note for note in notes] == [True] * named


def test_one_rank_and_instances_are_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path, train(), IPEXCTL_MEETING="") == []


@pytest.mark.parametrize(
    ("script", "reported"),
    [
        ("import os, torch\nos.environ['MASTER_ADDR'] = 'localhost'\n" + JOIN, ("localhost", "29500", 4, 2)),
        ("import os, torch\nif os.environ['MASTER_ADDR'] == '':\n    pass\nos.environ.update(MASTER_PORT='1')\n" + JOIN,
         ("10.0.0.1", "1", 4, 4)),
        ("import torch\n\ntorch.distributed.init_process_group(init_method='tcp://127.0.0.1:99', world_size=2, rank=0)",
         ("127.0.0.1", "99", 2, 3)),
        ("import torch\ntorch.distributed.init_process_group(init_method='tcp://[::1]:99', world_size=2, rank=0)",
         ("::1", "99", 2, 2)),
        ("import torch\ntorch.distributed.init_process_group(init_method='file:///proc/x', world_size=2, rank=0)",
         ("file:///proc/x", "", 2, 2)),
        ("import torch, time\ntorch.distributed.init_process_group(init_method='tcp://a..b:9', world_size=2, rank=0)\n"
         "time.sleep(1)", ("a..b", "9", 2, 2)),
    ],
)  # fmt: skip
def test_a_script_that_meets_elsewhere_is_named_with_its_line(
    tmp_path: Path, script: str, reported: tuple[str, str, int, int]
) -> None:
    address, port, size, line = reported
    [record] = [each for each in run(tmp_path / "a", script) if isinstance(each, RankRendezvous)]
    assert bool(record.fault) == address.startswith(("file", "a.."))
    record = record._replace(fault="", number=-1)
    assert record == RankRendezvous(1, "", "10.0.0.1", address, port, size, f"{tmp_path}/a/train.py:{line}")
    # Processes of --per-host need not meet: nothing else is said of them.
    [record] = run(tmp_path, script, IPEXCTL_MEETING="10.0.0.1 29500 0")
    record = record._replace(fault="", number=-1)
    assert record == RankRendezvous(1, "", "10.0.0.1", address, port, size, f"{tmp_path}/train.py:{line}")


def test_a_line_of_another_module_of_the_script_or_of_a_library_is_found(tmp_path: Path) -> None:
    (tmp_path / "setup_env.py").write_text("import os\n\ndef set(): os.environ['MASTER_ADDR'] = '10.9.9.9'\n")
    script = f"import torch, setup_env\nsetup_env.set()\n{JOIN}\n"
    assert f"{tmp_path}/setup_env.py:3" in [
        each.line for each in run(tmp_path, script) if isinstance(each, RankRendezvous)
    ]
    library = {
        "launching": f"import os, torch\ndef begin():\n    os.environ['MASTER_ADDR'] = '.'.join('1234')\n    {JOIN}"
    }
    reported = run(tmp_path / "b", "import launching\nlaunching.begin()", files=library)
    assert [each.line.partition("site-packages/")[2] for each in reported if isinstance(each, RankRendezvous)] == [
        "launching.py:3"
    ]


def test_where_the_plan_is_followed_or_a_store_is_given_nothing_is_reported(tmp_path: Path) -> None:
    script = f"import os, torch\nos.environ.setdefault('MASTER_ADDR', 'localhost')\n{JOIN}"
    assert run(tmp_path, script) == [world(used=False)]
    script = "import os, torch\nos.environ['MASTER_ADDR'] = 'x'\ntorch.distributed.init_process_group(store=1)"
    assert run(tmp_path / "store", script) == [world(used=False)]


@pytest.mark.parametrize(("words", "planned", "noted"), read_table("worlds/stores_at_loopback"))
def test_a_store_of_the_scripts_own_at_a_loopback_address_is_named(
    tmp_path: Path, words: str, planned: str, noted: bool
) -> None:
    script = f"import torch\ntorch.distributed.TCPStore({words})"
    reported = run(tmp_path, script, IPEXCTL_MEETING=f"{planned} 29500 1", MASTER_ADDR=planned)
    records = [each for each in reported if isinstance(each, RankRendezvous)]
    assert bool(records) == noted
    for record in records:
        assert (record.port, record.size, record.line) == ("8089", 2, f"{tmp_path}/train.py:2")
        text = find_hopeless_rendezvous([record._replace(host="node1")], ("node0", "node1"))
        assert "train.py:2 sets the rendezvous address to " in text
        assert text.endswith("1 of 2 ranks cannot be met; give the TCPStore the address in MASTER_ADDR")


def test_a_process_that_a_rank_has_started_is_told_from_it(tmp_path: Path) -> None:
    script = (
        "import os, multiprocessing\ndef work():\n    import torch\n    os.environ['MASTER_ADDR'] = 'localhost'\n    "
    )
    script += f"{JOIN}\nif __name__ == '__main__':\n    process = multiprocessing.Process(target=work)\n    "
    script += "process.start()\n    process.join()\n"
    assert [each.inner for each in run(tmp_path, script) if isinstance(each, RankRendezvous)] == [True]


def meets(
    rank: int, address: str = "localhost", port: str = "12355", size: int = 2, line: str = "/x/ar.py:4"
) -> RankRendezvous:
    return RankRendezvous(rank, f"node{rank}", "10.0.0.1", address, port, size, line)


def test_an_address_at_which_no_other_host_can_be_met_is_reported_at_once() -> None:
    itself, fix = "that is each host itself, where 1 of 2 ranks cannot be met", "leave MASTER_ADDR to ipexctl"
    text = f"ar.py:4 sets the rendezvous address to localhost (rank 1): {itself}; {fix}, and init_method out"
    assert find_hopeless_rendezvous([meets(1)], ("node0", "node1")) == text
    assert not find_hopeless_rendezvous([meets(1)], ("node1", "node1")), "both are here"
    inner = meets(1)._replace(inner=True)
    alone = "that is each host itself, whose processes then work with each other alone"
    assert alone in find_hopeless_rendezvous([inner], ("node0", "node1"))
    assert not find_hopeless_rendezvous([inner], ("node1",))
    assert not find_hopeless_rendezvous([meets(1, "node7")], ("node0", "node1")), "who knows who that is"
    assert not find_hopeless_rendezvous([meets(1, size=0)], ("node0", "node1")), "who knows how many"


@pytest.mark.parametrize(("address", "faults", "why"), read_table("worlds/files_and_names", frozen=True))
def test_a_file_or_a_name_that_leads_no_rank_to_the_others(address: str, faults: tuple[str, str], why: str) -> None:
    known = [meets(rank, address)._replace(fault=fault) for rank, fault in enumerate(faults)]
    text = find_hopeless_rendezvous(known, ("node0", "node1"))
    assert bool(text) == bool(why)
    assert why in text
    assert not find_hopeless_rendezvous(known[:1], ("node0", "node1")), "of one host nothing follows"


@pytest.mark.parametrize(("given", "expected"), read_table("worlds/numbers_and_sizes"))
def test_a_rank_that_takes_another_number_or_size_is_recorded(
    tmp_path: Path, given: str, expected: list[list[int]]
) -> None:
    script = f"import os, torch.distributed\ntorch.distributed.init_process_group('gloo', {given})\n"
    reported = run(tmp_path, script, LOCAL_RANK="0", IPEXCTL_MEETING="10.0.0.1 29500 4")
    records = [each for each in reported if isinstance(each, RankRendezvous)]
    assert [(each.number, each.size, each.line) for each in records] == [
        (number, size, f"{tmp_path}/train.py:{line}") for number, size, line in expected
    ]
    reported = run(tmp_path / "unknown", script, LOCAL_RANK="0")
    records = [each for each in reported if isinstance(each, RankRendezvous)]
    assert all(each.number >= 0 for each in records), "nobody knows how many ranks there are"


@pytest.mark.parametrize("size", [8, 2])
def test_a_world_of_another_size_than_the_run_is_named(size: int) -> None:
    records = {rank: meets(rank, "10.0.0.1", size=size) for rank in range(4)}
    text = (
        f"ar.py:4 gives world_size={size}, and the run has 4 ranks: give WORLD_SIZE, or leave rank and world_size out"
    )
    assert describe_rendezvous(records, {*range(4)}, ("node0", "node1") * 2) == [text]


def test_ranks_that_take_one_number_leave_another_without_a_rank() -> None:
    hosts = ("node0", "node0", "node1", "node1")
    taken = {rank: meets(rank, "10.0.0.1")._replace(number=rank - 2) for rank in (2, 3)}
    text = "ar.py:4 gives rank=0 in rank 2, so that nobody comes as ranks 2-3: give RANK in place of LOCAL_RANK, or"
    assert [each[: len(text)] for each in describe_rendezvous(taken, {*range(4)}, hosts)] == [text]
    turned = {rank: meets(rank, "10.0.0.1", size=4)._replace(number=3 - rank) for rank in range(4)}
    assert describe_rendezvous(turned, {*range(4)}, hosts) == []


def test_a_stalled_rendezvous_names_the_line_once_for_all_ranks_of_it() -> None:
    places, hosts = {rank: meets(rank, "node7") for rank in range(3)}, ("node0", "node1", "node2")
    assert describe_rendezvous(places, {0, 1}, hosts) == ["ar.py:4 sets the rendezvous address to node7 (ranks 0-1)"]
    ports = {rank: meets(rank, "10.0.0.1", str(rank), 3, "") for rank in range(2)}
    assert describe_rendezvous(ports, {0, 1}, hosts) == [
        "the script or a library sets the rendezvous port to 0, 1, another one in each rank (ranks 0-1)"
    ]


def test_a_torchrun_inside_the_run_is_the_cause_of_worlds_of_one(tmp_path: Path) -> None:
    records = run(tmp_path, train(JOIN), IPEXCTL_RUN="r", TORCHELASTIC_RUN_ID="none", MASTER_ADDR="b", WORLD_SIZE="1")
    reported = next(record for record in records if isinstance(record, RankAlone))
    assert reported == alone(3, ("torchrun", "", ""))
    report = describe_worlds(journal.SeparateWorlds({1: 2}, 3, 0, reported.causes))
    assert report is not None
    assert "--engine torchrun SCRIPT" in report.causes[0]


def test_lightning_has_words_for_its_trainer_and_for_its_fabric() -> None:
    report = describe_worlds(journal.SeparateWorlds({1: 2}, 3, 0, [("lightning", "", "")]))
    assert report is not None
    assert "the Trainer num_nodes" in report.causes[0]
    assert "Fabric() needs --engine lightning" in report.causes[0]


def test_separate_worlds_are_described_with_what_was_found_or_what_usually_is_it() -> None:
    assert describe_worlds(journal.SeparateWorlds({})) is None
    report = describe_worlds(journal.SeparateWorlds({1: 1, 2: 2}, 3))
    assert report is not None
    assert (report.code, report.worlds) == ("never-met", {"2": 2, "1": 1})
    assert "they train in 2 worlds of 2 ranks, 1 world of 1 rank (seen after 3 optimizer steps)" in report.text
    assert "--use_cpu" in report.causes[0]
    line = "/home/me/t.py:7"
    causes = [("local-rank", line, ""), ("address", line, "localhost"), ("of a later version", "", ""), ("mpi", "", "")]
    report = describe_worlds(journal.SeparateWorlds({1: 2}, 0, 2, causes))
    assert report is not None
    assert "they work in 2 worlds of 1 rank; a process group of 2 was made and not used" in report.text
    assert [cause.partition(" ")[0] for cause in report.causes] == ["t.py:7", "t.py:7", "MPI"]
