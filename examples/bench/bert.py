"""What ``ipexctl bench bert`` starts on the hosts: BERT in plain torch, every form measured, one JSON line each.

    python bert.py --engine stock --mode train,infer --size small
    python bert.py --engine ipex --mode infer --size base

Layers, sizes and the order of operations are BERT's (base: bert-base-uncased); weights and data are random, which speed
does not depend on. One process measures one engine, since importing IPEX changes what stock PyTorch does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

# name → (hidden size, layers, heads, intermediate size, vocabulary, tokens of a sample)
SIZES = {
    "tiny": (64, 2, 2, 128, 1024, 16),
    "small": (256, 4, 4, 1024, 30522, 64),
    "base": (768, 12, 12, 3072, 30522, 128),
}
CLASSES = 2


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.attended, self.first = nn.Linear(hidden, hidden), nn.LayerNorm(hidden, eps=1e-12)
        self.up, self.down, self.second = (
            nn.Linear(hidden, inner),
            nn.Linear(inner, hidden),
            nn.LayerNorm(hidden, eps=1e-12),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        query, key, value = (
            part(x).view(batch, tokens, self.heads, hidden // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value)
        x = self.first(x + self.attended(seen.transpose(1, 2).reshape(batch, tokens, hidden)))
        return self.second(x + self.down(functional.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self, size: str) -> None:
        super().__init__()
        hidden, layers, heads, inner, vocabulary, tokens = SIZES[size]
        self.words, self.places = nn.Embedding(vocabulary, hidden), nn.Embedding(tokens, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.layers = nn.ModuleList(Layer(hidden, heads, inner) for _ in range(layers))
        self.pooler, self.answer = nn.Linear(hidden, hidden), nn.Linear(hidden, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(tokens) + self.places.weight)
        for layer in self.layers:
            x = layer(x)
        return self.answer(torch.tanh(self.pooler(x[:, 0])))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["stock", "ipex"], default="stock")
    parser.add_argument("--mode", default="train,infer", help="train, infer, or both with a comma")
    parser.add_argument("--size", choices=[*SIZES], default="small")
    parser.add_argument("--batch", type=int, default=8, help="samples per process and step")
    parser.add_argument("--steps", type=int, default=10, help="measured ones")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    parser.add_argument("--compile", action="store_true", help="with stock: measure torch.compile, too")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if args.engine == "ipex":
        import intel_extension_for_pytorch as ipex
    else:
        ipex = None
    if size > 1:
        dist.init_process_group("gloo")
    ways = {"eager": ""}
    if args.compile and args.engine == "stock":
        ways["compile"] = agreed(no_compiler(), size)
    no_bf16 = agreed(refused(ipex), size) if ipex else ""

    for mode in args.mode.split(","):
        for how, hindered in ways.items():
            for dtype in ("fp32", "bf16"):
                why = hindered or (no_bf16 if dtype == "bf16" else "")
                told = {
                    "bench": "bert",
                    "mode": mode,
                    "engine": args.engine,
                    "how": how,
                    "dtype": dtype,
                    "size": args.size,
                    "batch": args.batch,
                    "ranks": size,
                    "steps": args.steps,
                    "threads": torch.get_num_threads(),
                    "host": platform.node(),
                    "torch": torch.__version__,
                    "ipex": ipex.__version__ if ipex else None,
                }
                try:
                    times = [] if why else measure(args, mode, how, dtype, ipex, size)
                except (RuntimeError, AssertionError) as error:
                    if size > 1:
                        raise  # the others would wait
                    why, times = last_words(error), []
                    hindered = why if how == "compile" else ""  # what cannot be compiled is not tried again
                print(json.dumps({**told, **summary(times, size * args.batch), "why": why}), flush=True)
    if size > 1:
        dist.destroy_process_group()


def summary(times: list[float], samples: int) -> dict[str, float | int | list[float] | None]:
    """The median step, and the quarters of the steps: how far apart the middle half of them is."""
    if not times:
        return {"samples_per_s": None, "median_s": None, "quartiles_s": None, "measured": 0}
    median = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [median] * 3
    return {"samples_per_s": samples / median, "median_s": median, "quartiles_s": [low, high], "measured": len(times)}


def no_compiler() -> str:
    """Why torch.compile cannot work here; "" if it can."""
    return "" if shutil.which(os.environ.get("CXX", "g++")) else "torch.compile needs a C++ compiler (g++)"


def refused(ipex: Any) -> str:
    """Why IPEX does not compute in bf16 here, which it says of the smallest model, too; "" if it does."""
    model = nn.Linear(CLASSES, CLASSES)
    try:
        ipex.optimize(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), dtype=torch.bfloat16)
    except (RuntimeError, AssertionError) as error:
        return last_words(error)
    return ""


def agreed(why: str, size: int) -> str:
    """What hinders this rank, or else another one of the run: either all measure a form, or none."""
    if size == 1:
        return why
    all_of_them: list[str] = [""] * size
    dist.all_gather_object(all_of_them, why)
    return next(filter(None, all_of_them), "")


def last_words(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]


@dataclass(frozen=True)
class Form:
    """What is measured: a model, its data, and the way in which it is computed."""

    model: nn.Module
    inputs: torch.Tensor
    labels: torch.Tensor
    bf16: bool
    ipex: Any  # the module, or None
    compiled: bool
    together: bool  # with other ranks

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.bf16 else torch.float32

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16)


def measure(args: argparse.Namespace, mode: str, how: str, dtype: str, ipex: Any, size: int) -> list[float]:
    """Seconds of each step that is measured."""
    torch.manual_seed(20)
    model = Bert(args.size).train(mode == "train")
    inputs = torch.randint(SIZES[args.size][4], (args.batch, SIZES[args.size][5]))
    labels = torch.randint(CLASSES, (args.batch,))
    form = Form(model, inputs, labels, dtype == "bf16", ipex, how == "compile", size > 1)
    work = training(form) if mode == "train" else inference(form)
    times = []
    for turn in range(args.warmup + args.steps):
        if size > 1:
            dist.barrier()
        began = time.perf_counter()
        work()
        if turn >= args.warmup:
            times.append(time.perf_counter() - began)
    return times


def training(form: Form) -> Callable[[], None]:
    model = form.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if form.ipex:
        model, optimizer = form.ipex.optimize(model, optimizer=optimizer, dtype=form.dtype)
    if form.together:
        model = nn.parallel.DistributedDataParallel(model)
    if form.compiled:
        model = torch.compile(model)

    def work() -> None:
        with form.autocast():
            loss = functional.cross_entropy(model(form.inputs), form.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return work


def inference(form: Form) -> Callable[[], None]:
    model = form.model
    if form.ipex:  # as Intel's own examples: optimised, traced, frozen
        with torch.no_grad(), form.autocast():
            model = form.ipex.optimize(model, dtype=form.dtype)
            model = torch.jit.freeze(torch.jit.trace(model, form.inputs, check_trace=False, strict=False))
    elif form.compiled:
        model = torch.compile(model)

    def work() -> None:
        with torch.no_grad(), form.autocast():
            model(form.inputs)

    return work


if __name__ == "__main__":
    main()
