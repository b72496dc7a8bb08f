"""``python -m tuner.compiling.compile_worker``: compiles what it is sent, for `compile_pool`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tuner.compiling.compile_job import CompileJob
from tuner.compiling.worker_loop import serve


def answer(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Compile one job and return what `CompiledKernel` holds."""
    return asdict(CompileJob.from_dict(message).run())


if __name__ == "__main__":
    serve(answer)
