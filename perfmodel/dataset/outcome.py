"""How one timed or attempted launch ended: a failure is data, not an exception."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The end of one attempt; the table's ``outcome_reason`` says more where the source does."""

    OK = "ok"
    """It ran and its time can be used."""

    COMPILE_FAILED = "compile_failed"
    """No launchable kernel came of it. Sources that do not tell a compiler error from a failed
    load or launch are counted here, and ``outcome_reason`` says so."""

    OUT_OF_RESOURCES = "out_of_resources"
    """It compiled and needs more shared memory, registers or tensor memory than a block has."""

    TIMEOUT = "timeout"
    """Compiling or running was cut off at a limit."""

    CRASHED = "crashed"
    """The launch raised, hung or took its process down."""

    WRONG_RESULT = "wrong_result"
    """It ran and its result failed the check against the reference."""

    IMPLAUSIBLE = "implausible"
    """Its time is not a number, not positive, or faster than the device can be."""

    @property
    def ran(self) -> bool:
        """Whether the time may be trained on and compared with."""
        return self is Outcome.OK
