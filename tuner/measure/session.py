"""The harness of one CUDA device, with everything that it watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuner.measure.copies import TensorLaunch
from tuner.measure.cuda_timer import CudaTimer
from tuner.measure.device import DeviceIdentity, Trial
from tuner.measure.gauges import Gauges, NoGauges
from tuner.measure.harness import Harness
from tuner.measure.protocol import TimingProtocol
from tuner.measure.timer import TimerDevice

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

REFERENCE = "reference: torch.mm, bf16, 4096 x 4096 x 4096"

_REFERENCE_SIZE = 4096
"""Some 0.2 ms on an H100: too long for a launch's cost to count, short enough for hundreds."""


def cuda_harness(
    device: str,
    identity: DeviceIdentity,
    protocol: TimingProtocol | None = None,
    gauges: Gauges | None = None,
) -> Harness:
    """Return the harness of a device that torch can use, such as ``cuda:0``.

    Raises:
        NotInstalledError: torch is absent.
    """
    settings = protocol or TimingProtocol()
    return Harness(
        TimerDevice(CudaTimer(device, settings), identity),
        settings,
        gauges or NoGauges(),
        reference_trial(device),
    )


def reference_trial(device: str) -> Trial:
    """Return the launch whose time shows drift: a product of torch's own on random numbers."""
    import torch  # noqa: PLC0415 - optional extra

    source = torch.Generator(device=device).manual_seed(0)
    shape = (_REFERENCE_SIZE, _REFERENCE_SIZE)
    tensors: dict[str, Any] = {
        name: torch.randn(shape, generator=source, device=device).bfloat16() for name in "ab"
    }
    tensors["out"] = torch.empty(shape, dtype=torch.bfloat16, device=device)
    return Trial(REFERENCE, launch=TensorLaunch(_multiply, tensors))


def _multiply(tensors: Mapping[str, torch.Tensor]) -> None:
    import torch  # noqa: PLC0415 - optional extra

    torch.mm(tensors["a"], tensors["b"], out=tensors["out"])


__all__ = ["REFERENCE", "cuda_harness", "reference_trial"]
