"""What a device says of itself while it is timed: clocks, heat, power, and who else uses it."""

from __future__ import annotations

from typing import Protocol

from tuner.measure.nvml import Nvml, Reading

THROTTLED = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"})
"""Reasons that pass when the device has cooled down: such a measurement is taken again."""

CAPPED = frozenset({"power_cap", "applications_clocks", "sync_boost", "display_clocks"})
"""Reasons that are how the device runs this work; waiting changes nothing."""


class Gauges(Protocol):
    """Reads a device; whatever it does not say is ``None``."""

    def reading(self) -> Reading:
        """Return clocks, temperature, power and throttle reasons now."""

    def locked(self) -> bool | None:
        """Return whether the clocks are locked."""

    def processes(self) -> int | None:
        """Return how many processes compute on the device, this one included."""


class NoGauges:
    """Where nobody says anything."""

    def reading(self) -> Reading:
        """Return nulls."""
        return Reading()

    def locked(self) -> bool | None:
        """Return null."""
        return None

    def processes(self) -> int | None:
        """Return null."""
        return None


class NvmlGauges:
    """One device as NVML shows it. Clocks are read, never changed: there is nothing to restore.

    Args:
        nvml: an open connection.
        index: the driver's number of the device.
    """

    def __init__(self, nvml: Nvml, index: int) -> None:
        self._nvml, self._index = nvml, index
        self._locked: tuple[bool | None] | None = None

    def reading(self) -> Reading:
        """Return what NVML says now."""
        return self._nvml.reading(self._index)

    def locked(self) -> bool | None:
        """Return whether an application clock was set when this was first asked."""
        if self._locked is None:
            self._locked = (self._nvml.facts(self._index).clocks_locked,)
        return self._locked[0]

    def processes(self) -> int | None:
        """Return how many processes compute on the device."""
        return self._nvml.processes(self._index)


def reasons(reading: Reading) -> frozenset[str]:
    """Return what slows the clocks, as a set; empty where nothing does or nobody says."""
    return frozenset(filter(None, (reading.throttle or "").split(",")))


__all__ = ["CAPPED", "THROTTLED", "Gauges", "NoGauges", "NvmlGauges", "reasons"]
