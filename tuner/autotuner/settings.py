"""What a kernel's user asked for, checked, beyond what Triton's decorator takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.errors import UsageError
from perfmodel.hardware.gpu import Gpu
from tuner.autotuner.buckets import Bucket
from tuner.deciding.policy import Policy
from tuner.deciding.ranks import TIMEOUT_S
from tuner.measure.device import Device
from tuner.measure.isolation import Isolation
from tuner.search.tunables import Tunables

LIMIT_S = Tunables.limit_s

VERIFIED = 3
"""Configurations of the model's that ``verify`` times, beside the user's first."""


@dataclass(frozen=True)
class Settings:
    """See `tuner.autotune` for what each means."""

    policy: Policy | None = None
    k: int = VERIFIED
    gpu: Gpu | str | Path | None = None
    deterministic: bool = False
    budget_s: float | None = None
    device: Device | None = None
    rank_timeout_s: float = TIMEOUT_S
    buckets: Mapping[str, Bucket] = field(default_factory=dict)
    judged: bool = True  # the model may say that a decision holds for a whole octave
    check: Callable[[Mapping[str, Any]], str | None] | None = None
    isolate: bool | Isolation | None = None
    limit_s: float = LIMIT_S

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise UsageError(f"k is {self.k!r}; use a whole number of at least 1")
        if not isinstance(self.deterministic, bool):
            raise UsageError(f"deterministic is {self.deterministic!r}; use True or False")
        if self.device is not None and not callable(getattr(self.device, "time", None)):
            raise UsageError(
                f"device is {self.device!r}; use an object that times trials "
                "(tuner.measure.device.Device), or leave it out for the current device"
            )
        if self.isolate is not None and not isinstance(self.isolate, bool | Isolation):
            raise UsageError(f"isolate is {self.isolate!r}; use True or False, or leave it out")
        if self.isolate and self.device is not None:
            raise UsageError(
                "isolate asks for a worker's timer and device brings its own; drop one"
            )
        for name in ("budget_s", "rank_timeout_s", "limit_s"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if (value is not None or name == "limit_s") and not (number and value > 0):
                raise UsageError(f"{name} is {value!r}; use seconds above 0")
