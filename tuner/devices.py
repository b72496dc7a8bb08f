"""Which device a launch goes to, and which device the model should think of."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from perfmodel.errors import AmbiguousGpuError, UnknownGpuError
from perfmodel.hardware.catalog import load_gpu, resolve
from perfmodel.hardware.gpu import Gpu
from tuner import triton_api
from tuner.measure.device import DeviceIdentity

VARIABLE = "PERFMODEL_GPU"
"""Environment variable that names the device for the model where no driver does."""

INTERPRETER = DeviceIdentity("interpreter", "interpreter")
"""Triton's interpreter: results of a user's own timer there are kept apart from any device's."""

NOWHERE = DeviceIdentity("no device", "none")
"""No driver: nothing can be launched, save by stand-ins."""


def current_index() -> int | None:
    """Return the current device's number, ``None`` while no driver was asked for."""
    driver = triton_api.driver_of_process()
    return None if driver is None else driver.get_current_device()


def identity_of_current(function: Any) -> DeviceIdentity:
    """Return which device a launch of this kernel would go to now; starts the driver."""
    if triton_api.is_interpreted(function):
        return INTERPRETER
    driver = triton_api.driver_of_process(start=True)
    if driver is None:
        return NOWHERE
    target = driver.get_current_target()
    name = f"{target.backend} {target.arch}"
    architecture = f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)
    properties = _torch_properties(driver)
    if properties is None:
        return DeviceIdentity(name, architecture, canonical_name(name))
    clock_khz = getattr(properties, "clock_rate", None)
    return DeviceIdentity(
        name=properties.name,
        architecture=architecture,
        gpu=canonical_name(properties.name),
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        clock_mhz=None if clock_khz is None else clock_khz / 1e3,
    )


def canonical_name(name: str) -> str | None:
    """Return the known device of that name, ``None`` for an unknown or ambiguous one."""
    try:
        return resolve(name)
    except (UnknownGpuError, AmbiguousGpuError):
        return None


def gpu_for_model(asked: Gpu | str | Path | None, identity: DeviceIdentity) -> Gpu | None:
    """Return the device that the model predicts for, ``None`` for one that it does not know.

    What the decorator asked for comes first, then the device itself; where that is no known one,
    the environment.

    Raises:
        UnknownGpuError, AmbiguousGpuError, InvalidGpuSpecError: from `load_gpu`, for names given.
    """
    if isinstance(asked, Gpu):
        return asked
    if asked is not None:
        return load_gpu(asked)
    if identity.gpu is not None:
        return load_gpu(identity.gpu)
    named = os.environ.get(VARIABLE, "").strip()
    return load_gpu(named) if named else None


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: nothing may synchronise now."""
    torch = sys.modules.get("torch")
    check = getattr(getattr(torch, "cuda", None), "is_current_stream_capturing", None)
    if check is None:
        return False
    try:
        return bool(check())
    except RuntimeError:  # torch built without CUDA
        return False


def shared_bytes_max(gpu: Gpu | None) -> int | None:
    """Return the most shared memory that a block may have on the current device, in bytes."""
    driver = triton_api.driver_of_process(start=True)
    try:
        return int(
            driver.utils.get_device_properties(driver.get_current_device())["max_shared_mem"]
        )
    except Exception:  # a private interface: another version may have another, or none
        return None if gpu is None else gpu.smem_per_block_optin_bytes


def torch_has_it() -> bool:
    """Whether torch can place events on the current device."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def _torch_properties(driver: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(driver.get_current_device())
