"""What is handed to a timer: the device, the launches, and what they may write."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from perfmodel.dataset.outcome import Outcome
from tuner import devices, keys
from tuner.deciding.arguments import (
    NOTHING,
    Access,
    CannotTimeError,
    Snapshot,
    access_of,
    everything,
)
from tuner.deciding.decide import shipped_predictor
from tuner.deciding.decision import Call, Decision
from tuner.deciding.isolated import IsolatedDevice, isolation_of, warn_if_asked, why_not
from tuner.deciding.policy import Policy
from tuner.deciding.precompile import compile_configs
from tuner.identity import Key
from tuner.measure.check import CheckedDevice, floor_us
from tuner.measure.device import Device, DeviceIdentity, Timing, Trial
from tuner.measure.do_bench import DoBenchDevice
from tuner.measure.failures import classify
from tuner.measure.isolation import why_unavailable
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
    device: Device
    key: Key
    texts: dict[int, str] = field(default_factory=dict)
    error: BaseException | None = None
    """What the compiler said here, where nothing at all compiled; raised, never kept."""

    def __post_init__(self) -> None:
        candidates = self.decision.candidates
        self.texts = {i: keys.text_of(self.kernel, candidates[i]) for i in self.legal}
        self.decision.texts = {text: i for i, text in self.texts.items()}

    @property
    def pick(self) -> int:
        """The model's best."""
        return self.decision.view.best(self.legal)

    @property
    def baseline(self) -> int | None:
        """The user's first configuration; ``None`` where we made them."""
        if self.kernel.makes_configs:
            return None
        return min(self.legal) if self.kernel.perf_model is None else self.legal[0]

    def in_turn(self, out: Container[int] = ()) -> list[int]:
        """Positions that the policy has timed, in order; those in ``out`` take nobody's place."""
        decision = self.decision
        best_first = [i for i in decision.view.best_first(self.legal) if i not in out]
        if decision.policy is Policy.VERIFY and decision.view.ranks:
            best_first = best_first[: self.kernel.settings.k]
        first = [] if self.baseline is None or self.baseline in out else [self.baseline]
        return list(dict.fromkeys([*first, *best_first]))

    def stay_here(self, reason: str) -> None:
        """Time in this process after all."""
        assert isinstance(self.device, IsolatedDevice)
        if self.device.asked:
            warn_if_asked(self.kernel, reason)
        self.decision.notes.append(f"timed in this process: {reason}")
        self.device = device_here(self.kernel, self.decision.identity)


def device_of(kernel: Autotuner, call: Call, identity: DeviceIdentity) -> tuple[Device, str | None]:
    """Return where a call's configurations are timed, and why in this process where it is so."""
    if kernel.settings.device is not None:
        return kernel.settings.device, None
    isolation, asked = isolation_of(kernel, timer_here=_has_timer(kernel, identity))
    reason = None
    if isolation is not None:
        reason = why_unavailable(isolation) or why_not(kernel, call)
    if isolation is not None and reason is None:
        return IsolatedDevice(identity, isolation, asked), None
    if asked and reason is not None:
        warn_if_asked(kernel, reason)
    return device_here(kernel, identity), reason


def device_here(kernel: Autotuner, identity: DeviceIdentity) -> Device:
    """Return the timer of this process."""
    if kernel.own_do_bench is not None:
        protocol = f"do_bench-1:{_name_of(kernel)}"
        return DoBenchDevice(kernel.own_do_bench, identity, protocol)
    if _has_timer(kernel, identity):
        return TimerDevice(CudaEvents(), identity)
    if kernel.can_time(identity, isolated=False):
        return DoBenchDevice(kernel.do_bench, identity, "triton.do_bench-1")
    return NoDevice(identity)


@dataclass(frozen=True)
class NoDevice:
    """Nothing can be timed."""

    identity: DeviceIdentity
    protocol: str = "none-0"

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:  # noqa: ARG002 - a Device
        """Say so.

        Raises:
            CannotTimeError: always.
        """
        raise CannotTimeError(f"there is no device but the {self.identity.name}")


def _has_timer(kernel: Autotuner, identity: DeviceIdentity) -> bool:
    """Whether our own timer would be used in this process."""
    if kernel.own_do_bench is not None or kernel._do_bench is not None:
        return False  # the user's, or warmup=, rep= and use_cuda_graph=
    there = identity.architecture.startswith(("sm_", "gfx"))
    return there and devices.torch_has_it()


def _name_of(kernel: Autotuner) -> str:
    """Tells timers apart: times of different ones are never compared."""
    known = _names.get(kernel)
    if known is None:
        known = _names[kernel] = _timer_text(kernel.own_do_bench)
    return known


_names: WeakKeyDictionary[Autotuner, str] = WeakKeyDictionary()


def _timer_text(function: Any) -> str:
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
