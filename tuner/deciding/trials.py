"""What is handed to a timer: the device, the launches, and what they may write."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.dataset.outcome import Outcome
from tuner import devices, keys
from tuner.deciding.arguments import NOTHING, Access, Snapshot, access_of, everything
from tuner.deciding.decide import shipped_predictor
from tuner.deciding.decision import Call, Decision
from tuner.deciding.policy import Policy
from tuner.deciding.precompile import compile_configs
from tuner.identity import Key
from tuner.measure.check import CheckedDevice, floor_us
from tuner.measure.device import Device, DeviceIdentity, Trial
from tuner.measure.do_bench import DoBenchDevice
from tuner.measure.failures import classify
from tuner.measure.timer import CudaEvents, TimerDevice

if TYPE_CHECKING:
    from tuner.autotuner.decorator import Autotuner


@dataclass
class Session:
    """One decision by timing."""

    kernel: Autotuner
    call: Call
    decision: Decision
    legal: list[int]
    pick: int
    device: Device
    key: Key
    texts: dict[int, str] = field(default_factory=dict)
    error: BaseException | None = None
    """What the compiler said here, where nothing at all compiled; raised, never kept."""

    def __post_init__(self) -> None:
        self.texts = {i: keys.config_text(self.decision.candidates[i]) for i in self.legal}
        self.decision.texts = {text: i for i, text in self.texts.items()}

    @property
    def baseline(self) -> int | None:
        """The user's first configuration; ``None`` where we made them."""
        if self.kernel.makes_configs:
            return None
        return min(self.legal) if self.kernel.perf_model is None else self.legal[0]

    def in_turn(self) -> list[int]:
        """Positions that the policy has timed, in order."""
        decision = self.decision
        best_first = decision.view.best_first(self.legal)
        if decision.policy is Policy.VERIFY and decision.view.ranks:
            best_first = best_first[: self.kernel.settings.k]
        first = [] if self.baseline is None else [self.baseline]
        return list(dict.fromkeys([*first, *best_first]))


def device_of(kernel: Autotuner, identity: DeviceIdentity) -> Device:
    """Return where this kernel's configurations are timed."""
    if kernel.settings.device is not None:
        return kernel.settings.device
    if kernel.own_do_bench is not None:
        protocol = f"do_bench-1:{_name_of(kernel.own_do_bench)}"
        return DoBenchDevice(kernel.own_do_bench, identity, protocol)
    old_interface = kernel._do_bench is not None  # warmup=, rep= or use_cuda_graph=
    there = identity.architecture.startswith(("sm_", "gfx"))
    if there and devices.torch_has_it() and not old_interface:
        return TimerDevice(CudaEvents(), identity)
    return DoBenchDevice(kernel.do_bench, identity, "triton.do_bench-1")


def _name_of(function: Callable[..., Any]) -> str:
    """Tells timers apart: times of different ones are never compared."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return name
    return f"{name}:{hashlib.sha256(source.encode()).hexdigest()[:12]}"


def access_and_broken(
    session: Session, waiting: Sequence[int]
) -> tuple[Access, dict[int, tuple[Outcome, str]]]:
    """What any of the waiting configurations may write, and those that do not compile.

    Raises:
        Exception: what is no configuration's fault.
    """
    kernel, call = session.kernel, session.call
    if not waiting:
        return NOTHING, {}
    always = frozenset(kernel.restore_value) & set(call.arguments)
    access = Access(always, always)
    if session.decision.identity in (devices.INTERPRETER, devices.NOWHERE):
        return access | everything(call.arguments), {}
    configs = [session.decision.candidates[i] for i in waiting]
    limit = devices.shared_bytes_max(session.decision.view.gpu)
    ahead = compile_configs(kernel.fn, call, configs, limit)
    broken = {waiting[place]: trouble for place, trouble in ahead.items()}
    if len(broken) == len(waiting):  # the first once more here: the user is to see its traceback
        first = broken[waiting[0]][0]
        if first is Outcome.COMPILE_FAILED:
            del broken[waiting[0]]
    for i in waiting:
        if i in broken:
            continue
        config = session.decision.candidates[i]
        options = {name: v for name, v in call.kwargs.items() if name != "warmup"}
        try:
            binary = kernel.fn.run(*call.args, **options, **config.all_kwargs(), warmup=True)
        except Exception as error:
            failure = classify(error)
            if failure is None:
                raise
            broken[i] = (failure.outcome, failure.reason)
            if len(broken) == len(waiting):
                session.error = error
            continue
        ttir = getattr(binary, "asm", {}).get("ttir") if binary is not None else None
        access |= everything(call.arguments) if ttir is None else access_of(ttir, call.arguments)
    return access, broken


def checked(device: Device) -> Device:
    """Return a device that has every configuration's result checked first."""

    def verify(trial: Trial) -> str | None:
        launch = trial.launch
        assert isinstance(launch, TimedLaunch)
        return launch.wrong()

    return CheckedDevice(device, verify)


class TimedLaunch:
    """One launch as it is timed: inputs put back, hooks round it (a `PartedLaunch`)."""

    def __init__(self, kernel: Autotuner, call: Call, config: Any, snapshot: Snapshot) -> None:
        self._kernel, self._call, self._config = kernel, call, config
        self._snapshot = snapshot
        self._chosen = config.all_kwargs()
        named = dict(zip(kernel.arg_names, call.args, strict=False))
        self._arguments = {**named, **call.kwargs, **self._chosen}

    def __call__(self) -> None:
        """Do all three."""
        self.prepare()
        self.bare()
        self.finish()

    def prepare(self) -> None:
        """Put inputs back and call the hooks that come first."""
        self._snapshot.restore(all_of_it=False)
        if self._config.pre_hook is not None:
            self._config.pre_hook(self._arguments)
        self._kernel.hooks.before_timing(self._arguments)

    def bare(self) -> None:
        """Launch."""
        try:
            self._kernel.fn.run(*self._call.args, **self._call.kwargs, **self._chosen)
        except Exception as error:
            self._kernel.hooks.after_timing(self._arguments, error)
            raise

    def wrong(self) -> str | None:
        """Launch once on the inputs as they were; return what the user's check says of it.

        What an earlier configuration wrote is put back too: it must not pass for this one's.
        """
        assert self._kernel.settings.check is not None
        self._snapshot.restore()
        self()
        return self._kernel.settings.check(self._arguments)

    def finish(self) -> None:
        """Call the hook that follows."""
        self._kernel.hooks.after_timing(self._arguments, None)


def expected_us(session: Session) -> dict[int, float]:
    """The model's times by position, where the device is the one that it predicts for."""
    view = session.decision.view
    measured_here = session.kernel.own_do_bench is None and session.device.identity.gpu is not None
    if not (view.ranks and measured_here and view.known is not None):
        return {}
    if view.gpu is None or view.gpu.name != session.device.identity.gpu:
        return {}
    times = shipped_predictor().latency_us(view.known, view.gpu, view.table)
    return {i: float(t) for i, t in zip(view.kept, times, strict=True) if t < float("inf")}


def floor_of(session: Session) -> float | None:
    """The shortest time that the device allows, where it and the problem are known."""
    view, known = session.decision.view, session.device.identity.gpu
    if view.known is None or view.gpu is None or view.gpu.name != known:
        return None
    return floor_us(view.known, view.gpu)
