"""The timer of CUDA devices on a simulated one: what is in its times, and what is not."""

from __future__ import annotations

import inspect
import statistics

import pytest

from tuner.measure.cuda_timer import CudaTimer
from tuner.measure.device import Trial
from tuner.measure.fake import FAKE
from tuner.measure.harness import Harness
from tuner.measure.measurement import LAUNCH_BOUND
from tuner.measure.protocol import TimingProtocol
from tuner.measure.timer import TimerDevice

from .conftest import DEFAULT, FREE_BYTES, L2_BYTES, Kernel, SimulatedCuda, Work

WARM = TimingProtocol(l2="warm")


def timed(cuda: SimulatedCuda, launch: object, protocol: TimingProtocol | None = None) -> float:
    timer = CudaTimer("cuda", protocol)
    timer.warm(launch)  # type: ignore[arg-type]
    return statistics.median(timer.samples_us(launch, 20))  # type: ignore[arg-type]


def test_no5_a_kernel_far_shorter_than_its_launch_reads_its_own_time(cuda: SimulatedCuda) -> None:
    work = Work(cuda, [Kernel(4.0, 4.0, host_us=40.0)])
    timer = CudaTimer()
    timer.warm(work)
    assert timer.how(work) == ("cuda_graph", 101)
    assert statistics.median(timer.samples_us(work, 20)) == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize("host_us", [5.0, 40.0, 300.0])
def test_a_launch_between_events_does_not_wait_for_the_host(
    cuda: SimulatedCuda, host_us: float
) -> None:
    work = Work(cuda, [Kernel(80.0, 80.0, host_us=host_us)])
    timer = CudaTimer()
    timer.warm(work)
    assert timer.how(work) == ("events", 1)
    found = timer.samples_us(work, 10)
    assert max(found) == pytest.approx(81.0)  # one event's own time


def test_kernels_launched_one_after_the_other_count_as_one(cuda: SimulatedCuda) -> None:
    kernels = [Kernel(3.0, 3.0, 40.0), Kernel(5.0, 5.0, 40.0)]
    assert timed(cuda, Work(cuda, kernels)) == pytest.approx(8.0, rel=0.02)


@pytest.mark.parametrize("flush_us", [0.0, 30.0, 100.0])
def test_no7_the_flush_is_outside_the_timed_span(cuda: SimulatedCuda, flush_us: float) -> None:
    cuda.flush_us = flush_us
    fast, slow = (Work(cuda, [Kernel(us, us, 10.0)]) for us in (60.0, 70.0))
    assert timed(cuda, fast) == pytest.approx(60.0, rel=0.02)
    assert timed(cuda, slow) == pytest.approx(70.0, rel=0.02)
    assert set(cuda.flushed) == {2 * L2_BYTES}


@pytest.mark.parametrize("us", [(6.0, 9.0), (80.0, 120.0)], ids=["short", "long"])
def test_a_cold_l2_is_cold_for_every_launch_and_a_warm_one_warm(
    cuda: SimulatedCuda, us: tuple[float, float]
) -> None:
    warm, cold = us
    work = Work(cuda, [Kernel(warm, cold, 10.0)])
    assert timed(cuda, work) == pytest.approx(cold, rel=0.02)
    assert timed(cuda, work, WARM) == pytest.approx(warm, rel=0.02)


def test_what_cannot_be_copied_is_alone_in_its_graph_when_cold(cuda: SimulatedCuda) -> None:
    kernel = Kernel(6.0, 9.0, 40.0)
    launch = lambda: cuda.launch(kernel)  # noqa: E731 - a launch without copies
    timer = CudaTimer()
    timer.warm(launch)
    assert timer.how(launch) == ("cuda_graph", 1)
    # The event and the graph's start are in it: 40 us of launching are not.
    assert statistics.median(timer.samples_us(launch, 9)) == pytest.approx(9.0 + 2.5)
    assert timed(cuda, launch, WARM) == pytest.approx(6.0, rel=0.02)


def test_launches_and_events_are_on_one_stream(cuda: SimulatedCuda) -> None:
    for us in (5.0, 90.0):
        timed(cuda, Work(cuda, [Kernel(us, us)]))
    assert set(cuda.launched_on) == set(cuda.recorded_on) == {"side stream"}
    assert DEFAULT not in cuda.launched_on


def test_what_does_not_go_into_a_graph_is_timed_by_events_and_says_so(
    cuda: SimulatedCuda,
) -> None:
    work = Work(cuda, [Kernel(6.0, 6.0, 40.0, capturable=False)])
    found = Harness(TimerDevice(CudaTimer(), FAKE)).measure(Trial("c", launch=work))
    assert not cuda.capturing
    assert found.timing.method == "events"
    assert found.latency_us == pytest.approx(7.0)
    assert LAUNCH_BOUND in found.flags


def test_copies_that_do_not_fit_are_fewer(cuda: SimulatedCuda) -> None:
    cuda.largest_copy = 10
    work = Work(cuda, [Kernel(10.0, 10.0)])
    timer = CudaTimer()
    timer.warm(work)
    assert timer.how(work) == ("cuda_graph", 5)  # 46, 23, 11, 5
    huge = Work(cuda, [Kernel(10.0, 10.0)], bytes_each=10 << 30)
    timer.warm(huge)
    assert timer.how(huge) == ("cuda_graph", 2)  # 10 GiB of them may be taken


def test_what_is_kept_leaves_memory_for_the_next_problem(cuda: SimulatedCuda) -> None:
    timer = CudaTimer()
    for us in (5.0, 90.0):
        for _ in range(12):
            timer.warm(Work(cuda, [Kernel(us, us)], bytes_each=4 << 30))
            kept = sum(prepared.bytes for prepared in timer._prepared.values())
            assert kept <= 2 * FREE_BYTES / 8 + (FREE_BYTES / 8)


def test_an_error_that_loses_the_device_is_not_taken_for_a_graphs_refusal(
    cuda: SimulatedCuda,
) -> None:
    kernel, launches = Kernel(5.0, 5.0), []

    def launch() -> None:
        launches.append(cuda.capturing)
        if cuda.capturing:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        cuda.launch(kernel)

    found = Harness(TimerDevice(CudaTimer(), FAKE)).measure(Trial("c", launch=launch))
    assert found.outcome.value == "crashed"
    assert not cuda.capturing


def test_many_launches_by_turns_keep_few_of_their_copies(cuda: SimulatedCuda) -> None:
    timer = CudaTimer()
    works = [Work(cuda, [Kernel(5.0 + i, 5.0 + i)]) for i in range(40)]
    for _ in range(2):
        for i, work in enumerate(works):
            assert timer.samples_us(work, 3)[1] == pytest.approx(5.0 + i, rel=0.02)
    assert len(timer._prepared) <= 16
    timer.close()
    assert not timer._prepared


def test_torch_has_what_is_private_or_in_beta() -> None:
    torch = pytest.importorskip("torch", reason="the names are torch's")
    assert list(inspect.signature(torch.cuda._sleep).parameters) == ["cycles"]
    begin = inspect.signature(torch.cuda.CUDAGraph.capture_begin).parameters
    assert begin["capture_error_mode"].default == "global"
    assert callable(torch.cuda.CUDAGraph.reset)
    assert callable(torch.cuda.mem_get_info)
