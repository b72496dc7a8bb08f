"""What the tuner asks of a store of measurements, and one that forgets at exit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tuner.identity import Key
from tuner.measure.device import Timing


class Memory(Protocol):
    """Remembers measurements; never raises for trouble of its own: that is a miss."""

    def timings(self, key: Key, protocol: str) -> Mapping[str, Timing]:
        """Return what was measured for ``key``, by configuration."""

    def record(self, key: Key, config: str, timing: Timing) -> None:
        """Keep one measurement."""

    def quarantined(self, key: Key) -> Mapping[str, str]:
        """Return configurations that are not to be tried again, with the reason."""

    def quarantine(self, key: Key, config: str, reason: str) -> None:
        """Never try a configuration again."""


class ProcessMemory:
    """Remembers until the process ends."""

    def __init__(self) -> None:
        self._timings: dict[tuple[Key, str], dict[str, Timing]] = {}
        self._quarantine: dict[Key, dict[str, str]] = {}

    def timings(self, key: Key, protocol: str) -> Mapping[str, Timing]:
        """Return what was measured for ``key``, by configuration."""
        return dict(self._timings.get((key, protocol), {}))

    def record(self, key: Key, config: str, timing: Timing) -> None:
        """Keep one measurement."""
        self._timings.setdefault((key, timing.protocol), {})[config] = timing

    def quarantined(self, key: Key) -> Mapping[str, str]:
        """Return configurations that are not to be tried again, with the reason."""
        return dict(self._quarantine.get(key, {}))

    def quarantine(self, key: Key, config: str, reason: str) -> None:
        """Never try a configuration again."""
        self._quarantine.setdefault(key, {})[config] = reason
