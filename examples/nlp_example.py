"""A BERT that recognises paraphrases (MRPC), trained with Hugging Face Accelerate: the example of its guide for CPUs.

Nothing in here knows about hosts, IPEX or MPI: Accelerate finds all of it in what started the script, which may be
``ipexctl run --launcher accelerate``, ``mpirun … accelerate launch``, ``accelerate launch`` or plain ``python``.
Without ``--model`` and ``--dataset`` nothing is downloaded: a small BERT is made from a configuration, and the sentence
pairs are made up. The real ones: ``--model bert-base-cased --dataset glue/mrpc`` (needs the package datasets).
"""

from __future__ import annotations

import argparse
import random
import socket
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from accelerate import __version__ as version
from torch.utils.data import DataLoader

WORDS = 400  # of the made-up language; the synonym of word w is w + WORDS
CLS, SEP, FIRST = 1, 2, 10


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model of the hub, or a directory (default: a small one, made here)")
    parser.add_argument("--dataset", help="NAME/CONFIG of the hub, such as glue/mrpc (default: made up here)")
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"], help="default: Accelerate's")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU, whatever else there is")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="pairs per rank and step")
    parser.add_argument("--pairs", type=int, default=1024, help="made-up pairs to train on, over all ranks")
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def made_up(count: int, seed: int) -> list[dict[str, Any]]:
    """Pairs of sentences as a tokenizer would give them. In a paraphrase most words are synonyms; else the second
    sentence has other words."""
    chance = random.Random(seed)
    pairs = []
    for number in range(count):
        first = [chance.randrange(WORDS) for _ in range(chance.randrange(8, 13))]
        label = number % 2
        second = [
            (word + WORDS if chance.random() < 0.8 else word) if label else chance.randrange(WORDS) for word in first
        ]
        ids = [CLS, *(FIRST + word for word in first), SEP, *(FIRST + word for word in second), SEP]
        types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        pairs.append({"input_ids": ids, "token_type_ids": types, "labels": label})
    return pairs


def downloaded(dataset: str, model: str, accelerator: Accelerator) -> tuple[Any, Any, Any]:
    """Training pairs, validation pairs and padding of a dataset of the hub."""
    from datasets import load_dataset

    name, _, config = dataset.partition("/")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    raw = load_dataset(name, config or None)

    def tokens(rows: Any) -> Any:
        return tokenizer(rows["sentence1"], rows["sentence2"], truncation=True)

    with accelerator.main_process_first():
        ready = raw.map(tokens, batched=True, remove_columns=["idx", "sentence1", "sentence2"])
    ready = ready.rename_column("label", "labels")
    return ready["train"], ready["validation"], transformers.DataCollatorWithPadding(tokenizer)


def padded(pairs: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    length = max(len(pair["input_ids"]) for pair in pairs)

    def column(name: str) -> torch.Tensor:
        return torch.tensor([pair[name] + [0] * (length - len(pair[name])) for pair in pairs])

    ids = column("input_ids")
    return {
        "input_ids": ids,
        "token_type_ids": column("token_type_ids"),
        "attention_mask": (ids != 0).long(),
        "labels": torch.tensor([pair["labels"] for pair in pairs]),
    }


def main() -> None:
    args = arguments()
    accelerator = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision)
    transformers.set_seed(args.seed)
    if args.dataset:
        train, test, together = downloaded(args.dataset, args.model or "bert-base-cased", accelerator)
    else:
        train, test, together = made_up(args.pairs, args.seed), made_up(256, args.seed + 1), padded
    if args.model:
        model = transformers.AutoModelForSequenceClassification.from_pretrained(args.model)
    else:
        small = transformers.BertConfig(
            vocab_size=FIRST + 2 * WORDS,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
        )
        model = transformers.BertForSequenceClassification(small)
    training = DataLoader(train, shuffle=True, batch_size=args.batch, collate_fn=together, drop_last=True)
    testing = DataLoader(test, batch_size=32, collate_fn=together)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5 if args.model else 2e-3)
    steps = len(training) * args.epochs  # Accelerate counts a step of each rank
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, max(1, steps // 20), steps)
    model, optimizer, training, testing, schedule = accelerator.prepare(model, optimizer, training, testing, schedule)

    optimised = sum("IPEX" in type(module).__name__ for module in model.modules())
    backend = torch.distributed.get_backend() if torch.distributed.is_initialized() else "none"
    print(
        f"rank {accelerator.process_index} of {accelerator.num_processes} on {socket.gethostname()}: "
        f"{accelerator.distributed_type.value}, backend {backend}, {accelerator.mixed_precision}, "
        f"{optimised} layers of IPEX, {torch.get_num_threads()} threads, accelerate {version}"
    )
    for epoch in range(1, args.epochs + 1):
        model.train()
        for batch in training:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        model.eval()
        hits = count = 0
        for batch in testing:
            with torch.no_grad():
                guess = model(**batch).logits.argmax(dim=-1)
            guess, truth = accelerator.gather_for_metrics((guess, batch["labels"]))
            hits, count = hits + int((guess == truth).sum()), count + len(truth)
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {hits / count:.3f} on {count} pairs")
    accelerator.end_training()


if __name__ == "__main__":
    main()
