"""A worker under Triton's interpreter: hangs, crashes, wrong results and the user's own errors."""

# ruff: noqa: N803 - compile-time arguments of kernels are in capitals, as in Triton's own
from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DeviceLostError, KernelRaisedError, UsageError
from tuner.compiling.portable import portable
from tuner.measure.device import Trial
from tuner.measure.task import LaunchSpec, Task, TensorArgument
from tuner.measure.worker_device import WorkerDevice
from tuner.search.result import Status
from tuner.search.search import search
from tuner.search.tunables import ONE_CALL, Tunables

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
torch = pytest.importorskip("torch")

INTERPRETED = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}


@triton.jit
def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr, HOW: tl.constexpr):  # type: ignore[no-untyped-def]
    if HOW == "hang":
        time.sleep(600)
    if HOW == "abort":
        os.abort()
    if HOW == "slow":
        time.sleep(0.05)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    if HOW == "wrong":
        x = x * 1.5
    if HOW == "raise":
        x = x + undefined_name  # type: ignore[name-defined] # noqa: F821 - the user's mistake
    tl.store(out_ptr + at, x * 2, mask=at < n)


def launch(how: str, block: int = 64) -> LaunchSpec:
    return LaunchSpec({"BLOCK": block, "HOW": how}, {"num_warps": 4}, (-(-256 // block),))


LAUNCHES = {
    how: launch(how) for how in ("hang", "abort", "slow", "wrong", "raise", "good", "better")
}


@pytest.fixture(scope="module")
def device() -> Iterator[WorkerDevice]:
    arguments = {"x_ptr": torch.randn(256), "out_ptr": torch.zeros(256), "n": 256}
    task = Task.of_call(
        portable(scale), arguments, reference=launch("good", 128), outputs=("out_ptr",)
    )
    with WorkerDevice(task, LAUNCHES, environment=INTERPRETED) as made:
        yield made


def test_a_configuration_is_timed_in_the_worker(device: WorkerDevice) -> None:
    found = device.time(Trial("good"), samples=3, limit_s=60.0)
    assert found.outcome is Outcome.OK
    assert len(found.samples_us) == 3
    assert found.protocol == "wall-1"
    assert device.identity.name == "interpreter"


def test_a_hang_is_cut_off_and_the_next_configuration_gets_a_new_worker(
    device: WorkerDevice,
) -> None:
    before = device.starts
    started = time.monotonic()
    found = device.time(Trial("hang"), samples=1, limit_s=2.0)
    assert found.outcome is Outcome.TIMEOUT
    assert time.monotonic() - started < 15.0
    assert device.time(Trial("good"), samples=1, limit_s=60.0).outcome is Outcome.OK
    assert device.starts == before + 1


def test_bc1_an_abort_costs_one_configuration(device: WorkerDevice) -> None:
    # Stock Triton 3.6.0 tunes in the caller's process, which ends with it.
    found = device.time(Trial("abort"), samples=1, limit_s=60.0)
    assert found.outcome is Outcome.CRASHED
    assert "signal 6" in (found.reason or "")
    assert device.time(Trial("good"), samples=1, limit_s=60.0).outcome is Outcome.OK


def test_dc5_a_wrong_result_is_rejected(device: WorkerDevice) -> None:
    found = device.time(Trial("wrong"), samples=1, limit_s=60.0)
    assert found.outcome is Outcome.WRONG_RESULT
    assert "out_ptr" in (found.reason or "")
    assert "differ from the reference" in (found.reason or "")


def test_the_users_own_error_propagates_with_its_traceback(device: WorkerDevice) -> None:
    with pytest.raises(KernelRaisedError, match="undefined_name") as raised:
        device.time(Trial("raise"), samples=1, limit_s=60.0)
    assert "Traceback" in raised.value.__notes__[0]


def test_a_search_over_all_of_them_finds_a_good_one_and_remembers_the_bad(
    device: WorkerDevice,
) -> None:
    trials = [Trial(how) for how in ("slow", "hang", "abort", "wrong", "good")]
    result = search(device, trials, tunables=Tunables(limit_s=2.0, samples=2))
    assert result.best == "good"
    assert [e.status for e in result.entries][1:4] == [
        Status.TIMED_OUT, Status.FAILED, Status.FAILED,
    ]  # fmt: skip
    assert set(result.quarantine) == {"hang", "abort"}


def test_a_worker_that_cannot_be_had_is_a_lost_device() -> None:
    task = Task(portable(scale), {})
    command = [sys.executable, "-c", "raise SystemExit(9)"]
    device = WorkerDevice(task, LAUNCHES, command=command)
    with pytest.raises(DeviceLostError, match="exited with code 9"):
        device.time(Trial("good"), samples=1, limit_s=1.0)


@pytest.fixture
def scripted(tmp_path: Path) -> list[str]:
    """A worker that times nothing and says what it is told to."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, os, sys\n"
        "print(json.dumps({'ready': True}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    if 'load' in asked:\n"
        "        answer = {'protocol': 'fake-1', 'identity': "
        "{'name': str(os.getpid()), 'architecture': 'x'}}\n"
        "    elif asked['config'] == 'hang':\n"
        "        answer = {'outcome': 'crashed', 'reason': 'illegal memory access', "
        "'lost': 'illegal memory access'}\n"
        "    else:\n"
        "        answer = {'outcome': 'ok', 'samples_us': [1.0] * asked['samples']}\n"
        "    print(json.dumps(answer), flush=True)\n"
    )
    return [sys.executable, str(script)]


def test_a_poisoned_context_is_replaced(scripted: list[str]) -> None:
    with WorkerDevice(Task(portable(scale), {}), LAUNCHES, command=scripted) as device:
        first = device.identity.name
        assert device.time(Trial("hang"), samples=1, limit_s=9.0).outcome is Outcome.CRASHED
        found = device.time(Trial("good"), samples=2, limit_s=9.0)
        assert found.samples_us == (1.0, 1.0)
        assert device.identity.name != first
        assert device.starts == 2


def test_bc8_a_worker_that_has_loaded_many_kernels_is_replaced(scripted: list[str]) -> None:
    launches = {f"c{i}": launch("good") for i in range(250)}
    with WorkerDevice(Task(portable(scale), {}), launches, command=scripted) as device:
        result = search(device, [Trial(name) for name in launches], tunables=ONE_CALL)
        assert result.timed == 250
        assert device.starts == 3


def test_no12_integers_are_taken_from_the_call_and_never_made_up() -> None:
    offsets = torch.tensor([[0, 5], [9, 2]], dtype=torch.int32).t()
    sent = TensorArgument.like("offsets", offsets)
    again = TensorArgument(
        **json.loads(json.dumps(sent.__dict__)) | {"shape": (2, 2), "strides": (1, 2)}
    )
    assert torch.equal(again.make("cpu", 0), offsets)
    assert again.make("cpu", 0).stride() == offsets.stride()
    with pytest.raises(UsageError, match="needs its values"):
        TensorArgument("int32", (4,), (1,)).make("cpu", 0)
    with pytest.raises(UsageError, match="never made up"):
        TensorArgument.like("big", torch.empty(2**23 + 1, dtype=torch.int64))


def test_floats_are_the_same_for_the_same_seed_whatever_their_strides() -> None:
    spec = TensorArgument("float16", (3, 5), (8, 1))
    first, again, other = (spec.make("cpu", seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.stride() == (8, 1)


def test_a_task_survives_json() -> None:
    arguments: dict[str, Any] = {"x_ptr": torch.zeros(4, 2).t(), "n": 3, "eps": 0.5, "none": None}
    task = Task.of_call(portable(scale), arguments, reference=launch("good"))
    assert Task.from_dict(json.loads(json.dumps(task.to_dict()))) == task
