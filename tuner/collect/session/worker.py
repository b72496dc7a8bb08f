"""One step of a session in a process of its own: what it breaks is its own.

The process loads all it needs, then waits for a line that says until when it may go on: while it
waits, the step before it has the GPU. Its rows are on disk as they come; it may be killed anywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import DeviceLostError, PerfmodelError
from perfmodel.hardware.catalog import load_gpu
from tuner.collect.bench import open_bench
from tuner.collect.plan_file import Plan, load_plan
from tuner.collect.session import rehearsal
from tuner.collect.session.attempt import Attempt
from tuner.collect.session.ready import ReadyReader, ReadyWriter, compile_order
from tuner.collect.session.steps import plan_path
from tuner.collect.session.timed import needs_of, time_plan
from tuner.compiling.cpus import available_cpus

DONE, STOPPED, DEVICE_LOST = 0, 10, 75
"""Exit codes: all of it, as far as its time went, and that a new process may go on."""

READY = "ready.jsonl"
NICENESS = 10
COMPILE = "compile"
PLAN_WAIT_S = 600.0


@dataclass(frozen=True)
class Job:
    """What a worker is told when it starts."""

    step: str
    work: Path
    gpu: str
    device: str
    rehearse: bool
    fatal: Mapping[str, str]
    mischief: rehearsal.Mischief

    @property
    def folder(self) -> Path:
        """Where the step's files lie."""
        return self.work / self.step

    @property
    def plan(self) -> Path:
        """The step's plan."""
        return plan_path(self.work, self.step)


def main(arguments: list[str] | None = None) -> int:
    """Run a step, and return how it ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", help="a Job as JSON")
    values = json.loads(parser.parse_args(arguments).job)
    mischief = rehearsal.Mischief(**values["mischief"])
    job = Job(**{**values, "work": Path(values["work"]), "mischief": mischief})
    job.folder.mkdir(parents=True, exist_ok=True)
    try:
        run = _STEPS.get(job.step, _timing)(job)
        line = sys.stdin.readline()
        if not line:
            return STOPPED  # nobody waits for it any more
        if job.mischief.fail == job.step:
            raise RuntimeError(f"step {job.step} fails, as the rehearsal was asked to")
        return DONE if run(float(json.loads(line)["until"])) else STOPPED
    except DeviceLostError as error:
        print(error, file=sys.stderr)
        return DEVICE_LOST
    except PerfmodelError as error:
        print(error, file=sys.stderr)
        return 1


Run = Callable[[float], bool]
"""Goes on until a moment of the wall clock, and returns whether all of it was done."""


def _correctness(job: Job) -> Run:
    from tuner.collect.ahead import compile_variants  # noqa: PLC0415 - by one step alone
    from tuner.collect.session import correctness  # noqa: PLC0415 - loads Triton

    gpu, device = load_gpu(job.gpu), job.device
    if job.rehearse:
        from tuner.kernels.interpreter import mend_interpreter  # noqa: PLC0415 - as above

        mend_interpreter()
        found = correctness.cases(gpu, divisor=rehearsal.DIVISOR)
        wanted = [(n, c) for n, c in found if rehearsal.checked_in_interpreter(n)]
        device = "cpu"
    else:
        wanted = correctness.cases(gpu)
        _load_torch(job)

    def run(until: float) -> bool:
        if not job.rehearse:
            binaries = correctness.binaries(wanted)
            compiling = compile_variants(
                binaries, gpu.architecture, available_cpus(), niceness=NICENESS, launchers=True,
                wanted=lambda _: time.time() < until,
            )  # fmt: skip
            for _ in compiling:
                if time.time() >= until:
                    break
        return correctness.check_all(
            wanted, job.folder / "checked.jsonl", device=device, until=until,
            attempt=Attempt(job.folder / "attempt.json", job.fatal),
            verify=correctness.verify_on,
        )  # fmt: skip

    return run


def _ceilings(job: Job) -> Run:
    from tuner.collect.session import ceilings  # noqa: PLC0415 - by one step alone

    gpu = load_gpu(job.gpu)
    _load_torch(job)

    def run(until: float) -> bool:
        probes = rehearsal.rehearsal_probes(gpu) if job.rehearse else (
            ceilings.probes(gpu, job.device)
        )  # fmt: skip
        meter: ceilings.Meter = (
            rehearsal.MadeUpMeter() if job.rehearse else ceilings.CudaMeter(job.device)
        )
        attempt = Attempt(job.folder / "attempt.json", job.fatal)
        with (job.folder / "ceilings.jsonl").open("w", encoding="utf-8") as out:
            for at, probe in enumerate(probes):
                if str(at) in job.fatal:
                    continue
                if time.time() >= until:
                    return False
                attempt.begin(str(at))
                for found in ceilings.measured([probe], meter):
                    out.write(json.dumps(found.to_dict()) + "\n")
                    out.flush()
        attempt.clear()
        return True

    return run


def _timing(job: Job) -> Run:
    plan = _waited_for(job.plan)
    needs = needs_of(plan)
    ready = ReadyReader(job.work / READY)
    ready.refresh()
    _load_torch(job)

    def run(until: float) -> bool:
        if job.rehearse:
            hang, die = (name == job.step for name in (job.mischief.hang, job.mischief.die))
            bench = rehearsal.rehearsal_bench(plan, hang=hang, die=die)
        else:
            bench = open_bench(job.device, plan)
        attempt = Attempt(job.folder / "attempt.json", job.fatal)
        try:
            done = time_plan(
                plan, bench, job.folder, needs=needs, ready=ready, until=until, attempt=attempt,
                compiling=lambda: _alive(job.work / "compile.pid"),
            )  # fmt: skip
        finally:
            bench.close()
        attempt.clear()
        return done

    return run


def _compile(job: Job) -> Run:
    """Compile what all steps need, on every core, in the order in which they need it."""
    from tuner.collect.ahead import Compiled, compile_variants  # noqa: PLC0415 - one step alone

    writer = ReadyWriter(job.work / READY)
    steps = json.loads((job.work / "plans.json").read_text(encoding="utf-8"))
    plans = [(step, load_plan(plan_path(job.work, step))) for step in steps]
    order = compile_order(plans)

    def run(until: float) -> bool:
        todo = [variant for _, variant in order]
        step_of = {variant.text: step for step, variant in order}
        if job.rehearse:
            todo = _few(order)
            for variant in {v.text: v for _, v in order}.values():
                if variant.text not in {t.text for t in todo}:
                    writer.tell(variant.text, None)

        def wanted(text: str) -> bool:
            over = (job.work / f"over-{step_of[text]}").exists()
            return time.time() < until and not over

        found: Compiled
        for variant, found in compile_variants(
            todo, plans[0][1].architecture, available_cpus(), niceness=NICENESS,
            launchers=not job.rehearse, wanted=lambda v: wanted(v.text),
        ):  # fmt: skip
            writer.tell(variant.text, None if found.outcome.ran else found.reason or "")
        writer.end()
        return True

    return run


def _few(order: list[tuple[str, Any]]) -> list[Any]:
    few: dict[str, list[Any]] = {}
    for step, variant in order:
        few.setdefault(step, []).append(variant)
    return [v for found in few.values() for v in found[: rehearsal.COMPILED_PER_STEP]]


_STEPS: Mapping[str, Callable[[Job], Run]] = {
    "correctness": _correctness,
    "ceilings": _ceilings,
    COMPILE: _compile,
}


def _waited_for(path: Path) -> Plan:
    until = time.monotonic() + PLAN_WAIT_S
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    return load_plan(path)


def _load_torch(job: Job) -> None:
    """Load what takes seconds while another step has the device; made-up times need nothing."""
    if job.rehearse:
        return
    try:
        import torch  # noqa: F401, PLC0415 - optional extra
        import triton  # noqa: F401, PLC0415 - as above
    except ImportError:
        return  # the step itself says what is missing


def _alive(pid_file: Path) -> bool:
    try:
        os.kill(int(pid_file.read_text(encoding="utf-8")), 0)
    except (OSError, ValueError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
