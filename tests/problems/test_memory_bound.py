from __future__ import annotations

import pytest

from perfmodel.errors import InvalidProblemError
from perfmodel.problems import MemoryBound
from perfmodel.problems.memory_bound import KERNELS


def test_bytes_are_those_of_what_is_read_and_written() -> None:
    norm = MemoryBound("rms_norm", 1000, 4096)
    assert norm.compulsory_bytes == (2 * 1000 + 1) * 4096 * 2
    gated = MemoryBound("silu-mul", 10, 64, dtype="bf16", out_dtype="fp8_e4m3")
    assert gated.compulsory_bytes == 10 * 64 * (2 * 2 + 1)
    assert gated.write_bytes == 640


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_takes_no_rows(kernel: str) -> None:
    problem = MemoryBound(kernel, 0, 128)
    assert problem.compulsory_bytes == problem.flops == 0
    assert MemoryBound(**problem.to_dict()) == problem


@pytest.mark.parametrize(
    ("given_", "said"),
    [(("rmsnorm", 1, 1), "did you mean 'rms_norm'"), (("add", -1, 1), "rows is -1")],
)
def test_bad_input_is_named(given_: tuple[str, int, int], said: str) -> None:
    with pytest.raises(InvalidProblemError) as error:
        MemoryBound(*given_)
    assert said in str(error.value)
