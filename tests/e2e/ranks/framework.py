"""Scripts of other people's frameworks as their guides have them, small: a model of a few thousand parameters, no hub.

``framework.py NAME``; each rank prints its world's size and what its training came to."""

import os
import random
import sys
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch

RANK = os.environ.get("RANK") or os.environ["PMI_RANK"]  # plain mpirun sets these alone
SIZE = int(os.environ.get("WORLD_SIZE") or os.environ["PMI_SIZE"])
PLACE: Any = {
    "output_dir": "/tmp/framework", "num_train_epochs": 1, "per_device_train_batch_size": 8, "save_strategy": "no",
    "report_to": "none", "disable_tqdm": True, "logging_steps": 4,
}  # fmt: skip


def trainer() -> tuple[int, float]:
    """As transformers' run_glue.py without --use_cpu."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

    args = TrainingArguments(**PLACE)
    set_seed(1)
    shape: Any = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=100, **shape))
    draw = random.Random(2)
    rows = [{"input_ids": [draw.randrange(100) for _ in range(12)], "labels": n % 2} for n in range(96)]
    return args.world_size, Trainer(model, args, train_dataset=rows).train().training_loss


def sft(lora: bool = False) -> tuple[int, float]:
    """As TRL's sft.py; ``lora``: with PEFT."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(**PLACE, max_length=32, bf16=False)
    set_seed(1)
    words = ["<pad>", "<s>", "</s>", "<unk>", *["the", "cat", "sat", "on", "a", "mat", "and", "slept"]]
    tokens = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    special: Any = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, **special)
    shape: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), num_key_value_heads=2, pad_token_id=0, **shape))
    draw = random.Random(2)
    rows = Dataset.from_dict({"text": [" ".join(draw.choices(words[4:], k=10)) for _ in range(64)]})
    peft = __import__("peft").LoraConfig(r=4, target_modules="all-linear") if lora else None
    trainer = SFTTrainer(model, args, train_dataset=rows, processing_class=tokenizer, peft_config=peft)
    return args.world_size, trainer.train().training_loss


def lightning(together: bool = True) -> tuple[int, float]:
    """As Lightning's guide for several hosts; ``alone``: as its guide for one."""
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(8, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    lightning.seed_everything(1)
    inputs = torch.randn(128, 8)
    quiet: Any = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    several: Any = {"devices": here, "num_nodes": SIZE // here, "strategy": "ddp"} if together else {}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, **several, **quiet)
    model = Model()
    trainer.fit(model, DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8))
    return trainer.world_size, model.net.weight.sum().item()


def fsdp2() -> tuple[int, float]:
    """As torch's guide for fully_shard; the mesh makes the process group."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (SIZE,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(int(RANK))
    for _ in range(6):
        inputs = torch.randn(8, 16)
        loss = (model(inputs) - inputs[:, :4]).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    total = loss.detach().clone()
    torch.distributed.all_reduce(total)
    torch.distributed.destroy_process_group()
    return SIZE, total.item()


def parallel() -> tuple[int, float]:
    """Tensor parallel over all ranks by DTensor, its weights through torch.distributed.checkpoint and back, with the
    workers of a DataLoader."""
    import tempfile

    from torch.distributed import checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.utils.data import DataLoader, TensorDataset

    mesh = init_device_mesh("cpu", (SIZE,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 12))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    inputs = torch.randn(48, 12)
    for (batch,) in DataLoader(TensorDataset(inputs), batch_size=8, num_workers=2):
        optimizer.zero_grad()
        (model(batch) - batch).pow(2).mean().backward()
        optimizer.step()
    wanted = model(inputs).detach()
    with tempfile.TemporaryDirectory() as place:  # of each rank: hosts share no file system
        checkpoint.save({"model": model.state_dict()}, checkpoint_id=place, no_dist=True)
        fresh = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        checkpoint.load({"model": fresh}, checkpoint_id=place, no_dist=True)
        model.load_state_dict(fresh)
    assert torch.equal(model(inputs).detach(), wanted)
    torch.distributed.destroy_process_group()
    return SIZE, wanted.pow(2).mean().item()


def embed() -> tuple[int, float]:
    """As the training overview of sentence-transformers, from a model made here."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, losses
    from sentence_transformers.models import StaticEmbedding
    from sentence_transformers.training_args import SentenceTransformerTrainingArguments
    from tokenizers import Tokenizer, models, pre_tokenizers

    args = SentenceTransformerTrainingArguments(**PLACE)
    torch.manual_seed(1)
    words = ["<unk>", "the", "cat", "sat", "on", "a", "mat", "and", "slept"]
    tokens = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    model = SentenceTransformer(modules=[StaticEmbedding(tokens, embedding_dim=16)], device="cpu")
    draw = random.Random(2)
    pairs = [(" ".join(draw.choices(words[1:], k=6)), " ".join(draw.choices(words[1:], k=6))) for _ in range(64)]
    rows = Dataset.from_dict({"anchor": [pair[0] for pair in pairs], "positive": [pair[1] for pair in pairs]})
    loss = losses.MultipleNegativesRankingLoss(model)
    trainer = SentenceTransformerTrainer(model, args, train_dataset=rows, loss=loss)
    return args.world_size, trainer.train().training_loss


def mpi() -> tuple[int, float]:
    """Gradients averaged by mpi4py; no process group of torch's."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(world.rank)
    for _ in range(5):
        inputs = torch.randn(8, 4)
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean().backward()
        for parameter in model.parameters():
            world.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
            parameter.grad /= world.size
        optimizer.step()
    return world.size, sum(parameter.sum().item() for parameter in model.parameters())


def shipped() -> tuple[int, float]:
    """Test scripts in Accelerate's wheel. Some checks of test_script need one file system, and others a GPU."""
    from accelerate import Accelerator, PartialState
    from accelerate.test_utils.scripts import test_script, test_sync

    Accelerator()
    test_script.rng_sync_check()
    if 8 % SIZE == 0:  # they split batches of 8
        test_script.dl_preparation_check()
        test_script.central_dl_preparation_check()
        test_script.training_check(use_seedable_sampler=True)
    test_sync.main()
    return PartialState().num_processes, 0.0


def bare() -> tuple[int, float]:
    """Accelerate's state alone, as its guide for inference has it: it does not ask for processors."""
    from accelerate import PartialState

    with PartialState().split_between_processes([1, 2, 3, 4]) as own:
        return PartialState().num_processes, sum(own)


NAMES = {
    "trainer": trainer, "sft": sft, "lightning": lightning, "alone": lambda: lightning(together=False), "fsdp2": fsdp2,
    "lora": lambda: sft(lora=True), "parallel": parallel, "embed": embed, "mpi": mpi, "shipped": shipped, "bare": bare,
}  # fmt: skip
world_size, outcome = NAMES[sys.argv[1]]()
print("rank %s: world %d, %.6f" % (RANK, world_size, outcome), flush=True)
