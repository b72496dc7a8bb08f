"""Sizes that a problem may have, checked the same way in every family."""

from __future__ import annotations

from typing import Any

from perfmodel.errors import InvalidProblemError

SIZE_MAX = 2**40
"""No single dimension of a real problem comes near this; larger values are slips of the pen."""


def whole_size(name: str, value: Any, *, least: int = 0) -> int:
    """Return ``value`` as an int from ``least`` to 2**40.

    Raises:
        InvalidProblemError: it is fractional, too small or absurd.
    """
    if isinstance(value, bool) or not is_whole(value):
        raise InvalidProblemError(f"{name} is {value!r}; use a whole number of at least {least}")
    whole = int(value)
    if whole < least or whole > SIZE_MAX:
        raise InvalidProblemError(
            f"{name} is {value!r}; allowed are whole numbers from {least} to 2**40"
        )
    return whole


def is_whole(value: Any) -> bool:
    """Return whether ``value`` is a finite number without a fraction."""
    try:
        return bool(int(value) == value)
    except (TypeError, ValueError, OverflowError):
        return False
