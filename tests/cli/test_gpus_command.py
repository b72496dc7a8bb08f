from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.cli.gpus import app
from perfmodel.errors import AmbiguousGpuError, InvalidGpuSpecError, UnknownGpuError
from perfmodel.hardware.catalog import gpu_names

run = CliRunner().invoke


def test_the_list_shows_every_device() -> None:
    result = run(app, [])
    assert result.exit_code == 0
    assert all(name in result.output for name in gpu_names())
    assert "989.4" in result.output


def test_the_list_as_json() -> None:
    result = run(app, ["--json"])
    devices = {d["name"]: d for d in json.loads(result.output)}
    assert set(devices) == set(gpu_names())
    assert devices["h100-sxm5"]["tensor_tflops"]["bf16"] == 989.4
    assert devices["rtx-5090"]["capabilities"]["tmem"] is False
    assert devices["h100-sxm5"]["launch_overhead_us"] is None


def test_one_device_with_units_and_sources() -> None:
    result = run(app, ["show", "NVIDIA H100 80GB HBM3"])
    assert result.exit_code == 0
    for text in ("h100-sxm5", "232,448", "GB/s", "989.4", "whitepaper", "unknown", "wgmma"):
        assert text in result.output


def test_one_device_as_json() -> None:
    device = json.loads(run(app, ["show", "mi300x", "--json"]).output)
    assert device["warp_size"] == 64
    assert device["units"]["dram_bandwidth_gb_per_s"] == "GB/s"
    assert device["sources"]["sm_count"]


def test_a_user_s_own_file_can_be_shown(tmp_path: Path) -> None:
    path = tmp_path / "capped.toml"
    path.write_text('base = "h100-sxm5"\nboost_clock_mhz = 1200\n')
    device = json.loads(run(app, ["show", str(path), "--json"]).output)
    assert device["name"] == "capped"
    assert device["tensor_tflops"]["bf16"] == pytest.approx(989.4 * 1200 / 1830)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("h100", AmbiguousGpuError),
        ("rtx-9090", UnknownGpuError),
        ("absent.toml", InvalidGpuSpecError),
    ],
)
def test_a_name_that_does_not_resolve_is_a_usage_error(name: str, error: type) -> None:
    result = run(app, ["show", name])
    assert isinstance(result.exception, error)
    assert result.exception.exit_code == 2
