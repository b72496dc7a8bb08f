"""A whole session: step after step, each until its time, whatever becomes of the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from perfmodel.errors import NoDeviceError, PerfmodelError, UsageError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.hardware.gpu import Gpu
from tuner.collect.inventory import NEEDS_NONE, manifest, require_known, visible_devices
from tuner.collect.session.attempt import under_way
from tuner.collect.session.plans import FULL, SMALL, plan_step
from tuner.collect.session.rehearsal import Mischief
from tuner.collect.session.results import StepEnd, write_step, write_summary
from tuner.collect.session.steps import STEPS, TIMED, Step, deadlines, plan_path
from tuner.collect.session.worker import COMPILE, DEVICE_LOST, DONE, STOPPED
from tuner.measure.nvml import Nvml

GRACE_S = 2.0
"""A step looks at the clock between measurements; past this it is ended."""

HUNG_S = 60.0
"""What takes so long hangs: a measurement's own limit is half a second, and the slowest reference
takes a few."""

RESTARTS_MAX = 3

DEFAULT_GPU = "h200-sxm"
"""What a rehearsal stands for, unless told."""

POLL_S = 0.05

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How to run a session.

    ``mischief`` says what a rehearsal is to lose; ``started`` is from when on the minutes count, as
    of `time.time`, by default now.
    """

    minutes: float
    out: Path
    device: str = "cuda"
    gpu: str | None = None
    work: Path | None = None
    rehearse: bool = False
    mischief: Mischief = field(default_factory=Mischief)
    hung_s: float = HUNG_S
    started: float | None = None


@dataclass
class _Worker:
    """A process of a step, waiting for its turn."""

    process: subprocess.Popen[str]
    log: Path
    fatal: dict[str, str] = field(default_factory=dict)


def run_session(options: Options, say: Say) -> list[StepEnd]:
    """Run every step in order until the minutes are over, and write what came.

    Returns:
        How each step ended.

    Raises:
        UsageError: options that make no sense together.
        NoDeviceError, NotInstalledError, UnknownGpuError: there is nothing to measure on.
    """
    started = time.time() if options.started is None else options.started
    until = deadlines(options.minutes, started)
    _check(options)
    gpu, about = _target(options)
    with tempfile.TemporaryDirectory(prefix="session-") as made:
        work = options.work or Path(made)
        work.mkdir(parents=True, exist_ok=True)
        for stale in work.glob("over-*"):
            stale.unlink()
        session = _Session(options, gpu, work, until, say)
        say(f"{about['device']}: {options.minutes:g} minutes, {len(until)} of {len(STEPS)} steps")
        try:
            ends = session.run()
        finally:
            session.close()
        write_summary(options.out, ends, about | {"minutes": options.minutes}, started, say)
    return ends


class _Session:
    def __init__(
        self, options: Options, gpu: Gpu, work: Path, until: Mapping[str, float], say: Say
    ) -> None:
        self._options, self._gpu, self._work = options, gpu, work
        self._until, self._say = until, say
        self._workers: dict[str, _Worker] = {}
        self._unplanned: str | None = None
        self._begun = 0.0

    def run(self) -> list[StepEnd]:
        """Run the steps; the next one's process starts while one has the device.

        What a step left is written while the next one measures.
        """
        ends: list[StepEnd] = []
        self._begin(STEPS[0])
        self._unplanned = self._plan_and_compile()
        for step, coming in zip(STEPS, [*STEPS[1:], None], strict=True):
            if step is not STEPS[0]:
                self._begin(step)
            if coming is not None and self._runs(coming):
                self._start(coming.name)
            if ends:
                ends[-1] = self._written(ends[-1])
            ends.append(self._end(step))
        ends[-1] = self._written(ends[-1])
        return ends

    def close(self) -> None:
        """End every process that is left."""
        for worker in self._workers.values():
            _end(worker.process)

    def _runs(self, step: Step) -> bool:
        return step.name in self._until and not (step.name in TIMED and self._unplanned)

    def _begin(self, step: Step) -> None:
        if not self._runs(step):
            return
        if step.name not in self._workers:
            self._start(step.name)
        self._begun = time.time()
        self._go(step.name)

    def _end(self, step: Step) -> StepEnd:
        if step.name not in self._until:
            return StepEnd(step.name, "dropped", "the minutes are too few for it", 0.0)
        if not self._runs(step):
            return StepEnd(step.name, "failed", self._unplanned, 0.0)
        state, reason = self._watch(step.name, self._until[step.name])
        self._over(step.name)
        return StepEnd(step.name, state, reason, time.time() - self._begun)

    def _written(self, end: StepEnd) -> StepEnd:
        options = self._options
        found = write_step(options.out, self._work, end, rehearse=options.rehearse)
        self._say(found.line())
        return found

    def _watch(self, name: str, until: float) -> tuple[str, str | None]:
        """Wait for a step; what hangs or dies is started again without what it was at."""
        restarts = 0
        while True:
            worker = self._workers[name]
            code = self._wait(worker, name, until)
            if code == DONE:
                return "done", None
            if code == STOPPED or time.time() >= until:
                return "stopped", "its time was over"
            reason = _last_line(worker.log) or f"its process ended with {_named(code)}"
            at = under_way(self._work / name / "attempt.json")
            again = code == DEVICE_LOST or code is None or code < 0
            if not again or at is None or restarts >= RESTARTS_MAX:
                return "failed", reason
            restarts += 1
            fatal = worker.fatal
            if code != DEVICE_LOST:  # then the row is there already
                what = f"hung for {self._patience_s(name):g} s" if code is None else _named(code)
                fatal = {**fatal, at[0]: f"took its process down: {what}"}
            (self._work / name / "attempt.json").unlink(missing_ok=True)
            self._start(name, fatal)
            self._go(name)

    def _wait(self, worker: _Worker, name: str, until: float) -> int | None:
        """The exit code of a step's process; ``None`` if it hung, and was ended."""
        while worker.process.poll() is None:
            now = time.time()
            if now >= until + GRACE_S:
                _end(worker.process)
                return STOPPED
            at = under_way(self._work / name / "attempt.json")
            if at is not None and now - at[1] > self._patience_s(name):
                _end(worker.process)
                return None
            time.sleep(POLL_S)
        return worker.process.returncode

    def _patience_s(self, name: str) -> float:
        """How long one measurement may take; a reference on the way takes what it takes."""
        return self._options.hung_s if name in TIMED else max(self._options.hung_s, HUNG_S)

    def _plan_and_compile(self) -> str | None:
        """Make the plans that are not there, and start compiling what they need.

        Returns:
            Why there is none; the steps that need no plan go on.
        """
        made = SMALL if self._options.rehearse else FULL
        wanted = {name: what for name, what in made.items() if name in self._until}
        if not wanted:
            return None
        try:
            for name, what in wanted.items():
                path = plan_path(self._work, name)
                if not path.exists():
                    plan_step(what, self._gpu).save(path)
        except PerfmodelError as error:
            return f"no plan: {error}"
        (self._work / "plans.json").write_text(json.dumps(list(wanted)), encoding="utf-8")
        self._start(COMPILE)
        process = self._workers[COMPILE].process
        (self._work / "compile.pid").write_text(str(process.pid), encoding="utf-8")
        self._go(COMPILE)
        return None

    def _start(self, name: str, fatal: Mapping[str, str] | None = None) -> None:
        folder = self._work / name
        folder.mkdir(parents=True, exist_ok=True)
        job: dict[str, Any] = {
            "step": name, "work": str(self._work.resolve()), "gpu": self._gpu.name,
            "device": self._options.device, "rehearse": self._options.rehearse,
            "fatal": dict(fatal or {}), "mischief": asdict(self._options.mischief),
        }  # fmt: skip
        environment = dict(os.environ)
        if self._options.rehearse and name == "correctness":
            environment["TRITON_INTERPRET"] = "1"
        log = folder / "log.txt"
        with log.open("w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tuner.collect.session.worker", json.dumps(job)],
                stdin=subprocess.PIPE, stdout=errors, stderr=errors, text=True, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self._workers[name] = _Worker(process, log, dict(fatal or {}))

    def _go(self, name: str) -> None:
        until = max(self._until.values()) if name == COMPILE else self._until[name]
        stdin: IO[str] | None = self._workers[name].process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"until": until}) + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # it died while it started: its log says why

    def _over(self, name: str) -> None:
        """Say that nothing more need be compiled for a step."""
        (self._work / f"over-{name}").touch()


def _check(options: Options) -> None:
    for name, step in asdict(options.mischief).items():
        allowed = TIMED if name != "fail" else tuple(step.name for step in STEPS)
        if step is not None and not options.rehearse:
            raise UsageError(f"--{name} is for rehearsals; add --rehearse")
        if step is not None and step not in allowed:
            raise UsageError(f"--{name} is {step!r}; use one of: {', '.join(allowed)}")
    if options.out.exists() and not options.out.is_dir():
        raise UsageError(f"--out {options.out} is a file; give a folder")


def _target(options: Options) -> tuple[Gpu, dict[str, Any]]:
    """The device to measure on, and what is known of it."""
    if options.rehearse:
        gpu = load_gpu(options.gpu or DEFAULT_GPU)
        return gpu, {"device": f"rehearsal for {gpu.name}, times are made up", "gpu": gpu.name}
    if options.gpu is not None:
        raise UsageError("--gpu is for rehearsals; a session measures on the device it finds")
    kind, _, ordinal = options.device.partition(":")
    if kind != "cuda" or not (ordinal or "0").isdigit():
        raise UsageError(f"--device is {options.device!r}; use cuda or cuda:1")
    devices = visible_devices()
    if int(ordinal or 0) >= len(devices):
        raise NoDeviceError(
            f"there is no {options.device}; this process sees {len(devices)}. {NEEDS_NONE}"
        )
    found = devices[int(ordinal or 0)]
    gpu = load_gpu(require_known(found.identity))
    return gpu, {
        "device": found.identity.name, "gpu": gpu.name,
        "manifest": manifest(found, Nvml().reading(found.facts.index)),
    }  # fmt: skip


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and whatever it started."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=GRACE_S)
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _named(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"code {code}"


def _last_line(log: Path) -> str | None:
    lines: Sequence[str] = log.read_text(encoding="utf-8", errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:500] if said else None
