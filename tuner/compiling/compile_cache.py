"""Results of compilations in the user's cache folder, a small JSON file each.

Crashes and timeouts are kept as well: what took the compiler down once is not tried again.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import CacheFolderError, CacheWarning
from perfmodel.files import atomic_path, cache_dir
from tuner.compile import CompiledKernel

SCHEMA = 1


class CompileCache:
    """Stores results by `tuner.compiling.compile_job.CompileJob.key`.

    A file that cannot be read is a miss; a folder that cannot be written gives one warning.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = cache_dir(folder) / "compiled"
        self._warned = False

    def find(self, key: str, limit_s: float) -> CompiledKernel | None:
        """Return a stored result, ``None`` for a miss.

        A compilation that was cut off at less than ``limit_s`` counts as a miss.
        """
        try:
            values = json.loads(self._path(key).read_text(encoding="utf-8"))
            if values["schema"] != SCHEMA or values["key"] != key:
                return None
            result = result_of(values["result"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._warn(f"a stored compilation cannot be read and is made again: {error}")
            return None
        cut_short = result.outcome is Outcome.TIMEOUT and values["limit_s"] < limit_s
        return None if cut_short else result

    def put(self, key: str, result: CompiledKernel, limit_s: float) -> None:
        """Store a result."""
        values = {"schema": SCHEMA, "key": key, "limit_s": limit_s, "result": asdict(result)}
        try:
            with atomic_path(self._path(key)) as path:
                path.write_text(json.dumps(values), encoding="utf-8")
        except CacheFolderError as error:
            self._warn(f"compilations are not stored: {error}")

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(message, CacheWarning, stacklevel=3)


def result_of(values: dict[str, Any]) -> CompiledKernel:
    """Build from the plain fields of a result.

    Raises:
        ValueError: fields are missing or foreign.
    """
    known = {f.name for f in fields(CompiledKernel)}
    if set(values) != known:
        raise ValueError(f"fields {sorted(set(values) ^ known)} are missing or foreign")
    return CompiledKernel(**values | {"outcome": Outcome(values["outcome"])})
