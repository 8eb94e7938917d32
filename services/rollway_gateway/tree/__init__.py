"""A session's turns as a tree, and the training sequences cut from it. Pure and synchronous: no I/O, no clock.

turns ──extends──► forest ──chains──► sequences + ledger        `cut`
"""

from rollway_gateway.tree.cut import cut, uncut
from rollway_gateway.tree.drift import DriftEvent, drifts

__all__ = ["DriftEvent", "cut", "drifts", "uncut"]
