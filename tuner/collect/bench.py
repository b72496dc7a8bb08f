"""What a run measures on: a device, whatever makes its trials, and what it says of itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DataError, MissingDataError, ResumeMismatchError, UsageError
from tuner.collect.keys import IDENTITY_COLUMNS, measurement_text
from tuner.collect.plan_file import Item, Plan
from tuner.measure.device import Device, DeviceIdentity, Timing, Trial
from tuner.measure.replay import ReplayDevice

ADDRESSES = "cuda, cuda:1 or replay:TABLE.parquet"


class Trials(Protocol):
    """Makes trials. It may keep the inputs of the problem that it was last asked for."""

    def trial(self, item: Item) -> Trial:
        """Return what the device runs; raises whatever making the inputs raises."""

    def close(self) -> None:
        """Give memory back."""


@dataclass(frozen=True)
class Bench:
    """A device ready to measure.

    ``clocks`` returns, by column of the measurement table, what the device says of its clocks;
    ``when`` is ``before`` or ``after``. ``manifest`` says what the device is, for the record.
    """

    device: Device
    trials: Trials
    clocks: Callable[[str], Mapping[str, Any]] = lambda _when: {}
    compiler: str | None = None
    kernels: Mapping[str, str] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def require_for(self, plan: Plan) -> None:
        """Refuse a plan that was made for another device.

        Raises:
            ResumeMismatchError: it was; both are named.
        """
        identity = self.device.identity
        if identity.gpu != plan.gpu:
            known = identity.gpu or f"{identity.name!r}, which no device file describes"
            raise ResumeMismatchError(
                f"the plan is for {plan.gpu}, and this device is {known}; make a plan for it: "
                f"perfmodel collect plan --gpu {identity.gpu or 'FILE.toml'}"
            )

    def close(self) -> None:
        """Give the device back."""
        self.trials.close()


class NamedTrials:
    """Trials that only name what is asked for: all that a recorded table needs."""

    def trial(self, item: Item) -> Trial:
        """Return a trial without a launch."""
        return Trial(item.text, expected_us=item.config.expected_us)

    def close(self) -> None:
        """There is nothing to give back."""


class SleepingDevice:
    """A device that takes as long as a real one would, for rehearsals."""

    def __init__(self, device: Device, sleep_s: float) -> None:
        self._device, self._sleep_s = device, sleep_s

    @property
    def identity(self) -> DeviceIdentity:
        """Of the device inside."""
        return self._device.identity

    @property
    def protocol(self) -> str:
        """Of the device inside."""
        return self._device.protocol

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        """Wait, then return what the device inside says."""
        time.sleep(self._sleep_s)
        return self._device.time(trial, samples=samples, limit_s=limit_s)


def open_bench(address: str, plan: Plan) -> Bench:
    """Return the bench at an address.

    ``cuda`` and ``cuda:N`` are this machine's GPUs; ``replay:TABLE.parquet`` answers from a
    recorded table, and waits with ``replay:TABLE.parquet?sleep_ms=20``.

    Raises:
        UsageError: another address.
        NoDeviceError, NotInstalledError: there is no GPU, or what drives it is absent.
        MissingDataError, DataError: the table cannot be replayed.
    """
    kind, _, rest = address.partition(":")
    if kind == "cuda" and (not rest or rest.isdigit()):
        from tuner.collect.cuda import cuda_bench  # noqa: PLC0415 - asks for the driver

        return cuda_bench(int(rest or 0), plan)
    if kind == "replay" and rest:
        return replay_bench(*_replay_options(address, rest), plan.gpu)
    raise UsageError(f"device is {address!r}; use {ADDRESSES}")


def replay_bench(table: Path, sleep_s: float, gpu: str) -> Bench:
    """Return a bench that answers from the rows of ``gpu`` in a measurement table.

    Raises:
        MissingDataError: no such file, or no row of that device.
        DataError: rows of several timing methods, which are not one device's answers.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - pandas is not needed here

    if not table.is_file():
        raise MissingDataError(f"no measurement table at {table} to replay")
    wanted = ["family", "gpu", "outcome", "latency_us", "timing_method", "driver_version",
              "protocol_version", "l2_state"]  # fmt: skip
    columns = [*wanted, "config_extras", "is_library"]
    for family, names in IDENTITY_COLUMNS.items():
        del family
        columns += [n for n in names if n not in columns]
    columns += [n for n in _config_columns() if n not in columns]
    found = pq.read_table(table, columns=columns, filters=[("gpu", "=", gpu)])
    recorded: dict[str, float | Outcome] = {}
    methods: set[str | None] = set()
    drivers: set[str | None] = set()
    for row in found.to_pylist():
        if row["is_library"]:
            continue
        methods.add(_method(row))
        drivers.add(row["driver_version"])
        extras = _extras(row["config_extras"])
        text = measurement_text(row["family"], row, extras)
        outcome = Outcome(row["outcome"])
        recorded.setdefault(text, row["latency_us"] if outcome.ran else outcome)
    if not recorded:
        raise MissingDataError(f"{table} has no row of {gpu} to replay")
    if len(methods) > 1:
        raise DataError(
            f"{table} has rows timed by {' and '.join(map(str, sorted(map(str, methods))))}; "
            "replay one timing method at a time"
        )
    method = methods.pop()
    driver = drivers.pop() if len(drivers) == 1 else None
    identity = DeviceIdentity(f"replay of {gpu}", "replay", gpu=gpu, driver=driver)
    device: Device = ReplayDevice(recorded, identity, f"{method or 'replay'}-1")
    if sleep_s:
        device = SleepingDevice(device, sleep_s)
    return Bench(device, NamedTrials(), manifest={"device": identity.name, "table": table.name})


def absolute_address(address: str) -> str:
    """Return a device's address as other processes, in other folders, may use it."""
    kind, _, rest = address.partition(":")
    if kind != "replay" or not rest:
        return address
    name, question, query = rest.partition("?")
    return f"replay:{Path(name).expanduser().resolve()}{question}{query}"


def _method(row: Mapping[str, Any]) -> str | None:
    """How a row was timed: by our own protocol, which chooses events or a graph for each launch."""
    if row["protocol_version"] is not None and row["l2_state"] is not None:
        return f"steady-{row['l2_state']}"
    method = row["timing_method"]
    return None if method is None else str(method)


def _config_columns() -> tuple[str, ...]:
    from perfmodel.dataset.schema import CONFIG_COLUMNS  # noqa: PLC0415 - as above

    return CONFIG_COLUMNS


def _extras(pairs: Any) -> dict[str, Any]:
    import json  # noqa: PLC0415 - only where a row has any

    return {name: json.loads(value) for name, value in (pairs or [])}


def _replay_options(address: str, rest: str) -> tuple[Path, float]:
    name, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    text = options.pop("sleep_ms", "0")
    try:
        sleep_s = float(text) / 1e3
    except ValueError:
        sleep_s = -1.0
    if options or not 0 <= sleep_s < 3600:
        raise UsageError(
            f"device is {address!r}; use replay:TABLE.parquet, or replay:TABLE.parquet?sleep_ms=20"
        )
    return Path(name).expanduser(), sleep_s
