"""``perfmodel step``: totals and shares, tokens that run together, shipped examples, bad files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import perfmodel
from perfmodel.batch.steps import read_step, shipped_steps
from perfmodel.cli.app import main

pytestmark = pytest.mark.usefixtures("shipped")

STEP = """title = "Two kernels"
[sizes]
prefill = 96
decode = 32
all = [96, 32]

[[kernel]]
name = "norm"
kernel = "rms_norm"
repeat = 2
rows = "all"
columns = 4096
dtype = "bf16"

[[kernel]]
name = "qkv"
kernel = "gemm"
m = ["prefill", "decode"]
n = 6144
k = 4096
dtype = "bf16"
"""


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "step.toml"
    path.write_text(STEP)
    return path


def ask(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert main(["step", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_total_is_what_the_kernels_take_one_by_one(
    step: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = ask(capsys, str(step), "--gpu", "h100-sxm5")
    predictor = perfmodel.Predictor()
    norm = predictor.predict(perfmodel.MemoryBound("rms_norm", 128, 4096), "h100-sxm5")
    gemm = predictor.predict(perfmodel.Gemm(128, 6144, 4096), "h100-sxm5")
    assert found["total_us"] == pytest.approx(2 * norm.latency_us + gemm.latency_us)
    assert sum(k["share"] for k in found["kernels"]) == pytest.approx(1)
    assert sum(found["limiter_us"].values()) == pytest.approx(found["total_us"])
    low, high = found["interval_us"]
    assert low == pytest.approx(2 * norm.interval_us[0] + gemm.interval_us[0])
    assert high == pytest.approx(2 * norm.interval_us[1] + gemm.interval_us[1])


def test_tokens_that_run_together_are_one_launch(step: Path) -> None:
    norm, gemm = read_step(step).kernels
    assert gemm.problem == perfmodel.Gemm(128, 6144, 4096)
    assert norm.problem == perfmodel.MemoryBound("rms_norm", 128, 4096)
    more = read_step(step, {"decode": 64}).kernels[1]
    assert more.problem == perfmodel.Gemm(160, 6144, 4096)


def test_text_has_shares_and_limiters(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["step", str(step), "--gpu", "h100-sxm5", "--gpu", "a100-sxm4-80gb", "--set", "decode=1"]
    assert main(args) == 0
    out = capsys.readouterr().out
    assert "Two kernels on h100-sxm5" in out
    assert "Two kernels on a100-sxm4-80gb" in out
    assert out.count("qkv") == 2
    assert "decode=1" in out
    assert "limited by" in out


@pytest.mark.parametrize("name", shipped_steps())
def test_shipped_examples_name_their_source_and_run(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = ask(capsys, name, "--gpu", "h100-sxm5")
    assert "https://arxiv.org/abs/" in found["source"]
    assert found["total_us"] > 1000
    assert max(len(line) for line in shipped_steps()[name].read_text().splitlines()) <= 100


def test_llama_weights_are_all_there() -> None:
    """Sizes of the file against the published 8.03 and 70.6 thousand million parameters."""
    for name, ranks, published in (
        ("llama-3-8b-decode", 1, 8.03e9),
        ("llama-3-70b-tp4-decode", 4, 70.6e9),
    ):
        gemms = [(k.repeat, k.problem) for k in read_step(name).kernels]
        weights = sum(n * p.n * p.k for n, p in gemms if isinstance(p, perfmodel.Gemm)) * ranks
        embedding = 128256 * (4096 if ranks == 1 else 8192)
        assert weights + embedding == pytest.approx(published, rel=0.01)


def test_without_a_file_the_examples_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step"]) == 0
    out = capsys.readouterr().out
    for name in shipped_steps():
        assert name in out


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('kernel = "gemm"', 'kernel = "gem"', ["line 17 (qkv)", "unknown kernel 'gem'", "'gemm'"]),
        ('kernel = "rms_norm"', 'kernel = "rmsnorm"', ["line 9 (norm)", "did you mean 'rms_norm'"]),
        ('kernel = "gemm"\n', "", ["line 15 (qkv)", "kernel is missing"]),
        ("repeat = 2", "repeat = -2", ["line 10 (norm)", "repeat is -2"]),
        ("repeat = 2", "repeats = 2", ["line 10 (norm)", "repeats", "has no repeats"]),
        ("n = 6144", "n = 6144.5", ["line 19 (qkv)", "n is 6144.5"]),
        ("n = 6144", 'n = "vocab"', ["line 19 (qkv)", "n is 'vocab'"]),
        ("k = 4096\n", "", ["line 15 (qkv)", "k of the gemm is missing"]),
        ("k = 4096\n", 'k = 4096\ngpu = "t4"\n', ["(qkv)", "gpu is given with --gpu"]),
        ('title = "Two kernels"', 'titel = "x"', ["unknown key 'titel'", "'title'"]),
        ('title = "Two kernels"', "title = ", ["is not TOML", "line 1"]),
        ('m = ["prefill", "decode"]', 'm = ["prefill", "more"]', ["(qkv)", "m[1] is 'more'"]),
    ],
)
def test_bad_files_name_the_line(
    step: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, parts: list[str]
) -> None:
    assert STEP.count(old) == 1 or old == "k = 4096\n"
    step.write_text(STEP.replace(old, new))
    assert main(["step", str(step), "--gpu", "h100-sxm5"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    for part in parts:
        assert part in err


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["absent.toml", "--gpu", "h100-sxm5"], "cannot read absent.toml"),
        (["llama-3-8b-decode"], "--gpu is missing"),
        (["llama-3-8b-decode", "--gpu", "h1000"], "unknown GPU 'h1000'"),
        (["llama-3-8b-decode", "--gpu", "t4"], "t4 has no arithmetic for bf16"),
        (["llama-3-8b-decode", "--gpu", "h100-sxm5", "--set", "token=1"], "'tokens'"),
        (["llama-3-8b-decode", "--gpu", "h100-sxm5", "--set", "tokens"], "SIZE=NUMBER"),
        (["llama-3-8b-decode", "--gpu", "h100-sxm5", "--set", "tokens=some"], "'some'"),
        (["llama-3-8b-decode", "--gpu", "h100-sxm5", "--set", "tokens=-1"], "is -1"),
    ],
)
def test_bad_options(capsys: pytest.CaptureFixture[str], args: list[str], part: str) -> None:
    assert main(["step", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert part in err
