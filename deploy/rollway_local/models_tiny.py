"""A random Qwen3 of 0.1 M parameters with a tokenizer of its own, for tests: nothing is downloaded.

The vocabulary equals ``len(tokenizer)``: with a larger one verl's engine masks the surplus, its trainer does not, and
their log-probs differ. Head size 64: vLLM's CPU attention takes no 16.
"""

from __future__ import annotations

from pathlib import Path

from rollway_local.models_folder import settle

VOCABULARY = 512
_MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]


def build(out: Path, template: str) -> None:
    """Write the checkpoint into the empty folder ``out``; the same bytes every time."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=_MARKS, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    raw.train_from_iterator(_corpus(template), trainer)
    missing = VOCABULARY - raw.get_vocab_size()
    raw.add_special_tokens([f"<|spare_{i}|>" for i in range(missing)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.save_pretrained(out)
    torch.manual_seed(0)
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=64, max_position_embeddings=4096,
            tie_word_embeddings=True, eos_token_id=eos, pad_token_id=pad, bos_token_id=None,
        )
    )  # fmt: skip
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=pad)
    model.save_pretrained(out, safe_serialization=True)
    settle(out, template, model_max_length=4096)


def _corpus(template: str) -> list[str]:
    sums = [
        f"What is {a} plus {b}? Answer with a number. user assistant system tool" for a in range(40) for b in range(5)
    ]
    return [*sums, template] * 5
