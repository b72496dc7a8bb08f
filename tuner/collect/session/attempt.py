"""What a step is at, on disk: so that what takes its process down, or hangs, is known by name."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path


class Attempt:
    """Says what is under way.

    Args:
        path: the file.
        fatal: what was under way when an earlier process died, and why it is not tried again.
    """

    def __init__(self, path: Path, fatal: Mapping[str, str] | None = None) -> None:
        self._path = path
        self.fatal: Mapping[str, str] = dict(fatal or {})

    def begin(self, key: str) -> None:
        """Say that ``key`` is tried now."""
        self._path.write_text(json.dumps([key, time.time()]), encoding="utf-8")

    def clear(self) -> None:
        """Say that nothing is."""
        self._path.unlink(missing_ok=True)


def under_way(path: Path) -> tuple[str, float] | None:
    """Return what is tried and since when, on the wall clock; ``None`` for nothing."""
    try:
        key, since = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # nothing, or just being written
    return str(key), float(since)
