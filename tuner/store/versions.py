"""Which compiler a row was measured with."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata


@dataclass(frozen=True)
class Versions:
    """Soft fields of a row: another value makes its times a prior, not a timing.

    ``triton`` is the version, with the environment variables that change what it compiles.
    ``ptxas`` is ``bundled`` for the one that comes with Triton. A driver runs the same binary, so
    another driver version, kept beside each row, does not set it aside.
    """

    triton: str
    ptxas: str = "bundled"

    @classmethod
    def current(cls) -> Versions:
        """Return what this process would compile with, without starting Triton."""
        return cls(
            _triton_version() + _environment(),
            _ptxas_version(os.environ.get("TRITON_PTXAS_PATH", "")),
        )


def _triton_version() -> str:
    loaded = getattr(sys.modules.get("triton"), "__version__", None)
    return loaded if isinstance(loaded, str) else _installed_version()


def _environment() -> str:
    """Variables that Triton's own cache counts, where they are set; Triton is not loaded for it."""
    native = sys.modules.get("triton._C.libtriton")
    ask = getattr(native, "get_cache_invalidating_env_vars", None)
    found = ask() if callable(ask) else {}
    return "".join(f" {name}={value}" for name, value in sorted(found.items()))


@lru_cache(maxsize=1)
def _installed_version() -> str:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "none"


@lru_cache(maxsize=4)
def _ptxas_version(path: str) -> str:
    if not path:
        return "bundled"
    try:
        listing = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return path
    lines = [line.strip() for line in listing.splitlines() if line.strip()]
    return lines[-1] if lines else path
