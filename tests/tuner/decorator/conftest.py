from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="the decorator is Triton's, subclassed")
torch = pytest.importorskip("torch")

from triton.runtime.interpreter import InterpretedFunction  # noqa: E402 - after the skips

import tuner  # noqa: E402 - as above


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of its own, and no settings from outside."""
    monkeypatch.setenv("PERFMODEL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("PERFMODEL_AUTOTUNE", "PERFMODEL_GPU", "PERFMODEL_PINS", "PERFMODEL_SHARED_CACHE"):
        monkeypatch.delenv(name, raising=False)


class Stub:
    """A kernel whose launches are only written down, as (positional, keyword) arguments."""

    def __init__(self, function: Callable[..., None], names: Sequence[str]) -> None:
        self.fn = function
        self.arg_names = list(names)
        self.launches: list[dict[str, Any]] = []
        self.on_launch: Callable[[dict[str, Any]], None] | None = None

    def run(self, *args: Any, **kwargs: Any) -> str:
        launch = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        self.launches.append(launch)
        if self.on_launch is not None:
            self.on_launch(launch)
        return "launched"

    @property
    def last(self) -> dict[str, Any]:
        return self.launches[-1]


class Bench:
    """A timer that launches once and asks ``time`` of what was launched for its milliseconds."""

    def __init__(self, stub: Stub | None = None, time: Callable[..., Any] | None = None) -> None:
        self.stub = stub
        self.time = time
        self.calls = 0
        self.repeats = 1
        self.seen: list[Any] = []

    def __call__(self, call: Callable[[], Any], quantiles: Any = None) -> Any:
        self.calls += 1
        for _ in range(self.repeats):
            call()
        if self.stub is not None:
            self.seen.append(self.stub.last)
        if self.time is None:
            return [1.0, 1.0, 1.0]
        found = self.time(self.stub.last if self.stub is not None else self.calls)
        return [found] * 3 if isinstance(found, float | int) else found


@pytest.fixture
def make_stub() -> Callable[..., Stub]:
    def make(*names: str) -> Stub:
        source = dict.fromkeys(names or ("x", "n", "BLOCK"))

        def kernel() -> None:
            """Body of a stub."""

        kernel.__name__ = f"kernel_{len(source)}"
        return Stub(kernel, list(source))

    return make


@pytest.fixture
def bench() -> type[Bench]:
    return Bench


@pytest.fixture
def config() -> Any:
    return tuner.Config


@pytest.fixture
def interpreted() -> Callable[..., Any]:
    """Turn a kernel's function into one that runs in Triton's interpreter."""
    return InterpretedFunction


GEMM_NAMES = (
    "a_ptr", "b_ptr", "c_ptr", "M", "N", "K", "stride_am", "stride_ak", "stride_bk", "stride_bn",
    "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M",
)  # fmt: skip


@pytest.fixture
def gemm_stub(make_stub: Callable[..., Stub]) -> Stub:
    return make_stub(*GEMM_NAMES)


@pytest.fixture
def gemm_configs() -> list[Any]:
    blocks = itertools.product((64, 128), (64, 128), (32, 64))
    return [
        tuner.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}, num_warps=4)
        for m, n, k in blocks
    ]


@pytest.fixture
def gemm_call() -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    def call(m: int, n: int = 1024, k: int = 1024, dtype: Any = torch.float16) -> Any:
        a, b, c = (torch.empty(1, dtype=dtype) for _ in range(3))
        return (a, b, c, m, n, k, k, 1, n, 1), {"grid": (1,), "warmup": False}

    return call
