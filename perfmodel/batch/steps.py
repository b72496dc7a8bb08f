"""A step of a model: kernels that run one after the other, each some number of times.

A step file is TOML: ``title`` and ``source``, a table ``sizes`` of numbers that kernels may name,
and ``[[kernel]]`` entries in order. An entry has ``kernel`` (gemm, attention, moe or a memory-bound
kernel), the arguments of the problem by name, ``name`` and ``repeat`` (1 if left out).

The rules of composition:

- Kernels do not overlap: the step takes the sum of ``repeat`` times each. What goes on between
  devices is no kernel and not in it.
- Tokens that run together are one launch. A list for ``m``, ``rows`` or ``tokens`` adds up: 2048
  tokens of a prefill and 32 of a decode are one product of 2080 rows, not two. Only attention,
  where each sequence has keys of its own, takes its sequences one by one.
- Every launch pays its overhead. A kernel's interval holds for that kernel; that of the step is
  the sum of the ends, as if all erred the same way.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.batch.requests import Request, read_request_strictly
from perfmodel.batch.run import predict_requests
from perfmodel.errors import DataError, InvalidProblemError, PerfmodelError, UsageError, closest
from perfmodel.hardware.gpu import Gpu
from perfmodel.prediction import Prediction
from perfmodel.predictor import Predictor, as_gpu
from perfmodel.problems import Problem
from perfmodel.problems.memory_bound import KERNELS
from perfmodel.problems.sizes import whole_size
from perfmodel.tiling.config import TileConfig

ADDED = ("m", "rows", "tokens")
"""Arguments that count tokens; several of them are of one launch."""

KERNEL_NAMES = ("gemm", "attention", "moe", *KERNELS)
KEYS = ("title", "source", "sizes", "kernel")
SHIPPED = Path(__file__).resolve().parent.parent / "steps"


@dataclass(frozen=True)
class StepKernel:
    """One kernel of a step: what it is, how often it runs, and where in the file it stands."""

    name: str
    problem: Problem
    repeat: int
    line: int
    config: TileConfig | None = None


@dataclass(frozen=True)
class Step:
    """Kernels in order, and the sizes that the file names."""

    title: str
    path: Path
    sizes: Mapping[str, Any]
    kernels: tuple[StepKernel, ...]
    source: str = ""


@dataclass(frozen=True)
class StepPrediction:
    """What a step takes on one device; ``predictions`` are of one launch each, in order."""

    step: Step
    gpu: str
    predictions: tuple[Prediction, ...]

    @property
    def totals_us(self) -> tuple[float, ...]:
        """Time of each kernel with its repeats, microseconds."""
        pairs = zip(self.step.kernels, self.predictions, strict=True)
        return tuple(kernel.repeat * found.latency_us for kernel, found in pairs)

    @property
    def total_us(self) -> float:
        """Time of the step, microseconds."""
        return sum(self.totals_us)

    @property
    def interval_us(self) -> tuple[float, float]:
        """Sums of the kernels' lower and of their upper ends, microseconds."""
        pairs = list(zip(self.step.kernels, self.predictions, strict=True))
        low = sum(kernel.repeat * found.interval_us[0] for kernel, found in pairs)
        return low, sum(kernel.repeat * found.interval_us[1] for kernel, found in pairs)

    @property
    def limiter_us(self) -> dict[str, float]:
        """Time of the kernels that each resource limits, the most first."""
        found: dict[str, float] = {}
        for prediction, total in zip(self.predictions, self.totals_us, strict=True):
            found[prediction.limiter] = found.get(prediction.limiter, 0.0) + total
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def shipped_steps() -> dict[str, Path]:
    """Return the example files that come with the package, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def read_step(path: str | Path, sizes: Mapping[str, Any] | None = None) -> Step:
    """Read a step file, or the shipped example of that name.

    Args:
        path: the file.
        sizes: values to use in place of the file's own.

    Raises:
        DataError: the file cannot be read or is not TOML.
        UsageError: a kernel cannot be used; the message names its line.
    """
    file = shipped_steps().get(str(path), Path(path))
    text = _text(file)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{file} is not TOML: {error}") from None
    for key in values:
        if key not in KEYS:
            raise DataError(
                f"{file}: unknown key {key!r}{closest(key, KEYS)}; use: {', '.join(KEYS)}"
            )
    known = _sizes(file, values.get("sizes", {}), sizes or {})
    entries = values.get("kernel", [])
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{file} lists no kernels; write a [[kernel]] table for each")
    lines = _Lines(text)
    kernels = tuple(
        _kernel(file, entry, known, lines, place) for place, entry in enumerate(entries)
    )
    return Step(str(values.get("title", file.stem)), file, known, kernels, values.get("source", ""))


def predict_step(
    step: Step, gpu: Gpu | str | Path, predictor: Predictor | None = None
) -> StepPrediction:
    """Predict each kernel of a step on one device.

    Raises:
        UsageError: a kernel cannot run there; the message names its line.
    """
    device = as_gpu(gpu)
    requests = [Request(k.problem, device.name, k.config) for k in step.kernels]
    distinct = list(dict.fromkeys(requests))
    answers = dict(
        zip(distinct, predict_requests(distinct, predictor, devices=[device]), strict=True)
    )
    found = []
    for kernel, request in zip(step.kernels, requests, strict=True):
        answer = answers[request]
        if isinstance(answer, PerfmodelError):
            raise type(answer)(_at(step.path, kernel.line, kernel.name, answer))
        found.append(answer)
    return StepPrediction(step, found[0].gpu, tuple(found))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        names = ", ".join(shipped_steps())
        raise DataError(
            f"cannot read {file}: {error.strerror or error}; give a file, or one of: {names}"
        ) from None
    except UnicodeDecodeError:
        raise DataError(f"{file} is not UTF-8 text") from None


def _sizes(file: Path, own: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(own, dict):
        raise DataError(f"{file}: sizes is {own!r}; use a table of numbers")
    for name in given:
        if name not in own:
            names = ", ".join(own) or "none"
            raise UsageError(f"{file} has no size {name!r}{closest(name, own)}; it has: {names}")
    return {**own, **given}


class _Lines:
    """Where the entries of a file stand, which TOML's reader does not tell."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._heads = [
            number
            for number, line in enumerate(self._lines)
            if re.match(r"\s*\[\[\s*kernel\s*\]\]", line)
        ]

    def of(self, place: int, key: str = "") -> int:
        """Return the line of an entry, or of one of its keys, from 1."""
        if place >= len(self._heads):
            return 1
        start = self._heads[place]
        ends = [*self._heads[place + 1 :], len(self._lines)]
        for number in range(start, ends[0]):
            if key and re.match(rf"\s*{re.escape(key)}\s*=", self._lines[number]):
                return number + 1
        return start + 1


def _kernel(
    file: Path, entry: Any, sizes: Mapping[str, Any], lines: _Lines, place: int
) -> StepKernel:
    line = lines.of(place)
    if not isinstance(entry, dict):
        raise DataError(f"{file}, line {line}: {entry!r} is not a table of a kernel's arguments")
    values = dict(entry)
    name = str(values.pop("name", values.get("kernel", "")))
    repeat = values.pop("repeat", 1)
    try:
        if "kernel" not in values:
            raise InvalidProblemError(f"kernel is missing; use one of: {', '.join(KERNEL_NAMES)}")
        if "gpu" in values:
            raise InvalidProblemError("gpu is given with --gpu, for all kernels; leave it out")
        repeat = whole_size("repeat", _looked_up("repeat", repeat, sizes))
        plain = {key: _looked_up(key, value, sizes) for key, value in values.items()}
        request = read_request_strictly(plain)
    except PerfmodelError as error:
        said = str(error).removeprefix("unknown ")
        named = [key for key in ("repeat", *values) if re.match(rf"{re.escape(key)}\b", said)]
        at = lines.of(place, named[0]) if named else line
        raise type(error)(_at(file, at, name, error)) from None
    return StepKernel(name, request.problem, repeat, line, request.config)


def _at(file: Path, line: int, name: str, error: Exception) -> str:
    about = f" ({name})" if name else ""
    return f"{file}, line {line}{about}: {error}"


def _looked_up(key: str, value: Any, sizes: Mapping[str, Any]) -> Any:
    """Put in sizes for their names; tokens that run together add up."""
    if isinstance(value, str):
        value = sizes.get(value, value)
    elif isinstance(value, list):
        value = [_looked_up("", part, sizes) for part in value]
    return _sum(key, value) if key in ADDED and isinstance(value, list) else value


def _sum(key: str, parts: Sequence[Any]) -> int:
    flat = [p for part in parts for p in (part if isinstance(part, list) else [part])]
    return sum(whole_size(f"{key}[{i}]", part) for i, part in enumerate(flat))
