"""Kernels that travel as text, and what comes of them in another process."""

# ruff: noqa: N803 - compile-time arguments of kernels are in capitals, as in Triton's own

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import KernelNotPortableError
from perfmodel.problems.dtypes import FP16
from tuner.compile import compile_kernel, specialize
from tuner.compiling.compile_job import CompileJob
from tuner.compiling.compile_pool import compile_all
from tuner.compiling.portable import PortableKernel, load, portable

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

SCALE = tl.constexpr(3)
KIND = tl.float32
TABLE: dict[str, int] = {}


@triton.jit
def scaled(x, factor: tl.constexpr):  # type: ignore[no-untyped-def]
    return x * factor * SCALE


@triton.jit(do_not_specialize=["n"])
def add_one(x_ptr, n, BLOCK: tl.constexpr, FAIL: tl.constexpr = 0):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(KIND)
    tl.static_assert(FAIL == 0, "told to fail")
    tl.store(x_ptr + at, scaled(x, 2) + 1, mask=at < n)


@triton.jit
def reads_a_table(x_ptr):  # type: ignore[no-untyped-def]
    tl.store(x_ptr, TABLE["x"])


def job(block: int, kernel: Any = add_one, **more: int) -> CompileJob:
    constexprs = {"BLOCK": block, "FAIL": 0} | more
    known = specialize(kernel.arg_names, {"x_ptr": FP16}, {"n": 1000}, constexprs)
    return CompileJob(portable(kernel), known, "sm_80", {"num_warps": 1}, f"block {block}")


@pytest.fixture(autouse=True)
def triton_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


def test_callees_constants_and_options_travel_and_give_the_same_kernel() -> None:
    sent = json.loads(json.dumps(portable(add_one).to_dict()))
    made = load(PortableKernel.from_dict(sent))
    assert [f["name"] for f in sent["functions"]] == ["scaled", "add_one"]
    assert made.do_not_specialize == ["n"]
    assert made.starting_line_number == add_one.starting_line_number
    assert made.cache_key == add_one.cache_key


def test_what_text_cannot_carry_is_named() -> None:
    with pytest.raises(KernelNotPortableError, match=r"reads_a_table.*'TABLE' is dict"):
        portable(reads_a_table)


def test_a_job_survives_json_and_its_key_tells_jobs_apart() -> None:
    sent = CompileJob.from_dict(json.loads(json.dumps(job(64).to_dict())))
    assert sent.key() == job(64).key()
    assert sent.specialization.attrs == job(64).specialization.attrs
    keys = {job(64).key(), job(128).key(), job(64, FAIL=1).key()}
    assert len(keys) == 3


def test_workers_compile_and_fill_tritons_own_cache(triton_cache: Path) -> None:
    found = compile_all([job(64), job(128), job(64, FAIL=1)], workers=1)
    assert [f.outcome for f in found] == [Outcome.OK, Outcome.OK, Outcome.COMPILE_FAILED]
    assert found[0].registers is not None
    assert found[0].stack_bytes == 0
    assert "told to fail" in (found[2].reason or "")
    kernels = {p.name for p in triton_cache.iterdir() if any(p.glob("*.cubin"))}
    assert len(kernels) == 2
    here = compile_kernel(add_one, job(64).specialization, "sm_80", {"num_warps": 1})
    assert here.registers == found[0].registers
    assert {p.name for p in triton_cache.iterdir() if any(p.glob("*.cubin"))} == kernels


def test_the_users_script_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, pathlib\n"
        "pathlib.Path(sys.argv[1]).open('a').write('ran\\n')\n"
        "import triton, triton.language as tl\n"
        "from tuner.compile import specialize\n"
        "from tuner.compiling.compile_job import CompileJob\n"
        "from tuner.compiling.compile_pool import compile_all\n"
        "from tuner.compiling.portable import portable\n"
        "@triton.jit\n"
        "def k(x_ptr, B: tl.constexpr):\n"
        "    tl.store(x_ptr + tl.arange(0, B), 1.0)\n"
        "from perfmodel.problems.dtypes import FP32\n"
        "known = specialize(['x_ptr', 'B'], {'x_ptr': FP32}, {}, {'B': 32})\n"
        "found = compile_all([CompileJob(portable(k), known, 'sm_90')], workers=1)\n"
        "assert found[0].ok, found\n"
    )
    ran = tmp_path / "ran"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    subprocess.run([sys.executable, str(script), str(ran)], check=True, env=environment)
    assert ran.read_text() == "ran\n"
