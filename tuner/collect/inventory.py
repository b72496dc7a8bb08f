"""Which GPUs of this machine a run may measure on, by what CUDA would show and NVML knows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.errors import NoDeviceError, UnknownGpuError, UsageError
from perfmodel.hardware.catalog import resolve
from tuner.measure.device import DeviceIdentity
from tuner.measure.nvml import DeviceFacts, Reading, connected

VISIBLE = "CUDA_VISIBLE_DEVICES"

NEEDS_NONE = (
    "`collect plan`, `compile`, `merge`, `check` and `publish` need no GPU, and "
    "`run --device replay:TABLE` rehearses without one"
)


@dataclass(frozen=True)
class GpuDevice:
    """One whole GPU. ``ordinal`` is its number within the process, ``facts.index`` the driver's."""

    ordinal: int
    facts: DeviceFacts

    @property
    def identity(self) -> DeviceIdentity:
        """The device as measurements name it."""
        facts = self.facts
        capability = facts.compute_capability
        return DeviceIdentity(
            name=facts.name or "unnamed NVIDIA device",
            architecture="unknown" if capability is None else f"sm_{capability[0]}{capability[1]}",
            gpu=canonical_name(facts.name),
            memory_bytes=facts.memory_bytes,
            clock_mhz=facts.sm_clock_max_mhz,
            driver=facts.driver,
        )


def visible_devices(
    environment: Mapping[str, str] | None = None, library: Any = None
) -> tuple[GpuDevice, ...]:
    """Return the GPUs that CUDA would show to this process, in its order.

    Args:
        environment: where ``CUDA_VISIBLE_DEVICES`` is looked up; the process's by default.
        library: the NVML binding.

    Raises:
        NoDeviceError: there is none: no driver, all hidden, or only MIG slices.
        NotInstalledError: the NVML binding is absent.
    """
    shown = (os.environ if environment is None else environment).get(VISIBLE)
    if shown is not None and shown.strip() in ("", "-1"):
        raise NoDeviceError(
            f"{VISIBLE} is {shown!r}, which hides every GPU; unset it, or name one, e.g. "
            f"{VISIBLE}=0. {NEEDS_NONE}"
        )
    with connected(library) as nvml:
        count = nvml.count()
        if not count:
            raise NoDeviceError(f"the driver has no GPU; measuring needs one. {NEEDS_NONE}")
        facts = [nvml.facts(index) for index in range(count)]
        slices = {uuid: f for f in facts if f.mig_enabled for uuid in nvml.slices(f.index)}
    chosen = facts if shown is None else _named(shown, facts, slices)
    for device in chosen:
        _refuse_slice(device, slices)
    return tuple(GpuDevice(ordinal, f) for ordinal, f in enumerate(chosen))


def canonical_name(name: str | None) -> str | None:
    """Return the name under which a driver's device is known, ``None`` for no or several."""
    if name is None:
        return None
    try:
        return resolve(name)
    except UsageError:
        return None


def require_known(identity: DeviceIdentity) -> str:
    """Return the canonical name of a device.

    Raises:
        UnknownGpuError, AmbiguousGpuError: no one device goes by the driver's name.
    """
    if identity.gpu is not None:
        return identity.gpu
    resolve(identity.name)
    raise UnknownGpuError(f"device {identity.name!r} has no description")  # pragma: no cover


def manifest(device: GpuDevice, reading: Reading) -> dict[str, Any]:
    """Return what is known of a device, for the record; null where nobody says."""
    return {
        "ordinal": device.ordinal,
        "gpu": device.identity.gpu,
        "architecture": device.identity.architecture,
        **device.facts.to_dict(),
        "now": {
            **{
                name: getattr(reading, name)
                for name in (
                    "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "throttle",
                )
            },
            "missing": dict(reading.missing),
        },
    }  # fmt: skip


def _named(
    shown: str, facts: Sequence[DeviceFacts], slices: Mapping[str, DeviceFacts]
) -> list[DeviceFacts]:
    """The devices of ``CUDA_VISIBLE_DEVICES``; like CUDA, nothing behind the first unknown one."""
    found: list[DeviceFacts] = []
    for part in (p.strip() for p in shown.split(",")):
        if part.startswith("MIG-"):
            parent = slices.get(part)
            of = "" if parent is None else f" of {parent.name}"
            raise NoDeviceError(
                f"{VISIBLE} names {part}, a MIG slice{of}: it has fewer SMs and less bandwidth "
                "than the whole device, whose name its times would bear. Name a whole GPU, or "
                f"turn MIG off. {NEEDS_NONE}"
            )
        match = [f for f in facts if _is(f, part)]
        if len(match) != 1:
            break
        found += match
    if not found:
        raise NoDeviceError(
            f"{VISIBLE} is {shown!r}, and the driver has no such GPU: it has "
            f"{', '.join(f'{f.index} ({f.uuid or f.name})' for f in facts)}. {NEEDS_NONE}"
        )
    return found


def _is(facts: DeviceFacts, named: str) -> bool:
    if named.isdigit():
        return facts.index == int(named)
    return facts.uuid is not None and named.startswith("GPU-") and facts.uuid.startswith(named)


def _refuse_slice(facts: DeviceFacts, slices: Mapping[str, DeviceFacts]) -> None:
    if facts.mig_enabled:
        mine = [uuid for uuid, parent in slices.items() if parent.index == facts.index]
        raise NoDeviceError(
            f"GPU {facts.index} ({facts.name}) is cut into MIG slices "
            f"({', '.join(mine) or 'none made yet'}): times of a slice would bear the whole "
            f"device's name. Choose another GPU with {VISIBLE}, or turn MIG off. {NEEDS_NONE}"
        )
