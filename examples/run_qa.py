"""Question answering with the Trainer of transformers: the example of its guide "Efficient Training on Multiple CPUs".

It takes the guide's arguments (``--model_name_or_path``, ``--dataset_name``, ``--max_seq_length``, ``--doc_stride``)
and all those of the installed Trainer (``--do_train --bf16 --ddp_backend gloo …``). Without a model and a dataset
nothing is downloaded: a small BERT is made from a configuration, and the questions, SQuAD's shape, are made up. A rank
learns of the others from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which ``ipexctl run`` and ``torchrun`` set.
"""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
import transformers

CLS, SEP, NUMBERS, WORDS = 1, 2, 10, 60  # of the made-up language: what is asked for is a number in the context
VOCABULARY = 400


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(default=None, metadata={"help": "of the hub, or a directory"})


@dataclass
class DataArguments:
    dataset_name: str | None = field(default=None, metadata={"help": "of the hub, such as squad"})
    max_seq_length: int = field(default=384, metadata={"help": "tokens of question and context together"})
    doc_stride: int = field(default=128, metadata={"help": "overlap of the parts of a long context"})
    max_train_samples: int = field(default=512, metadata={"help": "made-up questions to train on"})
    max_eval_samples: int = field(default=64, metadata={"help": "made-up questions to ask then"})


def made_up(count: int, seed: int, longest: int) -> list[dict[str, Any]]:
    """Questions with a context as a tokenizer would give them; the answer is the context's only number."""
    chance = random.Random(seed)
    features = []
    for _ in range(count):
        question = [chance.randrange(WORDS, VOCABULARY) for _ in range(6)]
        context = [chance.randrange(WORDS, VOCABULARY) for _ in range(min(24, longest - len(question) - 3))]
        answer = chance.randrange(len(context) - 1)
        context[answer] = chance.randrange(NUMBERS, WORDS)
        ids = [CLS, *question, SEP, *context, SEP]
        place = len(question) + 2 + answer
        features.append(
            {
                "input_ids": ids,
                "attention_mask": [1] * len(ids),
                "token_type_ids": [0] * (len(question) + 2) + [1] * (len(context) + 1),
                "start_positions": place,
                "end_positions": place,
            }
        )
    return features


def downloaded(data: DataArguments, model: str) -> tuple[Any, Any]:
    """Training and validation features of a dataset of the hub (it needs the package datasets)."""
    from datasets import load_dataset

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)

    def features(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        made = tokenizer(
            rows["question"],
            rows["context"],
            truncation="only_second",
            max_length=data.max_seq_length,
            stride=data.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length",
        )
        starts, ends = [], []
        for part, offsets in enumerate(made.pop("offset_mapping")):
            answer = rows["answers"][made["overflow_to_sample_mapping"][part]]
            first = answer["answer_start"][0] if answer["answer_start"] else -1
            last = first + len(answer["text"][0]) if answer["text"] else -1
            inside = [
                token
                for token, (begin, end) in enumerate(offsets)
                if made.sequence_ids(part)[token] == 1 and begin < last and end > first
            ]
            starts.append(inside[0] if inside else 0)  # 0: the answer is not in this part
            ends.append(inside[-1] if inside else 0)
        made.pop("overflow_to_sample_mapping")
        return {**made, "start_positions": starts, "end_positions": ends}

    raw = load_dataset(data.dataset_name)
    names = raw["train"].column_names
    ready = raw.map(features, batched=True, remove_columns=names)
    return ready["train"], ready["validation"]


def exact(predictions: Any) -> dict[str, float]:
    """How many answers begin and end where they should."""
    starts, ends = (numpy.argmax(logits, axis=-1) for logits in predictions.predictions[:2])
    right_starts, right_ends = predictions.label_ids
    return {"exact_match": float(numpy.mean((starts == right_starts) & (ends == right_ends)))}


def main() -> None:
    parser = transformers.HfArgumentParser((ModelArguments, DataArguments, transformers.TrainingArguments))
    model_args, data, training = parser.parse_args_into_dataclasses()
    training.report_to = []  # report to no service
    transformers.set_seed(training.seed)
    if model_args.model_name_or_path:
        model = transformers.AutoModelForQuestionAnswering.from_pretrained(model_args.model_name_or_path)
    else:
        model = transformers.BertForQuestionAnswering(
            transformers.BertConfig(
                vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
            )
        )
    if data.dataset_name:
        train, test = downloaded(data, model_args.model_name_or_path or "bert-large-uncased")
    else:
        train = made_up(data.max_train_samples, training.seed, data.max_seq_length)
        test = made_up(data.max_eval_samples, training.seed + 1, data.max_seq_length)
    trainer = transformers.Trainer(
        model=model,
        args=training,
        train_dataset=train,
        eval_dataset=test,
        data_collator=transformers.default_data_collator,
        compute_metrics=exact,
    )
    if training.do_train:
        trainer.train()
    optimised = sum("IPEX" in type(module).__name__ for module in trainer.model_wrapped.modules())
    backend = torch.distributed.get_backend() if torch.distributed.is_initialized() else "none"
    print(
        f"rank {training.process_index} of {training.world_size} on {socket.gethostname()}: backend {backend}, "
        f"{'bf16' if training.bf16 else 'fp32'}, {optimised} layers of IPEX, {torch.get_num_threads()} threads, "
        f"transformers {transformers.__version__}"
    )
    if training.do_eval:
        found = trainer.evaluate()
        if training.process_index == 0:
            print(f"loss {found['eval_loss']:.4f}, exact match {found['eval_exact_match']:.3f}")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
