"""Which of several equal places a session belongs to: anyone who knows the places finds the same one, nothing is kept.

Rendezvous hashing (Thaler and Ravishankar, 1998): a place added or taken away moves only the sessions it gains or had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def home_of(session_id: str, places: Sequence[str]) -> str:
    """The one of ``places`` where the session lives.

    Raises:
        ValueError: no places.
    """
    return max(places, key=lambda place: (_weight(session_id, place), place))


def _weight(session_id: str, place: str) -> bytes:
    return hashlib.blake2b(session_id.encode(), digest_size=8, key=hashlib.sha256(place.encode()).digest()).digest()
