"""Writes a language model of 2 layers with random weights, which llama.cpp loads: make_gguf.py FILE."""

import sys

import gguf
import numpy as np

WIDTH, HEADS, HIDDEN, LAYERS = 32, 4, 64, 2
TOKENS = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *(f"▁{word}" for word in ("a", "the", "cat")),
]
UNKNOWN, CONTROL, NORMAL, BYTE = 2, 3, 1, 6  # kinds of tokens of llama.cpp


def main(path: str) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_types([UNKNOWN, CONTROL, CONTROL, *([BYTE] * 256), *([NORMAL] * (len(TOKENS) - 259))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.standard_normal(shape, dtype=np.float32) * 0.1)

    add("token_embd.weight", len(TOKENS), WIDTH)
    add("output.weight", len(TOKENS), WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{name}.weight", HIDDEN, WIDTH)
        add(f"blk.{layer}.ffn_down.weight", WIDTH, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
