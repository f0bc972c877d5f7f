"""``hub.py make DIRECTORY`` writes a tiny causal model; ``hub.py load NAME`` loads it by its name on a hub, computes,
and finds a data set of that name."""

import hashlib
import os
import sys

import torch

action, name = sys.argv[1:3]
if action == "make":
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokens = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["<unk>", "a", "cat"])}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="<unk>").save_pretrained(name)
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=3, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(config).save_pretrained(name)
else:
    from huggingface_hub import snapshot_download
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    output = AutoModelForCausalLM.from_pretrained(name)(**tokenizer("a cat", return_tensors="pt")).logits
    rows = open(os.path.join(snapshot_download(name, repo_type="dataset"), "config.json")).read()
    print(f"rank {os.environ['RANK']}: {output.sum().item():.6f} {hashlib.sha256(rows.encode()).hexdigest()[:8]}")
