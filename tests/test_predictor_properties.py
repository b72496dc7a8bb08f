from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.analytic.model import EVENT_TIMING_LAUNCH_S
from perfmodel.hardware.catalog import gpu_names, load_gpu
from perfmodel.launches import peak_tflops
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.space import candidate_configs

ANALYTIC = Predictor(analytic_only=True)
FLOOR_US = EVENT_TIMING_LAUNCH_S * 1e6

size = st.one_of(st.integers(0, 300), st.sampled_from([512, 1000, 4096, 4097, 16384, 65536]))
layout = st.sampled_from(["row", "col"])
gpu_name = st.sampled_from(gpu_names())
quick = settings(max_examples=60, deadline=None)


@st.composite
def problems(draw: st.DrawFn, gpu: str) -> Gemm:
    known = load_gpu(gpu)
    dtypes = [d for d in ("fp16", "bf16", "fp32", "tf32", "fp8_e4m3", "int8")
              if d in known.tensor_tflops or d in known.plain_tflops]  # fmt: skip
    m, n, k = draw(size), draw(size), draw(size)
    return Gemm(
        m, n, k, draw(st.integers(0, 4)), draw(st.sampled_from(dtypes)),
        a_layout=draw(layout), b_layout=draw(layout),
    )  # fmt: skip


@given(st.data(), gpu_name)
@quick
def test_every_answer_is_physical(data: st.DataObject, name: str) -> None:
    problem, gpu = data.draw(problems(name)), load_gpu(name)
    found = ANALYTIC.predict(problem, gpu)
    low, high = found.interval_us
    assert np.isfinite([low, found.latency_us, high]).all()
    assert FLOOR_US <= low <= found.latency_us <= high
    assert 0 <= found.share_of_peak <= 1 + 1e-9
    peak = peak_tflops(gpu, problem.compute_dtype.name)
    assert found.latency_us >= problem.flops / (peak * 1e6) * (1 - 1e-9)
    assert all(us >= 0 for us in found.breakdown_us.values())


@given(st.data(), gpu_name, st.integers(1, 64))
@quick
def test_more_products_of_the_same_kind_never_take_less(
    data: st.DataObject, name: str, batch: int
) -> None:
    problem = data.draw(problems(name))
    gpu = load_gpu(name)
    space = candidate_configs(problem, gpu)
    config = space.configs[data.draw(st.integers(0, len(space) - 1))]
    table = ConfigTable.of([config])
    sizes = {"a_dtype": problem.a_dtype, "a_layout": problem.a_layout, "b_layout": problem.b_layout}
    batches = [batch, batch + 1, 2 * batch + 1, 8 * batch]
    times = ANALYTIC.latency_us(
        [Gemm(problem.m, problem.n, problem.k, b, **sizes) for b in batches], gpu, table
    )
    assert (times[1:] >= times[:1] * (1 - 1e-9)).all()
    deeper = ANALYTIC.latency_us(
        [Gemm(problem.m, problem.n, 2**e * 16 * problem.k, **sizes) for e in range(4)], gpu, table
    )
    deeper = deeper[np.isfinite(deeper)]  # an aligned k can take buffers that do not fit
    assert (np.diff(deeper) >= -1e-9 * deeper[1:]).all()


@given(st.data(), gpu_name)
@quick
def test_the_best_is_never_slower_than_another(data: st.DataObject, name: str) -> None:
    problem, gpu = data.draw(problems(name)), load_gpu(name)
    space = candidate_configs(problem, gpu)
    best = space.configs[ANALYTIC.decide(problem, gpu, space)]
    times = ANALYTIC.latency_us(problem, gpu, space)
    assert ANALYTIC.predict(problem, gpu, best).latency_us <= times.min() * (1 + 1e-9)
