"""``perfmodel predict|rank|explain attention``, ``moe``, ``memory``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.cli.app import main
from perfmodel.problems import Attention, GroupedGemm

PREFILL = ["attention", "--q-len", "2048", "--q-heads", "32", "--kv-heads", "8",
           "--head-dim", "128", "--dtype", "bf16"]  # fmt: skip
MIXTRAL = ["moe", "--experts", "8", "--top-k", "2", "--hidden", "4096", "--intermediate", "14336",
           "--dtype", "bf16"]  # fmt: skip
H100 = ["--gpu", "h100-sxm5"]

pytestmark = pytest.mark.usefixtures("shipped")


def test_prefill_is_predicted_with_its_rivals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *PREFILL, "--batch", "4", *H100]) == 0
    out = capsys.readouterr().out
    assert out.startswith("attention batch=4 q_len=2048 kv_len=2048 heads=32/8 head_dim=128 causal")
    assert "basis      analytic" in out
    assert "rivals" in out
    assert "block_k" not in out
    assert "group_m" not in out


def test_the_answer_in_json_gives_the_problem_back(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--kv-len", "2048,5000,6000,10", "--q-len", "2048,3x1", "--window", "4096",
             "--kv-dtype", "fp8", "--paged", "16"]  # fmt: skip
    assert main(["predict", *PREFILL, *given, "--json", *H100]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "perfmodel.prediction/1"
    assert found["family"] == "attention"
    problem = Attention(**found["problem"])
    assert problem.items == ((2048, 2048), (1, 5000), (1, 6000), (1, 10))
    assert (problem.window, problem.page_size, str(problem.kv_dtype)) == (4096, 16, "fp8_e4m3")
    assert found["latency_us"] > 0
    assert len(found["rivals"]) == 5


def test_a_config_that_was_printed_is_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *PREFILL, *H100]) == 0
    first = capsys.readouterr().out.splitlines()
    config = first[first.index("config") + 1].strip()
    assert main(["predict", *PREFILL, "--config", config, *H100]) == 0
    again = capsys.readouterr().out.splitlines()
    latency = [line for line in first if line.startswith("latency")]
    assert [line for line in again if line.startswith("latency")] == latency


@pytest.mark.parametrize("gpu", ["t4", "l40s"])
def test_head_dim_512_ranks_tiles_that_fit(capsys: pytest.CaptureFixture[str], gpu: str) -> None:
    args = ["rank", "attention", "--q-len", "2048", "--q-heads", "8", "--head-dim", "512",
            "--dtype", "fp16", "--gpu", gpu, "--json"]  # fmt: skip
    assert main(args) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["candidates"]
    assert any("shared memory" in r["reasons"][0]["limit"] for r in found["rejected"])


def test_own_configs_are_ranked_and_the_one_that_does_not_fit_gets_a_neighbour(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = tmp_path / "own.csv"
    own.write_text("BLOCK_M,BLOCK_N,num_warps,num_stages\n64,64,4,3\n128,32,4,2\n")
    args = ["rank", "attention", "--q-len", "4096", "--q-heads", "16", "--head-dim", "192",
            "--dtype", "fp16", "--gpu", "a40", "--configs", str(own)]  # fmt: skip
    assert main(args) == 0
    out = capsys.readouterr().out
    assert "128x32 w4 s2" in out
    assert "shared memory per block in bytes: needs 131,072, limit 101,376" in out
    assert "nearest that fits: block_m=64,block_n=64,num_warps=4,num_stages=2" in out


def test_explaining_says_what_limits_and_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    slow = ["--config", "block_m=16,block_n=16,num_warps=4,num_stages=1"]
    assert main(["explain", *PREFILL, *slow, *H100]) == 0
    out = capsys.readouterr().out
    for part in ("each resource by itself", "occupancy", "what to change first", "x faster"):
        assert part in out


def test_a_library_kernel_is_named_and_has_no_tile(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *PREFILL, "--backend", "vllm/fa3@0.12.0", *H100]) == 0
    out = capsys.readouterr().out
    assert "by vllm/fa3@0.12.0" in " ".join(out.split())
    assert "config" not in out
    assert main(["rank", *PREFILL, "--backend", "vllm/fa3", *H100]) == 2
    assert "a library picks its own tile" in capsys.readouterr().err


def test_moe_takes_a_histogram_from_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    counts = tmp_path / "counts.json"
    counts.write_text("[10, 20, 0, 0, 30, 4, 0, 0]")
    assert main(["predict", *MIXTRAL, "--tokens", "32", "--routing", str(counts), "--json",
                 *H100]) == 0  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert GroupedGemm(**found["problem"]).loads.tolist() == [10, 20, 0, 0, 30, 4, 0, 0]
    assert found["family"] == "grouped_gemm"
    assert found["basis"] == "analytic"


@pytest.mark.parametrize("command", ["predict", "rank", "explain"])
def test_every_command_takes_moe(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, *MIXTRAL, "--tokens", "64", "--routing", "zipf:1.1", "--ep", "2",
                 *H100]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert out.startswith("moe tokens=64 experts=8 top_k=2 hidden=4096 intermediate=14336 ep=2")


def test_memory_bound_kernels_are_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "memory", "--kernel", "rms-norm", "--rows", "8192", "--columns",
                 "8192", "--dtype", "bf16", *H100]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "limiter    dram" in out
    assert "schedule" not in out


def test_no_sequence_is_a_normal_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *PREFILL, "--batch", "0", *H100]) == 0
    assert "no work" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([*PREFILL, "--kv-heads", "5"], ["kv_heads 5", "divides 32"]),
        ([*PREFILL, "--window", "4096"], ["window is 4096", "at most 2048"]),
        ([*PREFILL, "--kv-len", "12"], ["kv_len is 12", "at least 2048"]),
        ([*PREFILL, "--q-len", "12,a"], ["q_len is 'a'", "whole number"]),
        ([*PREFILL, "--q-len", "3xx"], ["q_len is '3x'"]),
        ([*PREFILL, "--q-len", "1,-2x5"], ["q_len repeats 5 -2 times", "use 1 to"]),
        ([*PREFILL, "--q-len", "9999999999x1"], ["9999999999 times"]),
        ([*PREFILL, "--dtype", "bf17"], ["bf17"]),
        ([*PREFILL, "--dtype", "fp8", "--gpu", "a100-sxm4-80gb"], ["no arithmetic for fp8_e4m3"]),
        ([*PREFILL, "--gpu", "h1000"], ["h1000"]),
        ([*PREFILL, "--backend", "a b"], ["'a b'"]),
        ([*MIXTRAL, "--tokens", "5", "--routing", "unifrom"], ["'unifrom'", "uniform"]),
        ([*MIXTRAL, "--tokens", "5", "--routing", "/no/such.json"], ["/no/such.json", "path"]),
        ([*MIXTRAL, "--tokens", "5", "--ep", "3"], ["ep 3", "such as 2"]),
    ],
)
def test_bad_input_is_named_and_ends_with_2(
    capsys: pytest.CaptureFixture[str], args: list[str], said: list[str]
) -> None:
    gpu = [] if "--gpu" in args else H100
    assert main(["predict", *args, *gpu]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert "Traceback" not in captured.err
    for part in said:
        assert part in captured.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2", "line 1 is not JSON"),
        ('[1, "two"]', "'two'"),
        ("1,2\n3 four\n", "line 2 has 'four'"),
        ("1 1 1 1 1 1 1 1", "adds up to 8"),
        ("[10, 0]", "2 experts"),
    ],
)
def test_a_bad_histogram_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "counts.txt"
    file.write_text(text)
    args = ["predict", *MIXTRAL, "--tokens", "5", "--routing", str(file), *H100]
    assert main(args) == 2
    assert said in capsys.readouterr().err
