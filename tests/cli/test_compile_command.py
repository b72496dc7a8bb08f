"""``perfmodel compile``: a user's kernel, compiled for a device that is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfmodel.cli.app import main
from perfmodel.errors import NotInstalledError

pytest.importorskip("triton")

KERNELS = """
import triton
import triton.language as tl
from beside import TWICE

@triton.jit
def scale(x_ptr: "*fp32", n, BLOCK: tl.constexpr, TYPE: tl.constexpr = tl.float32):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(TYPE)
    tl.store(x_ptr + at, x * TWICE, mask=at < n)

@triton.jit
def dot(a_ptr, c_ptr, B: tl.constexpr):
    at = tl.arange(0, B)
    a = tl.load(a_ptr + at[:, None] * B + at[None, :])
    tl.store(c_ptr + at[:, None] * B + at[None, :], tl.dot(a, a))

tuned = triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=1), triton.Config({"BLOCK": 128}, num_warps=2)],
    key=["n"],
)(scale)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    (tmp_path / "beside.py").write_text(
        "import triton.language as tl\nTWICE: tl.constexpr = tl.constexpr(2)\n"
    )
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return path


@pytest.fixture
def run(file: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(name: str, *more: str, gpu: str = "a100-sxm4-80gb") -> tuple[int, str, str]:
        code = main(["compile", f"{file}:{name}", "--gpu", gpu, "--cache", str(file.parent), *more])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


Run = Callable[..., tuple[int, str, str]]


def test_the_configs_of_an_autotuned_kernel_are_compiled_one_by_one(run: Run, file: Path) -> None:
    code, out, _ = run("tuned", "--args", "n=4096", "--workers", "1", "--json")
    rows: list[dict[str, Any]] = json.loads(out)
    assert code == 0
    assert [row["config"] for row in rows] == [
        "BLOCK=64, num_warps=1, num_stages=3", "BLOCK=128, num_warps=2, num_stages=3",
    ]  # fmt: skip
    for row in rows:
        assert row["outcome"] == "ok"
        assert row["target"] == "sm_80"
        assert row["registers"] > 0
        assert row["spill_bytes"] == 0
        assert row["shared_limit_bytes"] == 163 * 1024
    assert run("tuned", "--args", "n=4096", "--json")[1] == out  # stored, times included


def test_too_much_shared_memory_is_an_outcome_with_both_numbers(run: Run) -> None:
    code, out, err = run(
        "dot", "--args", "a_ptr=*fp16,c_ptr=*fp32", "--config", "B=256,num_warps=8", gpu="rtx-4090"
    )
    assert code == 1
    assert "out_of_resources: shared memory: needs" in " ".join(out.split())
    assert "none of 1 configurations can run on rtx-4090" in err


def test_a_config_that_does_not_compile_costs_itself(run: Run) -> None:
    args = ("scale", "--args", "n=i32", "--workers", "1", "--config")
    code, out, _ = run(*args, "BLOCK=48", "--config", "BLOCK=64,TYPE=tl.float16", "--json")
    outcomes = [(row["outcome"], row["reason"]) for row in json.loads(out)]
    assert code == 0
    assert outcomes[0][0] == "compile_failed"
    assert "power of 2" in outcomes[0][1]
    assert outcomes[1] == ("ok", None)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("scael", (), "has no Triton kernel 'scael' (did you mean 'scale'?)"),
        ("scale", (), "run-time argument n has no type; give it with --args n="),
        ("scale", ("--args", "n=i32"), "compile-time argument BLOCK has no value"),
        ("scale", ("--args", "m=i32"), "no argument 'm'"),
        ("scale", ("--args", "n=int"), "run-time argument n is 'int'; use one of: *fp16"),
        ("scale", ("--args", "n"), "argument 'n' is not NAME=VALUE"),
        ("scale", ("--args", "n=1,n=2"), "argument n is given twice"),
        ("scale", ("--args", "n=1", "--config", "BLOK=4"), "(did you mean 'BLOCK'?)"),
        ("scale", ("--args", "n=1", "--config", "BLOCK=4,TYPE=tl.x"), "tl.x is no type"),
    ],
)
def test_what_is_missing_or_unknown_is_named(
    run: Run, name: str, args: tuple[str, ...], message: str
) -> None:
    code, _, err = run(name, *args)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_other_addresses_and_devices_are_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "nofile.py:k", "--gpu", "b200"]) == 2
    assert "there is no file nofile.py" in capsys.readouterr().err
    assert main(["compile", "kernels.py", "--gpu", "b200"]) == 2
    assert "is not FILE.py:name" in capsys.readouterr().err
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('no driver')")
    assert main(["compile", f"{broken}:k", "--gpu", "b200"]) == 2
    assert "broken.py cannot be imported: RuntimeError: no driver" in capsys.readouterr().err
    code, _, err = run("scale", gpu="mi300x")
    assert code == 2
    assert "NVIDIA devices alone" in err


def test_without_triton_the_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    code, _, err = run("scale")
    assert code == NotInstalledError.exit_code
    assert "pip install 'perfmodel[triton]'" in err
