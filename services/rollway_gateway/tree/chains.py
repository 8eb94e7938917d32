"""The fewest chains that hold every complete turn once: each chain becomes one training sequence.

A chain is a list of turns, each extending the one before. The number of chains is the number of turns less the number
of turns that get a successor, so the fewest chains is a maximum matching of turns with successors. The sets to choose
from are nested or disjoint (`Forest.extensions`); for such sets, serving the smallest first is optimal whatever each
one takes. That freedom is used to train a shared prefix in the earliest of the paths that share it.
"""

from __future__ import annotations

from rollway_gateway.tree.forest import Forest, Gaps


def chains(forest: Forest) -> list[list[int]]:
    """Positions of complete turns, root to leaf.

    A turn that several later turns extend is continued by the call dispatched earliest; of the choices of one call, by
    the one whose chain grows longest. Incomplete turns are in no chain.
    """
    successor, led = _match(forest)
    out = []
    for head, turn in enumerate(forest.turns):
        if turn.incomplete is None and head not in led:
            chain = [head]
            while (following := successor.get(chain[-1])) is not None:
                chain.append(following)
            out.append(chain)
    return out


def _match(forest: Forest) -> tuple[dict[int, int], set[int]]:
    """Successors by position, and the positions that are one."""
    free = Gaps(len(forest.turns))
    for p, turn in enumerate(forest.turns):
        if turn.incomplete is not None:
            free.take(p)
    reach: dict[int, int] = {}
    successor: dict[int, int] = {}
    for p in forest.deepest_first():
        if forest.turns[p].incomplete is not None:
            continue
        candidates = list(free.within(*forest.extensions[p]))
        reach[p] = forest.length(p)
        if candidates:
            best = min(candidates, key=lambda c: (forest.turns[c].index, -reach[c], forest.turns[c].choice))
            successor[p] = best
            reach[p] = reach[best]
            free.take(best)
    return successor, set(successor.values())
