"""Which configuration was chosen for a key, by what policy, from which candidates."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.identity import Key
from tuner.store.measurements import matching
from tuner.store.versions import Versions


@dataclass(frozen=True)
class Decision:
    """A choice.

    ``config`` is its canonical text, ``expected_loss`` how much slower than the best of the
    candidates it is expected to be (0.02 is 2 %; ``None`` where nothing says), ``timed`` how many
    configurations were timed for it, ``why`` a sentence, ``space`` which candidates it was chosen
    from (`tuner.identity.space_text`).
    """

    config: str
    policy: str
    expected_loss: float | None = None
    timed: int = 0
    why: str = ""
    space: str = ""


def to_values(key: Key, decision: Decision, versions: Versions) -> dict[str, Any]:
    """Return the columns of one decision."""
    kernel, arguments, device = matching(key)
    loss = decision.expected_loss
    return {
        "kernel": kernel,
        "arguments": arguments,
        "device": device,
        "policy": decision.policy,
        "space": decision.space,
        "triton": versions.triton,
        "ptxas": versions.ptxas,
        "driver": key.device.driver or "",
        "config": decision.config,
        "expected_loss": None if loss is None or not math.isfinite(loss) else float(loss),
        "timed": float(decision.timed),
        "why": decision.why,
        "recorded_at": time.time(),
    }


def to_decision(values: Mapping[str, Any]) -> Decision | None:
    """Return the decision of a row, ``None`` for one that makes no sense."""
    try:
        config = json.loads(values["config"])
        timed = int(values["timed"])
    except (ValueError, TypeError, RecursionError, OverflowError):
        return None
    if not isinstance(config, dict) or not values["policy"] or timed < 0:
        return None
    loss = values["expected_loss"]
    return Decision(
        config=values["config"],
        policy=values["policy"],
        expected_loss=None if loss is None else float(loss),
        timed=timed,
        why=values["why"],
        space=values["space"],
    )
