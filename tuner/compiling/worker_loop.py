"""What runs in a child of `worker_process`: questions in, answers out, one line each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def serve(handle: Handler) -> None:
    """Answer questions until there are no more.

    Whatever the handled code prints, in Python or below it, goes to stderr: stdout carries
    answers alone.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    _say(answers, {"ready": True})
    for line in sys.stdin.buffer:
        _say(answers, handle(json.loads(line)))


def _say(answers: Any, message: Mapping[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
