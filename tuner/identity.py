"""One function builds a key, and every reader and writer of the store uses it."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.measure.device import DeviceIdentity


@dataclass(frozen=True)
class Key:
    """What a decision is made for: a kernel, the arguments that matter to it, and a device.

    ``kernel`` is the hash of the kernel's source and callees, ``arguments`` canonical JSON of key
    values, dtypes and alignment classes.
    """

    kernel: str
    arguments: str
    device: DeviceIdentity
