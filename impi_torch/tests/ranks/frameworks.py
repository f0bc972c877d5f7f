"""A tiny model through Accelerate (argv[1] "accelerate") or Hugging Face's Trainer ("trainer"), as they are.

Rank 0 prints which group trained, and every parameter's sum to the last bit.
"""

from __future__ import annotations

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn

rank, size = os.environ["PMI_RANK"], os.environ["PMI_SIZE"]
os.environ.update(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=size, HF_HUB_OFFLINE="1")


def accelerated() -> nn.Module:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, 4))
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    told = accelerator.gather_for_metrics(loss.detach())
    assert told.numel() == int(size)
    assert accelerator.reduce(torch.ones(3)).tolist() == [float(size)] * 3
    accelerator.wait_for_everyone()
    return accelerator.unwrap_model(model)


def trained() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=64, max_position_embeddings=16, **shape))
    rows = [{"input_ids": torch.randint(0, 64, (8,)), "labels": n % 2} for n in range(32)]
    with tempfile.TemporaryDirectory() as folder:
        words = TrainingArguments(
            folder,
            use_cpu=True,
            num_train_epochs=1,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=1,
        )
        trainer = Trainer(model, words, train_dataset=rows, eval_dataset=rows[:6])
        trainer.train()
        assert trainer.evaluate()["eval_loss"] > 0
    return model


torch.set_num_threads(1)
model = {"accelerate": accelerated, "trainer": trained}[sys.argv[1]]()
group = dist.group.WORLD
sums = [value.double().sum().item().hex() for value in model.state_dict().values() if value.is_floating_point()]
if rank == "0":
    print("TRAINED", type(group).__name__, *sums, flush=True)
dist.barrier()
dist.destroy_process_group()
