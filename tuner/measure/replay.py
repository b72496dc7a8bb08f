"""A table of recorded times in place of a GPU: whole searches without one."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.dataset.outcome import Outcome
from tuner.measure.device import DeviceIdentity, Timing, Trial


class ReplayDevice:
    """Answers each trial with what was recorded for its configuration.

    Args:
        table: recorded microseconds by configuration text; an `Outcome` where it failed.
        identity: the device that the table was recorded on.
        protocol: how it was recorded.

    ``calls`` counts answers by configuration. A configuration that is not in the table was never
    tried there: it counts as failed, with that reason.
    """

    def __init__(
        self,
        table: Mapping[str, float | Outcome],
        identity: DeviceIdentity,
        protocol: str = "replay-1",
    ) -> None:
        self._table = table
        self._identity = identity
        self._protocol = protocol
        self.calls: dict[str, int] = {}

    @property
    def identity(self) -> DeviceIdentity:
        """The device that the table was recorded on."""
        return self._identity

    @property
    def protocol(self) -> str:
        """How it was recorded."""
        return self._protocol

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:  # noqa: ARG002 - one time is on record
        """Return the recorded time as one sample: repeating it would feign a spread of zero."""
        self.calls[trial.config] = self.calls.get(trial.config, 0) + 1
        found = self._table.get(trial.config)
        if found is None:
            return Timing(Outcome.COMPILE_FAILED, self._protocol, reason="not in the table")
        if isinstance(found, Outcome):
            return Timing(found, self._protocol, reason="failed when it was recorded")
        return Timing(Outcome.OK, self._protocol, (float(found),))
