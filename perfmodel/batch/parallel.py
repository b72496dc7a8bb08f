"""Large tables on several cores: groups of requests alike go to processes of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from perfmodel.batch.requests import Request
from perfmodel.batch.run import Answer, Tell, group_requests, predict_requests
from perfmodel.errors import RunFailedError
from perfmodel.predictor import Predictor

WORTH_PROCESSES = 20_000
"""Requests from which on the seconds that processes take to start are won back."""

PROCESSES_MAX = 4
"""More would each load the models for little work."""

_predictors: list[Predictor] = []


def predict_in_processes(
    requests: Sequence[Request], model: Path | None, tell: Tell
) -> list[Answer]:
    """Answer requests as `predict_requests` does, on as many cores as there are.

    Starts processes that import the caller's main module: for programs, not for scripts.

    Raises:
        RunFailedError: a process died.
    """
    processes = min(_cores(), PROCESSES_MAX)
    if processes == 1 or len(requests) < WORTH_PROCESSES:
        return predict_requests(requests, Predictor(model), tell)
    answers: list[Answer | None] = [None] * len(requests)
    groups = sorted(group_requests(requests), key=len, reverse=True)
    done = 0
    # Forking would copy the compiled trees' engine in whatever state its threads left it.
    with ProcessPoolExecutor(processes, get_context("spawn"), _start, (model,)) as pool:
        tell(f"predicting on {processes} cores", 0.0)
        tasks = {pool.submit(_answer, [requests[i] for i in at]): at for at in groups}
        try:
            for task in as_completed(tasks):
                for i, found in zip(tasks[task], task.result(), strict=True):
                    answers[i] = found
                done += len(tasks[task])
                tell(f"predicting on {processes} cores", done / len(requests))
        except BrokenProcessPool as error:
            raise RunFailedError(
                "a process that predicts died, perhaps for want of memory; give fewer rows at once"
            ) from error
    return [a for a in answers if a is not None]


def _cores() -> int:
    known = getattr(os, "sched_getaffinity", None)
    return len(known(0)) if known else os.cpu_count() or 1


def _start(model: Path | None) -> None:
    _predictors.append(Predictor(model))


def _answer(requests: list[Request]) -> list[Answer]:
    return predict_requests(requests, _predictors[0])
