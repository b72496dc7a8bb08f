"""How much may be measured, and who says so."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Any

from perfmodel.errors import UnknownNameError, UnknownOptionError, closest

VARIABLE = "PERFMODEL_AUTOTUNE"
"""Environment variable that overrides every kernel's policy for a whole process."""


class Policy(StrEnum):
    """How a configuration is chosen."""

    MODEL = "model"
    """The model's pick; nothing is timed."""

    VERIFY = "verify"
    """The model's first few and the user's first configuration are timed."""

    FULL = "full"
    """Every legal configuration is timed."""

    OFF = "off"
    """The first legal configuration; nothing is timed, nothing is stored."""

    @property
    def times(self) -> bool:
        """Whether anything may be timed."""
        return self in (Policy.VERIFY, Policy.FULL)


def parse_policy(text: str | Policy, where: str) -> Policy:
    """Return the policy called ``text``; ``where`` it was given is for the message.

    Raises:
        UnknownNameError: there is no such policy.
    """
    try:
        return Policy(str(text).strip().lower())
    except ValueError:
        names = [policy.value for policy in Policy]
        raise UnknownNameError(
            f"{where} is {text!r}{closest(str(text), names)}; use one of: {', '.join(names)}"
        ) from None


def policy_in_force(asked: Policy | None, *, known: bool) -> Policy:
    """Return the policy of one decision.

    The environment comes first, then the decorator. By default a problem that the model knows is
    verified and any other is measured in full, as Triton would.

    Raises:
        UnknownNameError: the environment names no policy.
    """
    forced = os.environ.get(VARIABLE, "").strip()
    if forced:
        return parse_policy(forced, VARIABLE)
    if asked is not None:
        return asked
    return Policy.VERIFY if known else Policy.FULL


def kept_of(survivors: int, top_k: Any) -> int:
    """Return how many of ``survivors`` configurations ``top_k`` keeps, at least one.

    A float of at most 1 is a share of the survivors, an int a count.

    Raises:
        UnknownOptionError: it is neither (a ``TypeError``, as in Triton).
    """
    if isinstance(top_k, float) and top_k <= 1.0:
        kept = int(survivors * top_k)
    elif isinstance(top_k, int):
        kept = int(top_k)
    else:
        raise UnknownOptionError(
            f"top_k is {top_k!r}; use a share of at most 1.0 as a float, or a count as an int"
        )
    if top_k < 0:
        raise UnknownOptionError(f"top_k is {top_k!r}; use a share or a count of at least 0")
    return min(max(kept, 1), survivors)
