"""Figures in printed lines: the forms that training scripts print, lines that hold none, and lines made to be slow."""

import json
import math

import pytest

from ipexctl.model.figures import KEYS, LIMIT, read_figures

LINES: dict[str, dict[str, float]] = {
    # transformers' Trainer, with numbers and, from version 5 on, with strings
    "{'loss': 0.5, 'grad_norm': 1.25, 'learning_rate': 4.5e-05, 'epoch': 1.0}":
        {"loss": 0.5, "grad_norm": 1.25, "lr": 4.5e-05, "epoch": 1.0},
    "{'loss': '2.31', 'learning_rate': '1e-05', 'epoch': '0.33'}": {"loss": 2.31, "lr": 1e-05, "epoch": 0.33},
    "{'eval_loss': 0.7, 'eval_accuracy': 0.81, 'epoch': 1.0}": {"accuracy": 0.81, "epoch": 1.0},
    "{'train_runtime': 9.1, 'train_samples_per_second': 32.8, 'train_steps_per_second': 4.1, 'train_loss': 0.9,"
    " 'epoch': 3.0}":
        {"samples_s": 32.8, "pace": 4.1, "epoch": 3.0},
    # words and numbers
    "step 10 loss 0.3": {"step": 10, "loss": 0.3},
    "step 1210 loss 0.339 2.31 it/s 120 samples/s": {"step": 1210, "loss": 0.339, "pace": 2.31, "samples_s": 120},
    "rank 3 step 12 samples/s 123.5": {"step": 12, "samples_s": 123.5},
    "Step [10/100], Loss: 0.25": {"step": 10, "steps": 100, "loss": 0.25},
    "step 1,210 of 5000": {"step": 1210, "steps": 5000},
    "Epoch 2/3, batch 7/50, acc: 93.5%": {"epoch": 2, "step": 7, "steps": 50, "accuracy": 93.5},
    "batch 32 on each rank, loss=1": {"loss": 1},
    "Epoch: [4][ 10/5005]\tTime  0.5 ( 0.7)\tLoss 6.9e+00 (7.0e+00)":
        {"epoch": 4, "step": 10, "steps": 5005, "loss": 6.9},
    "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.30": {"epoch": 1, "loss": 2.3},
    " iteration       10/     100 | learning rate: 1.0E-4 | lm loss: 3.2E0 | loss scale: 1.0 | grad norm: 0.5 |":
        {"step": 10, "steps": 100, "lr": 1e-4, "loss": 3.2, "grad_norm": 0.5},
    "  Total optimization steps = 1,000": {"steps": 1000},
    "loss=0.25 lr=1e-3 val loss 0.9": {"loss": 0.25, "lr": 1e-3},
    "train/loss: 0.5 val/loss: 0.4": {"loss": 0.5},
    "loss = tensor(0.34)": {"loss": 0.34},
    "loss: -1.5": {"loss": -1.5},
    "rank 0: loss 2.4281 → 0.5548, 7156 samples/s": {"loss": 0.5548, "samples_s": 7156},
    '{"step": 10, "loss": 0.3, "tokens_per_second": 512}': {"step": 10, "loss": 0.3, "tokens_s": 512},
    "speed: 2.5 s/it": {"pace": 0.4},
    "took 250 ms/step": {"pace": 4.0},
    "speed: 1e999 it/s": {},
    # bars
    " 45%|####5     | 45/100 [00:10<00:12,  4.50it/s]": {"step": 45, "steps": 100, "pace": 4.5},
    "Epoch 1:  45%|███▌   | 45/100 [00:10<00:12, 4.50it/s, loss=0.3]":
        {"epoch": 1, "step": 45, "steps": 100, "pace": 4.5, "loss": 0.3},
    "Steps:  10%|█ | 100/1000 [02:10<1:12:02,  2.00s/it, lr=1e-5, step_loss=0.12]":
        {"step": 100, "steps": 1000, "pace": 0.5, "lr": 1e-5},
    "\r 1%| | 1/90 [00:01<?, ?it/s]\r 2%|▏ | 2/90 [00:02<01:28, 1.00it/s]\r": {"step": 2, "steps": 90, "pace": 1.0},
    "45it [00:10, 4.50it/s]": {"step": 45, "pace": 4.5},
    "Epoch 0:  50%|█████     | 5/10 [00:01<00:01, 3.21it/s, v_num=0, train_loss=0.51]":
        {"epoch": 0, "step": 5, "steps": 10, "pace": 3.21, "loss": 0.51},
    # lines made for this reader
    "::metric name=val/f1 value=0.81 step=40": {"val/f1": 0.81, "step": 40},
    "::metric step=3 value=1e3 name=gflops": {"gflops": 1000.0, "step": 3},
    "::metric name=f1 value=0.5": {"f1": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_figures_of_a_line(line: str) -> None:
    assert read_figures(line) == pytest.approx(LINES[line])
    assert list(read_figures(line)) == list(read_figures(line + "\n"))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "[2026-11-20 10:31:05,123] INFO listening on 10.77.0.1:29500",
        "model.safetensors:  45%|████▌ | 450M/1.00G [00:10<00:12, 45.0MB/s]",
        "Loading checkpoint shards: 100%|██████| 3/3 [00:05<00:00, 1.90s/it]",
        "Map: 100%|██████| 1000/1000 [00:01<00:00, 900.00 examples/s]",
        "lr_scheduler.step() before optimizer.step()",
        "step 10:31:05 begins",
        "step 12.5ms",
        "eval loss 0.5",
        "validation loss: 0.5",
        "Training: 45%",
        "Step: 45%",
        "epoch -1 step -2",
        "step nan epoch inf",
        "accuracy -0.5",
        "::metric name=f1 value=high",
        "::metric name=../x; value=1",
        "::metric",
    ],
)
def test_lines_without_figures(line: str) -> None:
    assert read_figures(line) == {}


def test_a_loss_may_be_no_number() -> None:
    assert math.isnan(read_figures("step 7 loss: nan")["loss"])
    assert math.isnan(read_figures("{'loss': nan, 'epoch': 1}")["loss"])
    assert read_figures("loss=inf")["loss"] == math.inf
    assert read_figures("loss=-inf")["loss"] == -math.inf


def test_keys_are_of_a_fixed_set() -> None:
    assert {key for figures in LINES.values() for key in figures} - set(KEYS) == {"val/f1", "gflops", "f1"}


@pytest.mark.parametrize(
    "piece",
    [
        "step ", "1", "1,111", "loss=", "[[", "loss" + " " * 39, "1/1 [", "1/2 [00:00<", "it [", "a b ", "1e", ".",
        "-1.", "epoch 0[", "::metric ", "tensor(",
    ],
)  # fmt: skip
def test_hostile_lines_take_no_longer_than_their_length(piece: str) -> None:
    """A pattern that repeats a repetition would take hours here; what is longer than `LIMIT` is not looked at."""
    for line in (piece * 200_000, "loss " + piece * 200_000, "::metric " + piece * 200_000):
        assert isinstance(json.dumps(read_figures(line)), str)
    assert read_figures(" " * LIMIT + "loss 1") == {}
