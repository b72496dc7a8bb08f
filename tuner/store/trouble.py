"""What may go wrong with a cache, and the one warning that is made of it."""

from __future__ import annotations

import sqlite3
import warnings

from perfmodel.errors import CacheWarning
from tuner.store.forks import ForkLock

# The home folder may not be known (RuntimeError), or a path hold a null (ValueError).
TROUBLE = (sqlite3.Error, OSError, RuntimeError, ValueError)
"""Whatever a file system or a database can throw; never a reason to fail a user's call."""

_CORRUPT = ("file is not a database", "malformed", "unsupported file format", "not ours")
_warned: set[str] = set()
_lock = ForkLock()


class NotOursError(sqlite3.DatabaseError):
    """The file is a sound database of something else."""


def is_corrupt(error: BaseException) -> bool:
    """Whether the file itself is beyond use, rather than out of reach."""
    if isinstance(error, NotOursError):
        return True
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    text = str(error).lower()
    missing_parts = ("no such table", "no such column", "has no column")
    return any(word in text for word in (*_CORRUPT, *missing_parts))


def is_busy(error: BaseException) -> bool:
    """Whether another process holds the file."""
    text = str(error)
    locked = "locked" in text or "busy" in text
    return locked and isinstance(error, sqlite3.OperationalError)


def warn_once(place: str, message: str) -> None:
    """Warn of trouble with ``place``, once a process and place."""
    with _lock:
        if place in _warned:
            return
        _warned.add(place)
    warnings.warn(message, CacheWarning, stacklevel=4)


def forget_warnings() -> None:
    """Let every place be warned about again."""
    with _lock:
        _warned.clear()
