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


SEQUENCES_MAX = 1 << 20
"""No batch has more sequences that are written out; larger repeats are slips of the pen."""


def parse_whole(name: str, text: str) -> int:
    """Return the whole number that was typed.

    Raises:
        InvalidProblemError: it is none; the message has what was typed.
    """
    try:
        return int(text)
    except ValueError:
        raise InvalidProblemError(f"{name} is {text!r}; use a whole number of at least 0") from None


def parse_lengths(name: str, text: str) -> int | list[int]:
    """Return one whole number, or a list of them: ``2048``, ``512,1,1`` or ``512,3x1``.

    Raises:
        InvalidProblemError: a part is no whole number, or a repeat is absurd.
    """
    if not any(mark in text for mark in ",x"):
        return parse_whole(name, text)
    found: list[int] = []
    for part in text.split(","):
        times, cross, value = part.strip().rpartition("x")
        repeat = parse_whole(name, times) if cross else 1
        if not 1 <= repeat <= SEQUENCES_MAX:
            raise InvalidProblemError(
                f"{name} repeats {value} {times} times; use 1 to {SEQUENCES_MAX:,} times"
            )
        found += [parse_whole(name, value)] * repeat
    return found
