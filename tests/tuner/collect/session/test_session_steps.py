"""Shares of time, what is compiled first, and steps whose process hangs or dies."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DataError, DeviceLostError, UsageError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.predictor import Predictor
from tuner.collect.bench import Bench, NamedTrials
from tuner.collect.plan_file import Plan
from tuner.collect.session import ceilings, results
from tuner.collect.session.attempt import Attempt, under_way
from tuner.collect.session.ceilings import Probe, measured
from tuner.collect.session.plans import SMALL, plan_step
from tuner.collect.session.ready import FIRST_PLACES, ReadyReader, ReadyWriter, compile_order
from tuner.collect.session.rehearsal import rehearsal_bench
from tuner.collect.session.results import write_step
from tuner.collect.session.steps import STEPS, deadlines, plan_path
from tuner.collect.session.timed import needs_of, time_plan
from tuner.collect.shard import read_shard
from tuner.kernels.language import INSTALLED
from tuner.measure.device import DeviceIdentity, Timing, Trial

needs_triton = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
NAMES = [step.name for step in STEPS]


@given(st.floats(0.5, 60.0))
def test_steps_share_the_minutes_in_order_and_the_last_are_dropped_first(minutes: float) -> None:
    found = deadlines(minutes, 1000.0)
    assert list(found) == NAMES[: len(found)]
    ends = list(found.values())
    assert ends == sorted(ends)
    assert 1000.0 + 60 * minutes - ends[-1] >= 0.0299 * 60 * minutes
    lengths = [b - a for a, b in zip([1000.0, *ends], ends, strict=False)]
    if len(found) > 1:
        for step, length in zip(STEPS, lengths, strict=False):
            assert length >= step.least_s * 0.999


def test_fifteen_minutes_are_enough_for_all_steps_and_attention_has_the_most() -> None:
    found = deadlines(15.0, 0.0)
    assert list(found) == NAMES
    lengths = {n: found[n] - (found[NAMES[i - 1]] if i else 0.0) for i, n in enumerate(NAMES)}
    assert max(lengths, key=lambda name: lengths[name]) == "attention"
    assert 250 < lengths["attention"] < 350


@pytest.mark.parametrize("minutes", [0.0, -1.0, 0.4, float("nan"), float("inf"), 1e6])
def test_minutes_that_make_no_session_are_an_error(minutes: float) -> None:
    with pytest.raises(UsageError, match=r"minutes is .*; use 0\.5 to 1,440"):
        deadlines(minutes, 0.0)


@pytest.fixture(scope="module")
def plans() -> list[tuple[str, Plan]]:
    gpu, predictor = load_gpu("h200-sxm"), Predictor(analytic_only=True)
    return [(name, plan_step(wanted, gpu, predictor)) for name, wanted in SMALL.items()]


def test_a_device_without_fp8_gets_a_plan_without_it() -> None:
    plan = plan_step(SMALL["gemm"], load_gpu("a100-sxm4-80gb"), Predictor(analytic_only=True))
    assert {p.values["a_dtype"] for p in plan.problems} == {"bf16"}


@needs_triton
def test_every_binary_is_compiled_once_and_the_first_steps_come_first(
    plans: list[tuple[str, Plan]],
) -> None:
    order = compile_order(plans)
    texts = [variant.text for _, variant in order]
    assert len(texts) == len(set(texts))
    wanted = {name for _, plan in plans for found in needs_of(plan).values() for name in found}
    assert len(texts) == len(wanted)
    first = [step for step, _ in order[: min(len(plans[0][1].items), FIRST_PLACES)]]
    assert set(first[:3]) == {"attention"}
    assert set(Counter(step for step, _ in order)) == set(SMALL)


def test_a_reader_sees_what_was_told_so_far_and_the_end(tmp_path: Path) -> None:
    path = tmp_path / "ready.jsonl"
    reader, writer = ReadyReader(path), ReadyWriter(path)
    reader.refresh()
    assert (reader.reasons, reader.ended) == ({}, False)
    writer.tell("one", None)
    writer.tell("two", "out of registers")
    with path.open("a", encoding="utf-8") as torn:
        torn.write('{"key": "thr')
    reader.refresh()
    assert list(reader.reasons.values()) == [None, "out of registers"]
    with path.open("a", encoding="utf-8") as torn:
        torn.write('ee"}\n')
    writer.end()
    reader.refresh()
    assert len(reader.reasons) == 3
    assert reader.ended


class Failing:
    """A device that does something at one configuration."""

    protocol = "events-1"
    identity = DeviceIdentity("rehearsal: times are made up", "none", gpu="h200-sxm")

    def __init__(self, at: str, does: BaseException) -> None:
        self._at, self._does = at, does

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        if trial.config == self._at:
            raise self._does
        return Timing(Outcome.OK, self.protocol, (1e3,) * samples)


class Timer:
    """Times the first small plan in a folder."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        folder.mkdir(exist_ok=True)
        self.needs = {item.key: [f"binary {item.number}"] for item in plan.items}
        self.ready = ReadyReader(folder / "ready.jsonl")
        self.attempt = folder / "attempt.json"

    def run(
        self,
        bench: Bench | None = None,
        *,
        until: float = 60.0,
        fatal: dict[str, str] | None = None,
        compiling: bool = False,
    ) -> bool:
        return time_plan(
            self.plan, bench or rehearsal_bench(self.plan), self.folder, needs=self.needs,
            ready=self.ready, until=time.time() + until,
            attempt=Attempt(self.attempt, fatal), compiling=lambda: compiling,
        )  # fmt: skip

    def rows(self) -> dict[str, Outcome]:
        return {r.key: r.outcome for r in read_shard(self.folder / "shard-1-of-1.jsonl").rows}


@pytest.fixture
def timer(plans: list[tuple[str, Plan]], tmp_path: Path) -> Timer:
    return Timer(plans[0][1], tmp_path / "attention")


@needs_triton
def test_what_is_not_compiled_yet_waits_and_what_does_not_compile_is_a_row(timer: Timer) -> None:
    first, second, *_ = timer.plan.items
    timer.ready.reasons = {timer.needs[first.key][0]: None, timer.needs[second.key][0]: "ptxas"}
    assert not timer.run(until=0.3, compiling=True)
    assert set(timer.rows()) == {first.key, second.key}
    assert timer.rows()[second.key] is Outcome.COMPILE_FAILED
    # Once nothing more will come, the rest is compiled as it is launched.
    assert timer.run(compiling=False)
    assert set(timer.rows()) == {item.key for item in timer.plan.items}


def test_a_deadline_stops_it_and_the_next_call_goes_on(timer: Timer) -> None:
    assert not timer.run(bench_of(timer.plan), until=-1.0)
    assert timer.run(bench_of(timer.plan))
    assert len(timer.rows()) == len(timer.plan.items)


def bench_of(plan: Plan, at: str = "", does: BaseException | None = None) -> Bench:
    return Bench(Failing(at, does or RuntimeError("unused")), NamedTrials(), compiler="triton 0")


def test_what_took_the_process_down_is_known_and_not_tried_again(timer: Timer) -> None:
    victim = timer.plan.items[2]
    with pytest.raises(DeviceLostError):
        timer.run(bench_of(timer.plan, victim.text, DeviceLostError("gone")))
    at = under_way(timer.attempt)
    assert at is not None
    assert at[0] == victim.key
    assert timer.run(bench_of(timer.plan, victim.text, DeviceLostError("gone")),
                     fatal={victim.key: "took its process down: SIGSEGV"})  # fmt: skip
    assert timer.rows()[victim.key] is Outcome.CRASHED
    assert Counter(timer.rows().values())[Outcome.OK] == len(timer.plan.items) - 1


def test_out_of_memory_for_one_configuration_is_a_row_and_the_run_goes_on(timer: Timer) -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    victim = timer.plan.items[1]
    assert timer.run(bench_of(timer.plan, victim.text, OutOfMemoryError("CUDA out of memory")))
    assert timer.rows()[victim.key] is Outcome.OUT_OF_RESOURCES


class Meter:
    """A launch takes a microsecond, or what it says."""

    def seconds(self, launch, count: int) -> float:  # type: ignore[no-untyped-def]
        launch()
        return 1e-6 * count


def test_ceilings_are_rates_launches_are_times_and_a_failure_says_why() -> None:
    def refused():  # type: ignore[no-untyped-def]
        raise NotImplementedError("no such type here")

    found = list(measured([
        Probe("copy", None, "GB/s", "", lambda: (lambda: None, 2e-3)),
        Probe("launch", None, "us", "", lambda: (lambda: None, 0.0)),
        Probe("tensor units", "fp8", "TFLOP/s", "", refused),
    ], Meter()))  # fmt: skip
    assert [round(c.value, 6) if c.value else None for c in found] == [2000.0, 1.0, None]
    assert found[2].outcome is Outcome.CRASHED
    assert found[2].reason == "NotImplementedError: no such type here"


def test_a_lost_context_ends_the_probes() -> None:
    def lost():  # type: ignore[no-untyped-def]
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(DeviceLostError, match="illegal memory access"):
        list(measured([Probe("copy", None, "GB/s", "", lost)], Meter()))


def test_rows_that_are_too_large_for_one_file_are_cut_and_too_many_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import random  # noqa: PLC0415 - noise does not compress

    draw = random.Random(0)
    table = pa.table({"x": [draw.random() for _ in range(4000)]})
    monkeypatch.setattr(results, "FILE_BYTES_MAX", 20_000)
    names = results._write(table, tmp_path, "gemm")
    assert len(names) == 2
    assert names == ("gemm-1-of-2.parquet", "gemm-2-of-2.parquet")
    assert all((tmp_path / name).stat().st_size <= 20_000 for name in names)
    monkeypatch.setattr(results, "FILE_BYTES_MAX", 1_000)
    with pytest.raises(DataError, match="measure less at a time"):
        results._write(table, tmp_path, "gemm")


def test_results_that_cannot_be_written_are_a_note(
    plans: list[tuple[str, Plan]], tmp_path: Path
) -> None:
    name, plan = plans[0]
    timer = Timer(plan, tmp_path / name)
    assert timer.run(bench_of(plan))
    plan.save(plan_path(tmp_path, name))
    shard = tmp_path / name / "shard-1-of-1.jsonl"
    shard.write_bytes(shard.read_bytes().replace(b"ok", b"no", 1))
    end = results.StepEnd(name, "done", None, 1.0)
    noted = write_step(tmp_path / "out", tmp_path, end, rehearse=False)
    assert noted.rows == 0
    assert "not written" in noted.notes[0]
    assert json.dumps(noted.notes)


def test_every_probe_of_a_device_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, where nothing is launched: operands of every type, and what they amount to."""
    pytest.importorskip("torch", reason="operands are torch tensors")
    monkeypatch.setattr(ceilings, "COPY_BYTES", 1 << 16)
    monkeypatch.setattr(ceilings, "LIBRARY_SIZE", 64)
    found = ceilings.probes(load_gpu("h200-sxm"), "cpu")
    assert {p.dtype for p in found} == {None, "bf16", "fp16", "tf32", "fp8_e4m3", "int8"}
    assert {p.unit for p in found} == {"GB/s", "us", "TFLOP/s"}
    for probe in (p for p in found if not p.name.startswith("launch") and INSTALLED):
        launch, amount = probe.make()
        assert callable(launch)
        assert amount > 0
    assert not {p.dtype for p in ceilings.probes(load_gpu("a100-sxm4-80gb"), "cpu")} & {"fp8_e4m3"}


def test_a_graph_of_many_launches_is_replayed_once_for_all_of_them() -> None:
    replays: list[int] = []
    launch = ceilings._Split(lambda: replays.append(1), 200)
    for _ in range(1000):
        launch()
    assert len(replays) == 5
