from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from perfmodel.cli.app import main

pytestmark = pytest.mark.usefixtures("shipped")

ROWS = {
    "gemm": "m,n,k,dtype\n4096,4096,4096,bf16\n16,4096,4096,fp16\n",
    "attention": "q_len,q_heads,head_dim,dtype\n2048,16,128,bf16\n",
    "moe": 'tokens,experts,top_k,hidden,intermediate,tp,dtype\n"16,256",8,2,4096,14336,2,bf16\n',
}
TABLE = "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json"


def tune(tmp_path: Path, family: str, *args: str, gpu: str = "h100-sxm5") -> int:
    path = tmp_path / "shapes.csv"
    path.write_text(ROWS[family])
    return main(["tune", family, "--shapes", str(path), "--gpu", gpu, *args])


def test_tb9_help_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f" {family} " in out for family in ROWS)
    for family in ROWS:
        assert main(["tune", family, "--help"]) == 0
        assert "--shapes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("gemm", "json"), ("gemm", "triton"), ("gemm", "inductor"), ("attention", "json"),
        ("attention", "triton"), ("moe", "vllm"), ("moe", "json"), ("moe", "triton"),
    ],
)  # fmt: skip
def test_tb9_a_dry_run_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str, form: str
) -> None:
    out = tmp_path / "out"
    assert tune(tmp_path, family, "--export", form, "--out", str(out), "--dry-run") == 0
    said = capsys.readouterr().out
    assert "dry run: nothing was written" in said
    # What chose a tile is said where it knows no times, as for all but matrix products.
    assert ("which knows which tiles won and no times" in said) == (family != "gemm")
    assert not out.exists()


def test_tb9_neither_torch_nor_triton_is_needed(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(ROWS["gemm"])
    code = (
        "import sys; from perfmodel.cli.app import main; "
        "sys.modules['torch'] = sys.modules['triton'] = None; "  # importing either fails
        f"sys.exit(main(['tune', 'gemm', '--shapes', {str(tmp_path / 's.csv')!r}, '--gpu', "
        "'h100-sxm5', '--export', 'inductor']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)) == 2


def test_tb1_the_command_of_the_warning_writes_the_table_and_says_what_it_gains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path, "moe", "--export", "vllm", "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "gain" in out
    assert "analytic; nothing was timed" in out
    assert "chosen in the order of tiles-1-moe" in out
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["16", "256"]
    assert list(json.loads((tmp_path / TABLE).read_text())) == ["16", "256"]
    assert tune(tmp_path, "moe", "--export", "vllm", "--out", str(tmp_path)) == 2
    assert "--replace" in capsys.readouterr().err
    assert tune(tmp_path, "moe", "--export", "vllm", "--out", str(tmp_path), "--replace") == 0


def test_a_driver_of_another_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--export", "vllm", "--out", str(tmp_path / "t")]
    assert tune(tmp_path, "moe", *args, "--device-name", "AMD Instinct MI50/MI60") == 0
    (path,) = (tmp_path / "t").iterdir()
    assert path.name == "E=8,N=7168,device_name=AMD_Instinct_MI50%2FMI60.json"
    capsys.readouterr()
    assert tune(tmp_path, "moe", *args, gpu="mi300x") == 0
    assert "AMD Instinct MI300X OAM" in capsys.readouterr().err


def test_json_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(tmp_path, "gemm") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "perfmodel.picks/1"
    assert [p["problem"]["m"] for p in found["picks"]] == [4096, 16]


def test_triton_takes_the_configs(tmp_path: Path) -> None:
    for family in ROWS:
        out = tmp_path / f"{family}.json"
        assert tune(tmp_path, family, "--export", "triton", "--out", str(out)) == 0
        for found in json.loads(out.read_text()):
            config = triton.Config(**found["config"])
            assert config.kwargs["BLOCK_M"] > 0
            assert ("BLOCK_K" in config.kwargs) == (family != "attention")


def test_tb8_bad_shapes_exit_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.csv"
    path.write_text("M,n,k,dtype\n1,2,3,bf16\n")
    assert main(["tune", "gemm", "--shapes", str(path), "--gpu", "h100-sxm5"]) == 2
    err = capsys.readouterr().err
    assert "unknown field 'M' (did you mean 'm'?)" in err
    assert "m, n, k, dtype (needed)" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("family", "form"), [("gemm", "vllm"), ("attention", "inductor"), ("moe", "inductor")]
)
def test_a_form_of_another_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str, form: str
) -> None:
    assert tune(tmp_path, family, "--export", form) == 2
    err = capsys.readouterr().err
    assert f"not for {family}" in err
    assert "json" in err
