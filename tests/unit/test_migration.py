"""What a script takes from IPEX and oneCCL is found line by line, whatever it calls it, and nothing in it is run."""

import ast
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ipexctl.cli import app
from ipexctl.data import read_data
from ipexctl.decide import migration
from ipexctl.decide.releases.framework_options import parse_options
from ipexctl.decide.script_imports import Module
from ipexctl.model.errors import UsageError
from ipexctl.verbs.migrate import LaunchLines
from tests.stopwatch import Stopwatch
from tests.tables import read_table

ROOT = Path(__file__).parents[2]
KNOWN = (
    *migration.parse_rules(read_data("migrate.toml")),
    *migration.list_rules_of_retired_options(parse_options(read_data("options.toml"))),
)

SCRIPT = """\
import os
import torch
import intel_extension_for_pytorch as ipex
from intel_extension_for_pytorch.quantization import prepare, convert as turn
from transformers import TrainingArguments, Trainer
import oneccl_bindings_for_pytorch  # noqa
os.environ["CCL_WORKER_COUNT"] = "1"
raise SystemExit("a script that is read is not run")
model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
torch.distributed.init_process_group(backend="ccl")
args = TrainingArguments("out", use_ipex=True, no_cuda=True, ddp_backend="ccl", bf16=True)
fast = torch.compile(model, backend="ipex")
ready = turn(prepare(model, ipex.quantization.default_static_qconfig_mapping))
words = ["run_qa.py", "--use_ipex"]
print("ipex.optimize in a text, CCL and gloo are nothing", torch.optim, model.optimize())
"""


def actual(text: str, file: str = "train.py") -> list[tuple[int, str]]:
    return [(use.line, use.name) for use in migration.find_uses(text, file, KNOWN, LaunchLines())]


def test_every_use_in_python_is_found_under_its_whole_name() -> None:
    assert actual(SCRIPT) == [
        (3, "intel_extension_for_pytorch"),
        (4, "intel_extension_for_pytorch.quantization.convert"),
        (4, "intel_extension_for_pytorch.quantization.prepare"),
        (6, "oneccl_bindings_for_pytorch"),
        (7, "CCL_WORKER_COUNT"),
        (9, "intel_extension_for_pytorch.optimize"),
        (10, 'init_process_group("ccl")'),
        (11, "ddp_backend=ccl"),
        (11, "no_cuda=True"),
        (11, "use_ipex=True"),
        (12, 'compile(backend="ipex")'),
        (13, "intel_extension_for_pytorch.quantization.convert"),
        (13, "intel_extension_for_pytorch.quantization.default_static_qconfig_mapping"),
        (13, "intel_extension_for_pytorch.quantization.prepare"),
        (14, "--use_ipex"),
    ]


def test_a_function_of_the_old_binding_is_found_and_dated() -> None:
    (use, *_) = migration.find_uses("import torch_ccl\n", "old.py", KNOWN, LaunchLines())
    assert migration.describe_removal(use) == "last in oneccl_bind_pt 1.11.0, so nothing from torch 1.12 on"


def test_shell_files_and_configurations_are_read_line_by_line() -> None:
    shell = """\
# ipexrun in a comment
source $(python -c "import oneccl_bindings_for_pytorch as t; print(t.cwd)")/env/setvars.sh
export CCL_WORKER_COUNT=1 MASTER_ADDR=10.0.0.1
mpirun -n 2 python run_qa.py --no_cuda --ddp_backend ccl --use_ipex --bf16
ipexrun cpu --ninstances 4 infer.py
pip install torch==2.7.0 intel-extension-for-pytorch==2.7.0 'oneccl_bind_pt==2.7.0' -f https://wheels.example
"""
    assert actual(shell, "go.sh") == [
        (2, "oneccl_bindings_for_pytorch"),
        (2, "setvars.sh"),
        (3, "CCL_WORKER_COUNT"),
        (4, "--ddp_backend ccl"),
        (4, "--no_cuda"),
        (4, "--use_ipex"),
        (4, "mpirun"),
        (5, "ipexrun"),
        (6, "intel_extension_for_pytorch"),
        (6, "oneccl_bind_pt"),
    ]
    config = "distributed_type: MULTI_CPU\nipex_config:\n  ipex: true\nmpirun_config:\n  mpirun_ccl: '1'\n"
    assert actual(config, "default_config.yaml") == [(2, "ipex_config"), (5, "mpirun_ccl")]


def test_the_answer_says_what_each_became_and_when_it_vanishes() -> None:
    text = migration.format_report(migration.find_uses(SCRIPT, "train.py", KNOWN, LaunchLines()), "train.py")
    assert "train.py:9   model, optimizer = ipex.optimize(" in text
    assert "instead: remove it: torch.autocast" in text
    assert "use_ipex=True: does nothing from transformers 4.53.0 on, gone from transformers 4.57.0 on" in text
    assert text.endswith("15 places: intel_extension_for_pytorch, oneccl_bind_pt, transformers")


def test_our_own_example_is_reported_what_it_has_and_a_script_of_stock_pytorch_nothing() -> None:
    assert actual("import torch\nmodel = torch.compile(model)\ntorch.distributed.init_process_group('gloo')\n") == []
    names = {name for _, name in actual((ROOT / "examples/train_ddp.py").read_text("utf-8"))}
    assert {"intel_extension_for_pytorch.optimize", "oneccl_bindings_for_pytorch"} <= names


def test_what_is_no_python_is_refused_with_its_line() -> None:
    with pytest.raises(UsageError, match=r"old\.py:2: "):
        actual("import torch\nprint 'hello'\n", "old.py")


def test_every_word_has_a_source_and_an_answer() -> None:
    for word in KNOWN:
        assert word.source, word.name
        assert word.instead, word.name
        assert word.gone or word.idle or word.last or word.of in migration.NEEDS, word.name


def instead(text: str, file: str = "go.sh") -> dict[str, str]:
    return {use.name: use.instead for use in migration.find_uses(text, file, KNOWN, LaunchLines())}


def test_a_launch_line_becomes_the_run_that_does_the_same() -> None:
    shell = """\
#!/bin/bash
# mpirun -n 9 python old.py
export X=1
OMP_NUM_THREADS=23 mpirun -f hostfile -n 16 -ppn 4 \\
    accelerate launch examples/nlp_example.py --out "$OUT" 'two words'
    torchrun --nproc_per_node=2 train.py
ipexrun --ninstances 4 infer.py
mpirun -n 2 ./a.out
"""
    uses = migration.find_uses(shell, "go.sh", KNOWN, LaunchLines())
    assert [(use.line, use.instead) for use in uses] == [
        (4, "ipexctl run -f hostfile -n 16 --ppn 4 -e X=1 --threads 23 --launcher accelerate examples/nlp_example.py"
            " --out \"$OUT\" 'two words'"),
        (6, "ipexctl run -n 2 --ppn 2 -e X=1 train.py"),
        (7, "ipexctl run -e X=1 --instances 4 infer.py"),
        (8, "ipexctl run -n 2 -e X=1 ./a.out"),
    ]  # fmt: skip
    assert [migration.describe_removal(use)[:14] for use in uses] == [
        "a launch line", "a launch line", "last in intel_", "a launch line"
    ]  # fmt: skip


def test_a_batch_file_is_one_launch_with_what_it_says_of_its_job() -> None:
    batch = "#!/bin/sh\n#SBATCH --nodes=2 --ntasks-per-node=4\n#SBATCH -J name\nsrun python train.py --epochs 3\n"
    assert instead(batch, "job.sbatch") == {"srun": "ipexctl run --hosts slurm -n 8 --ppn 4 train.py --epochs 3"}


@pytest.mark.parametrize(("line", "becomes"), read_table("migration/pip_and_batch_lines"))
def test_a_line_of_pip_or_of_a_batch_system_becomes_a_command_of_ours(line: str, becomes: str) -> None:
    (text,) = instead(line + "\n").values()
    assert text.startswith(becomes)


def test_a_batch_file_is_read_beside_the_file_that_submits_it(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#SBATCH -N 2\nmpirun -ppn 4 python train.py\n")
    (tmp_path / "go.sh").write_text("sbatch job.sh\n")
    result = CliRunner().invoke(app, ["migrate", str(tmp_path / "go.sh")])
    assert "instead: ipexctl run --hosts slurm -n 8 --ppn 4 train.py" in result.output, result.output


def test_options_may_stand_behind_the_file(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    result = CliRunner().invoke(app, ["migrate", str(script), "--json"])
    assert json.loads(result.stdout)["file"] == str(script)
    result = CliRunner().invoke(app, ["migrate", str(script), "other.py"])
    assert result.exit_code == 2
    assert f"ipexctl migrate {script}" in result.output


def test_a_directory_is_refused_with_the_command_for_a_file_of_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    result = CliRunner().invoke(app, ["migrate", str(tmp_path)])
    assert result.exit_code == 2
    assert f"ipexctl migrate {script}" in result.output
    result = CliRunner().invoke(app, ["migrate", "x" * 300])
    assert result.output.rstrip().endswith(f"{'x' * 300} cannot be used: file name too long")


def test_what_the_rfc_called_it_and_what_accelerate_took_of_it() -> None:
    config = "ipex_config:\n  ipex_enabled: true\n  ipex_fusion_enabled: true\n"
    assert actual(config, "default_config.yaml") == [
        (1, "ipex_config"),
        (2, "ipex_enabled"),
        (3, "ipex_fusion_enabled"),
    ]
    shell = "IPEX_ENABLED=1 accelerate launch --ipex_enabled --ipex_fusion_enabled train.py\n"
    assert {"IPEX_ENABLED", "--ipex_enabled", "--ipex_fusion_enabled"} <= {name for _, name in actual(shell, "go.sh")}
    script = """\
from accelerate import Accelerator
from accelerate.utils import IntelPyTorchExtensionPlugin
accelerator = Accelerator(use_ipex=True, mixed_precision="bf16", ipex_plugin=IntelPyTorchExtensionPlugin())
Other(use_ipex=True)
"""
    assert actual(script) == [
        (2, "accelerate.utils.IntelPyTorchExtensionPlugin"),
        (3, "accelerate.utils.IntelPyTorchExtensionPlugin"),
        (3, "ipex_plugin=IntelPyTorchExtensionPlugin()"),
        (3, "use_ipex=True"),
    ]


def test_autocast_of_the_old_module_is_dated() -> None:
    script = "import torch\nfrom torch.cpu.amp import autocast\nwith torch.cpu.amp.autocast():\n    pass\n"
    uses = migration.find_uses(script, "train.py", KNOWN, LaunchLines())
    assert [(use.line, use.name) for use in uses] == [(2, "torch.cpu.amp.autocast"), (3, "torch.cpu.amp.autocast")]
    assert migration.describe_removal(uses[0]) == "deprecated from torch 2.4 on"
    assert uses[0].instead == 'torch.autocast("cpu", dtype=torch.bfloat16)'


@pytest.mark.parametrize(
    "text",
    [
        "pip install " * 80_000,
        "mpirun -n 2 x\n" * 4000,
        "export A=1; mpirun x\n" * 2000,
        "A='" * 20_000,
        "".join(f"cat <<E{number}\n" for number in range(4000)),
        "for\n" * 30_000,
        "A0=word\n" + "".join(f"A{number + 1}=$A{number}$A{number}\n" for number in range(60)) + "mpirun x $A60\n",
        "N=$((" + "*".join(["999999999"] * 600) + "))\nmpirun -n $N x\n",
        "A='" + "x" * 90_000 + "'\nmpirun -n $((" + "A " * 90_000 + ")) x\n",
        "mpirun -hosts " + "a," * 200_000 + "b x\n",
        "mpirun -hosts " + ",".join(f"h{number}-[1-4096]" for number in range(20_000)) + " x\n",
        "mpirun " + " ".join(f"--cpu-set x{number}" for number in range(30_000)) + " x\n",
        "mpirun " + " ".join(f"-genv A{number} x" for number in range(30_000)) + " x\n",
        "foo " + "a " * 200_000,
        "nice " * 60_000 + "mpirun x\n",
        "#SBATCH " + "$(" * 2000 + "\nmpirun x\n",
        "mpirun bash -c '" + "a;" * 200_000 + "'\n",
        "mpirun bash -c '" + "$(" * 2000 + "'\n",
        "A0=(a b)\n"
        + "".join(f"A{number + 1}=(${{A{number}[@]}} ${{A{number}[@]}})\n" for number in range(60))
        + "mpirun x ${A60[@]}\n",
    ],
)
def test_a_long_line_or_a_deep_one_costs_no_more_than_its_length(text: str) -> None:
    """Each of them took minutes, or ended by a recursion: all was looked at again for each part of it."""
    assert len(migration.find_uses(text, "run.sh", KNOWN, LaunchLines())) <= 200


def test_a_batch_file_that_starts_itself_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("srun sbatch a.sh\n")
    [use] = migration.find_uses("srun sbatch a.sh\n", "a.sh", KNOWN, LaunchLines(tmp_path))
    assert "starts another one" in use.instead


@pytest.mark.parametrize(
    "text",
    [
        "if not cuda:\n    exit(1)\n" + "a\n" * 100_000,
        "from torch." + "a" * 400_000 + " import " + ",".join(f"b{number}" for number in range(60_000)),
        "import torch\ntorch.device(f'')\ntorch.device({})\n",
        "DDP(model, device_ids=[" + "1+" * 900 + "1])\n",
    ],
    ids=["statements", "names", "nothing", "numbers"],
)
def test_a_script_that_somebody_made_for_it_holds_nothing_and_ends_nothing(text: str) -> None:
    """The first two took minutes and tens of gigabytes, the others ended with an exception."""
    assert len(migration.find_uses(text, "train.py", KNOWN, LaunchLines())) <= 2


_LIST = "[" + "a," * 20_000 + "]"


@pytest.mark.parametrize(
    "text",
    [
        "x=" + "(0 if " * 90 + _LIST + " else 0)" * 90 + "\n",
        f"f({_LIST})" + "()" * 90 + "\n",
        "".join(" " * depth + "if int(os.environ['RANK']):\n" for depth in range(90)) + " " * 90 + "a;" * 20_000 + "\n",
    ],
    ids=["conditions", "calls", "blocks"],
)
def test_each_part_of_a_script_is_looked_at_a_few_times(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others it is in: 1 MiB of these took minutes."""
    nodes, steps = sum(1 for _ in ast.walk(ast.parse(text))), 0

    def count(call: Callable[[ast.AST], Any], node: ast.AST) -> Any:
        nonlocal steps
        result = call(node)
        steps += len(result) if isinstance(result, str) else 1
        return result

    monkeypatch.setattr(ast, "iter_child_nodes", partial(count, ast.iter_child_nodes))
    monkeypatch.setattr(ast, "unparse", partial(count, ast.unparse))
    assert not migration.find_uses(text, "train.py", KNOWN, LaunchLines())
    assert not needs(text)
    assert steps < 50 * nodes


@pytest.mark.parametrize("value", ["1" + "+1" * 900, "x" + ".a" * 900, "x" + "[0]" * 900])
def test_a_deep_value_is_shown_as_far_as_it_goes(value: str) -> None:
    [use] = migration.find_uses(f"TrainingArguments(no_cuda={value})", "train.py", KNOWN, LaunchLines())
    assert use.name.startswith("no_cuda=")


def test_a_use_in_the_arguments_of_another_is_found_as_well() -> None:
    text = "import intel_extension_for_pytorch as ipex\nipex.optimize(ipex.quantization.convert(m)).eval()\n"
    assert [name for _, name in actual(text)][1:] == [
        "intel_extension_for_pytorch.optimize",
        "intel_extension_for_pytorch.quantization.convert",
    ]


def needs(text: str, **modules: str) -> str:
    def find(name: str) -> list[Module]:
        return [Module(f"{name}.py", "", modules[name])] if name in modules else []

    return "".join(map(str, migration.describe_gpu_needs(text, "train.py", KNOWN, find)))


@pytest.mark.parametrize(("text", "what"), read_table("migration/what_certainly_needs_a_gpu_is_said_with_its_line"))
def test_what_certainly_needs_a_gpu_is_said_with_its_line(text: str, what: str) -> None:
    assert needs(text) == (
        f"train.py needs a GPU ({what}), and no host has one; what to write instead:\nipexctl migrate train.py"
    )
    (use,) = migration.find_uses(text, "train.py", KNOWN, LaunchLines())
    assert migration.describe_removal(use) == "needs a GPU"


@pytest.mark.parametrize("text", read_table("migration/no_gpu_is_certainly_needed"))
def test_what_may_be_guarded_or_chosen_is_no_need_of_a_gpu(text: str) -> None:
    assert needs(text) == ""
    uses = migration.find_uses(text, "train.py", KNOWN, LaunchLines())
    assert {use.of for use in uses} <= {migration.POSSIBLE, "torch.cuda.amp"}


def test_a_function_of_the_project_that_the_script_calls_may_need_a_gpu() -> None:
    script = "import utils, torch\nfrom net import Net\ndef main():\n    utils.setup(1)\n    Net()\nmain()\n"
    setup = """\
import os, torch
def setup(args):
    if args.dist_on_itp:
        pass
    elif 'RANK' in os.environ:
        args.gpu = 1
    elif 'SLURM_PROCID' in os.environ:
        args.gpu = args.rank % torch.cuda.device_count()
    else:
        return
    torch.cuda.set_device(args.gpu)
def main():
    torch.cuda.synchronize()
"""
    net = "class Net:\n    def __init__(self):\n        self.to('cuda')\n"
    what = 'torch.cuda.set_device in line 11 of utils.py, to("cuda") in line 3 of net.py'
    assert f"train.py needs a GPU ({what}), and no host has one" in needs(script, utils=setup, net=net)
    assert needs(script) == ""
    assert needs("import utils\nif utils:\n    utils.setup()\n", utils=setup) == ""


def test_what_needs_a_gpu_where_it_is_reached_is_listed_but_not_behind_a_condition_on_one() -> None:
    text = """\
import torch
parser.add_argument("--device", default="cuda")
for step in steps:
    images = [image.cuda(non_blocking=True) for image in images]
    if step % 10 == 0:
        torch.cuda.synchronize()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    if not cuda:
        continue
    torch.cuda.synchronize()
args.dist_backend = "nccl"
args.gpu = rank % torch.cuda.device_count()
scaler = torch.cuda.amp.GradScaler()
def show(device):
    if device == "cpu":
        return
    torch.cuda.synchronize()
try:
    print(compute_accuracy(model, loader, device=rank))
except ZeroDivisionError as error:
    raise ValueError(loader) from error
ours = torch.device(f"cuda:{args.local_rank}") if args.local_rank else torch.device("cuda:%d" % args.rank)
mine = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""
    uses = migration.find_uses(text.replace("\nargs.gpu", "\nif args:\n    args.gpu"), "a.py", KNOWN, LaunchLines())
    reached = migration.POSSIBLE
    assert [(use.line, use.name, use.of) for use in uses] == [
        (2, "default=cuda", reached),
        (4, ".cuda()", reached),
        (6, "torch.cuda.synchronize", reached),
        (12, "nccl", reached),
        (14, "% torch.cuda.device_count()", reached),
        (15, "torch.cuda.amp.GradScaler", "torch.cuda.amp"),
        (21, "compute_accuracy(device=rank)", reached),
        (24, 'device("cuda:…")', reached),
    ]
    assert "% torch.cuda.device_count() in line 13" in needs(text)


def test_a_backend_that_is_a_default_is_listed_and_options_of_the_script_itself_are_not() -> None:
    text = """\
parser.add_argument("--dist-backend", "--ipex", default="ccl")
parser.add_argument("--no_cuda", action="store_true")
click.option("--use_ipex")
if torch_ccl:
    backend = "ccl"
args.dist_backend = "ccl"
engine = "ipex"
words = ["run_qa.py", "--use_ipex"]
"""
    assert actual(text) == [(1, "default=ccl"), (5, "ccl"), (6, "ccl"), (8, "--use_ipex")]


def test_other_files_of_the_project_are_named_with_their_number_of_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "util").mkdir()
    (tmp_path / "train.py").write_text("def main():\n    import util.misc\n    import old\n")
    (tmp_path / "util/misc.py").write_text(
        "import torch\nfrom util import data\nrank = 0 % torch.cuda.device_count()\n"
    )
    (tmp_path / "util/data.py").write_text("x.cuda()\nx.to('cuda')\n")
    (tmp_path / "old.py").write_text("print 'of Python 2'\n")
    monkeypatch.chdir(tmp_path)
    lines = CliRunner().invoke(app, ["migrate", "train.py"]).stdout.splitlines()
    assert lines[-2:] == ["util/misc.py, which it imports, has 1 place", "util/data.py, which it imports, has 2 places"]


def test_a_process_group_of_a_gpu_by_its_number_needs_one() -> None:
    text = "import torch.distributed as dist\ndist.init_process_group('gloo', device_id=device)\n"
    (use,) = migration.find_uses(text, "train.py", KNOWN, LaunchLines())
    assert (use.line, use.name) == (2, "device_id=device")


def test_an_accelerator_may_be_none_wherever_it_is_used() -> None:
    text = """\
import torch
if not torch.accelerator.is_available():
    raise SystemExit(1)
class Trainer:
    def __init__(self):
        self.acc = torch.accelerator.current_accelerator()
        self.device = torch.accelerator.current_accelerator() or torch.device("cpu")
"""
    assert needs(text) == ""
    (use,) = migration.find_uses(text, "trainer.py", KNOWN, LaunchLines())
    assert (use.line, migration.describe_removal(use)) == (6, "is None without a GPU")


def test_shell_files_are_not_searched_for_gpus() -> None:
    assert actual("train.py --backend nccl\n", "conf.yaml") == []


@pytest.mark.parametrize(
    "words", ["-c " + ",".join(["0-9999:1"] * 20000), ",".join(["ffffffff"] * 20000), "-c 0-9999:2,1-9999:2"]
)
def test_a_few_letters_stand_for_no_millions_of_cpus(words: str) -> None:
    """A script of 900 KB took gigabytes of memory and minutes, also by a thousand lists in a line."""
    watch = Stopwatch()
    assert LaunchLines().try_line(f"taskset {words} mpirun -n 2 python t.py") is None
    assert watch.read() < 10
