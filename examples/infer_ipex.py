"""Inference with ``ipex.optimize``: ResNet-50 or BERT in fp32, bf16 and INT8; the throughput as a JSON line.

    python infer_ipex.py --model resnet50 --dtype fp32 --how trace --channels-last
    python infer_ipex.py --model bert --dtype bf16 --how trace
    python infer_ipex.py --model resnet50 --dtype int8-static
    python infer_ipex.py --model bert --dtype int8-dynamic
    python infer_ipex.py --model bert --dtype bf16 --how compile   # without IPEX: what took its place

``trace`` is ``torch.jit.trace`` and ``freeze``: operations are fused into one. Without intel_extension_for_pytorch the
same file is stock PyTorch. Every answer is compared with that of the fp32 model. One process is one instance: start
several side by side with ``ipexctl run --instances``.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from models import job
from torch import nn

try:
    import intel_extension_for_pytorch as ipex
except ImportError:  # the native track: stock PyTorch
    ipex = None

Inputs = tuple[torch.Tensor, ...]
CALIBRATION = 4  # batches shown to a model before its activations are quantised


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["resnet50", "bert"], default="resnet50")
    parser.add_argument("--size", choices=["tiny", "small", "base"], default="base", help="base is the real one")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "int8-static", "int8-dynamic"], default="fp32")
    parser.add_argument("--engine", choices=["auto", "ipex", "stock"], default="auto", help="auto: IPEX where it is")
    parser.add_argument("--how", choices=["eager", "trace", "compile"], default="eager", help="compile needs g++")
    parser.add_argument("--channels-last", action="store_true", help="images as oneDNN likes them")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10, help="measured ones")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    if args.engine == "ipex" and ipex is None:
        parser.error("--engine ipex: intel_extension_for_pytorch is not in this environment")
    if (args.model, args.dtype) == ("bert", "int8-static") and (ipex is None or args.engine == "stock"):
        parser.error("--dtype int8-static: stock PyTorch's FX cannot follow BERT of transformers; take int8-dynamic")
    return args


def quantized(model: nn.Module, static: bool, batch: Callable[[], Inputs], *, with_ipex: bool) -> nn.Module:
    """The model in INT8: weights, and activations by a scale that is measured now (static) or at each call."""
    example = batch()
    if with_ipex:
        from intel_extension_for_pytorch.quantization import convert, prepare

        scheme = ipex.quantization
        mapping = scheme.default_static_qconfig_mapping if static else scheme.default_dynamic_qconfig_mapping
        prepared = prepare(model, mapping, example_inputs=example, inplace=False)
        for _ in range(CALIBRATION if static else 0):
            prepared(*batch())
        return convert(prepared)
    from torch.ao import quantization

    if not static:
        return quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    prepared = prepare_fx(model, quantization.get_default_qconfig_mapping("x86"), example)
    for _ in range(CALIBRATION):
        prepared(*batch())
    return convert_fx(prepared)


def main() -> None:
    args = arguments()
    for category in (DeprecationWarning, UserWarning):  # of what quantising and tracing are made of
        warnings.filterwarnings("ignore", category=category)
    with_ipex = ipex is not None and args.engine != "stock"
    torch.manual_seed(args.seed)
    work = job(args.model, args.size, args.batch, channels_last=args.channels_last)
    plain = work.model.eval()
    inputs, _ = work.batch()
    bf16 = args.dtype == "bf16"
    model: nn.Module = copy.deepcopy(plain)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        if args.dtype.startswith("int8"):
            model = quantized(model, args.dtype == "int8-static", lambda: work.batch()[0], with_ipex=with_ipex)
        elif with_ipex:
            model = ipex.optimize(model, dtype=torch.bfloat16 if bf16 else torch.float32)
        # INT8 of IPEX becomes INT8 only once it is traced.
        if args.how == "trace" or (with_ipex and args.dtype.startswith("int8")):
            model = torch.jit.freeze(torch.jit.trace(model, inputs, strict=False, check_trace=False).eval())
            model(*inputs), model(*inputs)  # the first calls choose what is fused
        elif args.how == "compile":
            model = torch.compile(model)
        times = []
        for step in range(args.warmup + args.steps):
            began = time.perf_counter()
            answer = model(*inputs)
            if step >= args.warmup:
                times.append(time.perf_counter() - began)
    with torch.no_grad():
        right = plain(*inputs)

    seconds = statistics.median(times)
    measured = {
        "model": args.model,
        "size": args.size,
        "mode": "infer",
        "engine": "ipex" if with_ipex else "stock",
        "how": "trace" if isinstance(model, torch.jit.ScriptModule) else args.how,
        "dtype": args.dtype,
        "channels_last": args.channels_last,
        "batch": args.batch,
        "instance": int(os.environ.get("IPEXCTL_INSTANCE", "0")),
        "samples_per_s": round(args.batch / seconds, 2),
        "median_ms": round(1000 * seconds, 2),
        "steps": args.steps,
        "cosine": round(torch.cosine_similarity(answer.float().flatten(), right.flatten(), dim=0).item(), 4),
        "threads": torch.get_num_threads(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "host": platform.node(),
        "torch": torch.__version__,
        "ipex": ipex.__version__ if with_ipex else None,
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
