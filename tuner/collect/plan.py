"""What to measure on a GPU in so many minutes; needs no GPU, and is the same for the same seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from perfmodel.errors import UsageError
from perfmodel.hardware.gpu import Gpu
from perfmodel.predictor import Predictor
from perfmodel.tiling.config import ConfigTable, TileConfig
from tuner.collect.families import Family, Scored
from tuner.collect.keys import measurement_text
from tuner.collect.plan_file import Plan, PlannedConfig, PlannedProblem, Settings
from tuner.kernels import catalog

OVERHEAD_S = 0.15
"""Seconds of one measurement beside its samples: loading the compiled kernel, warming up."""

FLUSH_S = 100e-6
"""Seconds to evict the L2 before a sample."""

MODEL_SHARE = 1 / 3
"""Of the configurations, those predicted to be the fastest: a tuner chooses among these."""

UNCERTAIN_SHARE = 1 / 6
"""Of the configurations, those among the promising ones that the model is least sure of."""

PROMISING = 2.0
"""Times the fastest predicted time up to which a configuration may still be the best."""

CHOSEN_MAX = 60
"""Configurations of which the model chooses its shares; all beyond that many are strata."""

PROBLEMS_MAX = 5000


@dataclass(frozen=True)
class Budget:
    """How much to plan: ``problems`` at most, and none that would end past ``minutes``."""

    minutes: float | None = 10.0
    problems: int | None = None
    configs: int | None = 40  # of each problem at most; None for all worth trying

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise UsageError(f"minutes is {self.minutes}; use a positive number")
        if self.configs is not None and self.configs < 1:
            raise UsageError(f"configs is {self.configs}; use a whole number of at least 1")
        if self.problems is not None and self.problems < 1:
            raise UsageError(f"problems is {self.problems}; use a whole number of at least 1")
        if self.minutes is None and self.problems is None:
            raise UsageError("a plan without an end; give minutes, problems or both")


def make_plan(
    gpu: Gpu,
    families: Sequence[Family],
    dtypes: Sequence[str],
    *,
    budget: Budget,
    seed: int = 0,
    settings: Settings | None = None,
    predictor: Predictor | None = None,
) -> Plan:
    """Plan measurements of ``families`` by turns on ``gpu``.

    Raises:
        UsageError: nothing fits the budget.
        UnsupportedDtypeError: the device has no arithmetic for a type.
        InvalidProblemError: a family's kernel does not take a type.
    """
    settings, predictor = settings or Settings(), predictor or Predictor()
    sources = [_planned(f, f.problems(gpu, dtypes, seed), gpu, budget.configs, seed, settings,
                        predictor) for f in families]  # fmt: skip
    chosen = list(_within(_once(_by_turns(sources)), budget))
    if not chosen:
        first = next(_by_turns(
            [_planned(f, f.problems(gpu, dtypes, seed), gpu, budget.configs, seed, settings,
                      predictor) for f in families[:1]]
        ))  # fmt: skip
        raise UsageError(
            f"{budget.minutes:g} minutes are too few for one problem, which takes about "
            f"{first.seconds / 60:.2g}; give more minutes or fewer configs"
        )
    return plan_of(gpu, chosen, budget, seed, settings, predictor)


def plan_of(
    gpu: Gpu,
    problems: Iterable[PlannedProblem],
    budget: Budget,
    seed: int,
    settings: Settings,
    predictor: Predictor,
) -> Plan:
    """Return the plan of problems that were chosen."""
    model = predictor.model_for(gpu)
    return Plan(
        gpu=gpu.name,
        architecture=gpu.architecture,
        seed=seed,
        minutes=budget.minutes,
        model=None if model is None else model.version,
        settings=settings,
        problems=tuple(problems),
    )


def plan_problem(
    family: Family,
    origin: str,
    problem: Any,
    gpu: Gpu,
    configs: int | None,
    seed: int,
    settings: Settings,
    predictor: Predictor,
    table: ConfigTable | None = None,
) -> PlannedProblem:
    """Plan up to ``configs`` configurations of one problem, out of ``table`` or of all worth it.

    They are in the order in which they say most, the predictor's own pick first: what is left of a
    plan that ended early is its best part.

    Raises:
        InvalidProblemError: the family's kernel does not compute it.
    """
    catalog.find(family.kernel_of(problem)).require(problem)
    if table is None:
        table = family.configs(problem, gpu)
    scored = family.score(problem, gpu, table, predictor)
    columns = family.columns(problem)
    draw = random.Random(f"{seed} {sorted(columns.items(), key=str)}")
    picked = choose_configs(table, scored, len(table) if configs is None else configs, draw)
    planned = tuple(
        PlannedConfig(
            values=_values(table.configs[row], family.parameters),
            why=why,
            expected_us=round(float(scored.latency_us[row]), 4),
            extras=dict(table.configs[row].extras),
        )
        for row, why in picked.items()
    )
    seconds = sum(seconds_for(c.expected_us, settings) for c in planned)
    return PlannedProblem(
        family.table, family.kernel_of(problem), columns, origin, round(seconds, 6), planned
    )


def choose_configs(
    table: ConfigTable, scored: Scored, count: int, draw: random.Random
) -> dict[int, str]:
    """Return the rows to measure and why: the model's best, its uncertain ones, and strata.

    The strata are size of the tile, warps, stages and splits; they are gone through by turns, so
    that every kind of configuration is measured, the hopeless included. Reasons take turns, so that
    any first part is a sample of all of them.
    """
    order = np.argsort(scored.score, kind="stable")
    picked: dict[int, str] = {}
    shared = min(count, CHOSEN_MAX)
    for row in order[: max(round(MODEL_SHARE * shared), 1)]:
        picked[int(row)] = "model"
    limit = PROMISING * scored.latency_us.min()
    widest = np.argsort(-scored.log_width, kind="stable")
    promising = [int(r) for r in widest if scored.latency_us[r] <= limit]
    left = [row for row in promising if row not in picked]
    for row in left[: round(UNCERTAIN_SHARE * shared)]:
        picked[row] = "uncertain"
    for row in _by_strata(table, draw):
        if len(picked) >= count:
            break
        picked.setdefault(row, "stratum")
    return _mixed(picked)


def seconds_for(latency_us: float, settings: Settings) -> float:
    """Return the estimated device seconds of one measurement."""
    samples = settings.samples * (latency_us * 1e-6 + FLUSH_S)
    return min(OVERHEAD_S + samples, settings.limit_s)


def counts(plan: Plan) -> Mapping[str, Counter[str]]:
    """Return how many measurements a plan has, by family, by origin's kind and by reason."""
    return {
        "family": Counter(item.problem.family for item in plan.items),
        "kernel": Counter(item.problem.kernel for item in plan.items),
        "why": Counter(item.config.why for item in plan.items),
        "origin": Counter(
            "space-filling" if p.origin.startswith("space-filling") else "known models"
            for p in plan.problems
        ),
    }


def _planned(
    family: Family,
    problems: Iterator[tuple[str, Any]],
    gpu: Gpu,
    configs: int | None,
    seed: int,
    settings: Settings,
    predictor: Predictor,
) -> Iterator[PlannedProblem]:
    for origin, problem in problems:
        yield plan_problem(family, origin, problem, gpu, configs, seed, settings, predictor)


def _by_turns(sources: Sequence[Iterator[PlannedProblem]]) -> Iterator[PlannedProblem]:
    for at in range(PROBLEMS_MAX):
        found = next(sources[at % len(sources)], None)
        if found is None:
            return
        yield found


def _once(problems: Iterator[PlannedProblem]) -> Iterator[PlannedProblem]:
    """Each problem once, whichever family named it first: a row's key does not tell kernels."""
    seen: set[str] = set()
    for problem in problems:
        text = measurement_text(problem.family, problem.values)
        if text not in seen:
            seen.add(text)
            yield problem


def _within(problems: Iterator[PlannedProblem], budget: Budget) -> Iterator[PlannedProblem]:
    """The first problems that fit; one that does not is passed over for a shorter one, once."""
    left = float("inf") if budget.minutes is None else 60 * budget.minutes
    passed_over = 0
    for taken, problem in enumerate(problems):
        if budget.problems is not None and taken - passed_over >= budget.problems:
            return
        if problem.seconds > left:
            passed_over += 1
            if passed_over > 8:
                return
            continue
        left -= problem.seconds
        yield problem


def _mixed(picked: Mapping[int, str]) -> dict[int, str]:
    reasons: dict[str, list[int]] = {}
    for row, why in picked.items():
        reasons.setdefault(why, []).append(row)
    turns = zip_longest(*reasons.values())
    return {row: picked[row] for turn in turns for row in turn if row is not None}


def _by_strata(table: ConfigTable, draw: random.Random) -> Iterator[int]:
    strata: dict[tuple[int, ...], list[int]] = {}
    area = np.log2(table.block_m * table.block_n).astype(int) // 2
    others = np.stack([table.num_warps, table.num_stages, table.split_k], axis=1).astype(int)
    for row in range(len(table)):
        strata.setdefault((int(area[row]), *map(int, others[row])), []).append(row)
    queues = [strata[kind] for kind in sorted(strata)]
    for rows in queues:
        draw.shuffle(rows)
    draw.shuffle(queues)
    while queues:
        for rows in queues:
            yield rows.pop()
        queues = [rows for rows in queues if rows]


def _values(config: TileConfig, parameters: Sequence[str]) -> dict[str, int]:
    """What the kernel reads: other parameters have no meaning to it, and no value in a table."""
    return {p: getattr(config, p) for p in parameters if getattr(config, p) is not None}
