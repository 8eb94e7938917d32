"""A session's turns as a tree, and the training sequences cut from it. Pure and synchronous: no I/O, no clock.

turns ──extends──► forest ──chains──► sequences + ledger        `cut`
"""

from rollway_gateway.tree.cut import cut
from rollway_gateway.tree.drift import Drift, drifts

__all__ = ["Drift", "cut", "drifts"]
