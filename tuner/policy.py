"""How much may be measured, and who says so."""

from __future__ import annotations

import os
from enum import StrEnum

from perfmodel.errors import UnknownNameError, closest

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
