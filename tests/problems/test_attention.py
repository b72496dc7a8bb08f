from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InvalidProblemError, UnknownDtypeError
from perfmodel.problems import Attention
from perfmodel.problems.attention_table import AttentionTable, visible_pairs

lengths = st.integers(0, 40)


def counted(q: int, kv: int, causal: bool, window: int | None) -> tuple[int, int]:
    """Visible pairs and keys seen by at least one query, one by one."""
    pairs, seen = 0, set()
    for i in range(q):
        position = kv - q + i
        for j in range(kv):
            visible = j <= position if causal else True
            if window is not None:
                visible &= position - window < j
                visible &= causal or j < position + window
            if visible:
                pairs += 1
                seen.add(j)
    return pairs, len(seen)


@given(lengths, lengths, st.booleans(), st.one_of(st.none(), st.integers(1, 12)))
def test_pairs_and_keys_are_those_of_a_mask_written_out(
    q: int, prefix: int, causal: bool, window: int | None
) -> None:
    table = AttentionTable.of_columns(
        batch=1, q_len=q, kv_len=q + prefix, q_heads=1, kv_heads=1, head_dim=8,
        causal=float(causal), window=window or 0, dtypes=(Attention().dtype,) * 3,
    )  # fmt: skip
    pairs, keys = counted(q, q + prefix, causal, window)
    assert table.group_pairs[0] == pairs
    assert table.group_keys[0] == keys


@given(lengths, lengths)
def test_without_a_mask_every_query_sees_every_key(q: int, kv: int) -> None:
    found = visible_pairs(*(np.array([float(v)]) for v in (q, kv, 0, np.inf)))
    assert found[0] == q * kv


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 5000)), min_size=1, max_size=8))
def test_a_batch_of_unequal_lengths_is_the_sum_of_its_items(items: list[tuple[int, int]]) -> None:
    kind: dict[str, Any] = {"q_heads": 8, "kv_heads": 2, "head_dim": 64}
    mixed = Attention(q_len=[q for q, _ in items], kv_len=[q + p for q, p in items], **kind)
    alone = [Attention(1, q, q + p, **kind) for q, p in items]
    assert mixed.flops == sum(p.flops for p in alone)
    assert mixed.compulsory_bytes == sum(p.compulsory_bytes for p in alone)
    assert mixed.write_bytes == sum(p.write_bytes for p in alone)


def test_lengths_are_never_averaged() -> None:
    """Averaging three sequences by whole division loses tokens, and the longest one's square."""
    kind: dict[str, Any] = {"q_heads": 32, "kv_heads": 8}
    mixed = Attention(q_len=[4096, 7, 1], **kind)
    mean = Attention(3, (4096 + 7 + 1) // 3, **kind)
    assert mixed.flops > 2.5 * mean.flops
    assert sum(q for q, _ in mixed.items) == 4104


def test_causal_attention_is_half_the_work_in_the_limit() -> None:
    ratios = [
        Attention(1, n, q_heads=4).flops / Attention(1, n, q_heads=4, causal=False).flops
        for n in (16, 1024, 65536)
    ]
    assert ratios[0] > ratios[1] > ratios[2] > 0.5
    assert ratios[2] == pytest.approx(0.5, rel=1e-4)


def test_keys_and_values_are_read_once_for_the_heads_that_share_them() -> None:
    many = Attention(8, 1, 4096, q_heads=32, kv_heads=32)
    grouped = Attention(8, 1, 4096, q_heads=32, kv_heads=8)
    single = Attention(8, 1, 4096, q_heads=32, kv_heads=1)
    assert many.flops == grouped.flops == single.flops
    cache = [8 * 4096 * heads * 2 * 128 * 2 for heads in (32, 8, 1)]
    around = 2 * 8 * 32 * 128 * 2
    assert [p.compulsory_bytes for p in (many, grouped, single)] == [c + around for c in cache]


def test_a_window_limits_what_is_read_and_a_cache_of_8_bits_halves_it() -> None:
    full = Attention(1, 1, 8192, q_heads=8, kv_heads=8)
    window = Attention(1, 1, 8192, q_heads=8, kv_heads=8, window=1024)
    small = Attention(1, 1, 8192, q_heads=8, kv_heads=8, kv_dtype="fp8_e4m3")
    rows = 2 * 8 * 128 * 2
    assert full.compulsory_bytes - rows == 8 * (window.compulsory_bytes - rows)
    assert full.compulsory_bytes - rows == 2 * (small.compulsory_bytes - rows)
    assert small.compute_dtype.name == "bf16"


def test_shared_keys_and_values_are_read_once() -> None:
    latent = Attention(1, 1, 4096, q_heads=128, kv_heads=1, head_dim=576, v_head_dim=512,
                       shared_kv=True)  # fmt: skip
    apart = Attention(1, 1, 4096, q_heads=128, kv_heads=1, head_dim=576, v_head_dim=512)
    assert apart.compulsory_bytes - latent.compulsory_bytes == 4096 * 512 * 2
    assert apart.flops == latent.flops


def test_the_backward_pass_forms_five_products_for_two() -> None:
    forward, backward = (Attention(2, 512, q_heads=4, backward=b) for b in (False, True))
    assert backward.flops == 2.5 * forward.flops
    assert backward.compulsory_bytes > 2 * forward.compulsory_bytes


def test_no_sequence_or_no_query_is_a_normal_input() -> None:
    for problem in (Attention(0, 128), Attention(4, 0, 100), Attention(q_len=[], kv_len=[])):
        assert problem.flops == 0
        assert problem.compulsory_bytes == 0


def test_sizes_beyond_32_bits_are_exact() -> None:
    problem = Attention(1, 2**20, q_heads=64)
    assert problem.flops == 2 * 256 * 64 * (2**20 * (2**20 + 1) // 2)


def test_a_problem_survives_a_worker_and_json() -> None:
    problem = Attention(q_len=[5, 1], kv_len=[9, 4], q_heads=6, kv_heads=2, head_dim=80,
                        dtype="fp16", window=3, page_size=16, backend="vllm/fa3@0.12")  # fmt: skip
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert Attention(**json.loads(json.dumps(problem.to_dict()))) == problem
    assert problem.group == 3


def test_equal_lengths_in_a_list_are_the_same_problem_as_one_length() -> None:
    assert Attention(q_len=[7, 7], kv_len=[9, 9]) == Attention(2, 7, 9)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"q_heads": 32, "kv_heads": 5}, ["32", "5", "divides 32", "such as 4"]),
        ({"q_len": 128, "window": 4096}, ["window is 4096", "at most 128"]),
        ({"q_len": [9, 3], "kv_len": [9, 3], "window": 10}, ["window is 10", "at most 9"]),
        ({"q_len": 5, "kv_len": 3}, ["kv_len is 3", "at least 5", "causal=False"]),
        ({"q_len": [1, 2], "kv_len": [3, 4, 5]}, ["2 and 3 sequences"]),
        ({"batch": 3, "q_len": [1, 2]}, ["2 and 3 sequences"]),
        ({"q_len": -1}, ["q_len is -1", "from 0"]),
        ({"q_len": [4, -2]}, ["q_len[1] is -2"]),
        ({"q_len": 1.5}, ["1.5"]),
        ({"q_len": "12"}, ["'12'"]),
        ({"head_dim": 0}, ["head_dim is 0", "from 1"]),
        ({"kv_heads": 0}, ["kv_heads is 0"]),
        ({"window": 0}, ["window is 0"]),
        ({"page_size": 16, "backward": True}, ["page_size is 16", "backward"]),
        ({"v_head_dim": 256, "shared_kv": True}, ["v_head_dim is 256", "at most"]),
        ({"kv_dtype": "int8", "backward": True}, ["kv_dtype is int8"]),
        ({"backend": "a b"}, ["'a b'", "BACKEND"]),
        ({"batch": 2**41}, ["2**40"]),
    ],
)
def test_what_makes_no_sense_is_named_with_what_is_allowed(
    given_: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(InvalidProblemError) as error:
        Attention(**given_)
    for part in said:
        assert part in str(error.value)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(UnknownDtypeError, match="bf17"):
        Attention(dtype="bf17")


def test_tables_of_mixed_types_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="one set of data types"):
        AttentionTable.of_problems([Attention(), Attention(dtype="fp16")])


def test_a_table_counts_each_problem_as_it_counts_alone() -> None:
    problems = [
        Attention(q_len=[64, 1, 1], kv_len=[64, 99, 99], q_heads=8, kv_heads=2),
        Attention(3, 128, 256, q_heads=8, window=100),
        Attention(0, 1, q_heads=8),
    ]
    table = AttentionTable.of_problems(problems)
    assert len(table) == 3
    assert table.flops.tolist() == [p.flops for p in problems]
    assert table.compulsory_bytes.tolist() == [p.compulsory_bytes for p in problems]
    with pytest.raises(InvalidProblemError, match="several groups"):
        table.rows(slice(0, 1))
