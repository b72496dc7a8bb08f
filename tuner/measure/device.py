"""The seam between a search and whatever runs its candidates: a GPU, a recorded table, a fake."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from perfmodel.dataset.outcome import Outcome


@dataclass(frozen=True)
class DeviceIdentity:
    """What tells one device from another; ``None`` where the driver does not say.

    Two devices that share an architecture (H100 PCIe, H100 SXM5, H200) are not the same device.

    ``gpu`` is the canonical name of a known device, ``None`` for one that no spec file describes.
    """

    name: str  # as the driver says it
    architecture: str  # sm_90
    gpu: str | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None
    clock_mhz: float | None = None
    driver: str | None = None


@dataclass(frozen=True)
class Trial:
    """One configuration to time.

    ``config`` is its canonical text (`tuner.identity.config_text`); ``launch`` runs it once, the
    inputs being put back by whoever made the trial. ``expected_us`` is what the model predicts.
    """

    config: str
    launch: Callable[[], object] | None = None
    expected_us: float | None = None


@dataclass(frozen=True)
class Timing:
    """What came of timing one trial; a failure is data.

    ``samples_us`` holds what was measured, empty unless it ran. ``protocol`` names how, with its
    version (``events-1``): times of different protocols are never compared. ``traceback`` is the
    text of one, where the configuration raised: no exception is kept, since it holds arguments.
    ``method`` is ``events`` or ``cuda_graph``, where the protocol chooses for each launch, and
    ``launches`` how many each sample is the mean of.
    """

    outcome: Outcome
    protocol: str
    samples_us: tuple[float, ...] = ()
    reason: str | None = None
    traceback: str | None = None
    method: str | None = None
    launches: int = 1

    @property
    def median_us(self) -> float | None:
        """The median sample, microseconds; ``None`` where nothing usable was measured."""
        return statistics.median(self.samples_us) if self.outcome.ran and self.samples_us else None


class Device(Protocol):
    """Where trials are timed, one at a time.

    ``time`` never raises for what a configuration does: a failed launch, a hang that was cut off
    and a time that cannot be are outcomes. The caller's own errors (a wrong argument type) do
    propagate, with their traceback.
    """

    @property
    def identity(self) -> DeviceIdentity:
        """Which device this is."""

    @property
    def protocol(self) -> str:
        """How it times, with a version."""

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        """Return at most ``samples`` times of ``trial``, giving up after ``limit_s`` seconds.

        Raises:
            DeviceLostError: nothing more can be timed here, whatever the configuration.
        """
