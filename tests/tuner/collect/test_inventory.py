"""Which GPUs may be measured on: hidden ones, unknown ones and slices are refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.errors import NoDeviceError, UnknownGpuError
from tuner.collect.inventory import canonical_name, manifest, require_known, visible_devices
from tuner.measure.device import DeviceIdentity
from tuner.measure.nvml import Nvml

NAMES = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")


def library(mig: tuple[int, ...] = (), count: int = 3, **changes: Any) -> Any:
    def slice_of(parent: int, at: int) -> str:
        if at > 1:
            raise LookupError("Not Found")
        return f"slice {parent}.{at}"

    def uuid(handle: int | str) -> str:
        return f"MIG-{handle}" if isinstance(handle, str) else f"GPU-{handle}aa"

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: count,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: NAMES[handle],
        "nvmlDeviceGetUUID": uuid,
        "nvmlSystemGetDriverVersion": lambda: "570.86.15",
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (8 + (handle != 1), 0),
        "nvmlDeviceGetMigMode": lambda handle: (int(handle in mig), 0),
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": slice_of,
    }
    return SimpleNamespace(NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, **{**answers, **changes})


def indices(shown: str | None, **given: Any) -> list[int]:
    environment = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    return [d.facts.index for d in visible_devices(environment, library(**given))]


@pytest.mark.parametrize(
    ("shown", "found"),
    [(None, [0, 1, 2]), ("2,0", [2, 0]), ("GPU-1", [1]), ("1,9,0", [1]), (" 0 , 1 ", [0, 1])],
)
def test_devices_are_those_that_cuda_would_show_in_its_order(
    shown: str | None, found: list[int]
) -> None:
    assert indices(shown) == found


@pytest.mark.parametrize("shown", ["", " ", "-1"])
def test_all_hidden_says_so_and_what_can_be_done_without(shown: str) -> None:
    with pytest.raises(NoDeviceError, match=r"hides every GPU; unset it.*need no GPU") as caught:
        indices(shown)
    assert repr(shown) in str(caught.value)


def test_one_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(NoDeviceError, match=r"no such GPU: it has 0 \(GPU-0aa\), 1 \(GPU-1aa\)"):
        indices("7")
    with pytest.raises(NoDeviceError, match="the driver has no GPU"):
        indices(None, count=0)


def test_a_slice_is_refused_by_name() -> None:
    with pytest.raises(NoDeviceError, match=r"MIG-slice 0.1, a MIG slice of NVIDIA H100 80GB HBM3"):
        indices("MIG-slice 0.1", mig=(0,))
    with pytest.raises(NoDeviceError, match=r"GPU 0 .* cut into MIG slices \(MIG-slice 0.0, MIG-"):
        indices("0", mig=(0,))
    assert indices("1", mig=(0,)) == [1]


def test_a_device_keeps_what_the_driver_says_and_gets_its_canonical_name() -> None:
    device = visible_devices({}, library())[1]
    assert device.identity == DeviceIdentity(
        "NVIDIA A100-SXM4-80GB", "sm_80", gpu="a100-sxm4-80gb", driver="570.86.15"
    )
    assert require_known(device.identity) == "a100-sxm4-80gb"


def test_a_manifest_is_whole_with_null_for_what_nobody_says() -> None:
    device = visible_devices({}, library())[0]
    record = manifest(device, Nvml(library()).reading(0))
    assert record["gpu"] == "h100-sxm5"
    assert record["memory_bytes"] is None
    assert "AttributeError" in record["missing"]["memory_bytes"]
    assert record["now"]["power_w"] is None
    assert record["source"] == "NVML"


def test_a_device_that_no_file_describes_is_named() -> None:
    assert canonical_name("NVIDIA X1") is None
    assert canonical_name(None) is None
    with pytest.raises(UnknownGpuError, match="NVIDIA X1"):
        require_known(DeviceIdentity("NVIDIA X1", "sm_99"))
