"""Writing a decision out: predicted times, reasons and the expected loss, worked out on request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.families import TileProblem
from perfmodel.problems.gemm import Gemm
from perfmodel.uncertainty import typical_error
from tuner.deciding.accounting import Account, Fate, Row
from tuner.deciding.decide import shipped_predictor
from tuner.deciding.decision import Decision
from tuner.deciding.unusable import explain_illegal

if TYPE_CHECKING:
    from tuner.autotuner.decorator import Autotuner

DRAWS = 2000
"""Of the model's errors, for the expected loss; a fixed seed, so the answer is always the same."""

MEAN_TO_DEVIATION = float(np.sqrt(np.pi / 2.0))
"""Standard deviation over mean absolute value, for normal errors."""


def account_of(kernel: Autotuner, decision: Decision) -> Account:
    """Return the account of a decision."""
    view = decision.view
    explain_illegal(kernel, decision.fates, view)
    predicted: dict[int, float] = {}
    basis, error, notes = None, None, decision.notes
    problem = view.known
    if problem is not None and view.gpu is not None and view.table is not None:
        predictor = shipped_predictor()
        ranking = predictor.rank(problem, view.gpu, view.table, with_rejected=False)
        predicted = {view.kept[c.position]: c.latency_us for c in ranking.candidates}
        if decision.position in predicted:
            tile = view.table.configs[view.kept.index(decision.position)]
            answer = predictor.predict(problem, view.gpu, tile)
            basis, error = answer.basis, typical_error(answer)
        if ranking.ordered_by is not None:  # an order without times says nothing of a loss
            error, notes = None, [*notes, ranking.notes[-1]]
    measured = _read_times(kernel, decision)
    if decision.result is not None:
        measured = {decision.texts[e.config]: e.median_us for e in decision.result.entries}
    rows = tuple(
        Row(
            position=i,
            config=str(config),
            fate=decision.fates.get(i, (Fate.NOT_TIMED, None))[0],
            reason=decision.fates.get(i, (Fate.NOT_TIMED, None))[1],
            predicted_us=predicted.get(i),
            measured_us=measured.get(i),
            chosen=i == decision.position,
            values=_values(config),
        )
        for i, config in enumerate(decision.candidates)
    )
    return Account(
        kernel=kernel.name,
        policy=decision.policy,
        device=decision.identity.name,
        rows=rows,
        decided_by=decision.by,
        problem=None if problem is None else _spoken(problem),
        model_gpu=None if view.gpu is None or problem is None else view.gpu.name,
        basis=basis,
        expected_loss=_expected_loss(decision, predicted, error, measured),
        bucket=decision.bucket or _asked_buckets(kernel),
        notes=tuple(notes),
    )


def _values(config: Any) -> dict[str, str]:
    """A configuration's own fields by name; hooks by theirs."""
    values = dict(config.all_kwargs())
    hook = getattr(config, "pre_hook", None)
    if hook is not None:
        values["pre_hook"] = getattr(hook, "__name__", type(hook).__name__)
    return {str(name): str(value) for name, value in values.items()}


def _read_times(kernel: Autotuner, decision: Decision) -> dict[int, float | None]:
    """Times that a decision taken from the store was made by, and what became of the others."""
    before = decision.timed_before
    if before is None:
        return {}
    found: dict[int, float | None] = {}
    for text, timing in kernel.memory().timings(before.key, before.protocol).items():
        i = decision.texts.get(text)
        if i is None:
            continue
        if timing.outcome.ran:
            decision.fates[i], found[i] = (Fate.STORED, None), timing.median_us
        else:
            decision.fates[i] = (Fate.FAILED, f"{timing.outcome}, remembered: {timing.reason}")
    return found


def _expected_loss(
    decision: Decision,
    predicted: dict[int, float],
    error: float | None,
    measured: Mapping[int, float | None],
) -> float | None:
    """By how much the choice is expected to be slower than the best one, a share.

    The model's errors of different configurations are taken as independent, of its typical size;
    what was timed is known to within the noise that the search found. Errors in fact go together,
    so the real loss tends to be smaller.
    """
    legal = [i for i, (fate, _) in decision.fates.items() if fate is not Fate.ILLEGAL]
    known = decision.view.known
    if len(legal) == 1 or (known is not None and not known.flops):
        return 0.0
    result = decision.result
    noise = 0.0 if result is None else result.noise
    if decision.timed_before is not None:
        noise = decision.timed_before.expected_loss or 0.0
    timed = {i: time for i, time in measured.items() if time}
    rivals = [i for i in predicted if i not in timed and i in decision.fates]
    if decision.position in timed and not rivals:
        return noise
    if error is None or decision.position not in predicted:
        return None
    draw = np.random.default_rng(0)
    spread = error * MEAN_TO_DEVIATION
    mine = np.log(predicted[decision.position]) + spread * draw.standard_normal(DRAWS)
    if decision.position in timed:  # its own error is known; the others' relative ones are not
        mine = np.full(DRAWS, np.log(predicted[decision.position]))
    others = np.log([predicted[i] for i in rivals if i != decision.position])
    if not len(others):
        return noise
    best = (others[:, None] + spread * draw.standard_normal((len(others), DRAWS))).min(axis=0)
    return float(noise + np.expm1(np.maximum(mine - best, 0.0)).mean())


def _asked_buckets(kernel: Autotuner) -> str | None:
    names = kernel.settings.buckets
    return f"as asked: {', '.join(names)}" if names else None


def _spoken(problem: TileProblem) -> str:
    if not isinstance(problem, Gemm):
        told = {n: v for n, v in problem.to_dict().items() if v is not None and v is not False}
        return f"{problem.family} " + " ".join(f"{name}={value}" for name, value in told.items())
    sizes = f"m={problem.m:,} n={problem.n:,} k={problem.k:,}"
    types = f"{problem.a_dtype} x {problem.b_dtype} -> {problem.out_dtype}"
    return f"{problem.family} {sizes}, {types}, {problem.a_layout} x {problem.b_layout}"
