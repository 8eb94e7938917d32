"""What can go wrong with a journal.

JournalRefused      at the start: the process ends, and says how to mend it
JournalDown         later: nothing can be written now; calls get 503, and it goes on when writing works again
"""

from __future__ import annotations

from rollway_wire.problems import Unavailable


class JournalRefused(Exception):
    """The folder cannot be used as it is."""


class JournalDown(Unavailable):
    """The journal cannot be written now."""
