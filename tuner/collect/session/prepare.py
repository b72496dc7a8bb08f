"""Compile what a session on some GPU will need, with no GPU, into a cache that can be carried."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from perfmodel.hardware.gpu import Gpu
from tuner.collect.ahead import Compiled, compile_variants
from tuner.collect.session.plans import FULL, SMALL, plan_step
from tuner.collect.session.ready import compile_order
from tuner.compiling.cpus import available_cpus

TELL_EVERY_S = 10.0

Say = Callable[[str], None]


def prepare(gpu: Gpu, minutes: float, *, rehearse: bool, say: Say) -> int:
    """Compile for a session on ``gpu``, what is needed soonest first, for so many minutes.

    A second call finds what the first one compiled, and goes on.

    Returns:
        How many binaries are in Triton's cache for it.

    Raises:
        NotInstalledError: Triton is absent.
        UsageError: it is a device that Triton does not compile for.
    """
    until, told = time.time() + 60 * minutes, 0.0
    done = compiled = cached = failed = total = 0

    def tell() -> None:
        say(f"{done:,} of {total:,}: {compiled:,} compiled, {cached:,} were there, "
            f"{failed:,} do not compile")  # fmt: skip

    for found, of in _compiled(gpu, until, rehearse=rehearse):
        done, total = done + 1, of
        failed += not found.outcome.ran
        cached += found.outcome.ran and found.cached
        compiled += found.outcome.ran and not found.cached
        if time.time() - told > TELL_EVERY_S:
            told = time.time()
            tell()
    tell()
    return compiled + cached


def _compiled(gpu: Gpu, until: float, *, rehearse: bool) -> Iterator[tuple[Compiled, int]]:
    """Each binary's result, and how many there are in all."""
    from tuner.collect.session import correctness  # noqa: PLC0415 - loads Triton

    plans = [(n, plan_step(wanted, gpu)) for n, wanted in (SMALL if rehearse else FULL).items()]
    timed = [variant for _, variant in compile_order(plans)]
    checked = [] if rehearse else list(correctness.binaries(correctness.cases(gpu)))
    total = len(checked) + len(timed)
    for variants in (checked, timed):
        for _, found in compile_variants(
            variants, gpu.architecture, available_cpus(), wanted=lambda _: time.time() < until
        ):
            yield found, total
