"""What ``ipexctl bench bert`` starts on the hosts: BERT in plain torch, in one form, a rate for each step.

    python bert.py --form stock-bf16 --size small
    python bert.py --form ipex-bf16 --mode infer --size base

Layers, sizes and the order of operations are BERT's (base: bert-base-uncased); weights and data are random, which speed
does not depend on. One process computes one form, since importing IPEX changes what stock PyTorch does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
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
FORMS = ["stock-fp32", "stock-bf16", "compile-fp32", "compile-bf16", "ipex-fp32", "ipex-bf16"]
WARM_UP = 3  # steps in which memory is allocated and kernels are generated


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
    parser.add_argument("--form", choices=FORMS, default=FORMS[0], help="how and in which type it is computed")
    parser.add_argument("--mode", choices=["train", "infer"], default="train")
    parser.add_argument("--size", choices=[*SIZES], default="small")
    parser.add_argument("--batch", type=int, default=8, help="samples per process and step")
    parser.add_argument("--steps", type=int, default=10, help="after the first three")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    engine, dtype = args.form.split("-")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    ipex = import_ipex() if engine == "ipex" else None
    if engine == "compile" and not shutil.which(os.environ.get("CXX", "g++")):
        sys.exit("torch.compile needs a C++ compiler (g++)")
    if size > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(20)
    model = Bert(args.size).train(args.mode == "train")
    inputs = torch.randint(SIZES[args.size][4], (args.batch, SIZES[args.size][5]))
    labels = torch.randint(CLASSES, (args.batch,))
    form = Form(model, inputs, labels, dtype == "bf16", ipex, engine == "compile", size > 1)
    work = training(form) if args.mode == "train" else inference(form)
    total = args.steps + WARM_UP
    for step in range(1, total + 1):
        if size > 1:
            dist.barrier()
        began = time.perf_counter()
        work()
        rate = size * args.batch / (time.perf_counter() - began)  # of all ranks, which wait for the slowest
        print(f"step {step}/{total} {rate:.2f} samples/s", flush=True)
    if size > 1:
        dist.destroy_process_group()


def import_ipex() -> Any:
    try:
        import intel_extension_for_pytorch as ipex
    except ImportError:
        sys.exit("no IPEX in this environment")
    return ipex


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
