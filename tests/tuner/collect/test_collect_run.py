"""Runs: resume after anything, refuse what cannot be mixed, record failures and go on."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import (
    DeviceLostError,
    InvalidProblemError,
    OutputLockedError,
    ResumeMismatchError,
    RunStoppedError,
    UsageError,
)
from tuner.collect.bench import Bench, NamedTrials, open_bench
from tuner.collect.check import check
from tuner.collect.heartbeat import Heartbeat, Progress
from tuner.collect.merge import gather
from tuner.collect.output import Output
from tuner.collect.plan_file import Item, Plan
from tuner.collect.run import run_shard
from tuner.collect.shard import Row, read_shard
from tuner.measure.device import Trial
from tuner.measure.fake import FakeDevice, Throttle
from tuner.measure.harness import Harness

from .conftest import H100, Watched

SHARD = "shard-1-of-1.jsonl"


def rows_of(folder: Path) -> list[Row]:
    return [replace(row, wall_s=0.0) for row in read_shard(folder / SHARD).rows]


def test_a_run_measures_everything_once_failures_included(
    plan: Plan, bench: Bench, device: Watched, tmp_path: Path
) -> None:
    done = run_shard(plan, bench, Output(tmp_path))
    rows = rows_of(tmp_path)
    assert [row.item for row in rows] == list(range(len(plan.items)))
    assert done.measured == len(plan.items)
    assert done.failed == sum(row.outcome is Outcome.OUT_OF_RESOURCES for row in rows) > 0
    assert set(device.calls.values()) == {1}
    again = run_shard(plan, bench, Output(tmp_path))
    assert (again.measured, again.resumed) == (0, len(plan.items))
    assert set(device.calls.values()) == {1}


@pytest.mark.parametrize("at", [1, 2, 9, 24])
def test_a_run_that_died_anywhere_resumes_to_the_same_rows(
    plan: Plan, bench: Bench, device: Watched, tmp_path: Path, at: int
) -> None:
    class PowerFailure(BaseException):
        pass

    def die() -> None:
        raise PowerFailure

    run_shard(plan, bench, Output(tmp_path / "calm"))
    device.before = {device.asked + at: die}
    with pytest.raises(PowerFailure):
        run_shard(plan, bench, Output(tmp_path / "hurt"))
    assert len(rows_of(tmp_path / "hurt")) == at - 1
    run_shard(plan, bench, Output(tmp_path / "hurt"))
    assert rows_of(tmp_path / "hurt") == rows_of(tmp_path / "calm")


def test_a_run_refuses_another_device_driver_or_protocol(
    plan: Plan, bench: Bench, recorded: dict[str, float | Outcome], tmp_path: Path
) -> None:
    run_shard(plan, bench, Output(tmp_path))
    newer = Watched(recorded, replace(H100, driver="580.65"))
    with pytest.raises(ResumeMismatchError, match=r"'570.86.15', and this run has '580.65'"):
        run_shard(plan, replace(bench, device=newer), Output(tmp_path))
    other = Watched(recorded, replace(H100, gpu="h100-pcie"))
    with pytest.raises(ResumeMismatchError, match=r"plan is for h100-sxm5.*device is h100-pcie"):
        run_shard(plan, replace(bench, device=other), Output(tmp_path / "new"))
    unknown = Watched(recorded, replace(H100, gpu=None, name="NVIDIA X1"))
    with pytest.raises(ResumeMismatchError, match="'NVIDIA X1', which no device file describes"):
        run_shard(plan, replace(bench, device=unknown), Output(tmp_path / "new"))


def test_two_runs_on_one_output_name_the_holder(
    plan: Plan, bench: Bench, device: Watched, tmp_path: Path
) -> None:
    seen: list[str] = []

    def intrude() -> None:
        code = (
            "import sys; from pathlib import Path; from tuner.collect.lock import hold\n"
            f"with hold(Path({str(tmp_path)!r}), 'shard-1-of-1'): pass\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              check=False)  # fmt: skip
        seen.append(done.stderr)

    device.before = {3: intrude}
    run_shard(plan, bench, Output(tmp_path))
    assert OutputLockedError.__name__ in seen[0]
    assert f"is being written by process {os.getpid()} on" in seen[0]
    assert len(rows_of(tmp_path)) == len(plan.items)


def test_inputs_that_do_not_fit_are_recorded_and_the_run_goes_on(
    plan: Plan, bench: Bench, tmp_path: Path
) -> None:
    class OutOfMemoryError(RuntimeError):
        """Named as torch's is."""

    class Tight(NamedTrials):
        def trial(self, item: Item) -> Trial:
            if item.problem is plan.problems[1]:
                raise OutOfMemoryError("CUDA out of memory. Tried to allocate 99 GiB")
            if item.problem is plan.problems[2]:
                raise InvalidProblemError("kernel gemm does not compute this")
            return super().trial(item)

    run_shard(plan, replace(bench, trials=Tight()), Output(tmp_path))
    by_problem: dict[int, set[Outcome]] = {}
    for row in rows_of(tmp_path):
        at = plan.problems.index(plan.items[row.item].problem)
        by_problem.setdefault(at, set()).add(row.outcome)
    assert by_problem[1] == {Outcome.OUT_OF_RESOURCES}
    assert by_problem[2] == {Outcome.COMPILE_FAILED}
    assert Outcome.OK in by_problem[3]
    reasons = {row.reason for row in rows_of(tmp_path)}
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 99 GiB" in reasons


def test_a_users_own_error_is_no_outcome(plan: Plan, bench: Bench, tmp_path: Path) -> None:
    class Wrong(NamedTrials):
        def trial(self, item: Item) -> Trial:
            raise KeyError("a mistake of the program")

    with pytest.raises(KeyError, match="a mistake"):
        run_shard(plan, replace(bench, trials=Wrong()), Output(tmp_path))
    assert rows_of(tmp_path) == []


def test_a_lost_device_ends_the_run_without_a_row_for_it(
    plan: Plan, bench: Bench, device: Watched, tmp_path: Path
) -> None:
    def lose() -> None:
        raise DeviceLostError("the CUDA context is beyond use")

    device.before = {5: lose}
    with pytest.raises(DeviceLostError):
        run_shard(plan, bench, Output(tmp_path))
    assert len(rows_of(tmp_path)) == 4
    run_shard(plan, bench, Output(tmp_path))
    assert [row.item for row in rows_of(tmp_path)] == list(range(len(plan.items)))


def test_a_signal_stops_at_once_and_the_row_under_way_is_left_for_later(
    plan: Plan, bench: Bench, device: Watched, tmp_path: Path
) -> None:
    def signalled() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)

    device.before = {6: signalled}
    started = time.monotonic()
    with pytest.raises(RunStoppedError, match=r"stopped by SIGTERM: 5 of \d+ rows") as caught:
        run_shard(plan, bench, Output(tmp_path))
    assert time.monotonic() - started < 5
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert len(rows_of(tmp_path)) == 5


STUCK = """
import ctypes, sys
from pathlib import Path
from tests_conftest import H100, make_small_plan
from perfmodel.dataset.outcome import Outcome
from tuner.collect.bench import Bench, NamedTrials
from tuner.collect.output import Output
from tuner.collect.run import run_shard
from tuner.measure.device import Timing

class Stuck:
    identity, protocol, calls = H100, "events-1", 0
    def time(self, trial, *, samples, limit_s):
        self.calls += 1
        if self.calls == 4:
            print("stuck", flush=True)
            mutex = ctypes.create_string_buffer(64)
            for _ in range(2):  # the second time waits for ever, whatever signal comes
                ctypes.CDLL(None).pthread_mutex_lock(mutex)
        return Timing(Outcome.OK, "events-1", (9.0,))

run_shard(make_small_plan(), Bench(Stuck(), NamedTrials()), Output(Path(sys.argv[1])))
"""


def test_a_call_that_does_not_return_is_ended_within_five_seconds(tmp_path: Path) -> None:
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    (tmp_path / "tests_conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "stuck.py").write_text(STUCK, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "stuck.py"), str(tmp_path / "out")],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    time.sleep(1)  # from saying so to being so
    process.terminate()
    started = time.monotonic()
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert time.monotonic() - started < 5
    assert len(rows_of(tmp_path / "out")) == 3


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def test_a_full_disk_midway_stops_cleanly_and_is_resumed(
    plan: Plan, table: Path, tmp_path: Path
) -> None:
    plan.save(tmp_path / "plan.json")
    command = [sys.executable, "-m", "perfmodel", "collect", "run", str(tmp_path / "plan.json"),
               "--out", str(tmp_path / "out"), "--device", f"replay:{table}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          preexec_fn=limit_files)  # fmt: skip
    found = read_shard(tmp_path / "out" / SHARD)
    if len(found.rows) == len(plan.items):
        pytest.fail("the limit is above what the run writes")
    assert done.returncode == 1
    assert f"its {len(found.rows):,} rows are safe" in done.stderr
    assert "Traceback" not in done.stderr
    assert found.torn == 0
    subprocess.run(command, check=True, capture_output=True)
    assert len(rows_of(tmp_path / "out")) == len(plan.items)


def test_a_heartbeat_says_how_far_and_how_long_still(
    plan: Plan, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.collect.heartbeat.EVERY_S", 0.0)
    told: list[Progress] = []
    run_shard(plan, bench, Output(tmp_path), tell=told.append)
    assert [p.done for p in told[:4]] == [0, 1, 2, 3]
    assert told[0].eta_s is told[1].eta_s is None
    assert all(p.eta_s is not None for p in told[2:])
    assert told[-1].eta_s == 0
    state = json.loads((tmp_path / "shard-1-of-1.heartbeat.json").read_text())
    assert state["done"] == state["total"] == len(plan.items)
    assert {"host", "pid", "at", "eta_s", "failed"} <= set(state)


def test_the_time_left_follows_the_pace_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("tuner.collect.heartbeat.time.monotonic", lambda: now[0])
    beat = Heartbeat(tmp_path / "h", total=11, done=0, remaining_s=11.0)
    now[0] += 50  # starting up
    beat.beat("", 1.0, failed=False)
    for _ in range(5):
        now[0] += 2  # twice as long as estimated
        beat.beat("", 1.0, failed=False)
    assert beat.state("").eta_s == pytest.approx(10.0)


def test_addresses_of_devices_are_checked(plan: Plan, table: Path, tmp_path: Path) -> None:
    for address in ("gpu", "cuda:x", "replay:", "replay", f"replay:{table}?sleep=1",
                    f"replay:{table}?sleep_ms=x"):  # fmt: skip
        with pytest.raises(UsageError, match=r"use .*replay:TABLE.parquet"):
            open_bench(address, plan)
    with pytest.raises(UsageError, match="no measurement table at"):
        open_bench(f"replay:{tmp_path / 'absent.parquet'}", plan)
    with pytest.raises(UsageError, match="has no row of a100-pcie-80gb"):
        open_bench(f"replay:{table}", replace(plan, gpu="a100-pcie-80gb"))


def test_a_replayed_table_answers_for_every_item(plan: Plan, table: Path, tmp_path: Path) -> None:
    run_shard(plan, open_bench(f"replay:{table}", plan), Output(tmp_path))
    reasons = {row.reason for row in rows_of(tmp_path)}
    assert reasons == {None, "failed when it was recorded"}


def test_what_the_harness_doubts_is_kept_with_the_row_and_told_by_check(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that slows down for heat, on the harness that measures on a real one."""
    monkeypatch.setattr("tuner.collect.run.DRIFT_SECONDS", 0.0)
    times = {item.text: item.config.expected_us for item in plan.items}
    fake = FakeDevice(
        {"reference": 200.0, **times}, noise=0.002, identity=H100, throttles=[Throttle(0.0, 1e6)]
    )
    reference = Trial("reference")
    harness = Harness(fake, gauges=fake, reference=reference, clock=fake.clock, wait=fake.wait)
    run_shard(plan, Bench(harness, NamedTrials()), Output(tmp_path))
    rows = read_shard(tmp_path / "shard-1-of-1.jsonl").rows
    assert all("throttled" in row.flags for row in rows)
    assert all(row.drift is not None for row in rows)
    assert {row.clocks["throttle_after"] for row in rows} != {""}
    report = check(gather(plan, tmp_path))
    assert report.flags["throttled"] == report.throttled == len(plan.items)
    assert report.drift is not None
    assert abs(report.drift) < 0.05
