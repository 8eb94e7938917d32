"""A scripted router: routed experts as vLLM returns them with ``--enable-return-routed-experts``, of no model.

A row is a digest of its token's whole prefix and of ``weights``, so a row that stands at another token, or was reported
for another history or under other weights, is told apart. vLLM itself returns routed experts on a GPU only: a CPU build
refuses the flag.
"""

from __future__ import annotations

import base64
import hashlib
import io
from array import array
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class ScriptedRouter:
    layers: int = 2
    top_k: int = 2
    wide: bool = False
    """Of more than 256 experts: two bytes an id."""
    weights: int = 0
    skips: bool = True
    """Knows ``routed_experts_prompt_start``; older engines do not."""

    def rows(self, ids: Iterable[int]) -> array[int]:
        """A row for each token: shape (tokens, layers, top_k)."""
        out = array("H" if self.wide else "B")
        seen, size = hashlib.shake_128(self.weights.to_bytes(4, "little")), out.itemsize * self.layers * self.top_k
        for token in ids:
            seen.update(token.to_bytes(4, "little"))
            out.frombytes(seen.digest(size))
        return out

    def text(self, prompt: list[int], completion: list[int], start: int) -> str:
        """As it stands in an answer: base64 of a .npy file.

        Raises:
            AssertionError: nothing of the prompt is left, on which vLLM's engine fails.
        """
        import numpy as np

        assert start < len(prompt)
        rows = np.frombuffer(self.rows([*prompt, *completion][:-1]), dtype=np.uint16 if self.wide else np.uint8)
        file = io.BytesIO()
        np.save(file, rows.reshape(-1, self.layers, self.top_k)[start if self.skips else 0 :], allow_pickle=False)
        return base64.b64encode(file.getvalue()).decode()
