"""pass@k: the probability that at least one of k samples is correct. Pure.

The unbiased estimator of Chen et al., "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, 2.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k), as a product, which does not overflow.

    Args:
        n: samples.
        c: correct ones among them.
        k: samples drawn.

    Raises:
        ValueError: not 0 <= c <= n or not 1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    return 1.0 - prod(1.0 - k / i for i in range(n - c + 1, n + 1))


@dataclass(frozen=True, slots=True)
class PassAtK:
    k: int
    value: float | None
    """Mean over inputs; None when no input has k scored samples."""
    inputs: int
    """That have; the others cannot say anything about this k and are left out."""


def mean_pass_at_k(counts: Iterable[tuple[int, int]], k: int) -> PassAtK:
    """Over inputs, each as (samples, correct)."""
    values = [pass_at_k(n, c, k) for n, c in counts if n >= k]
    return PassAtK(k, sum(values) / len(values) if values else None, len(values))
