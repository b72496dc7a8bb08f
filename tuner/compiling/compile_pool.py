"""Many compilations at once, each worker in a process of its own.

A crash, a hang or an ``abort()`` in the compiler costs the configuration that it happened to.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import NotInstalledError
from tuner.compile import CompiledKernel
from tuner.compiling.compile_cache import CompileCache, result_of
from tuner.compiling.compile_job import CompileJob
from tuner.compiling.cpus import available_cpus
from tuner.compiling.worker_process import (
    WorkerDiedError,
    WorkerProcess,
    WorkerTimeoutError,
    python_command,
)

LIMIT_S = 60.0
"""For one compilation. Of a full grid of 8,640 tiles on an A100, most took under 2 s."""

Tell = Callable[[CompileJob, CompiledKernel, int, int], None]
"""Called with each job and its result as it comes, how many are done, and all of them."""


def compile_all(
    jobs: Sequence[CompileJob],
    *,
    workers: int | None = None,
    limit_s: float = LIMIT_S,
    cache: CompileCache | None = None,
    tell: Tell | None = None,
    command: Sequence[str] | None = None,
) -> list[CompiledKernel]:
    """Compile every job and return the results in order; a failure is a result.

    Triton's own cache, which the workers share with this process, holds the kernels afterwards.

    Args:
        jobs: what to compile.
        workers: how many processes; by default as many as CPUs may be used here.
        limit_s: seconds for one compilation.
        cache: where results are looked up and stored; ``None`` for nowhere.
        tell: told of every result, from whichever thread has it, one at a time.
        command: what to run as a worker; by default ours.

    Raises:
        NotInstalledError: Triton is absent.
    """
    if command is None and jobs and find_spec("triton") is None:
        raise NotInstalledError(
            "compiling a kernel needs Triton, which is not installed; "
            "install it with: pip install 'perfmodel[triton]'"
        )
    return _Pool(list(jobs), limit_s, cache, tell, command).run(workers)


class _Pool:
    def __init__(
        self,
        jobs: list[CompileJob],
        limit_s: float,
        cache: CompileCache | None,
        tell: Tell | None,
        command: Sequence[str] | None,
    ) -> None:
        self._jobs = jobs
        self._limit_s, self._cache, self._tell = limit_s, cache, tell
        self._command = command or python_command("tuner.compiling.compile_worker")
        self._results: list[CompiledKernel | None] = [None] * len(jobs)
        self._lock = threading.Lock()
        self._done = 0
        self._left: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._error: BaseException | None = None

    def run(self, workers: int | None) -> list[CompiledKernel]:
        for i, job in enumerate(self._jobs):
            known = None if self._cache is None else self._cache.find(job.key(), self._limit_s)
            if known is None:
                self._left.put(i)
            else:
                self._finish(i, known)
        count = min(workers or available_cpus(), self._left.qsize())
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # the user's interrupt: no worker may stay behind
            self._stop.set()
            raise
        if self._error is not None:
            raise self._error
        return [result for result in self._results if result is not None]

    def _work(self) -> None:
        try:
            with WorkerProcess(self._command) as worker:
                while not self._stop.is_set():
                    try:
                        i = self._left.get_nowait()
                    except queue.Empty:
                        return
                    result = self._compile(worker, self._jobs[i])
                    if self._cache is not None:
                        self._cache.put(self._jobs[i].key(), result, self._limit_s)
                    self._finish(i, result)
        except BaseException as error:  # shown to whoever asked, from their thread
            self._error = error
            self._stop.set()

    def _compile(self, worker: WorkerProcess, job: CompileJob) -> CompiledKernel:
        message = job.to_dict()
        worker.start()  # one that cannot even start is no fault of the job
        try:
            return result_of(worker.ask(message, self._limit_s))
        except WorkerTimeoutError:
            reason, outcome = f"compiling took over {self._limit_s:g} s", Outcome.TIMEOUT
        except WorkerDiedError as error:
            reason, outcome = f"compiler {error}", Outcome.CRASHED
        warps = int(job.options.get("num_warps", 4))
        return CompiledKernel(job.target, warps, outcome, reason, self._limit_s)

    def _finish(self, i: int, result: CompiledKernel) -> None:
        with self._lock:
            self._results[i] = result
            self._done += 1
            if self._tell is not None:
                self._tell(self._jobs[i], result, self._done, len(self._jobs))
