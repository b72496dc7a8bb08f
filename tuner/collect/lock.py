"""One run at a time on one output, and who that is."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from perfmodel.errors import OutputLockedError
from perfmodel.files import cannot_write


@contextlib.contextmanager
def hold(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock called ``name`` in ``folder``; the system frees it with the process.

    Raises:
        OutputLockedError: another process holds it; the message names it.
        CacheFolderError: the folder cannot be written.
    """
    holder = folder / f".{name}.holder.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f".{name}.lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise OutputLockedError(
            f"{folder / name} is being written by {describe(_read(holder))}; wait for it, end it, "
            "or choose another folder with --out"
        ) from None
    except OSError as error:
        raise cannot_write(folder, error, "--out DIR") from error
    try:
        with contextlib.suppress(OSError):  # a full disk: the lock holds without its name
            holder.write_text(json.dumps(me()), encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink()
        lock.release()


def me() -> dict[str, Any]:
    """Return what tells this process from others on a cluster."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "job": os.environ.get("SLURM_JOB_ID"),
    }


def describe(holder: dict[str, Any]) -> str:
    """Return a holder in words."""
    if not holder:
        return "another process, which has not said its name"
    job = f", Slurm job {holder['job']}" if holder.get("job") else ""
    return f"process {holder['pid']} on {holder['host']}{job}, since {holder['since']}"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) and {"pid", "host", "since"} <= set(found) else {}
    except (OSError, ValueError):
        return {}
