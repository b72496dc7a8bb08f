from __future__ import annotations

import io
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfmodel.dataset import store
from perfmodel.dataset.pull import pull
from perfmodel.errors import CorruptFileError, DataError, MissingDataError, RunFailedError

ROOT = "aiconfigurator_core/systems/data"
TABLES = ["gemm", "prefill", "decode", "moe"]


def labelled(device: str, kernel: str, **columns: list[Any]) -> dict[str, list[Any]]:
    count = len(next(iter(columns.values())))
    texts = {
        "framework": "VLLM", "version": "0.24.0", "device": device, "op_name": "x",
        "kernel_source": kernel,
    }  # fmt: skip
    return {name: [text] * count for name, text in texts.items()} | columns


GEMM = labelled(
    "NVIDIA H200", "torch.nn.functional.linear",
    gemm_dtype=["bfloat16", "bfloat16", "bfloat16", "bfloat16", "fp8_block"],
    m=[64, 64, 0, 128, 128], n=[4096] * 5, k=[4096] * 5,
    latency=[0.020, 0.024, 0.001, 0.030, 0.030],
)  # fmt: skip
PREFILL = labelled(
    "NVIDIA H200", "vllm_flash_attn_fa3",
    batch_size=[2, 2], isl=[1024, 1024], num_heads=[32, 32], num_key_value_heads=[0, 8],
    head_dim=[128, 128], window_size=[0, 128], beam_width=[1, 1],
    attn_dtype=["bfloat16"] * 2, kv_cache_dtype=["bfloat16", "fp8"], step=[0, 512],
    latency=[0.5, 0.25],
)  # fmt: skip
DECODE = labelled(
    "NVIDIA H200", "vllm_flash_attn_fa3",
    batch_size=[16], isl=[1], num_heads=[32], num_key_value_heads=[8], head_dim=[128],
    beam_width=[1], attn_dtype=["bfloat16"], kv_cache_dtype=["bfloat16"], step=[4095],
    latency=[0.2],
)  # fmt: skip
MOE = labelled(
    "NVIDIA H200", "vllm_fused_moe",
    moe_dtype=["bfloat16"], num_tokens=[64], hidden_size=[4096], inter_size=[14336], topk=[2],
    num_experts=[8], moe_tp_size=[2], moe_ep_size=[1], distribution=["balanced"], latency=[1.5],
)  # fmt: skip


def wheel(tables: dict[str, dict[str, list[Any]]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("aiconfigurator_core/__init__.py", "")
        for name, columns in tables.items():
            content = io.BytesIO()
            pq.write_table(pa.table(columns), content)
            archive.writestr(f"{ROOT}/{name}.parquet", content.getvalue())
    return buffer.getvalue()


FILES = {
    "h200_sxm/gemm/vllm/0.24.0/gemm_perf": GEMM,
    "h200_sxm/attention/vllm/0.24.0/context_attention_perf": PREFILL,
    "h200_sxm/attention/vllm/0.24.0/generation_attention_perf": DECODE,
    "h200_sxm/moe/vllm/0.24.0/moe_perf": MOE,
    "h200_sxm/comm/vllm/0.24.0/custom_allreduce_perf": {"latency": [1.0]},
}


@pytest.fixture
def published(world: Any) -> Path:
    path: Path = world.add_wheel("shapes", "aiconfigurator", TABLES, wheel(FILES))
    return path


def test_one_wheel_makes_a_table_per_operation(world: Any, published: Path) -> None:
    done = pull("shapes", wheel=published)
    assert [path.stem for path in done.paths] == [f"shapes-{table}" for table in TABLES]
    assert [report.rows for report in done.reports] == [3, 2, 1, 1]
    assert pull("shapes", wheel=published).reports == ()


def test_gemm_rows_say_what_ran_in_our_words(world: Any, published: Path) -> None:
    pull("shapes", wheel=published)
    table = store.load("shapes-gemm")
    assert list(table["m"]) == [64, 128, 128]  # nothing of m = 0
    first = table.iloc[0]
    assert (first["latency_us"], first["raw_rows"]) == (22.0, 2)  # the median, in microseconds
    assert first["latency_statistic"] == "median_of_distinct"
    assert (first["gpu"], first["library"], first["library_version"]) == (
        "h200-sxm", "vllm", "0.24.0",
    )  # fmt: skip
    assert (first["backend"], first["kernel"]) == ("cublas", "torch.nn.functional.linear")
    assert (first["a_dtype"], first["b_layout"], first["ldb"]) == ("bf16", "col", 4096)
    block = table.iloc[2]
    assert (block["a_dtype"], block["out_dtype"]) == ("fp8_e4m3", "bf16")
    assert block["kernel"].endswith("-fp8_block")


def test_attention_heads_windows_and_prefixes(world: Any, published: Path) -> None:
    pull("shapes", wheel=published)
    mha, windowed = (row for _, row in store.load("shapes-prefill").iterrows())
    assert (mha["kv_heads"], mha["kv_len"], mha["prefix_len"]) == (32, 1024, 0)
    assert mha["window_size"] != mha["window_size"]  # none
    assert (windowed["kv_heads"], windowed["window_size"], windowed["kv_dtype"]) == (
        8, 128, "fp8_e4m3",
    )  # fmt: skip
    assert (windowed["q_len"], windowed["kv_len"], windowed["prefix_len"]) == (1024, 1536, 512)
    assert windowed["backend"] == "flash_attention_3"
    decode = store.load("shapes-decode").iloc[0]  # a table without the window column
    assert (decode["phase"], decode["q_len"], decode["kv_len"]) == ("decode", 1, 4096)


def test_moe_rows_keep_the_parallel_shares_apart(world: Any, published: Path) -> None:
    pull("shapes", wheel=published)
    row = store.load("shapes-moe").iloc[0]
    assert (row["tokens"], row["experts"], row["top_k"], row["tensor_parallel"]) == (64, 8, 2, 2)
    assert (row["projection"], row["routing"], row["backend"]) == ("both", "balanced", "triton")


def test_columns_and_filters_read_part_of_a_table(world: Any, published: Path) -> None:
    pull("shapes", wheel=published)
    found = store.load("shapes-gemm", columns=["m", "kernel"], filters=[("a_dtype", "=", "bf16")])
    assert list(found.columns) == ["m", "kernel"]
    assert list(found["m"]) == [64, 128]
    assert sum(len(part) for part in store.load_parts("shapes-gemm")) == 3


def test_the_dataset_itself_is_no_table(world: Any, published: Path) -> None:
    pull("shapes", wheel=published)
    with pytest.raises(DataError, match=r"several tables.*shapes-gemm, shapes-prefill"):
        store.load("shapes")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": None}, "column 'n' is missing"),
        ({"gemm_dtype": ["int3"] * 5}, "'int3' is not known"),
        ({"m": [-1] * 5}, "'m' holds -1"),
    ],
)
def test_a_foreign_table_is_refused_by_name(
    world: Any, change: dict[str, Any], message: str
) -> None:
    changed = {k: v for k, v in (GEMM | change).items() if v is not None}
    path = world.add_wheel(
        "odd", "aiconfigurator", ["gemm"], wheel({"h200_sxm/gemm/vllm/1/gemm_perf": changed})
    )
    with pytest.raises(CorruptFileError, match=message) as caught:
        pull("odd", wheel=path)
    assert "h200_sxm/gemm/vllm/1/gemm_perf.parquet" in str(caught.value)
    assert not list((world.cache / "datasets").glob("*.parquet"))


def test_a_wheel_without_the_table_is_refused(world: Any) -> None:
    path = world.add_wheel("bare", "aiconfigurator", ["gemm"], wheel({}))
    with pytest.raises(CorruptFileError, match="no rows for the table 'bare-gemm'"):
        pull("bare", wheel=path)


def test_an_altered_wheel_is_refused(world: Any, published: Path) -> None:
    published.write_bytes(published.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match="sha256"):
        pull("shapes", wheel=published)


def test_a_wheel_is_asked_for_where_it_is_none(world: Any, published: Path) -> None:
    with pytest.raises(MissingDataError, match="there is no file"):
        pull("shapes", wheel=published.with_name("absent.whl"))
    with pytest.raises(DataError, match="leave --wheel out"):
        pull("sample-mm", mirror=world.mirror, wheel=published)


def test_without_a_file_pip_is_asked_for_that_very_wheel(
    world: Any, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command)
        target = Path(command[command.index("--dest") + 1]) / published.name
        target.write_bytes(published.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    pull("shapes", mirror=world.mirror)
    pull("shapes", mirror=world.mirror, force=True)
    (command,) = asked  # the second time the first one's file serves
    assert "some-timings==1.2.0" in command
    assert {"--no-deps", "--platform=manylinux_2_28_x86_64", "abi3", "3.11"} <= set(command)


def test_pips_refusal_is_told_with_a_way_out(
    world: Any, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RunFailedError, match=r"No matching distribution.*--wheel FILE"):
        pull("shapes")
