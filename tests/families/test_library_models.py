from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.families import library_model
from perfmodel.families.library import library_prediction
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems.attention import Attention
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.grouped_gemm import GroupedGemm

DECODE = Attention(batch=8, kv_len=4096, q_heads=32, kv_heads=8, backend="flash_attention_3")
PREFILL = Attention(batch=1, q_len=4096, q_heads=32, kv_heads=8, backend="vllm/flash_attention_3")


@pytest.mark.parametrize("problem", [DECODE, PREFILL])
def test_a_measured_kernel_is_answered_by_its_family(problem: Attention) -> None:
    found = library_prediction(problem, load_gpu("h100-sxm5"))
    assert found.basis == "interpolated"
    assert found.model is not None
    assert found.interval_us[0] < found.latency_us < found.interval_us[1]
    assert found.expected_error is not None
    assert found.expected_error < 0.1
    assert sum(found.breakdown_us.values()) > 0.0


def test_a_device_never_measured_is_extrapolated_and_said_so() -> None:
    seen = library_prediction(PREFILL, load_gpu("h100-sxm5"))
    unseen = library_prediction(PREFILL, load_gpu("h20"))
    assert unseen.basis == "extrapolated"
    assert any("nothing was measured on h20" in note for note in unseen.notes)
    assert _width(unseen) > _width(seen)
    assert unseen.latency_us > seen.latency_us  # a seventh of the products a second


def test_a_version_or_type_without_data_is_named() -> None:
    older = Attention(
        batch=8, kv_len=4096, q_heads=32, kv_heads=8, backend="vllm/flash_attention_3@0.12.0"
    )
    found = library_prediction(older, load_gpu("h100-sxm5"))
    assert found.basis == "extrapolated"
    assert any("0.24.0 stands in" in note for note in found.notes)
    half = Attention(batch=1, q_len=512, q_heads=8, dtype="fp16", backend="flash_attention_3")
    notes = library_prediction(half, load_gpu("h100-sxm5")).notes
    assert any("no data of fp16: bf16 stands in" in note for note in notes)


@pytest.mark.parametrize(
    ("gpu", "problem"),
    [
        ("a100-sxm4-80gb", Gemm(4096, 4096, 4096, backend="cublas")),
        ("b200", Gemm(17, 5120, 4096, backend="cublas")),
        ("h100-sxm5", Gemm(64, 4096, 7168, a_dtype="fp8_e4m3", out_dtype="bf16",
                           backend="deepgemm")),
    ],
)  # fmt: skip
def test_library_products_are_answered_by_type(gpu: str, problem: Gemm) -> None:
    found = library_prediction(problem, load_gpu(gpu))
    assert found.basis == "interpolated"
    assert found.share_of_peak <= 1.0


def test_what_no_model_knows_is_analytic() -> None:
    for problem in (
        Attention(batch=1, q_len=512, q_heads=8, backend="no-such-library"),
        Attention(batch=1, q_len=512, q_heads=8, backward=True, backend="flash_attention_3"),
        Attention(batch=1, q_len=0, q_heads=8, backend="flash_attention_3"),
    ):
        found = library_prediction(problem, load_gpu("h100-sxm5"))
        assert found.basis == "analytic"
        assert found.model is None


def test_the_learned_part_can_be_left_out() -> None:
    found = library_prediction(DECODE, load_gpu("h100-sxm5"), learned=False)
    assert found.basis == "analytic"


def test_families_by_problem() -> None:
    assert library_model.model_family(DECODE) == "decode"
    assert library_model.model_family(PREFILL) == "prefill"
    assert library_model.model_family(Gemm(1, 1, 1, backend="cublas")) == "gemm"
    mixed = Attention(q_len=(1, 300), kv_len=(500, 300), q_heads=8)
    assert library_model.model_family(mixed) == "prefill"


def _width(found: object) -> float:
    low, high = found.interval_us  # type: ignore[attr-defined]
    return float(high / low)


EXPERTS = GroupedGemm(1024, 128, 8, 4096, 1536, backend="vllm/triton")


def test_experts_are_answered_by_their_model() -> None:
    found = library_prediction(EXPERTS, load_gpu("h100-sxm5"))
    assert (found.basis, found.model) == ("interpolated", "shape-1-moe")
    assert found.interval_us[0] < found.latency_us < found.interval_us[1]
    elsewhere = library_prediction(EXPERTS, load_gpu("h20"))
    assert elsewhere.basis == "extrapolated"
    assert any("nothing was measured on h20" in note for note in elsewhere.notes)
    assert _width(elsewhere) > _width(found)


def test_experts_of_another_type_or_backend_say_what_answers() -> None:
    half = replace(EXPERTS, dtype="fp16", weight_dtype="fp16", out_dtype="fp16")
    notes = library_prediction(half, load_gpu("h100-sxm5")).notes
    assert any("no data of fp16: bf16 stands in" in note for note in notes)
    strange = replace(EXPERTS, backend="nonesuch")
    found = library_prediction(strange, load_gpu("h100-sxm5"))
    assert found.basis == "analytic"
    assert any("no model of nonesuch" in note for note in found.notes)


def test_more_tokens_take_longer_and_ranks_less() -> None:
    gpu = load_gpu("b200")
    few, many = (
        library_prediction(replace(EXPERTS, tokens=t), gpu).latency_us for t in (16, 16384)
    )
    shared = library_prediction(replace(EXPERTS, tokens=16384, ep=8), gpu).latency_us
    assert few < shared < many


def test_8_bit_experts_have_a_model_of_their_own() -> None:
    problem = replace(EXPERTS, dtype="fp8_e4m3", weight_dtype="fp8_e4m3", out_dtype="bf16")
    found = library_prediction(problem, load_gpu("h100-sxm5"))
    assert (found.basis, found.model) == ("interpolated", "shape-1-moe-fp8")


def test_a_kernel_measured_on_other_devices_alone_is_named() -> None:
    problem = replace(
        EXPERTS, dtype="fp8_e4m3", weight_dtype="fp8_e4m3", out_dtype="bf16", backend="deepgemm"
    )
    found = library_prediction(problem, load_gpu("h100-sxm5"))
    assert found.basis == "extrapolated"
    assert any("deepgemm" in note and "on h100-sxm5" in note for note in found.notes)
