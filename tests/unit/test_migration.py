"""What a script takes from IPEX and oneCCL is found line by line, whatever it calls it, and nothing in it is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.data import read_data
from ipexctl.decide import migration
from ipexctl.decide.releases.framework_options import parse_options
from ipexctl.model.errors import UsageError

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


def found(text: str, file: str = "train.py") -> list[tuple[int, str]]:
    return [(use.line, use.name) for use in migration.find_hits(text, file, KNOWN)]


def test_every_use_in_python_is_found_under_its_whole_name() -> None:
    assert found(SCRIPT) == [
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
    (use, *_) = migration.find_hits("import torch_ccl\n", "old.py", KNOWN)
    assert migration.describe_removal(use) == "last in oneccl_bind_pt 1.11.0, so nothing from torch 1.12 on"


def test_shell_files_and_configurations_are_read_line_by_line() -> None:
    shell = """\
# ipexrun in a comment
source $(python -c "import oneccl_bindings_for_pytorch as t; print(t.cwd)")/env/setvars.sh
export CCL_WORKER_COUNT=1 MASTER_ADDR=10.0.0.1
mpirun -n 2 python run_qa.py --no_cuda --ddp_backend ccl --use_ipex --bf16
ipexrun cpu --ninstances 4 infer.py
"""
    assert found(shell, "go.sh") == [
        (2, "oneccl_bindings_for_pytorch"),
        (2, "setvars.sh"),
        (3, "CCL_WORKER_COUNT"),
        (4, "--ddp_backend ccl"),
        (4, "--no_cuda"),
        (4, "--use_ipex"),
        (5, "ipexrun"),
    ]
    config = "distributed_type: MULTI_CPU\nipex_config:\n  ipex: true\nmpirun_config:\n  mpirun_ccl: '1'\n"
    assert found(config, "default_config.yaml") == [(2, "ipex_config"), (5, "mpirun_ccl")]


def test_the_answer_says_what_each_became_and_when_it_vanishes() -> None:
    text = migration.format_report(migration.find_hits(SCRIPT, "train.py", KNOWN), "train.py")
    assert "train.py:9   model, optimizer = ipex.optimize(" in text
    assert "instead: remove it: torch.autocast" in text
    assert "use_ipex=True: does nothing from transformers 4.53.0 on, gone from transformers 4.57.0 on" in text
    assert text.endswith("15 places: intel_extension_for_pytorch, oneccl_bind_pt, transformers")


def test_a_script_of_stock_pytorch_uses_nothing_of_it() -> None:
    assert found("import torch\nmodel = torch.compile(model)\ntorch.distributed.init_process_group('gloo')\n") == []


def test_our_own_example_is_told_what_it_has() -> None:
    names = {name for _, name in found((ROOT / "examples/train_ddp.py").read_text("utf-8"))}
    assert {"intel_extension_for_pytorch.optimize", "oneccl_bindings_for_pytorch"} <= names


def test_what_is_no_python_is_refused_with_its_line() -> None:
    with pytest.raises(UsageError, match=r"old\.py:2: "):
        found("import torch\nprint 'hello'\n", "old.py")


def test_every_word_has_a_source_and_an_answer() -> None:
    for word in KNOWN:
        assert word.source, word.name
        assert word.instead, word.name
        assert word.gone or word.idle, word.name
