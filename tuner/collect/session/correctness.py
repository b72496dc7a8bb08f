"""Every reference kernel against float64, on sizes whose reference is quick."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DeviceLostError, UnsupportedDtypeError
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention import Attention, Lengths
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import TileConfig
from tuner.collect.kernels import Case, variants_of
from tuner.collect.session.attempt import Attempt
from tuner.kernels.catalog import KERNELS, ReferenceKernel, find
from tuner.measure.failures import classify

DIVISOR = 4
"""Sizes of the catalogue's examples are divided by this: gradients keep all scores in memory."""

CONFIGS_PER_EXAMPLE = 2

Problem = Gemm | Attention | GroupedGemm


@dataclass(frozen=True)
class Checked:
    """What one check came to; ``name`` tells it from the others."""

    name: str
    kernel: str
    problem: Mapping[str, Any]
    config: Mapping[str, Any]
    outcome: Outcome
    reason: str | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**vars(self), "outcome": self.outcome.value}


def cases(gpu: Gpu, *, divisor: int = DIVISOR, seed: int = 0) -> list[tuple[str, Case]]:
    """Return what to check by name, in an order that meets every kernel early."""
    draw = random.Random(seed)
    by_kernel = [list(_cases_of(kernel, gpu, divisor, draw)) for kernel in KERNELS]
    return [
        found[turn]
        for turn in range(max(map(len, by_kernel)))
        for found in by_kernel
        if turn < len(found)
    ]


def check_all(
    wanted: Sequence[tuple[str, Case]],
    path: Path,
    *,
    device: str,
    until: float,
    attempt: Attempt,
    verify: Callable[[Case, str], str | None],
) -> bool:
    """Check what is not in ``path`` yet, a line each as soon as it is known.

    Returns:
        Whether all were checked by ``until``, seconds as of `time.time`.

    Raises:
        DeviceLostError: a new process has to go on.
    """
    done = {row["name"] for row in read_lines(path)}
    with path.open("a", encoding="utf-8") as out:

        def tell(name: str, case: Case, outcome: Outcome, reason: str | None, s: float) -> None:
            found = Checked(
                name, case.kernel, case.problem.to_dict(), case.config.to_dict(), outcome, reason,
                round(s, 4),
            )  # fmt: skip
            out.write(json.dumps(found.to_dict()) + "\n")
            out.flush()

        for name, case in wanted:
            if name in done:
                continue
            if name in attempt.fatal:
                tell(name, case, Outcome.CRASHED, attempt.fatal[name], 0.0)
                continue
            if time.time() >= until:
                return False
            attempt.begin(name)
            started, lost = time.perf_counter(), None
            try:
                wrong = verify(case, device)
                outcome = Outcome.OK if wrong is None else Outcome.WRONG_RESULT
            except Exception as error:
                found = classify(error)
                wrong, outcome = f"{type(error).__name__}: {error}", Outcome.CRASHED
                if found is not None:
                    wrong, outcome = found.reason, found.outcome
                    lost = found.reason if found.poisoned else None
            tell(name, case, outcome, wrong, time.perf_counter() - started)
            if lost is not None:
                raise DeviceLostError(f"the CUDA context was lost: {lost}")
    attempt.clear()
    return True


def verify_on(case: Case, device: str) -> str | None:
    """Run a case once, and return how it differs from the reference, ``None`` if it does not."""
    return find(case.kernel).verify(case.problem, case.config, device=device)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines, a torn end left out."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def binaries(wanted: Sequence[tuple[str, Case]]) -> Sequence[Any]:
    """Return what the cases need compiled."""
    return variants_of([case for _, case in wanted])


def _cases_of(
    kernel: ReferenceKernel, gpu: Gpu, divisor: int, draw: random.Random
) -> list[tuple[str, Case]]:
    found = []
    for number, example in enumerate(kernel.examples):
        problem = smaller(example, divisor)
        try:
            space = list(kernel.space(problem, gpu))
        except UnsupportedDtypeError:
            continue
        if not space:  # what is made for large problems alone, such as persistent programs
            problem, space = example, list(kernel.space(example, gpu))
        for at, config in enumerate(_picked(space, divisor, draw)):
            found.append((f"{kernel.name} {number}.{at}", Case(kernel.name, problem, config)))
    return found


def _picked(space: Sequence[TileConfig], divisor: int, draw: random.Random) -> Sequence[TileConfig]:
    if divisor > DIVISOR:  # a rehearsal, in the interpreter: the smallest tile alone
        return sorted(space, key=lambda c: c.block_m * c.block_n * c.block_k)[:1]
    return draw.sample(space, min(CONFIGS_PER_EXAMPLE, len(space)))


def smaller(problem: Problem, divisor: int) -> Problem:
    """Return a problem like it: all that makes it special is kept, and sizes are divided."""

    def part(size: int, least: int = 1) -> int:
        return max(size // divisor, min(size, least))

    if isinstance(problem, Gemm):
        return replace(
            problem, m=part(problem.m, 16), n=part(problem.n, 16), k=part(problem.k, 16),
            lda=None, ldb=None,
        )  # fmt: skip
    if isinstance(problem, GroupedGemm):
        return replace(
            problem, tokens=part(problem.tokens, 16), hidden=part(problem.hidden, 64),
            intermediate=part(problem.intermediate, 64),
        )  # fmt: skip

    def lengths(given: Lengths) -> Any:
        return part(given, 16) if isinstance(given, int) else [part(n, 16) for n in given]

    kv_heads = min(problem.kv_heads or 1, 2)
    return replace(
        problem, q_len=lengths(problem.q_len), kv_len=lengths(problem.kv_len or 0),
        q_heads=kv_heads * problem.group, kv_heads=kv_heads,
        window=None if problem.window is None else part(problem.window, 4),
    )  # fmt: skip
