"""What data preparation raises."""

from __future__ import annotations


class DataError(Exception):
    """Rows cannot be made or written. The message says how to mend it."""
