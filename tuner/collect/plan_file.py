"""A plan as one file: which problems and configurations to measure on a GPU, in which order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from perfmodel.dataset.schema import CONFIG_COLUMNS
from perfmodel.errors import CorruptFileError, MissingDataError, SchemaMismatchError, UsageError
from perfmodel.files import atomic_path
from tuner.collect.keys import measurement_key, measurement_text

PLAN_VERSION = 1

_VERSION_FIELD = "perfmodel_plan"


@dataclass(frozen=True)
class Settings:
    """How every measurement of a plan is taken.

    ``samples`` at most, none starting after ``limit_s`` seconds.
    """

    samples: int = 30
    limit_s: float = 10.0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(f"samples is {self.samples}; use a whole number of at least 1")
        if not 0 < self.limit_s < float("inf"):
            raise UsageError(f"limit is {self.limit_s} s; use a positive number of seconds")


@dataclass(frozen=True)
class PlannedConfig:
    """One configuration: its launch parameters by column, what has none in ``extras``."""

    values: Mapping[str, int]
    why: str  # model, stratum or uncertain
    expected_us: float
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedProblem:
    """One problem, by the columns of `perfmodel.dataset.schema`, and what to measure of it."""

    family: str
    kernel: str  # of `tuner.kernels.catalog`
    values: Mapping[str, Any]
    origin: str
    seconds: float  # of the device, as estimated
    configs: tuple[PlannedConfig, ...]


@dataclass(frozen=True)
class Item:
    """One measurement of a plan; ``number`` counts from 0 over the whole plan."""

    number: int
    problem: PlannedProblem
    config: PlannedConfig

    @cached_property
    def text(self) -> str:
        """The canonical text of problem and configuration."""
        row = {**self.problem.values, **self.config.values}
        return measurement_text(self.problem.family, row, self.config.extras)

    @property
    def key(self) -> str:
        """The measurement's name in shards."""
        return measurement_key(self.text)


@dataclass(frozen=True)
class Plan:
    """What to measure on a GPU; the same for the same arguments of `perfmodel collect plan`."""

    gpu: str
    architecture: str
    seed: int
    minutes: float | None
    model: str | None
    settings: Settings
    problems: tuple[PlannedProblem, ...]

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """Every measurement, problem by problem."""
        pairs = ((p, c) for p in self.problems for c in p.configs)
        return tuple(Item(number, p, c) for number, (p, c) in enumerate(pairs))

    @cached_property
    def digest(self) -> str:
        """The sha256 of what the plan says."""
        return hashlib.sha256(_canonical(self._content()).encode()).hexdigest()

    @property
    def seconds(self) -> float:
        """Device seconds that the plan will take, as estimated."""
        return sum(p.seconds for p in self.problems)

    def shard(self, index: int, count: int) -> tuple[Item, ...]:
        """Return the measurements of one of ``count`` shards, numbered from 1.

        Problems stay whole, so that their configurations are timed on one device; the longest go
        first, each to the shard with the least to do.

        Raises:
            UsageError: there is no such shard.
        """
        if count < 1 or not 1 <= index <= count:
            raise UsageError(
                f"shard {index}/{count} does not exist; give i/n with i from 1 to n, "
                f"e.g. 1/{max(count, 1)}"
            )
        load, mine = [0.0] * count, set()
        longest = sorted(range(len(self.problems)), key=lambda p: (-self.problems[p].seconds, p))
        for problem in longest:
            to = min(range(count), key=lambda shard: (load[shard], shard))
            load[to] += self.problems[problem].seconds
            if to == index - 1:
                mine.add(id(self.problems[problem]))
        return tuple(item for item in self.items if id(item.problem) in mine)

    def save(self, path: Path) -> None:
        """Write the plan as one JSON file, whole or not at all."""
        content = {_VERSION_FIELD: PLAN_VERSION, **self._content(), "sha256": self.digest}
        with atomic_path(path, "--out PLAN") as partial:
            partial.write_text(_canonical(content) + "\n", encoding="utf-8")

    def _content(self) -> dict[str, Any]:
        problems = [
            {
                "family": p.family, "kernel": p.kernel, "origin": p.origin,
                "values": dict(p.values), "seconds": p.seconds,
                "configs": [_packed(c) for c in p.configs],
            }
            for p in self.problems
        ]  # fmt: skip
        return {
            "gpu": self.gpu, "architecture": self.architecture, "seed": self.seed,
            "minutes": self.minutes, "model": self.model, "settings": asdict(self.settings),
            "parameters": list(CONFIG_COLUMNS), "problems": problems,
        }  # fmt: skip


def load_plan(path: Path) -> Plan:
    """Read a plan and check that it is whole.

    Raises:
        MissingDataError: no such file.
        CorruptFileError: truncated, altered, or no plan at all.
        SchemaMismatchError: a plan of another version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MissingDataError(
            f"no plan at {path}: {error.strerror}; make one: perfmodel collect plan --out {path}"
        ) from None
    except ValueError as error:
        raise CorruptFileError(f"{path} is not a plan, or is cut short: {error}") from None
    if not isinstance(content, dict) or _VERSION_FIELD not in content:
        raise CorruptFileError(
            f"{path} is not a plan; make one: perfmodel collect plan --out {path}"
        )
    version = content.pop(_VERSION_FIELD)
    if version != PLAN_VERSION:
        raise SchemaMismatchError(
            f"{path} is a plan of version {version!r}, and this perfmodel reads version "
            f"{PLAN_VERSION}; make it again: perfmodel collect plan"
        )
    stated = content.pop("sha256", None)
    try:
        plan = _parsed(content)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(f"{path} is not a whole plan: {error!r}") from error
    if plan.digest != stated:
        raise CorruptFileError(
            f"{path} was altered: its content has sha256 {plan.digest[:12]}, and it states "
            f"{str(stated)[:12]}; make it again: perfmodel collect plan"
        )
    return plan


def parse_shard(text: str) -> tuple[int, int]:
    """Return (i, n) of ``i/n``.

    Raises:
        UsageError: another form; whether there is such a shard is for `Plan.shard` to say.
    """
    index, slash, count = text.partition("/")
    if not slash or not index.strip().isdigit() or not count.strip().isdigit():
        raise UsageError(f"shard is {text!r}; give i/n, e.g. 1/4 for the first of four")
    return int(index), int(count)


def _parsed(content: Mapping[str, Any]) -> Plan:
    parameters = content["parameters"]
    problems = tuple(
        PlannedProblem(
            family=p["family"],
            kernel=p["kernel"],
            values=p["values"],
            origin=p["origin"],
            seconds=p["seconds"],
            configs=tuple(_unpacked(parameters, packed) for packed in p["configs"]),
        )
        for p in content["problems"]
    )
    return Plan(
        gpu=content["gpu"],
        architecture=content["architecture"],
        seed=content["seed"],
        minutes=content["minutes"],
        model=content["model"],
        settings=Settings(**content["settings"]),
        problems=problems,
    )


def _packed(config: PlannedConfig) -> list[Any]:
    row: list[Any] = [[config.values.get(name) for name in CONFIG_COLUMNS]]
    row += [config.why, config.expected_us]
    return [*row, dict(config.extras)] if config.extras else row


def _unpacked(parameters: Sequence[str], packed: Sequence[Any]) -> PlannedConfig:
    values, why, expected_us, *rest = packed
    named = dict(_set_only(parameters, values))
    return PlannedConfig(named, why, expected_us, rest[0] if rest else {})


def _set_only(names: Sequence[str], values: Sequence[int | None]) -> Iterator[tuple[str, int]]:
    for name, value in zip(names, values, strict=True):
        if value is not None:
            yield name, value


def _canonical(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
