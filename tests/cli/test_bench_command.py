"""``perfmodel bench``: no number without what it is worth; rehearsed on tables and on a fake."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from perfmodel.cli.app import main
from perfmodel.cli.bench_text import bench_text
from perfmodel.dataset import schema
from perfmodel.errors import RunFailedError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.benchmark.rig import Rig
from tuner.benchmark.single import Subject, bench, choose_kernel
from tuner.kernels import catalog
from tuner.measure.device import Trial
from tuner.measure.fake import FakeDevice, Fault, Throttle
from tuner.measure.harness import Harness
from tuner.measure.protocol import TimingProtocol

GEMM = ["gemm", "--m", "1024", "--n", "1024", "--k", "1024", "--dtype", "bf16"]
FAKE = ["--device", "fake", "--gpu", "h100-sxm5"]
FAMILIES = {
    "gemm": GEMM,
    "attention": ["attention", "--q-len", "2048", "--q-heads", "16", "--head-dim", "128", "--dtype",
                  "bf16"],
    "moe": ["moe", "--tokens", "256", "--experts", "8", "--top-k", "2", "--hidden", "1024",
            "--intermediate", "2048", "--dtype", "bf16"],
}  # fmt: skip
PROBLEM = Gemm(1024, 1024, 1024, a_dtype="bf16")
CONFIG = TileConfig(128, 128, 64, 8, 4, 3)

pytestmark = pytest.mark.usefixtures("shipped")


def record(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert main(["bench", *args, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("family", FAMILIES)
def test_no1_a_number_is_never_bare(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *FAMILIES[family], *FAKE]) == 0
    out = capsys.readouterr().out
    for label in ("time", "rate", "predicted", "measured", "protocol", "clocks", "throttle",
                  "drift", "flags", "device", "config"):  # fmt: skip
        assert any(line.startswith(label) for line in out.splitlines()), label
    for said in ("95 % interval of the median", "samples", "steady-cold-1", "L2 cold",
                 "1980 -> 1980 MHz", "TFLOP/s", "GB/s", "a rehearsal"):  # fmt: skip
        assert said in out.replace("\n           ", " ")
    assert all(len(line) <= 80 for line in out.splitlines())


def test_no7_cold_and_warm_are_said_in_the_text_and_in_the_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = record(capsys, *GEMM, *FAKE, "--l2", "warm")
    assert found["measurement"]["protocol"]["l2"] == "warm"
    assert found["measurement"]["protocol"]["name"] == "steady-warm-1"
    assert main(["bench", *GEMM, *FAKE, "--l2", "tepid"]) == 2
    assert "l2 is 'tepid'; use cold or warm" in capsys.readouterr().err


def test_no13_what_was_measured_is_stated(capsys: pytest.CaptureFixture[str]) -> None:
    assert record(capsys, *GEMM, *FAKE)["measured"] == "kernel alone"


def test_st6_what_nobody_said_is_null_and_unknown_never_zero(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = record(capsys, *GEMM, *FAKE)
    after = found["measurement"]["clocks"]["after"]
    assert after == {"sm_clock_mhz": 1980.0, "memory_clock_mhz": None, "temperature_c": None,
                     "power_w": None, "throttle": ""}  # fmt: skip
    assert found["device"]["driver"] is None
    assert main(["bench", *GEMM, *FAKE]) == 0
    out = capsys.readouterr().out
    assert "power unknown" in out
    assert "driver unknown" in out


def test_st7_each_of_several_configs_has_its_prediction_beside_its_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configs = ["--config", "block_m=128,block_n=128", "--config", "block_m=64,block_n=64",
               "--config", "block_m=16,block_n=16"]  # fmt: skip
    found = record(capsys, *GEMM, *FAKE, *configs)
    standings = found["standings"]
    assert len(standings) == 3
    assert standings[0]["config"] == found["config"]
    assert standings[-1]["config"]["block_m"] == 16
    for standing in standings:
        assert 1.0 <= standing["median_us"] / standing["predicted_us"] <= 1.25
        assert standing["laps"] >= 4
    assert standings[-1]["behind"] > 0.5 > standings[-1]["error"]
    assert main(["bench", *GEMM, *FAKE, *configs]) == 0
    out = capsys.readouterr().out
    assert "timed by turns" in out
    assert "+-" in out


def test_the_record_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = record(capsys, *GEMM, *FAKE)
    us = found["measurement"]["latency_us"]
    assert found["schema"] == "perfmodel.bench/1"
    assert found["ratio"] == pytest.approx(us / found["prediction"]["latency_us"])
    assert found["tflops"] == pytest.approx(2 * 1024**3 / us / 1e6)
    assert found["gb_per_s"] == pytest.approx(3 * 1024**2 * 2 / us / 1e3)
    assert found["kernel"] == "gemm"
    assert found["standings"] == []
    best = Predictor().rank(PROBLEM, "h100-sxm5").best
    assert found["config"] == best.to_dict()


def test_without_a_gpu_it_says_what_needs_one_and_what_does_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise RuntimeError("no driver")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=absent))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert main(["bench", *GEMM]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no NVIDIA driver to measure on" in said.err
    assert "`perfmodel predict`, `rank`, `explain` and `compare` answer without a GPU" in said.err
    assert "--device fake" in said.err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["bench", *GEMM]) == 2
    assert "CUDA_VISIBLE_DEVICES is ''" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--device", "fake"], "stands in for a GPU; say which with --gpu NAME"),
        (["--device", "replay:t.parquet"], "say which with --gpu"),
        (["--device", "replay:", "--gpu", "h100-sxm5"], "use cuda, cuda:1, replay:TABLE.parquet"),
        (["--device", "cpu"], "device is 'cpu'; use cuda"),
        (["--device", "fake:x", "--gpu", "h100-sxm5"], "fake:SEED with a whole number"),
        (["--device", "replay:absent.parquet", "--gpu", "h100-sxm5"], "absent.parquet to replay"),
        ([*FAKE, "--config", "block_m=7000"], "block_m"),
        ([*FAKE, "--kernel", "gem"], "did you mean 'gemm'?"),
        ([*FAKE, "--kernel", "attention"], "kernel attention does not compute"),
        ([*FAKE, "--samples", "0"], "samples are 0 to 0"),
        ([*FAKE, "--limit", "0"], "--limit is 0 s"),
        ([*FAKE, "--limit", "nan"], "--limit is nan s"),
        ([*FAKE, "--backend", "cublas"], "leave --backend out"),
        ([*FAKE, "--check"], "--check needs a GPU"),
        ([*FAKE, "--config", "block_m=64", "--config", "block_m=64"], "is given twice; keep one"),
    ],
    ids=str,
)
def test_bad_input_names_the_fix(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *GEMM, *args]) == 2
    found = capsys.readouterr()
    assert said in found.err
    assert "Traceback" not in found.err
    assert found.out == ""


def a_table(path: Path, us: float = 25.0, **changes: Any) -> Path:
    row = {
        "family": "gemm", **PROBLEM.to_dict(),
        **{k: v for k, v in CONFIG.to_dict().items() if v is not None},
        "config_known": True, "backend": "triton", "is_library": False, "selection": "full",
        "gpu": "h100-sxm5", "latency_us": us, "timing_method": "events", "outcome": "ok",
        "source": "made up", **changes,
    }  # fmt: skip
    schema.write(pd.DataFrame([row]), path, schema.TableInfo("made up", {}, "made up", 1))
    return path


def test_a_recorded_time_is_told_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = a_table(tmp_path / "t.parquet")
    where = ["--device", f"replay:{table}", "--gpu", "h100-sxm5"]
    found = record(capsys, *GEMM, *where)
    assert found["measurement"]["latency_us"] == 25.0
    assert found["measurement"]["interval_us"] is None
    assert found["config"] == CONFIG.to_dict()  # the best of those that the table knows
    assert "nothing ran here" in found["pretended"]
    assert main(["bench", *GEMM, *where]) == 0
    assert "1 sample, so no interval" in capsys.readouterr().out
    other = ["gemm", "--m", "512", "--n", "512", "--k", "512", "--dtype", "bf16"]
    assert main(["bench", *other, *where]) == 2
    assert "the table has no time of" in capsys.readouterr().err


def test_no6_a_time_faster_than_the_device_allows_is_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = a_table(tmp_path / "t.parquet", us=1.0)  # 2.1e9 operations: 2,100 TFLOP/s
    assert main(["bench", *GEMM, "--device", f"replay:{table}", "--gpu", "h100-sxm5"]) == 1
    out = capsys.readouterr().out
    assert "implausible: the median is 1 us" in out
    assert not any(line.startswith(("time ", "rate ")) for line in out.splitlines())


def rig_of(fake: FakeDevice, times: dict[str, float]) -> Rig:
    gpu, protocol = load_gpu("h100-sxm5"), TimingProtocol()
    harness = Harness(fake, protocol, fake, Trial("reference"), clock=fake.clock, wait=fake.wait)
    return Rig(harness, gpu, protocol, pretend=times, clock=fake.clock)


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (Fault(hang_s=1e6), "timeout"),
        (Fault(raw_us=(math.nan,) * 9), "implausible"),
    ],
)
def test_what_does_not_run_has_no_number_and_exit_code_1(
    fault: Fault, outcome: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    subject = Subject(PROBLEM, choose_kernel(PROBLEM), load_gpu("h100-sxm5"))
    times: dict[str, float] = {}
    fake = FakeDevice(times, faults={subject.text(CONFIG): fault})
    monkeypatch.setattr("tuner.benchmark.rig.open_rig", lambda *_: rig_of(fake, times))
    config = "block_m=128,block_n=128,block_k=64,group_m=8,num_warps=4,num_stages=3"
    assert main(["bench", *GEMM, *FAKE, "--config", config]) == 1
    out = capsys.readouterr().out
    assert f"outcome    {outcome}: " in out
    assert "predicted " in out


def test_a_throttled_device_is_told_with_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    times: dict[str, float] = {}
    fake = FakeDevice(times, throttles=[Throttle(0.0, 1e9)])
    rig = rig_of(fake, times)
    subject = Subject(PROBLEM, choose_kernel(PROBLEM), rig.gpu)
    out = " ".join(bench_text(bench(subject, rig, Predictor(), [CONFIG]), rig).split())
    assert "hw_thermal before, hw_thermal after" in out
    assert "throttled: the device slowed its clocks" in out
    assert "taken 3 times" in out
    assert "SM 1523 -> 1523 MHz" in out


def test_inputs_that_do_not_fit_are_an_outcome_and_the_others_go_on() -> None:
    class Small:
        def launch(self, kernel: Any, problem: Any, config: TileConfig) -> Any:
            if config.block_m == 128:
                raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory.")
            return lambda: None

    times: dict[str, float] = {}
    rig = rig_of(FakeDevice(times), times)
    rig.kernels = Small()  # type: ignore[assignment]
    subject = Subject(PROBLEM, choose_kernel(PROBLEM), rig.gpu)
    found = bench(subject, rig, Predictor(), [CONFIG])
    assert found.measurement.outcome.value == "out_of_resources"
    assert found.ratio is found.tflops is found.gb_per_s is None
    both = bench(subject, rig, Predictor(), [CONFIG, TileConfig(64, 64)])
    assert both.config == TileConfig(64, 64)
    assert both.measurement.outcome.ran
    assert [s.outcome.value for s in both.standings] == ["ok", "out_of_resources"]


def test_a_comparison_finds_what_is_wrong_or_says_that_it_cannot() -> None:
    class Compared:
        found: Any = None

        def launch(self, *_: Any) -> Any:
            return lambda: None

        def verify(self, *_: Any) -> str | None:
            if isinstance(self.found, Exception):
                raise self.found
            return self.found  # type: ignore[no-any-return]

    times: dict[str, float] = {}
    rig, compared = rig_of(FakeDevice(times), times), Compared()
    rig.kernels = compared  # type: ignore[assignment]
    subject = Subject(PROBLEM, choose_kernel(PROBLEM), rig.gpu)
    right = bench(subject, rig, Predictor(), [CONFIG], check=True)
    assert right.measurement.outcome.ran
    assert "agrees with a float64 reference" in bench_text(right, rig)
    compared.found = "out: 3 of 9 elements are wrong"
    wrong = bench(subject, rig, Predictor(), [CONFIG], check=True)
    assert wrong.measurement.outcome.value == "wrong_result"
    assert "3 of 9 elements" in bench_text(wrong, rig)
    assert "TFLOP" not in bench_text(wrong, rig)
    compared.found = type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory.")
    with pytest.raises(RunFailedError, match=r"cannot be compared \(OutOfMemoryError.*--check out"):
        bench(subject, rig, Predictor(), [CONFIG], check=True)


@pytest.mark.parametrize("kernel", catalog.KERNELS, ids=lambda k: k.name)
def test_every_reference_kernel_can_be_named(kernel: catalog.ReferenceKernel) -> None:
    for problem in kernel.examples:
        assert choose_kernel(problem, kernel.name) is kernel
        usual = choose_kernel(problem)
        assert usual.refuses(problem) is None
        text = Subject(problem, usual, load_gpu("h100-sxm5")).text(CONFIG)
        assert "128" in text


def test_the_usual_kernel_is_the_one_that_collecting_takes() -> None:
    eight = Gemm(1024, 1024, 1024, a_dtype="fp8_e4m3", b_layout="col", out_dtype="bf16")
    weights = Gemm(64, 1024, 1024, a_dtype="bf16", b_dtype="int8")
    assert choose_kernel(eight).name == "gemm_row_scaled"
    assert choose_kernel(weights).name == "gemm_weight_only"
    assert choose_kernel(PROBLEM).name == "gemm"
    assert choose_kernel(PROBLEM, None, TileConfig(split_k=4)).name == "gemm_split_k"


def test_tb9_help_and_rehearsals_need_neither_torch_nor_triton() -> None:
    code = (
        "import sys; from perfmodel.cli.app import main; "
        "sys.modules['torch'] = sys.modules['triton'] = None; "  # importing either fails
        f"assert main({['bench', 'moe', '--help']!r}) == 0; "
        f"sys.exit(main({['bench', *GEMM, *FAKE]!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--routing" in done.stdout
    assert "measured / predicted" in " ".join(done.stdout.split())
