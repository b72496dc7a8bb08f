"""One row per measurement: a kernel, its arguments, a device, one configuration, a protocol."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.dataset.outcome import Outcome
from tuner.identity import Key, device_text
from tuner.measure.device import Timing
from tuner.store.versions import Versions

MATCH = "kernel = ? AND arguments = ? AND device = ?"


@dataclass(frozen=True)
class Prior:
    """A measurement that is no timing for the key asked about; ``differs`` says in what."""

    config: str
    timing: Timing
    differs: tuple[str, ...]
    device: str
    versions: Versions


def matching(key: Key) -> tuple[str, str, str]:
    """Return the values for `MATCH`."""
    return key.kernel, key.arguments, device_text(key.device)


def to_values(key: Key, config: str, timing: Timing, versions: Versions) -> dict[str, Any]:
    """Return the columns of one measurement."""
    kernel, arguments, device = matching(key)
    return {
        "kernel": kernel,
        "arguments": arguments,
        "device": device,
        "protocol": timing.protocol,
        "config": config,
        "triton": versions.triton,
        "ptxas": versions.ptxas,
        "driver": key.device.driver or "",
        "outcome": timing.outcome.value,
        "samples_us": json.dumps([float(s) for s in timing.samples_us]),
        "reason": timing.reason or "",
        "recorded_at": time.time(),
    }


def to_timing(values: Mapping[str, Any]) -> Timing | None:
    """Return the measurement of a row, ``None`` for one that makes no sense."""
    try:
        outcome = Outcome(values["outcome"])
        samples = json.loads(values["samples_us"])
        config = json.loads(values["config"])
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(samples, list) or not isinstance(config, dict) or not values["protocol"]:
        return None
    if not all(_is_time(s) for s in samples) or (outcome.ran and not samples):
        return None
    return Timing(outcome, values["protocol"], tuple(map(float, samples)), values["reason"] or None)


def differences(values: Mapping[str, Any], key: Key, protocol: str, now: Versions) -> list[str]:
    """Return in what a row of the same kernel is no timing for ``key``; empty where it is one."""
    found = []
    if values["arguments"] != key.arguments:
        found.append("arguments")
    mine = device_text(key.device)
    if values["device"] != mine:
        theirs = _loads(values["device"])
        names = [n for n, v in json.loads(mine).items() if theirs.get(n) != v]
        found.append(f"device ({', '.join(names)}: it was {theirs.get('name')})")
    if values.get("protocol") != protocol:
        found.append(f"protocol ({values.get('protocol')})")
    for name, current in (("triton", now.triton), ("ptxas", now.ptxas)):
        if values[name] != current:
            found.append(f"{name} ({values[name]}, now {current})")
    return found


def _loads(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_time(value: Any) -> bool:
    """Whether it is a positive, finite number of microseconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0
