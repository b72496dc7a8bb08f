"""Compiling in workers: what goes wrong in one costs one configuration."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import CacheWarning, RunFailedError
from tuner.compile import CompiledKernel, Specialization
from tuner.compiling.compile_cache import CompileCache
from tuner.compiling.compile_job import CompileJob
from tuner.compiling.compile_pool import compile_all
from tuner.compiling.cpus import available_cpus
from tuner.compiling.portable import PortableKernel

FAKE_COMPILER = """
import json, os, sys, time
from dataclasses import asdict
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    how = job["options"]["how"]
    with open(job["options"]["log"], "a") as log:
        log.write(f"{how} {os.getpid()} {time.monotonic()}\\n")
    if how == "abort":
        print("LLVM ERROR: cannot select", file=sys.stderr, flush=True)
        os.abort()
    if how == "hang":
        time.sleep(600)
    if how == "exit":
        sys.exit(3)
    time.sleep(job["options"].get("seconds", 0.0))
    print(json.dumps({
        "target": job["target"], "num_warps": 4, "outcome": "ok", "reason": None, "seconds": 0.1,
        "shared_bytes": 1024, "registers": 32, "stack_bytes": 0, "tensor_memory_columns": None,
    }), flush=True)
"""
KERNEL = PortableKernel("k", "test.k", "", ())


@pytest.fixture
def compiler(tmp_path: Path) -> list[str]:
    script = tmp_path / "fake_compiler.py"
    script.write_text(FAKE_COMPILER)
    return [sys.executable, str(script)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def job(how: str, log: Path, **options: object) -> CompileJob:
    return CompileJob(
        KERNEL, Specialization({}, {}, {}), "sm_90", {"how": how, "log": str(log), **options}, how
    )


def test_bc1_an_abort_in_the_compiler_costs_one_configuration(
    compiler: list[str], log: Path
) -> None:
    # Stock Triton 3.6.0 compiles in the caller's process, which ends with it.
    jobs = [job("ok", log, i=0), job("abort", log), job("ok", log, i=1), job("exit", log)]
    found = compile_all(jobs, workers=1, command=compiler)
    assert [f.outcome for f in found] == [
        Outcome.OK, Outcome.CRASHED, Outcome.OK, Outcome.CRASHED,
    ]  # fmt: skip
    assert found[1].reason is not None
    assert "compiler crashed (signal 6, SIGABRT)" in found[1].reason
    assert "LLVM ERROR: cannot select" in found[1].reason
    assert found[3].reason == "compiler exited with code 3"


def test_a_hang_in_the_compiler_costs_one_configuration_and_its_limit(
    compiler: list[str], log: Path
) -> None:
    jobs = [job("hang", log), job("ok", log, i=0), job("ok", log, i=1)]
    started = time.monotonic()
    found = compile_all(jobs, workers=1, limit_s=1.0, command=compiler)
    assert [f.outcome for f in found] == [Outcome.TIMEOUT, Outcome.OK, Outcome.OK]
    assert found[0].reason == "compiling took over 1 s"
    assert time.monotonic() - started < 10.0


def test_tt7_sixteen_compilations_of_a_fifth_of_a_second_run_side_by_side(
    compiler: list[str], log: Path
) -> None:
    # Stock Triton 3.6.0 compiles them one after the other: 3.2 s.
    jobs = [job("ok", log, seconds=0.2, i=i) for i in range(16)]
    compile_all(jobs[:8], workers=8, command=compiler)  # how long starting takes is no matter
    log.unlink()
    started = time.monotonic()
    found = compile_all(jobs, workers=8, command=compiler)
    assert all(f.ok for f in found)
    assert time.monotonic() - started < 16 * 0.2
    assert len({line.split()[1] for line in log.read_text().splitlines()}) > 1


def test_results_are_stored_crashes_included_and_not_made_again(
    compiler: list[str], log: Path, tmp_path: Path
) -> None:
    jobs = [job("ok", log), job("abort", log)]
    first = compile_all(jobs, command=compiler, cache=CompileCache(tmp_path))
    again = compile_all(jobs, command=compiler, cache=CompileCache(tmp_path))
    assert again == first
    assert len(log.read_text().splitlines()) == 2


def test_a_timeout_is_tried_again_with_more_patience_only(
    compiler: list[str], log: Path, tmp_path: Path
) -> None:
    jobs, cache = [job("hang", log)], CompileCache(tmp_path)
    for limit_s, attempts in ((0.3, 1), (0.3, 1), (0.2, 1), (0.5, 2)):
        found = compile_all(jobs, limit_s=limit_s, command=compiler, cache=cache)
        assert found[0].outcome is Outcome.TIMEOUT
        assert len(log.read_text().splitlines()) == attempts


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_torn_result_is_a_miss_with_one_warning(
    compiler: list[str], log: Path, tmp_path: Path, kept: float
) -> None:
    jobs = [job("ok", log, i=i) for i in range(2)]
    compile_all(jobs, command=compiler, cache=CompileCache(tmp_path))
    for path in tmp_path.glob("compiled/*/*.json"):
        path.write_text(path.read_text()[: int(kept * len(path.read_text()))])
    with pytest.warns(CacheWarning, match="cannot be read") as caught:
        found = compile_all(jobs, command=compiler, cache=CompileCache(tmp_path))
    assert len(caught) == 1
    assert all(f.ok for f in found)
    for path in tmp_path.glob("compiled/*/*.json"):
        assert json.loads(path.read_text())["result"]["outcome"] == "ok"


def test_a_folder_that_cannot_be_written_is_one_warning(
    compiler: list[str], log: Path, tmp_path: Path
) -> None:
    (tmp_path / "compiled").write_text("a file in the way")
    with pytest.warns(CacheWarning, match="not stored|cannot be read") as caught:
        found = compile_all(
            [job("ok", log, i=i) for i in range(2)], command=compiler, cache=CompileCache(tmp_path)
        )
    assert len(caught) == 1
    assert all(f.ok for f in found)


def test_progress_tells_every_result(compiler: list[str], log: Path) -> None:
    seen: list[tuple[int, int]] = []

    def tell(job: CompileJob, result: CompiledKernel, done: int, total: int) -> None:
        seen.append((done, total))

    compile_all([job("ok", log, i=i) for i in range(3)], command=compiler, tell=tell)
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_no_worker_stays_behind(compiler: list[str], log: Path) -> None:
    compile_all([job("ok", log, i=i) for i in range(3)], workers=2, command=compiler)
    for line in log.read_text().splitlines():
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[1]), 0)


def test_a_worker_that_does_not_start_is_an_error_and_no_configurations_fault(
    tmp_path: Path, log: Path
) -> None:
    with pytest.raises(RunFailedError, match="exited with code 7"):
        compile_all([job("ok", log)], command=[sys.executable, "-c", "raise SystemExit(7)"])


def test_nothing_to_compile_starts_nothing() -> None:
    assert compile_all([], command=["/nonexistent"]) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "max 100000"}, 4),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "900000 100000"}, 4),
        ({"a/cpu.max": "100000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({}, 4),
        ({"cpu.max": "nonsense"}, 4),
    ],
)
def test_a_containers_quota_and_the_affinity_bound_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 2, 3}, raising=False)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    own = tmp_path / "own"
    own.write_text("0::/a\n1:cpu,cpuacct:/b\n")
    assert available_cpus(tmp_path, own) == expected
