"""A session without a GPU: the same steps on made-up times, so that nothing is debugged on one.

What comes out bears the word rehearsal in its name, its source and its device.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

from perfmodel.dataset.outcome import Outcome
from perfmodel.hardware.gpu import Gpu
from tuner.collect.bench import Bench, NamedTrials
from tuner.collect.plan_file import Plan
from tuner.collect.session.ceilings import Probe
from tuner.kernels.catalog import find
from tuner.measure.device import DeviceIdentity, Timing, Trial

NAME = "rehearsal"
DEVICE = "rehearsal: times are made up"

DIVISOR = 128
"""Sizes of the catalogue's examples are divided by this: the interpreter is slow."""

KERNELS = ("gemm", "attention")
"""Checked in the interpreter; all of them take minutes."""

COMPILED_PER_STEP = 1
"""Binaries that a rehearsal compiles of each step; the others count as compiled."""

NOISE = 0.02


@dataclass(frozen=True)
class Mischief:
    """Steps that a rehearsal is to lose something of, by name.

    ``fail`` raises before its first row; ``hang`` never answers, and ``die`` takes the process
    down, at the first configuration of the plan.
    """

    fail: str | None = None
    hang: str | None = None
    die: str | None = None


class MadeUpDevice:
    """Answers with what was expected and some noise, and fails now and then.

    Args:
        gpu: the device that it stands for.
        hang, die: configurations at which it does so.
    """

    protocol = f"{NAME}-1"

    def __init__(self, gpu: str, hang: str | None = None, die: str | None = None) -> None:
        self.identity = DeviceIdentity(DEVICE, "none", gpu=gpu)
        self._hang, self._die = hang, die

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        """Return made-up samples, the same for the same trial."""
        if trial.config == self._hang:
            signal.pause()
        if trial.config == self._die:
            os.kill(os.getpid(), signal.SIGKILL)
        draw = random.Random(trial.config)
        if draw.random() < 0.05:
            return Timing(Outcome.OUT_OF_RESOURCES, self.protocol, reason="made up")
        centre = (trial.expected_us or 1.0) * draw.uniform(1.1, 1.6)
        found = tuple(centre * (1 + NOISE * draw.random()) for _ in range(samples))
        if 1e-6 * sum(found) > limit_s:
            return Timing(Outcome.TIMEOUT, self.protocol, reason="made up")
        return Timing(Outcome.OK, self.protocol, found)


class MadeUpMeter:
    """A second for everything."""

    def seconds(self, launch: Callable[[], object], count: int) -> float:
        """Return a made-up time; nothing is launched."""
        del launch
        return 1e-3 * count


def rehearsal_bench(plan: Plan, *, hang: bool = False, die: bool = False) -> Bench:
    """Return a bench of made-up times for the plan's device."""
    from tuner.collect.kernels import source_hashes  # noqa: PLC0415 - loads Triton

    first = plan.items[0].text
    device = MadeUpDevice(plan.gpu, first if hang else None, first if die else None)
    return Bench(device, NamedTrials(), compiler=NAME, kernels=source_hashes(plan.items))


def rehearsal_probes(gpu: Gpu) -> list[Probe]:
    """Return a probe that launches nothing, and one that cannot run."""

    def nothing() -> tuple[Callable[[], object], float]:
        return (lambda: None), 1.0

    def refused() -> tuple[Callable[[], object], float]:
        raise RuntimeError("CUDA out of memory: made up")

    return [
        Probe("made up", None, "GB/s", gpu.name, nothing),
        Probe("made up", "bf16", "TFLOP/s", "does not fit", refused),
    ]


def checked_in_interpreter(name: str) -> bool:
    """Whether a rehearsal checks a case: the first of a few kernels."""
    kernel, _, number = name.partition(" ")
    return find(kernel).name in KERNELS and number == "0.0"
