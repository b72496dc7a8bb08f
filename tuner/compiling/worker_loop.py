"""What runs in a child of `worker_process`: questions in, answers out, one line each."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

WATCH_S = 0.5
"""How often a worker looks whether whoever wants its answers still lives."""

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def serve(handle: Handler) -> None:
    """Answer questions until there are no more.

    Whatever the handled code prints, in Python or below it, goes to stderr: stdout carries
    answers alone. The worker ends with its parent, in the middle of a hang too.
    """
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    _say(answers, {"ready": True})
    for line in sys.stdin.buffer:
        _say(answers, handle(json.loads(line)))


def _say(answers: Any, message: Mapping[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os.killpg(0, signal.SIGKILL)  # a session of its own: its children go too
