"""Every bad input by name: one clear message on stderr, exit code 2, nothing on stdout."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.cli.app import main

SQUARE = ["--m", "4096", "--n", "4096", "--k", "4096", "--dtype", "bf16", "--gpu", "h100-sxm5"]

pytestmark = pytest.mark.usefixtures("shipped")


@pytest.mark.parametrize("command", ["predict", "rank", "explain"])
@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--gpu", "h1000"], ["unknown GPU 'h1000'", "h100-sxm5"]),
        (["--gpu", "RTX 3070 Ti"], ["unknown GPU 'RTX 3070 Ti'", "--gpu FILE.toml"]),
        (["--gpu", "H100"], ["h100-pcie", "h100-sxm5", "say which"]),
        (["--gpu", ""], ["the GPU's name is empty"]),
        (["--gpu", "absent.toml"], ["absent.toml"]),
        (["--m", "-1"], ["m is -1", "0 to 2**40"]),
        (["--k", str(2**41)], ["k is 2199023255552", "0 to 2**40"]),
        (["--batch", "-3"], ["batch is -3"]),
        (["--n", "64.5"], ["n is '64.5'", "whole number"]),
        (["--lda", "many"], ["lda is 'many'", "whole number"]),
        (["--dtype", "bf17"], ["unknown dtype 'bf17'", "did you mean 'bf16'", "fp8_e4m3"]),
        (["--dtype", "bf16", "--gpu", "t4"], ["t4 has no arithmetic for bf16", "it has: fp16"]),
        (["--dtype", "int8", "--b-dtype", "bf16"], ["int8 x bf16", "not a supported pair"]),
        (["--a-layout", "diagonal"], ["a_layout is 'diagonal'", "row"]),
        (["--lda", "100"], ["lda is 100", "4096"]),
        (["--model", "absent.json"], ["absent.json"]),
    ],
)
def test_one_clear_message(
    capsys: pytest.CaptureFixture[str], command: str, args: list[str], parts: list[str]
) -> None:
    assert main([command, "gemm", *SQUARE, *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("error: ") == 1
    assert "Traceback" not in err
    for part in parts:
        assert part in err
    assert len(err.splitlines()) == (2 if "help:" in err else 1)


@pytest.mark.parametrize("command", ["predict", "explain"])
@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ("block_mm=64", ["unknown config key 'block_mm'", "did you mean 'block_m'?"]),
        ("warp=4", ["unknown config key 'warp'", "num_warps"]),
        ("block_m", ["'block_m' is not name=value"]),
        ("block_m=64,block_m=32", ["block_m is given twice"]),
        ("block_m=64,BLOCK_M=32", ["block_m is given twice"]),
        ("block_m=0", ["block_m is 0", "at least 1"]),
        ("block_m=6.5", ["block_m is '6.5'"]),
        ("block_m=48", ["block_m is 48, no power of two; use 32 or 64", "block_m=32"]),
        (
            "block_m=256,block_n=256,block_k=128,num_stages=5",
            ["shared memory", "limit 232,448", "lower num_stages", "nearest that fits: block_"],
        ),
        ("num_warps=64", ["threads per block", "limit 1,024", "lower num_warps"]),
    ],
)
def test_configs(
    capsys: pytest.CaptureFixture[str], command: str, config: str, parts: list[str]
) -> None:
    assert main([command, "gemm", *SQUARE, "--config", config]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    for part in parts:
        assert part in err


@pytest.mark.parametrize(
    "change",
    [
        'sm_count = -4', 'sm_count = 0', 'sm_count = "many"', "dram_bandwidth_gb_per_s = 1e12",
        "smem_per_block = 1",
    ],
)  # fmt: skip
def test_device_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, change: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "h100-sxm5"\n{change}\n')
    assert main(["predict", "gemm", *SQUARE, "--gpu", str(path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert change.split(" = ", maxsplit=1)[0] in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_corrupt_model_file(
    capsys: pytest.CaptureFixture[str], model_file: Path, suffix: str, keep: float
) -> None:
    part = model_file.with_suffix(suffix)
    whole = part.read_bytes()
    part.write_bytes(whole[: int(len(whole) * keep)])
    assert main(["predict", "gemm", *SQUARE, "--model", str(model_file)]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "tiny" in err


@pytest.mark.parametrize("missing", ["--m", "--n", "--k", "--dtype", "--gpu"])
def test_a_missing_option_is_named(capsys: pytest.CaptureFixture[str], missing: str) -> None:
    at = SQUARE.index(missing)
    assert main(["predict", "gemm", *SQUARE[:at], *SQUARE[at + 2 :]]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert missing in err.splitlines()[0]
    assert err.splitlines()[1] == "help:  perfmodel predict gemm --help"


def test_an_unknown_option_or_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "gemm", *SQUARE, "--confg", "block_m=64"]) == 2
    assert "--config" in capsys.readouterr().err
    assert main(["predikt"]) == 2
    assert "'predict'" in capsys.readouterr().err
    assert main(["predict", "gem"]) == 2
    assert "'gemm'" in capsys.readouterr().err
