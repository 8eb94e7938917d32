"""Runs in the trainer's environment: a random Llama of 13 M parameters with another model's tokenizer.

    python small_model.py TOKENIZER_FOLDER OUT

What an update costs does not depend on what the weights are; with SmolLM2's own size one takes minutes on one thread.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source, out = map(Path, sys.argv[1:])
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(source)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=192, intermediate_size=512, num_hidden_layers=6, num_attention_heads=3,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
        pad_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(out)
    tokenizer.save_pretrained(out)
