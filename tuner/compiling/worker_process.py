"""A long-lived child process that answers JSON lines: it may crash, hang or abort without harm.

The child has an entry point of its own (``python -m MODULE``), so the user's script is never run
again, and whatever it is sent is text: nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import perfmodel
from perfmodel.errors import RunFailedError

STARTUP_LIMIT_S = 120.0
"""For the interpreter and its imports: torch alone takes tens of seconds from a cold disk."""

_STDERR_BYTES = 4096


class WorkerDiedError(RunFailedError):
    """The child ended before it answered."""


class WorkerTimeoutError(RunFailedError):
    """The child did not answer in time and was killed."""


class WorkerProcess:
    """One child; started with the first question, and again after it died.

    Args:
        command: what to run: it prints ``{"ready": true}`` once it can be asked, then answers one
            line of JSON with one line.
        environment: variables to set for it, beside those of this process; ``None`` removes one.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str | None] | None = None
    ) -> None:
        self._command = list(command)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: Any = None
        self._unread = b""
        self._ready = False
        self._owner = os.getpid()
        self.starts = 0

    @property
    def running(self) -> bool:
        """Whether there is a child to ask."""
        self._leave_to_owner()
        return self._process is not None and self._process.poll() is None

    def ask(self, message: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a question and return the answer.

        Starting the child does not count towards ``limit_s``. What interrupts the wait ends the
        child: its answer would be taken for that of the next question.

        Raises:
            WorkerTimeoutError: no answer in time; the child and its children are killed.
            WorkerDiedError: it died; the message names the signal or exit code, and what it last
                said.
        """
        self.start()
        try:
            self._send(message)
            return self._answer(limit_s)
        except RunFailedError:
            raise
        except BaseException:
            self.close()
            raise

    def _send(self, message: Mapping[str, Any]) -> None:
        process = self._require()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            raise self._died() from None

    def start(self) -> None:
        """Start the child unless it runs.

        Raises:
            WorkerTimeoutError, WorkerDiedError: it did not become ready.
        """
        self.begin()
        if not self._ready:
            self._answer(STARTUP_LIMIT_S)
            self._ready = True

    def begin(self) -> None:
        """Start the child unless it runs, and wait for nothing.

        Raises:
            WorkerDiedError: no memory, no file descriptors, no temporary folder.
        """
        if self.running:
            return
        self.close()
        self._owner, self._ready = os.getpid(), False
        self._unread = b""
        environment = os.environ | {k: v for k, v in self._environment.items() if v is not None}
        for name in (k for k, v in self._environment.items() if v is None):
            environment.pop(name, None)
        environment["PYTHONPATH"] = _python_path(environment.get("PYTHONPATH"))
        try:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.close()
            raise WorkerDiedError(f"cannot be started: {error}") from error
        self.starts += 1

    def close(self) -> None:
        """End the child, its own children included."""
        self._leave_to_owner()
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was left to flush has no reader
                        pipe.close()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def _leave_to_owner(self) -> None:
        """In a fork the child of this process's parent is not ours: neither to ask nor to end."""
        if self._process is not None and os.getpid() != self._owner:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._process.returncode = 0  # not waited for
            self._process = None

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, limit_s: float) -> dict[str, Any]:
        process = self._require()
        assert process.stdout is not None
        until = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            ready = left > 0 and select.select([process.stdout], [], [], left)[0]
            if not ready:
                self.close()
                raise WorkerTimeoutError(f"no answer within {limit_s:g} s")
            read = os.read(process.stdout.fileno(), 65536)
            if not read:
                raise self._died()
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise WorkerDiedError(f"the worker answered {line[:80]!r}, which is no JSON object")
        return answer

    def _require(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise WorkerDiedError("the worker is not running")
        return self._process

    def _died(self) -> WorkerDiedError:
        process = self._require()
        try:
            code = process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:  # it closed its output and lives on
            _kill(process)
            code = process.wait()
        said = self._last_words()
        self.close()
        return WorkerDiedError(f"{_ending(code)}{f': {said}' if said else ''}")

    def _last_words(self) -> str:
        if self._stderr is None:
            return ""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(size - _STDERR_BYTES, 0))
        lines = self._stderr.read().decode(errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines if line.strip())[-400:] if lines else ""

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def python_command(module: str) -> list[str]:
    """Return how to run one of our modules as a child of its own.

    ``-P`` keeps the current folder off its path: files of the user's there shadow nothing.

    Raises:
        WorkerDiedError: this process is no Python program but one that has Python built in; run as
            a worker it would be the user's program again.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        raise WorkerDiedError("cannot be started: there is no Python interpreter to run it")
    return [sys.executable, "-P", "-m", module]


def _python_path(existing: str | None) -> str:
    """The child finds the packages that this process uses, and whatever else it can import."""
    here = str(Path(perfmodel.__file__).resolve().parent.parent)
    inherited = [p for p in sys.path if p and Path(p).is_dir() and "site-packages" in p]
    parts = [here, *((existing or "").split(os.pathsep)), *inherited]
    return os.pathsep.join(dict.fromkeys(p for p in parts if p))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"crashed (signal {-code}, {name})"
