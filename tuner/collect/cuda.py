"""Measuring on this machine's NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from perfmodel.errors import NoDeviceError, NotInstalledError
from tuner.collect.bench import Bench
from tuner.collect.inventory import NEEDS_NONE, manifest, require_known, visible_devices
from tuner.collect.plan_file import Item, Plan, PlannedProblem
from tuner.measure.copies import TensorLaunch
from tuner.measure.device import Trial
from tuner.measure.failures import classify
from tuner.measure.gauges import NvmlGauges
from tuner.measure.nvml import Nvml

if TYPE_CHECKING:
    from tuner.kernels.execution import Tensors


def cuda_bench(ordinal: int, plan: Plan) -> Bench:
    """Return the bench of GPU ``ordinal`` as CUDA numbers them for this process.

    Raises:
        NoDeviceError: there is no such GPU, or it is cut into slices.
        NotInstalledError: torch, Triton or the NVML binding is absent.
        UnknownGpuError, AmbiguousGpuError: no one device goes by the driver's name.
    """
    devices = visible_devices()
    if ordinal >= len(devices):
        raise NoDeviceError(
            f"there is no cuda:{ordinal}; this process sees {len(devices)}: "
            f"{', '.join(f'cuda:{d.ordinal} ({d.facts.name})' for d in devices)}. {NEEDS_NONE}"
        )
    found = devices[ordinal]
    require_known(found.identity)
    _require_torch()
    from tuner.collect.kernels import compiler_name, source_hashes  # noqa: PLC0415 - loads Triton
    from tuner.measure.session import cuda_harness  # noqa: PLC0415 - as above

    nvml, address = Nvml(), f"cuda:{ordinal}"
    harness = cuda_harness(address, found.identity, gauges=NvmlGauges(nvml, found.facts.index))
    return Bench(
        device=harness,
        # What the timer has prepared holds a problem's inputs: it goes with them.
        trials=KernelTrials(address, release=harness.close),
        compiler=compiler_name(),
        kernels=source_hashes(plan.items),
        manifest=manifest(found, nvml.reading(found.facts.index)),
    )


class KernelTrials:
    """Trials of the reference kernels on a torch device; one problem's inputs are kept at a time.

    On ``cpu`` they run in Triton's interpreter (``TRITON_INTERPRET=1``): correct, and no times.

    Args:
        device: a torch device.
        release: called before a problem's inputs are given back, for whoever else holds them.
    """

    def __init__(self, device: str, release: Callable[[], None] = lambda: None) -> None:
        self._device, self._release = device, release
        self._problem: PlannedProblem | None = None
        self._inputs: Tensors = {}
        self._refused: BaseException | None = None

    def trial(self, item: Item) -> Trial:
        """Return a trial of an item.

        Raises:
            Exception: its inputs do not fit, or its kernel refuses it. The first is not tried
                again for the problem's other configurations.
        """
        from tuner.collect.kernels import launches_of  # noqa: PLC0415 - loads Triton
        from tuner.kernels.execution import allocate, execute  # noqa: PLC0415 - as above

        if item.problem is not self._problem:
            self._load(item.problem)
        if self._refused is not None:
            raise self._refused
        plan = launches_of(item)
        tensors = {**self._inputs, **allocate(plan, self._device)}
        return Trial(
            item.text,
            launch=TensorLaunch(partial(execute, plan), tensors),
            expected_us=item.config.expected_us,
        )

    def close(self) -> None:
        """Give the memory back."""
        import torch  # noqa: PLC0415 - optional extra

        self._release()
        self._problem, self._inputs, self._refused = None, {}, None
        torch.cuda.empty_cache()

    def _load(self, problem: PlannedProblem) -> None:
        from tuner.collect.kernels import inputs_of  # noqa: PLC0415 - loads Triton

        self.close()
        self._problem = problem
        try:
            self._inputs = inputs_of(problem, self._device)
        except Exception as error:
            found = classify(error)
            if found is None or found.poisoned:
                raise
            self._refused = error.with_traceback(None)


def _require_torch() -> None:
    try:
        import torch  # noqa: PLC0415 - optional extra
        import triton  # noqa: F401, PLC0415 - as above
    except ImportError as error:
        raise NotInstalledError(
            f"measuring on a GPU needs torch and Triton ({error}); "
            "install them with: pip install 'perfmodel[triton]'"
        ) from error
    if not torch.cuda.is_available():
        raise NoDeviceError(
            f"the driver has a GPU that torch {torch.__version__} cannot use: install a build of "
            f"torch for CUDA. {NEEDS_NONE}"
        )
