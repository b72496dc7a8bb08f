"""``perfmodel compare``: GPUs side by side, with their prices, and what is refused."""

from __future__ import annotations

import json

import pytest

from perfmodel.cli.app import main

GEMM = ["compare", "gemm", "--m", "4096", "--n", "4096", "--k", "4096", "--dtype", "bf16"]
TWO = ["--gpu", "a100-sxm4-80gb", "--gpu", "h100-sxm5"]

pytestmark = pytest.mark.usefixtures("shipped")


def test_devices_stand_side_by_side_as_predict_has_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*GEMM, *TWO]) == 0
    shown = capsys.readouterr().out
    assert main([*GEMM, *TWO, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["gpus"]
    assert [e["gpu"] for e in entries] == ["a100-sxm4-80gb", "h100-sxm5"]
    for entry in entries:
        assert main(["predict", *GEMM[1:], "--gpu", entry["gpu"], "--json"]) == 0
        alone = json.loads(capsys.readouterr().out)
        assert entry["prediction"]["latency_us"] == alone["latency_us"]
        line = next(line for line in shown.splitlines() if entry["gpu"] in line)
        assert f"{alone['latency_us']:.1f}" in line
        assert alone["limiter"] in line
        assert alone["basis"] in line
    assert "per million" not in shown  # no price was given, so none is shown


def test_a_price_gives_the_price_of_a_million_launches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*GEMM, *TWO, "--price", "a100-sxm4-80gb=1.8", "--json"]) == 0
    a100, h100 = json.loads(capsys.readouterr().out)["gpus"]
    seconds = a100["prediction"]["latency_us"]  # of a million launches
    assert a100["cost_per_million"] == pytest.approx(seconds / 3600 * 1.8)
    assert h100["cost_per_million"] is None
    assert main([*GEMM, *TWO, "--price", "a100-sxm4-80gb=1.8"]) == 0
    assert "per million" in capsys.readouterr().out


@pytest.mark.parametrize(
    "args",
    [
        ["attention", "--q-len", "2048", "--q-heads", "32", "--head-dim", "128"],
        ["attention", "--q-len", "1", "--kv-len", "4096", "--q-heads", "32", "--kv-heads", "8",
         "--head-dim", "128", "--backend", "flashinfer"],
        ["moe", "--tokens", "64", "--experts", "8", "--top-k", "2", "--hidden", "1024",
         "--intermediate", "2048"],
        ["memory", "--kernel", "rms_norm", "--rows", "4096", "--columns", "4096"],
    ],
)  # fmt: skip
def test_other_families(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    assert main(["compare", *args, "--dtype", "bf16", *TWO]) == 0
    out = capsys.readouterr().out
    assert out.index("a100-sxm4-80gb") < out.index("h100-sxm5")


def test_a_device_without_the_type_says_so_beside_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*GEMM, "--gpu", "t4", "--gpu", "h100-sxm5"]) == 1
    out, err = capsys.readouterr()
    assert "t4 has no arithmetic for bf16" in out
    assert "interpolated" in out
    assert err == "error: 1 of 2 GPUs cannot run this\n"


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--gpu", "h1000"], ["unknown GPU 'h1000'"]),
        (["--gpu", "t4"], ["t4 has no arithmetic for bf16"]),
        (["--gpu", "h100-sxm5", "--gpu", "h100-sxm5"], ["h100-sxm5", "listed already"]),
        ([*TWO, "--price", "1.8"], ["'1.8'", "GPU=PER-HOUR"]),
        ([*TWO, "--price", "h100-sxm5=cheap"], ["'cheap' is no price"]),
        ([*TWO, "--price", "h100-sxm5=-1"], ["'-1' is no price"]),
        ([*TWO, "--price", "h100-sxm5=nan"], ["'nan' is no price"]),
        ([*TWO, "--price", "b200=3"], ["b200 is not compared"]),
        ([*TWO, "--price", "h100-sxm5=3", "--price", "h100-sxm5=4"], ["given twice"]),
    ],
)
def test_bad_input_is_named(
    capsys: pytest.CaptureFixture[str], args: list[str], parts: list[str]
) -> None:
    assert main([*GEMM, *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    for part in parts:
        assert part in err
