"""A language model fine-tuned on CPUs: LoRA by TRL and PEFT, or all weights, which FSDP2 divides among the ranks.

Without ``--model`` and ``--data`` nothing is downloaded: a small Llama with random weights is made, and questions with
answers are made up. The real ones: a directory with a model on all hosts, and JSON lines with "prompt" and
"completion". ``--preflight`` says what memory each rank needs before anything is trained, and ends with 1 where a host
has less; ``--try`` loads what was written in a process of its own. It runs under ``ipexctl run``, ``mpirun``,
``torchrun`` and plain ``python``.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import os
import random
import socket
from pathlib import Path
from typing import Any

os.environ.setdefault("ACCELERATE_USE_CPU", "true")
import torch
import torch.distributed as dist
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
BUFFERS = 64 << 20  # bytes that a rank needs beside tensors: message buffers, and what the allocator keeps
MARGIN = 0.9  # of a host's free memory
# glibc's malloc keeps what was freed between tensors that stay, twice the memory; parts of this size go back at once.
M_MMAP_THRESHOLD = -3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="directory of a model on the hosts (default: a small one, made here)")
    parser.add_argument("--data", help="file of JSON lines (default: made up here)")
    parser.add_argument("--method", choices=["lora", "full"], default="lora")
    parser.add_argument("--precision", default="auto", help="auto (bf16 where the CPU computes in it), bf16 or fp32")
    parser.add_argument("--attention", default="sdpa", help="sdpa or eager")
    parser.add_argument("--rows", type=int, default=64, help="made-up questions")
    parser.add_argument("--words", type=int, default=4, help="words of a made-up answer")
    parser.add_argument("--length", type=int, default=512, help="most tokens of a row; the rest of it is cut off")
    parser.add_argument("--batch", type=int, default=4, help="rows per rank and step")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--rate", type=float, help="learning rate (default: 2e-4 with LoRA, 2e-5 else; made here: 1e-2)"
    )
    parser.add_argument("--rank", type=int, default=16, help="of LoRA's matrices")
    parser.add_argument("--checkpointing", action="store_true", help="compute activations twice, to store less of them")
    parser.add_argument("--hidden", type=int, default=64, help="width of the model made here")
    parser.add_argument("--layers", type=int, default=2, help="its layers")
    parser.add_argument("--output", type=Path, default=Path("out/sft"), help="directory on the host of rank 0")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--preflight", nargs=2, type=int, metavar=("PPN", "WORLD"), help="only say the memory of so many ranks"
    )
    parser.add_argument("--try", action="store_true", dest="trial", help="only load and try what was written")
    args = parser.parse_args()
    args.output = args.output.expanduser()
    args.rate = args.rate or ((2e-4 if args.method == "lora" else 2e-5) if args.model else 1e-2)
    return args


# what there is -------------------------------------------------------------------------------------------------------


def read_rows(args: argparse.Namespace) -> list[dict[str, str]]:
    if args.data:
        lines = [line for line in Path(args.data).read_text("utf-8").splitlines() if line.strip()]
        return [{key: json.loads(line)[key] for key in ("prompt", "completion")} for line in lines]
    chance = random.Random(args.seed)
    syllables = ["ba", "co", "du", "fe", "gi", "ko", "lu", "ma", "no", "pe", "ri", "sa", "tu", "vo"]

    def word() -> str:
        return "".join(chance.choices(syllables, k=3))

    return [
        {"prompt": f"Where is {word()}? ", "completion": " ".join(f"In {word()}." for _ in range(args.words))}
        for _ in range(args.rows)
    ]


def load_tokenizer(args: argparse.Namespace) -> Any:
    if args.model:
        return AutoTokenizer.from_pretrained(args.model)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 2)}
    made = Tokenizer(models.BPE({"<pad>": 0, "<end>": 1, **letters}, []))  # a token is a byte
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>")


def load_config(args: argparse.Namespace) -> Any:
    if args.model:
        return AutoConfig.from_pretrained(args.model)
    shape: dict[str, Any] = {"hidden_size": args.hidden, "intermediate_size": 4 * args.hidden, "vocab_size": 258}
    shape |= {"num_hidden_layers": args.layers, "num_attention_heads": 4, "num_key_value_heads": 4}
    return transformers.LlamaConfig(**shape, pad_token_id=0, eos_token_id=1, max_position_embeddings=4096)


def load_model(args: argparse.Namespace, config: Any, bf16: bool) -> Any:
    """All weights are trained in fp32, and computed with in bf16; LoRA needs them in bf16 only."""
    dtype = torch.bfloat16 if bf16 and args.method == "lora" else torch.float32
    if args.model:
        return AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation=args.attention)
    transformers.set_seed(args.seed)
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=args.attention)


def add_lora(args: argparse.Namespace, model: Any) -> Any:
    from peft import get_peft_model

    return get_peft_model(model, make_lora(args))


def make_lora(args: argparse.Namespace) -> Any:
    from peft import LoraConfig

    return LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear", task_type="CAUSAL_LM")


def encode(args: argparse.Namespace, tokenizer: Any, rows: list[dict[str, str]]) -> list[tuple[list[int], int]]:
    """The tokens of each row, and how many of them are the prompt's."""
    encoded = []
    for row in rows:
        prompt = tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
        answer = [*tokenizer(row["completion"], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        encoded.append(([*prompt, *answer][: args.length], len(prompt)))
    return encoded


def make_batch(tokenizer: Any, rows: list[tuple[list[int], int]]) -> dict[str, torch.Tensor]:
    longest = max(len(tokens) for tokens, _ in rows)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    ids = torch.tensor([tokens + [pad] * (longest - len(tokens)) for tokens, _ in rows])
    mask = torch.tensor([[1] * len(tokens) + [0] * (longest - len(tokens)) for tokens, _ in rows])
    labels = ids.masked_fill(mask == 0, -100)
    for label, (_, prompt) in zip(labels, rows, strict=True):
        label[:prompt] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


# what cannot work, and what it needs ---------------------------------------------------------------------------------


def choose_bf16(args: argparse.Namespace, config: Any) -> bool:
    """Whether to compute in bf16. Ends the program for what would fail on a CPU, with what to use instead."""
    computes = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    quantized = getattr(config, "quantization_config", None) or {}
    if args.attention not in ("sdpa", "eager"):
        raise SystemExit(f"--attention {args.attention} has no backward pass on CPUs: use --attention sdpa")
    if args.precision not in ("auto", "bf16", "fp32"):
        raise SystemExit(f"--precision {args.precision} cannot be trained on CPUs: use --precision bf16, or fp32")
    if args.precision == "bf16" and not computes:
        raise SystemExit("this CPU does not compute in bf16: use --precision fp32")
    if quantized:
        kind = dict(quantized).get("quant_method", "unknown")
        raise SystemExit(f"{args.model} has weights quantized by {kind}: use the model that it was made of, in bf16")
    return computes if args.precision == "auto" else args.precision == "bf16"


def count_saved(args: argparse.Namespace, config: Any, layers: int, batch: dict[str, torch.Tensor], bf16: bool) -> int:
    """Bytes that a forward pass of the model with so many layers keeps for its backward pass: computed, and counted."""
    small = copy.deepcopy(config)
    small.num_hidden_layers = layers
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:layers]
    compute = torch.bfloat16 if bf16 else torch.float32
    model = AutoModelForCausalLM.from_config(small, dtype=compute, attn_implementation=args.attention)
    inputs = {**batch, "use_cache": False}
    if args.method == "lora":
        model = add_lora(args, model)
        inputs |= {"labels": None, "logits_to_keep": 1}  # TRL computes the logits piece by piece
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=bf16 and args.method == "lora"),
    ):
        output = model.train()(**inputs)
    del output
    return sum(saved.values())


def plan_memory(
    args: argparse.Namespace, config: Any, batch: dict[str, torch.Tensor], bf16: bool, size: int
) -> dict[str, int]:
    """Bytes of each of so many ranks by what they are for."""
    if args.method == "lora":
        import trl  # noqa: F401 - its imports count
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        layer = sum(parameter.numel() for parameter in find_layers(model)[0].parameters())
        every = sum(parameter.numel() for parameter in model.parameters())
        trained = every
        if args.method == "lora":
            lora = add_lora(args, model)
            trained = sum(parameter.numel() for parameter in lora.parameters() if parameter.requires_grad)
    one, two = (count_saved(args, config, layers, batch, bf16) for layers in (1, 2))
    process = read_status("VmRSS")  # with all that is loaded, now that a step was computed
    layers, (rows, tokens) = int(config.num_hidden_layers), batch["input_ids"].shape
    width, compute = config.hidden_size, 2 if bf16 else 4
    activations, logits = (two - one) * layers, rows * tokens * config.vocab_size
    if args.checkpointing:
        activations = two - one + layers * rows * tokens * width * compute
    activations += 2 * one - two
    if args.method == "lora":
        needs = {"weights": every * compute + trained * 4, "gradients": trained * 8, "optimizer": trained * 8}
        return {"process": process, **needs, "activations": activations, "buffers": BUFFERS}
    rest = every - layers * layer  # embeddings and head, whole on each rank during a step
    needs = {"weights": every * 4 // size, "gradients": every * 4 // size, "optimizer": every * 8 // size}
    whole = (2 * rest + 3 * layer) * compute + (rest + layer) * 4 if size > 1 else 0
    return {"process": process, **needs, "activations": activations + logits * 4, "buffers": BUFFERS + whole}


def find_layers(model: Any) -> Any:
    """The layers of a model: its list of modules with the most parameters."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return max(lists, key=lambda module: sum(parameter.numel() for parameter in module.parameters()))


def read_status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def read_free_memory() -> int:
    """Bytes that this host has left: of the machine, or of the control group that this process is in."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    for group in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        if Path(group).is_file() and (limit := Path(group).read_text().strip()).isdigit():
            free = min(free, int(limit))
    return free


def describe(needs: dict[str, int]) -> str:
    parts = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in needs.items())
    return f"{sum(needs.values()) / 2**20:,.0f} MiB a rank ({parts})"


def report_memory(needs: dict[str, int], ranks: int) -> None:
    free, all_of_them = read_free_memory(), sum(needs.values()) * ranks
    print(f"{socket.gethostname()}: {describe(needs)}; {ranks} of them, {free / 2**20:,.0f} MiB free", flush=True)
    if all_of_them > free * MARGIN:
        ways = "use fewer ranks a host, a smaller --batch or --length, --checkpointing, or more hosts (--method full)"
        raise SystemExit(f"{socket.gethostname()} has too little memory for its ranks: {ways}")


# training ------------------------------------------------------------------------------------------------------------


def train_lora(args: argparse.Namespace, model: Any, tokenizer: Any, rows: list[dict[str, str]], bf16: bool) -> float:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    settings = SFTConfig(
        output_dir=str(args.output), num_train_epochs=args.epochs, per_device_train_batch_size=args.batch,
        learning_rate=args.rate, max_length=args.length, bf16=bf16, gradient_checkpointing=args.checkpointing,
        save_strategy="no", report_to="none", disable_tqdm=True, logging_steps=4, seed=args.seed, use_cpu=True,
        ddp_backend="gloo" if SIZE > 1 else None, lr_scheduler_type="constant",
    )  # fmt: skip
    data = Dataset.from_list(rows)
    trainer = SFTTrainer(model, settings, train_dataset=data, processing_class=tokenizer, peft_config=make_lora(args))
    loss = trainer.train().training_loss
    if RANK == 0:
        trained = trainer.accelerator.unwrap_model(trainer.model)
        trained.save_pretrained(args.output / "adapter")
        trained.merge_and_unload().save_pretrained(args.output / "merged")
    return float(loss)


def train_full(args: argparse.Namespace, model: Any, tokenizer: Any, rows: list[dict[str, str]], bf16: bool) -> float:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.update({name: value for name, value in alone.items() if name not in os.environ})
    mesh = init_device_mesh("cpu", (SIZE,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    if args.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for part in (*find_layers(model), model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate)
    encoded, chance = encode(args, tokenizer, rows), random.Random(args.seed)
    model.train()
    for epoch in range(args.epochs):
        chance.shuffle(encoded)
        losses = []
        each = args.batch * SIZE
        for start in range(0, len(encoded) - len(encoded) % each or len(encoded), each):
            own = encoded[start + RANK : start + each : SIZE] or encoded[:1]  # no rank may wait for another
            loss = model(**make_batch(tokenizer, own), use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) % 4 == 0:
                print(f"epoch {epoch} step {len(losses)} loss {loss.item():.4f}", flush=True)
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if RANK == 0:
        model.save_pretrained(args.output / "merged", state_dict=weights)
    dist.destroy_process_group()
    return float(sum(losses) / len(losses))


def try_out(args: argparse.Namespace, tokenizer: Any, rows: list[dict[str, str]]) -> None:
    """Compares what was written, loaded anew, with what the training began with; shows an answer of it."""
    config = load_config(args)
    bf16 = choose_bf16(args, config)
    batch = make_batch(tokenizer, encode(args, tokenizer, rows[: 4 * args.batch]))
    losses = {"before": load_model(args, config, bf16)}
    if args.method == "lora":
        from peft import PeftModel

        base = load_model(args, config, bf16)
        losses["adapter"] = PeftModel.from_pretrained(base, args.output / "adapter")
    losses["merged"] = last = AutoModelForCausalLM.from_pretrained(args.output / "merged")
    with torch.no_grad():
        outcome = {name: float(model.eval()(**batch).loss) for name, model in losses.items()}
    print("loss " + ", ".join(f"{name} {loss:.4f}" for name, loss in outcome.items()))
    prompt = tokenizer(rows[0]["prompt"], return_tensors="pt", add_special_tokens=False)
    answer = last.generate(
        prompt["input_ids"], attention_mask=prompt["attention_mask"], max_new_tokens=24, do_sample=False
    )
    print(f"{rows[0]['prompt']!r} → {tokenizer.decode(answer[0, prompt['input_ids'].shape[1] :])!r}")
    if not all(outcome[name] < outcome["before"] for name in outcome if name != "before"):
        raise SystemExit("what was written is no better than what the training began with")


def main() -> None:
    args = arguments()
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
    transformers.utils.logging.disable_progress_bar()
    config, tokenizer, rows = load_config(args), load_tokenizer(args), read_rows(args)
    bf16 = choose_bf16(args, config)
    if args.trial:
        try_out(args, tokenizer, rows)
        return
    longest = sorted(encode(args, tokenizer, rows), key=lambda row: len(row[0]))[-args.batch :]
    ranks, size = args.preflight or (1, SIZE)
    needs = plan_memory(args, config, make_batch(tokenizer, longest), bf16, size)
    if args.preflight:
        report_memory(needs, ranks)
        return
    train = train_lora if args.method == "lora" else train_full
    loss = train(args, load_model(args, config, bf16), tokenizer, rows, bf16)
    if RANK == 0:
        tokenizer.save_pretrained(args.output / "merged")
    how = f"{args.method}, {'bf16' if bf16 else 'fp32'}, loss {loss:.4f}"
    memory = f"memory {read_status('VmHWM') / 2**20:.0f} MiB, {sum(needs.values()) / 2**20:.0f} planned"
    print(f"rank {RANK} of {SIZE} on {socket.gethostname()}: {how}, {memory}", flush=True)


if __name__ == "__main__":
    main()
