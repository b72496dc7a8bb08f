from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.cli.app import main
from perfmodel.tiling.config import TileConfig

SQUARE = ["--m", "4096", "--n", "4096", "--k", "4096", "--dtype", "bf16", "--gpu", "h100-sxm5"]
CONFIG = "block_m=128,block_n=128,block_k=64,num_warps=4,num_stages=3"

pytestmark = pytest.mark.usefixtures("shipped")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(list(args))
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, object]:
    code, out, err = run(capsys, *args, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_answer_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "predict", "gemm", *SQUARE)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "gemm m=4096 n=4096 k=4096 bf16 on h100-sxm5"
    for text in (
        " us  (90 % interval ", "TFLOP/s, ", "% of peak", "limiter", "waves", "rivals",
        "interpolated, model fake-1, held-out error 4.0 %", "block_m=",
    ):  # fmt: skip
        assert text in out
    assert max(map(len, lines)) <= 80
    assert out.isascii()
    assert "\x1b" not in out


def test_the_printed_config_can_be_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "predict", "gemm", *SQUARE)
    typed = next(line.strip() for line in out.splitlines() if line.startswith("  block_m="))
    found = as_json(capsys, "predict", "gemm", *SQUARE)
    assert TileConfig.parse(typed).to_dict() == found["config"]
    again = as_json(capsys, "predict", "gemm", *SQUARE, "--config", typed)
    assert again["latency_us"] == found["latency_us"]


# The documented schema: keys are added, never taken away, without a new number.
def test_the_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "predict", "gemm", *SQUARE)
    assert {key: type(value).__name__ for key, value in found.items()} == {
        "schema": "str",
        "family": "str",
        "problem": "dict",
        "gpu": "str",
        "config": "dict",
        "latency_us": "float",
        "interval_us": "list",
        "coverage": "float",
        "tflops": "float",
        "share_of_peak": "float",
        "limiter": "str",
        "breakdown_us": "dict",
        "waves": "float",
        "occupancy": "int",
        "basis": "str",
        "model": "str",
        "expected_error": "float",
        "notes": "list",
        "considered": "int",
        "unsure": "int",
        "rivals": "list",
    }
    assert found["schema"] == "perfmodel.prediction/1"
    assert found["problem"] == {
        "m": 4096, "n": 4096, "k": 4096, "batch": 1, "a_dtype": "bf16", "b_dtype": "bf16",
        "out_dtype": "bf16", "a_layout": "row", "b_layout": "row", "lda": 4096, "ldb": 4096,
    }  # fmt: skip
    assert set(found["config"]) == {
        "block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages", "split_k",
        "num_ctas", "maxnreg",
    }  # fmt: skip
    assert set(found["breakdown_us"]) == {
        "tensor", "fma", "sfu", "issue", "dram", "l2", "smem", "latency", "launch",
    }  # fmt: skip
    assert set(found["rivals"][0]) == {
        "rank", "config", "latency_us", "slowdown", "limiter", "basis", "position",
    }  # fmt: skip
    low, high = found["interval_us"]
    assert low < found["latency_us"] < high
    assert [r["rank"] for r in found["rivals"]] == [2, 3, 4, 5, 6]


def test_with_a_config_there_are_no_rivals(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "predict", "gemm", *SQUARE, "--config", CONFIG)
    assert (found["rivals"], found["considered"], found["unsure"]) == ([], None, None)
    assert found["config"]["block_k"] == 64
    assert "rivals" not in run(capsys, "predict", "gemm", *SQUARE, "--config", CONFIG)[1]


def test_every_option_reaches_the_problem(capsys: pytest.CaptureFixture[str]) -> None:
    args = [
        "--M", "33", "--N", "65", "--K", "129", "--batch", "3", "--dtype", "torch.float16",
        "--b-dtype", "int8", "--out-dtype", "float32", "--a-layout", "col", "--b-layout", "col",
        "--lda", "40", "--ldb", "130", "--gpu", "a100-sxm4-80gb",
    ]  # fmt: skip
    problem = as_json(capsys, "predict", "gemm", *args)["problem"]
    assert problem == {
        "m": 33, "n": 65, "k": 129, "batch": 3, "a_dtype": "fp16", "b_dtype": "int8",
        "out_dtype": "fp32", "a_layout": "col", "b_layout": "col", "lda": 40, "ldb": 130,
    }  # fmt: skip
    title = run(capsys, "predict", "gemm", *args)[1].splitlines()[0]
    assert title == (
        "gemm m=33 n=65 k=129 batch=3 fp16 x int8 -> fp32 A:col B:col lda=40 ldb=130 "
        "on a100-sxm4-80gb"
    )


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "tf32", "fp8_e4m3", "fp8_e5m2", "int8"])
def test_every_short_dtype_name(capsys: pytest.CaptureFixture[str], dtype: str) -> None:
    found = as_json(capsys, "predict", "gemm", *SQUARE, "--dtype", dtype)
    assert found["problem"]["a_dtype"] == dtype
    assert found["basis"] == ("interpolated" if dtype == "fp16" else "extrapolated")


# ES1: zero work is a normal input.
@pytest.mark.parametrize("sizes", [("--m", "0"), ("--n", "0"), ("--k", "0"), ("--batch", "0")])
def test_zero_work(capsys: pytest.CaptureFixture[str], sizes: tuple[str, str]) -> None:
    found = as_json(capsys, "predict", "gemm", *SQUARE, *sizes)
    assert 4 <= found["latency_us"] < 40
    assert found["tflops"] == 0
    for command in ("predict", "rank", "explain"):
        code, out, _ = run(capsys, command, "gemm", *SQUARE, *sizes)
        assert (code, "note:" in out) == (0, True)


# ES3: nothing overflows, and 64-bit offsets are asked for.
def test_huge_work(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--m", "65536", "--n", "65536", "--k", "65536"]
    code, out, _ = run(capsys, "predict", "gemm", *SQUARE, *sizes)
    assert code == 0
    assert "offsets into them need 64 bits" in out.replace("\n      ", " ")
    assert " ms  (90 % interval" in out
    assert as_json(capsys, "predict", "gemm", *SQUARE, *sizes)["latency_us"] > 284_000


def test_a_device_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "capped.toml"
    path.write_text('base = "h100-sxm5"\nboost_clock_mhz = 900\n')
    found = as_json(capsys, "predict", "gemm", *SQUARE, "--gpu", str(path))
    assert (found["gpu"], found["basis"]) == ("capped", "extrapolated")
    whole = as_json(capsys, "predict", "gemm", *SQUARE)
    assert found["latency_us"] > 1.5 * whole["latency_us"]


def test_a_model_of_ones_own(capsys: pytest.CaptureFixture[str], model_file: Path) -> None:
    found = as_json(capsys, "predict", "gemm", *SQUARE, "--model", str(model_file))
    assert (found["model"], found["basis"]) == ("tiny-1", "interpolated")


# PR5: an answer says how good it is; PR12: and when it does not know.
def test_an_unmeasured_device_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "predict", "gemm", *SQUARE, "--gpu", "b300")
    assert (code, err) == (0, "")
    assert "extrapolated" in out
    assert "note: b300 was never measured" in out
    assert "unsure: any of the first" in out
