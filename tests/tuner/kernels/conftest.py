"""Runs checks of kernels in Triton's interpreter, chosen when a process imports Triton."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tuner.kernels.language import INSTALLED

HAS_TORCH = importlib.util.find_spec("torch") is not None

PREPARE = """
import torch
torch.set_num_threads(1)
from tuner.kernels.interpreter import mend_interpreter
mend_interpreter()
from perfmodel.problems import *
from perfmodel.problems.attention import Attention
from perfmodel.tiling.config import TileConfig
from tuner.kernels.catalog import find
from tuner.kernels.execution import allocate, execute

def check(name, problem, config, seed=0):
    wrong = find(name).verify(problem, config, seed=seed)
    assert wrong is None, (name, problem, str(config), wrong)
"""


@pytest.fixture(scope="session")
def interpret() -> Callable[[str], None]:
    """Run lines of Python with ``check(kernel, problem, config)`` at hand; they must not fail."""
    if not (INSTALLED and HAS_TORCH):
        pytest.skip("Triton or torch is not installed")

    def run(lines: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", PREPARE + lines + "\nprint('done')"],
            env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout.endswith("done\n"), done.stderr[-3000:]

    return run
