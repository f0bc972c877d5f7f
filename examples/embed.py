"""Embeddings fine-tuned on CPUs by the trainer of sentence-transformers: of texts that belong together.

Without ``--model`` and ``--data`` nothing is downloaded: a small model with random weights is made, and pairs are made
up, of which a word and its translation belong together. The real ones: a model's name or its directory on all hosts,
and JSON lines with "anchor" and "positive". ``--try`` loads what was written in a process of its own, and counts for
how many pairs that were not trained on the nearest text is the right one. It runs under ``ipexctl run``, ``mpirun``,
``torchrun`` and plain ``python``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
from pathlib import Path
from typing import Any

os.environ.setdefault("ACCELERATE_USE_CPU", "true")
import torch
import transformers
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.training_args import BatchSamplers, SentenceTransformerTrainingArguments

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
WORDS = 60  # of the made-up language, and of its translation


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="name, or directory on the hosts (default: a small one, made here)")
    parser.add_argument("--data", help="file of JSON lines (default: made up here)")
    parser.add_argument(
        "--precision", choices=["auto", "bf16", "fp32"], default="auto", help="auto: bf16 if the CPU has it"
    )
    parser.add_argument("--rows", type=int, default=512, help="made-up pairs")
    parser.add_argument("--batch", type=int, default=32, help="pairs per rank and step, each other's wrong texts")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rate", type=float, help="learning rate (default: 2e-5; made here: 2e-2)")
    parser.add_argument("--output", type=Path, default=Path("out/embed"), help="directory on the host of rank 0")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--try", action="store_true", dest="trial", help="only load and try what was written")
    args = parser.parse_args()
    args.output = args.output.expanduser()
    args.rate = args.rate or (2e-5 if args.model else 2e-2)
    return args


def read_pairs(args: argparse.Namespace) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The pairs to train on, and every tenth, which is kept to try the model."""
    if args.data:
        lines = [line for line in Path(args.data).read_text("utf-8").splitlines() if line.strip()]
        pairs = [{key: json.loads(line)[key] for key in ("anchor", "positive")} for line in lines]
    else:
        chance = random.Random(args.seed)
        drawn = [chance.sample(range(WORDS), 3) for _ in range(args.rows)]
        pairs = [
            {"anchor": " ".join(f"a{n}" for n in numbers), "positive": " ".join(f"b{n}" for n in reversed(numbers))}
            for numbers in drawn
        ]
    return [pair for number, pair in enumerate(pairs) if number % 10], pairs[::10]


def load_model(args: argparse.Namespace) -> Any:
    if args.model:
        return SentenceTransformer(args.model, device="cpu")
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", *(f"{letter}{n}" for letter in "ab" for n in range(WORDS))]
    tokens = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.set_seed(args.seed)
    return SentenceTransformer(modules=[StaticEmbedding(tokens, embedding_dim=64)], device="cpu")


def train(args: argparse.Namespace, pairs: list[dict[str, str]]) -> float:
    bf16 = args.precision == "bf16"
    if args.precision == "auto":
        bf16 = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    settings = SentenceTransformerTrainingArguments(
        output_dir=str(args.output), num_train_epochs=args.epochs, per_device_train_batch_size=args.batch,
        learning_rate=args.rate, bf16=bf16, save_strategy="no", report_to="none", disable_tqdm=True, logging_steps=4,
        seed=args.seed, use_cpu=True, ddp_backend="gloo" if SIZE > 1 else None,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
    )  # fmt: skip
    model = load_model(args)
    loss = losses.MultipleNegativesRankingLoss(model)
    trainer = SentenceTransformerTrainer(model, settings, train_dataset=Dataset.from_list(pairs), loss=loss)
    result = float(trainer.train().training_loss)
    if RANK == 0:
        model.save_pretrained(str(args.output / "model"))
    return result


def count_found(model: Any, pairs: list[dict[str, str]]) -> int:
    """For how many pairs the nearest of all texts is the right one."""
    anchors, texts = (
        model.encode([pair[key] for pair in pairs], convert_to_tensor=True, normalize_embeddings=True)
        for key in ("anchor", "positive")
    )
    return int(((anchors @ texts.T).argmax(1) == torch.arange(len(pairs))).sum())


def main() -> None:
    args = arguments()
    pairs, kept = read_pairs(args)
    if args.trial:
        before, after = (count_found(model, kept) for model in (load_model(args), load_written(args)))
        print(f"found of {len(kept)}: before {before}, after {after}")
        if after <= before:
            raise SystemExit("what was written is no better than what the training began with")
        return
    loss = train(args, pairs)
    print(f"rank {RANK} of {SIZE} on {socket.gethostname()}: loss {loss:.4f}", flush=True)


def load_written(args: argparse.Namespace) -> Any:
    return SentenceTransformer(str(args.output / "model"), device="cpu")


if __name__ == "__main__":
    main()
