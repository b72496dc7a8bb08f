"""Training in tests takes one thread: on a busy machine, threads that wait for each other spin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_training_thread() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.sched_getaffinity", lambda _pid: {0}, raising=False)
        yield
