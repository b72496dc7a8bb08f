"""Small hand-made files in the form of each text source, pulled as a user would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfmodel.dataset import store
from perfmodel.dataset.pull import pull
from perfmodel.dataset.sources.vllm import read_moe_table
from perfmodel.errors import CorruptFileError


def imported(world: Any, importer: str, files: dict[str, str]) -> pd.DataFrame:
    world.add("hand-made", importer, {name: text.encode() for name, text in files.items()})
    pull("hand-made", mirror=world.mirror)
    return store.load("hand-made")


# PipeWeave

FP8 = "M,N,K,avg_duration,hardware,num_sms,overall_perf\n"
REPORT = "weight_type,M,E,topk,H,N,avg_duration,overall_perf,pred_perf\n"
NEAR_BEST = (
    "weight_type,M,E,topk,H,N,BLOCK_SIZE_M,BLOCK_SIZE_N,BLOCK_SIZE_K,GROUP_SIZE_M,num_warps,"
    "num_stages,avg_duration,sample_count\n"
)


def test_pipeweave_fp8_reads_sizes_and_times_and_none_of_its_features(world: Any) -> None:
    table = imported(
        world, "pipeweave",
        {
            "dataset/gemm_fp8_train.csv": FP8 + "96,6144,2560,20.5,NVIDIA H20,78,0.1\n",
            "dataset/gemm_fp8_test.csv": FP8 + "96,6144,2048,11.5,NVIDIA H200,132,0.2\n",
        },
    )  # fmt: skip
    assert list(table["gpu"]) == ["h20", "h200-sxm"]
    assert list(table["latency_us"]) == [20.5, 11.5]
    assert list(table["source_file"].str.rsplit("/", n=1).str[-1]) == [
        "gemm_fp8_train.csv", "gemm_fp8_test.csv",
    ]  # fmt: skip
    assert set(table["a_dtype"]) == {"fp8_e4m3"}


def test_pipeweave_moe_keeps_default_rule_and_near_best_apart(world: Any) -> None:
    table = imported(
        world, "pipeweave",
        {
            "reports/topk_underperforming_NVIDIA L20.csv":
                REPORT + "w13,64,8,2,4096,1024,900.0,0.3,0.4\n",
            "dse/moe_dse_A40_99.csv":
                NEAR_BEST + "w13,64,8,2,4096,1024,16,32,128,1,4,3,1500.0,3\n"
                "w13,64,8,2,4096,1024,16,64,128,1,4,3,1501.0,3\n",
        },
    )  # fmt: skip
    assert list(table["selection"]) == ["default_rule", "near_best", "near_best"]
    assert list(table["config_known"]) == [False, True, True]
    assert list(table["gpu"]) == ["l20", "a40", "a40"]
    assert list(table["block_n"].iloc[1:]) == [32, 64]
    assert table["block_m"].isna()[0]
    assert set(table["projection"]) == {"w13"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gemm_fp8_train.csv", FP8 + "1,2,3,4,NVIDIA H1000,1,1\n", "'NVIDIA H1000' is not known"),
        ("gemm_fp8_train.csv", FP8 + "1,2,x,4,NVIDIA H20,1,1\n", "not the expected CSV"),
        ("gemm_fp8_train.csv", "M,N\n1,2\n", "not the expected CSV"),
        ("gemm_int8_train.csv", FP8, "none of the files"),
        ("moe_dse_A40_99.csv", NEAR_BEST + "w9,64,8,2,64,64,16,32,128,1,4,3,9.0,3\n", "w9"),
    ],
)
def test_a_foreign_pipeweave_file_is_refused(
    world: Any, name: str, text: str, message: str
) -> None:
    with pytest.raises(CorruptFileError, match=message):
        imported(world, "pipeweave", {name: text})


# LLMServingSim

V0 = (
    "time_stats.attn_prefill.median,time_stats.attn_decode.median,n_embd,n_q_head,n_kv_head,"
    "num_tensor_parallel_workers,batch_size,prefill_chunk_size,kv_cache_size,is_prefill,"
    "attention_backend\n"
    "0.5,,8192,64,8,4,1,1024,2048,True,FLASH_ATTENTION\n"
    ",0.4,8192,64,8,4,4,0,4096,False,FLASH_ATTENTION\n"
    ",0.4,8192,64,8,4,3,0,4096,False,FLASH_ATTENTION\n"
)
MIXED = (
    "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
    "512,64,2,4096,300\n512,64,0,0,200\n0,0,8,4096,250\n"
)


def test_llmservingsim_v0_is_milliseconds_for_the_keys_of_a_whole_batch(world: Any) -> None:
    path = "profiler/v0/perf_models/H100/meta-llama/Llama-3.1-70B/tp4/attention.csv"
    prefill, even, uneven = (r for _, r in imported(world, "llmservingsim", {path: V0}).iterrows())
    assert prefill["latency_us"] == 500.0
    assert (prefill["q_len"], prefill["kv_len"], prefill["prefix_len"]) == (1024, 2048, 1024)
    assert (prefill["q_heads"], prefill["kv_heads"], prefill["head_dim"]) == (16, 2, 128)
    assert (even["phase"], even["batch"], even["q_len"], even["kv_len"]) == ("decode", 4, 1, 1024)
    assert list(uneven["kv_lens"]) == [1366, 1365, 1365]
    assert list(uneven["q_lens"]) == [1, 1, 1]


def test_llmservingsim_mixed_launches_are_microseconds_sequence_by_sequence(world: Any) -> None:
    path = "profiler/perf/RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp2/attention.csv"
    mixed, prefill, decode = (
        r for _, r in imported(world, "llmservingsim", {path: MIXED}).iterrows()
    )
    assert (mixed["phase"], mixed["batch"], mixed["latency_us"]) == ("mixed", 3, 300.0)
    assert list(mixed["q_lens"]) == [512, 1, 1]
    assert list(mixed["kv_lens"]) == [576, 4096, 4096]
    assert (mixed["q_heads"], mixed["kv_heads"]) == (16, 4)
    assert prefill["q_lens"] is None
    assert (prefill["phase"], prefill["kv_len"], prefill["prefix_len"]) == ("prefill", 576, 64)
    assert (decode["phase"], decode["batch"], decode["kv_len"]) == ("decode", 8, 4096)


def test_a_model_of_unknown_heads_is_refused(world: Any) -> None:
    path = "profiler/perf/RTXPRO6000/meta-llama/Llama-9/bf16/tp2/attention.csv"
    with pytest.raises(CorruptFileError, match="Llama-9"):
        imported(world, "llmservingsim", {path: MIXED})


# tokamax


def attention_key(**more: Any) -> dict[str, Any]:
    return {
        "q": "bf16[2,1024,16,128]", "k": "bf16[2,2048,4,128]", "v": "bf16[2,2048,4,64]",
        "bias": None, "mask": {"bool_mask": None, "is_causal": True}, "return_residuals": False,
    } | more  # fmt: skip


def winner(config: dict[str, Any], times: list[float]) -> dict[str, Any]:
    return {json.dumps(config): {"compile_time_ms": 200.0, "evaluation_times_ms": times}}


FLASH = {
    "block_q": 64, "block_k": 32, "num_stages": 3, "num_warps": 4, "split_k": 1,
    "pack_mask": False,
}  # fmt: skip


def test_tokamax_attention_winners_keep_five_times_and_their_tile(world: Any) -> None:
    content = {
        json.dumps(attention_key()): winner(FLASH, [0.21, 0.20, 0.20, 0.22, 0.25]),
        json.dumps(attention_key(bias="bf16[1,16,1024,2048]", return_residuals=True)):
            winner(FLASH, [0.3] * 5),
        json.dumps(attention_key(q="bf16[3,2,512,16,128]")): {},
    }  # fmt: skip
    path = "data/nvidia_h100_80gb_hbm3/pallas_triton_flash_attention.json"
    plain, biased = (
        r for _, r in imported(world, "tokamax", {path: json.dumps(content)}).iterrows()
    )
    assert plain["latency_us"] == pytest.approx(215.0)  # of the distinct 200, 210, 220, 250
    assert (plain["batch"], plain["q_len"], plain["kv_len"]) == (2, 1024, 2048)
    assert (plain["q_heads"], plain["kv_heads"], plain["v_head_dim"]) == (16, 4, 64)
    assert (plain["block_m"], plain["block_n"], plain["num_warps"]) == (64, 32, 4)
    assert dict(plain["config_extras"]) == {"pack_mask": "false"}
    assert (plain["selection"], plain["has_bias"], biased["has_bias"]) == ("winner", False, True)
    assert biased["kernel"] == "pallas_triton_flash_attention-residuals"


def test_tokamax_ragged_dot_and_gated_linear_unit_are_grouped_products(world: Any) -> None:
    ragged = {
        "lhs": "bf16[8192,1024]", "rhs": "bf16[16,1024,2048]",
        "ragged_dot_dimension_numbers": {"dot_dimension_numbers": [[[1], [1]], [[], []]]},
    }  # fmt: skip
    unit = {
        "x": "f32[4,512,256]", "weights": "f32[256,2,128]", "return_residuals": False,
    }  # fmt: skip
    tile = {"block_m": 64, "block_n": 64, "block_k": 32, "num_warps": 4, "num_stages": 3}
    table = imported(
        world, "tokamax",
        {
            "data/nvidia_b200/pallas_triton_ragged_dot.json":
                json.dumps({json.dumps(ragged): winner(tile, [0.5] * 5)}),
            "data/nvidia_h100_80gb_hbm3/pallas_triton_gated_linear_unit.json":
                json.dumps({json.dumps(unit): winner(tile, [0.05] * 5)}),
        },
    )  # fmt: skip
    dot, gated = (row for _, row in table.iterrows())
    assert (dot["tokens"], dot["experts"], dot["intermediate_size"], dot["hidden_size"]) == (
        8192, 16, 1024, 2048,
    )  # fmt: skip
    assert (gated["tokens"], gated["hidden_size"], gated["intermediate_size"]) == (2048, 256, 128)
    assert (gated["projection"], gated["a_dtype"], gated["out_dtype"]) == ("w13", "tf32", "fp32")
    assert list(table["gpu"]) == ["b200", "h100-sxm5"]


# dejavu


def cache_json(**more: Any) -> str:
    key = "('512', '1024', '512', '700', '32', '4', '16', '128', '128', '256', '1', '1')"
    names = (
        "MAX_SEQ_Q MAX_SEQ_K AVG_SEQ_Q AVG_SEQ_K num_query_heads num_queries_per_kv BLOCK_SIZE "
        "HEAD_SIZE HEAD_SIZE_PADDED SLIDING_WINDOW stride_k_cache_3 stride_v_cache_3"
    )
    return json.dumps({
        "signature": "JITFunction(lib.attention:kernel_unified_attention_2d)",
        "keys": names.split(),
        "cache": {key: (
            "BLOCK_N: 32, BLOCK_M: 16, num_warps: 4, num_ctas: 1, num_stages: 4, "
            "num_buffers_warp_spec: 0, maxnreg: None"
        )},
        "timings": {key: [0.05]},
        "timings_data": {"labels": ["ms"], "cuda_graphs": True},
    } | more)  # fmt: skip


DEJAVU = "dejavu_0.7/triton_3.3.0/cuda_12.4/gpu_NVIDIA_H100_80GB_HBM3/x/cache.json"


def test_dejavu_winners_are_milliseconds_of_an_unknown_batch(world: Any) -> None:
    row = imported(world, "dejavu", {DEJAVU: cache_json()}).iloc[0]
    assert (row["latency_us"], row["timing_method"]) == (50.0, "cuda_graph")
    assert np.isnan(row["batch"])
    assert (row["q_heads"], row["kv_heads"], row["window_size"], row["page_size"]) == (
        32, 8, 256, 16,
    )  # fmt: skip
    assert (row["block_m"], row["block_n"], row["num_stages"]) == (16, 32, 4)
    assert np.isnan(row["maxnreg"])
    assert dict(row["config_extras"]) == {"avg_seq_k": "700", "num_buffers_warp_spec": "0"}
    assert row["compiler_version"] == "triton 3.3.0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signature": "JITFunction(lib:other)"}, "other"),
        ({"timings_data": {"labels": ["s"], "cuda_graphs": True}}, "not milliseconds"),
        ({"timings": {}}, "not the expected cache"),
    ],
)
def test_a_foreign_dejavu_cache_is_refused(
    world: Any, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(CorruptFileError, match=message):
        imported(world, "dejavu", {DEJAVU: cache_json(**change)})


# vLLM's tables


def test_a_vllm_table_is_read_with_what_its_name_says(tmp_path: Path) -> None:
    name = "E=256,N=128,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json"
    config = {"BLOCK_SIZE_M": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3, "new": 2}
    path = tmp_path / name
    path.write_text(json.dumps({"triton_version": "3.6.0", "16": config, "1": config}))
    table = read_moe_table(path)
    assert (table.experts, table.intermediate_size, table.block_shape) == (256, 128, (128, 128))
    assert (table.device, table.quantisation) == ("NVIDIA H100 80GB HBM3", "fp8_w8a8")
    assert list(table.configs) == [1, 16]
    assert table.configs[1] == {
        "block_m": 64, "group_m": 1, "num_warps": 4, "num_stages": 3, "new": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [("table.json", "{}"), ("E=8,N=7,device_name=X.json", "[1]"),
     ("E=8,N=7,device_name=X.json", "{")],
)  # fmt: skip
def test_what_is_no_vllm_table_is_refused(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(CorruptFileError, match=name.replace(".", r"\.")):
        read_moe_table(path)
