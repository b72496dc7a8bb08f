"""Compiling ahead: once, in processes, under the key that the launcher looks up on a GPU's host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import UsageError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.predictor import Predictor
from perfmodel.problems import Attention, Gemm, GroupedGemm
from tuner.collect import ahead, table_columns
from tuner.collect.ahead import Compiled, compile_plan
from tuner.collect.families import family_of
from tuner.collect.plan import Budget, make_plan
from tuner.collect.plan_file import Item, Plan, PlannedConfig, PlannedProblem, Settings
from tuner.kernels.language import INSTALLED

CARRY = Path(__file__).parents[3] / "scripts" / "carry.py"

needs_triton = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")

SMALL = {"block_m": 32, "block_n": 32, "block_k": 32, "group_m": 8, "num_warps": 2,
         "num_stages": 2, "split_k": 1, "num_ctas": 1}  # fmt: skip


def plan_with(*configs: dict[str, int], architecture: str = "sm_90") -> Plan:
    columns = table_columns.of_gemm(Gemm(512, 256, 100, a_dtype="bf16"))
    planned = tuple(PlannedConfig(SMALL | c, "stratum", 10.0) for c in configs)
    problem = PlannedProblem("gemm", "gemm", columns, "made up", 1.0, planned)
    return Plan("h100-sxm5", architecture, 0, None, None, Settings(), (problem,))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


LOOK_UP = """
import json, sys
from types import SimpleNamespace
import torch, triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from pathlib import Path
from tuner.collect.plan_file import load_plan
from tuner.collect.kernels import launches_of
from tuner.kernels.execution import torch_dtype

class Stub:
    "A driver that says that it has the target, and launches nothing."
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_device_interface(self): return torch.cpu
    def is_active(self): return True
driver.set_active(Stub())

hits = []
knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
for item in load_plan(Path(sys.argv[1])).items:
    for launch in launches_of(item).launches:
        tensors = {
            n: torch.empty(16, dtype=torch_dtype(d)) for n, d in launch.pointers.items()
        }
        launch.kernel.warmup(
            **tensors, **launch.integers, **launch.floats, **launch.constexprs, **launch.options,
            grid=launch.grid,
        )
print(json.dumps(hits))
"""


@needs_triton
def test_the_launcher_finds_what_was_compiled_and_a_second_run_compiles_nothing(
    cache: Path, tmp_path: Path
) -> None:
    plan = plan_with({}, {"num_warps": 4}, {"block_k": 64})
    told: list[tuple[int, int]] = []
    first = compile_plan(plan, tmp_path, processes=2, tell=lambda *seen: told.append(seen[:2]))
    assert (first.binaries, first.compiled, first.cached, first.failed) == (3, 3, 0, 0)
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    second = compile_plan(plan, tmp_path, processes=1)
    assert (second.compiled, second.cached) == (0, 3)
    assert looked_up(plan, tmp_path, cache) == [True, True, True]


def looked_up(plan: Plan, folder: Path, cache: Path) -> list[bool]:
    """What Triton's own launcher finds of a plan in a cache, in a process of its own."""
    plan.save(folder / "plan.json")
    looked = subprocess.run(
        [sys.executable, "-c", LOOK_UP, str(folder / "plan.json")],
        capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_CACHE_DIR": str(cache)},
    )  # fmt: skip
    assert looked.returncode == 0, looked.stderr
    found: list[bool] = json.loads(looked.stdout)
    return found


TINY = {"block_m": 16, "block_n": 32, "num_warps": 2, "num_stages": 1}
DEEP = TINY | {"block_k": 32, "group_m": 8}


def every_kernel() -> Plan:
    """One small configuration of each family's kernel."""
    wanted = (
        ("gemm", Gemm(64, 64, 64, a_dtype="fp8_e4m3", b_layout="col", out_dtype="bf16"), DEEP),
        ("attention", Attention(1, 128, q_heads=4, kv_heads=2, head_dim=64), TINY),
        ("attention-backward", Attention(1, 128, q_heads=2, head_dim=64, backward=True), TINY),
        ("decode", Attention(2, 1, 100, 4, 2, 64, page_size=16), TINY | {"split_k": 2}),
        ("moe", GroupedGemm(64, 4, 2, 64, 64), DEEP),
    )
    planned = [
        PlannedProblem(
            family.table, family.kernel_of(problem), family.columns(problem), "made up", 1.0,
            (PlannedConfig(config, "stratum", 10.0),),
        )
        for family, problem, config in ((family_of(n), p, c) for n, p, c in wanted)
    ]  # fmt: skip
    return Plan("h100-sxm5", "sm_90", 0, None, None, Settings(), tuple(planned))


@needs_triton
def test_the_launcher_finds_every_familys_binaries_also_where_they_were_carried(
    cache: Path, tmp_path: Path
) -> None:
    plan = every_kernel()
    done = compile_plan(plan, tmp_path, processes=2)
    assert done.failed == 0, done.reasons
    found = looked_up(plan, tmp_path, cache)
    assert found == [True] * len(found)
    assert len(found) >= 9  # the gradients and the experts are several launches each
    archive, elsewhere = tmp_path / "carried" / "cache.tar.xz", tmp_path / "elsewhere"
    for words in (["cache", str(archive), "--from", str(cache)],
                  ["unpack", str(archive), str(elsewhere)]):  # fmt: skip
        subprocess.run([sys.executable, str(CARRY), *words], check=True, capture_output=True)
    carried = sum(p.stat().st_size for p in elsewhere.rglob("*") if p.is_file())
    whole = sum(p.stat().st_size for p in cache.rglob("*") if p.is_file())
    assert carried < 0.6 * whole
    shutil.rmtree(cache)  # what was carried must not point back
    assert looked_up(plan, tmp_path, elsewhere) == found


@needs_triton
def test_what_does_not_compile_is_listed_with_its_reason_and_not_tried_again(
    cache: Path, tmp_path: Path
) -> None:
    plan = plan_with({"block_k": 8}, {})
    first = compile_plan(plan, tmp_path, processes=1)
    assert (first.compiled, first.failed, first.failed_before) == (1, 1, 0)
    assert "K >= 16" in first.reasons[0][1]
    assert "block_k=8" in first.reasons[0][0]
    second = compile_plan(plan, tmp_path, processes=1)
    assert (second.compiled, second.cached, second.failed, second.failed_before) == (0, 1, 0, 1)
    assert second.reasons == first.reasons


@needs_triton
def test_equal_binaries_are_compiled_once(cache: Path, tmp_path: Path) -> None:
    """Two problems whose sizes are divisible by 16 launch the same binary."""
    plan = make_plan(
        load_gpu("h100-sxm5"), [family_of("gemm")], ["bf16"], budget=Budget(None, 12, 10),
        predictor=Predictor(analytic_only=True),
    )  # fmt: skip
    from tuner.collect.kernels import variants_of  # noqa: PLC0415 - loads Triton

    variants = variants_of(plan.items)
    assert 20 < len(variants) < len(plan.items)
    assert len({v.text for v in variants}) == len(variants)


@needs_triton
def test_a_target_of_another_maker_and_no_processes_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="use a name such as sm_90"):
        compile_plan(plan_with({}, architecture="gfx942"), tmp_path)
    with pytest.raises(UsageError, match="processes is 0"):
        compile_plan(plan_with({}), tmp_path, processes=0)


def takes_its_process_down(item: Item, number: int, architecture: str) -> Compiled:
    if item.config.values["num_warps"] == 4:
        os._exit(3)
    return Compiled(Outcome.OK, None, 0.1, cached=False)


def hangs(item: Item, number: int, architecture: str) -> Compiled:
    import time  # noqa: PLC0415 - in the worker

    if item.config.values["num_warps"] == 4:
        time.sleep(120)
    return Compiled(Outcome.OK, None, 0.1, cached=False)


@pytest.mark.parametrize(
    ("compiler", "outcome"),
    [(takes_its_process_down, Outcome.CRASHED), (hangs, Outcome.TIMEOUT)],
)
def test_a_compiler_that_dies_or_hangs_costs_its_own_configuration_alone(
    compiler: object, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ahead.multiprocessing.get_context("fork")  # the tests' own functions do not travel
    monkeypatch.setattr(ahead.multiprocessing, "get_context", lambda _: context)
    monkeypatch.setattr(ahead, "compile_one", compiler)
    monkeypatch.setattr(ahead, "LIMIT_S", 2.0)
    items: Sequence[Item] = plan_with(
        {}, {"num_warps": 4}, {"num_stages": 3}, {"num_stages": 4}, {"num_stages": 5}
    ).items
    found = dict(ahead._in_processes([(item, 0, "sm_90") for item in items], 2))
    assert [found[at].outcome for at in range(5)] == [
        Outcome.OK, outcome, Outcome.OK, Outcome.OK, Outcome.OK,
    ]  # fmt: skip
