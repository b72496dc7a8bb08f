"""The one wrapper around NVML: every answer is optional, and each missing one has its reason.

NVML is asked when a function here is called, never on import. What a device, a driver or a
container does not tell is ``None``; nothing is guessed and no query can bring the caller down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from types import ModuleType
from typing import Any

from perfmodel.errors import NoDeviceError, NotInstalledError

THROTTLE_REASONS: Mapping[int, str] = {
    0x1: "idle", 0x2: "applications_clocks", 0x4: "power_cap", 0x8: "hw_slowdown",
    0x10: "sync_boost", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake",
    0x100: "display_clocks",
}  # fmt: skip
"""Bits of NVML's clocks-event reasons (nvml.h, ``nvmlClocksEventReason*``)."""

HARMLESS = frozenset({"idle"})
"""Reasons that slow nothing down."""


@dataclass(frozen=True)
class DeviceFacts:
    """What NVML says of a device that does not change; ``missing`` says why a field is ``None``."""

    index: int
    name: str | None = None
    uuid: str | None = None
    driver: str | None = None
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    sm_clock_max_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None
    mig_enabled: bool | None = None
    clocks_locked: bool | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; every field is there, null where it is not known."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {
            "missing": dict(self.missing),
            "source": "NVML",
        }


@dataclass(frozen=True)
class Reading:
    """What NVML says of a device at one moment."""

    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: str | None = None  # reasons, comma-separated; empty for none
    missing: Mapping[str, str] = field(default_factory=dict)

    def columns(self, when: str) -> dict[str, Any]:
        """Return what is known by column of the measurement table; ``when``: before or after."""
        named = {
            f"sm_clock_{when}_mhz": self.sm_clock_mhz,
            f"memory_clock_{when}_mhz": self.memory_clock_mhz,
            f"temperature_{when}_c": self.temperature_c,
            f"power_{when}_w": self.power_w,
            f"throttle_{when}": self.throttle,
        }
        return {name: value for name, value in named.items() if value is not None}


class Nvml:
    """An open connection to NVML.

    Raises:
        NotInstalledError: the Python binding is absent.
        NoDeviceError: there is no driver, or it does not answer.
    """

    def __init__(self, library: ModuleType | Any | None = None) -> None:
        self._lib = library if library is not None else _binding()
        try:
            self._lib.nvmlInit()
        except Exception as error:  # the binding's own class, or what its loading raises
            raise NoDeviceError(
                f"NVML does not start ({_reason(error)}), so there is no NVIDIA driver to measure "
                "on; `collect plan`, `compile`, `merge`, `check` and `publish` need none, and "
                "--device replay:TABLE.parquet rehearses on recorded times"
            ) from error

    def count(self) -> int:
        """Return how many whole devices the driver has, whatever CUDA shows of them."""
        try:
            return int(self._lib.nvmlDeviceGetCount())
        except Exception as error:  # as above
            raise NoDeviceError(f"NVML does not list the devices: {_reason(error)}") from error

    def facts(self, index: int) -> DeviceFacts:
        """Return what does not change of device ``index``."""
        lib = self._lib
        missing: dict[str, str] = {}
        ask = _Asker(missing)
        handle = ask("handle", lambda: lib.nvmlDeviceGetHandleByIndex(index))
        if handle is None:
            return DeviceFacts(index, missing=missing)
        return DeviceFacts(
            index,
            name=ask("name", lambda: _text(lib.nvmlDeviceGetName(handle))),
            uuid=ask("uuid", lambda: _text(lib.nvmlDeviceGetUUID(handle))),
            driver=ask("driver", lambda: _text(lib.nvmlSystemGetDriverVersion())),
            compute_capability=ask(
                "compute_capability",
                lambda: _pair(lib.nvmlDeviceGetCudaComputeCapability(handle)),
            ),
            memory_bytes=ask(
                "memory_bytes", lambda: int(lib.nvmlDeviceGetMemoryInfo(handle).total)
            ),
            sm_clock_max_mhz=ask(
                "sm_clock_max_mhz",
                lambda: float(lib.nvmlDeviceGetMaxClockInfo(handle, lib.NVML_CLOCK_SM)),
            ),
            memory_clock_max_mhz=ask(
                "memory_clock_max_mhz",
                lambda: float(lib.nvmlDeviceGetMaxClockInfo(handle, lib.NVML_CLOCK_MEM)),
            ),
            power_limit_w=ask(
                "power_limit_w", lambda: lib.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
            ),
            ecc=ask("ecc", lambda: bool(lib.nvmlDeviceGetEccMode(handle)[0])),
            mig_enabled=ask("mig_enabled", lambda: bool(lib.nvmlDeviceGetMigMode(handle)[0])),
            clocks_locked=ask("clocks_locked", lambda: _locked(lib, handle)),
            missing=missing,
        )

    def reading(self, index: int) -> Reading:
        """Return the clocks, temperature, power and throttling of device ``index`` now."""
        lib = self._lib
        missing: dict[str, str] = {}
        ask = _Asker(missing)
        handle = ask("handle", lambda: lib.nvmlDeviceGetHandleByIndex(index))
        if handle is None:
            return Reading(missing=missing)
        return Reading(
            sm_clock_mhz=ask(
                "sm_clock_mhz",
                lambda: float(lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM)),
            ),
            memory_clock_mhz=ask(
                "memory_clock_mhz",
                lambda: float(lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_MEM)),
            ),
            temperature_c=ask(
                "temperature_c",
                lambda: float(lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU)),
            ),
            power_w=ask("power_w", lambda: lib.nvmlDeviceGetPowerUsage(handle) / 1e3),
            throttle=ask(
                "throttle",
                lambda: throttle_names(lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            ),
            missing=missing,
        )

    def processes(self, index: int) -> int | None:
        """Return how many processes compute on device ``index``; ``None`` if it does not say."""
        lib = self._lib
        ask = _Asker({})
        handle = ask("handle", lambda: lib.nvmlDeviceGetHandleByIndex(index))
        if handle is None:
            return None
        found: int | None = ask(
            "processes", lambda: len(lib.nvmlDeviceGetComputeRunningProcesses(handle))
        )
        return found

    def slices(self, index: int) -> tuple[str, ...]:
        """Return the UUIDs of the MIG slices of device ``index``; none where it has none."""
        lib = self._lib
        ask = _Asker({})
        parent = ask("handle", lambda: lib.nvmlDeviceGetHandleByIndex(index))
        if parent is None:
            return ()
        most = ask("slices", lambda: int(lib.nvmlDeviceGetMaxMigDeviceCount(parent))) or 0
        found = (ask("uuid", partial(_slice_uuid, lib, parent, at)) for at in range(most))
        return tuple(uuid for uuid in found if uuid is not None)

    def close(self) -> None:
        """End the connection; errors on the way out concern nobody."""
        with contextlib.suppress(Exception):
            self._lib.nvmlShutdown()


@contextlib.contextmanager
def connected(library: ModuleType | Any | None = None) -> Iterator[Nvml]:
    """Yield a connection, closed afterwards; raises as `Nvml`."""
    nvml = Nvml(library)
    try:
        yield nvml
    finally:
        nvml.close()


def throttle_names(bits: int) -> str:
    """Return the reasons that slow the clocks, comma-separated; empty for none."""
    known = [name for bit, name in THROTTLE_REASONS.items() if bits & bit and name not in HARMLESS]
    unknown = bits & ~sum(THROTTLE_REASONS)
    return ",".join([*known, *([f"unknown_0x{unknown:x}"] if unknown else [])])


class _Asker:
    """Asks one question; a refusal of any kind is noted under the field's name."""

    def __init__(self, missing: dict[str, str]) -> None:
        self._missing = missing

    def __call__(self, name: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Exception as error:  # NotSupported, NoPermission, an absent function, a torn answer
            self._missing[name] = _reason(error)
            return None


def _binding() -> Any:
    try:
        import pynvml  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NotInstalledError(
            "asking a GPU what it is needs nvidia-ml-py; "
            "install it with: pip install 'perfmodel[triton]'"
        ) from error
    return pynvml


def _reason(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # the binding looks its message up in a library that may be absent
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _pair(value: Any) -> tuple[int, int]:
    major, minor = value
    return int(major), int(minor)


def _locked(lib: Any, handle: Any) -> bool:
    """Whether an application clock below the maximum is set."""
    wanted = lib.nvmlDeviceGetApplicationsClock(handle, lib.NVML_CLOCK_SM)
    default = lib.nvmlDeviceGetDefaultApplicationsClock(handle, lib.NVML_CLOCK_SM)
    return bool(wanted != default)


def _slice_uuid(lib: Any, parent: Any, at: int) -> str:
    return _text(lib.nvmlDeviceGetUUID(lib.nvmlDeviceGetMigDeviceHandleByIndex(parent, at)))
