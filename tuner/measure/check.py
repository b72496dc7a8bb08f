"""What tells a measurement from a mistake: the device's own limits, and a reference result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from perfmodel.dataset.outcome import Outcome
from tuner.measure.device import Device, DeviceIdentity, Timing, Trial

if TYPE_CHECKING:
    from perfmodel.hardware.gpu import Gpu

Verify = Callable[[Trial], str | None]
"""Runs a trial once on fresh inputs; returns what is wrong with the result, ``None`` if nothing."""


class Described(Protocol):
    """A problem that says its sizes and types by name."""

    def to_dict(self) -> dict[str, Any]:
        """Return them."""


def floor_us(problem: Described, gpu: Gpu, family: str = "gemm", *, cold: bool = False) -> float:
    """Return the shortest time that ``gpu`` allows for a problem, microseconds, 0 if unknown.

    As `row_floor_us`, for a problem whose names are the table's.
    """
    return row_floor_us(family, problem.to_dict(), gpu, cold=cold)


def row_floor_us(family: str, columns: Mapping[str, Any], gpu: Gpu, *, cold: bool = False) -> float:
    """Return the shortest time that ``gpu`` allows for a row of a measurement table, microseconds.

    The same bounds as the gates on imported measurements: operations at the dense peak and highest
    clock, compulsory bytes; ``cold`` says that the L2 is flushed before each launch. 0 if unknown.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import, and not needed to decide by the model

    from perfmodel.dataset.bounds import bounds_us  # noqa: PLC0415 - as above

    row = dict(columns) | {"family": family, "l2_state": "cold" if cold else "warm"}
    found = bounds_us(gpu, pd.DataFrame([row]), {})
    return float(max(bound[0] for bound in found.values()))


class CheckedDevice:
    """A device that runs each configuration against a reference before it is timed.

    A configuration that is wrong once is wrong: it is not timed, and not run again.

    Args:
        device: what times.
        verify: compares one run with the reference.
    """

    def __init__(self, device: Device, verify: Verify) -> None:
        self._device = device
        self._verify = verify
        self._known: dict[str, str | None] = {}

    @property
    def identity(self) -> DeviceIdentity:
        """The device that times."""
        return self._device.identity

    @property
    def protocol(self) -> str:
        """How it times."""
        return self._device.protocol

    @property
    def verified(self) -> Mapping[str, str | None]:
        """What was found of each configuration; ``None`` for a right result."""
        return self._known

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        """Return times of a configuration whose result is right.

        It is timed once before it is compared, so that one that fails or hangs does so under the
        device's own protection.
        """
        known = trial.config in self._known
        found = None
        if not known:
            found = self._device.time(trial, samples=samples, limit_s=limit_s)
            if found.outcome is not Outcome.OK:
                return found
            self._known[trial.config] = self._verify(trial)
        wrong = self._known[trial.config]
        if wrong is not None:
            return Timing(Outcome.WRONG_RESULT, self.protocol, reason=wrong)
        return found or self._device.time(trial, samples=samples, limit_s=limit_s)


def mismatch(
    found: Any, expected: Any, relative: float = 1e-2, of_typical: float = 1e-2
) -> str | None:
    """Return how a result differs from the reference, ``None`` where it does not.

    Args:
        found, expected: torch tensors of one shape.
        relative: allowed difference over the element itself.
        of_typical: allowed difference over the root mean square of the whole: sums whose terms
            cancel carry the terms' error, not their own.
    """
    if tuple(found.shape) != tuple(expected.shape):
        return f"shape {tuple(found.shape)} where {tuple(expected.shape)} is expected"
    mine, right = found.double(), expected.double()
    if not right.numel():
        return None
    typical = float(right[right.isfinite()].square().mean().sqrt()) if right.numel() else 0.0
    allowed = relative * right.abs() + of_typical * typical
    # Where the reference is infinite or no number, the result must be the same.
    same = (mine == right) | (mine.isnan() & right.isnan())
    off = ~(same | ((mine - right).abs() <= allowed))
    count = int(off.sum())
    if not count:
        return None
    at = tuple(int(i) for i in off.nonzero()[0])
    return (
        f"{count:,} of {off.numel():,} elements differ from the reference, "
        f"the first at {at}: {float(mine[at]):.6g} where {float(right[at]):.6g} is expected"
    )
