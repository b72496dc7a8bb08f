"""Decode attention gives the same as any other, however keys are split, paged and shared."""

from __future__ import annotations

from collections.abc import Callable


def test_decode_agrees_with_float64(interpret: Callable[[str], None]) -> None:
    interpret("""
def tile(splits, rows=16, keys=16):
    return TileConfig(rows, keys, num_warps=4, num_stages=2, split_k=splits)

for splits in (1, 4):
    for problem in (
        Attention(2, 1, 70, q_heads=8, kv_heads=2, head_dim=32, dtype="fp16"),
        Attention(2, 1, 70, q_heads=2, kv_heads=1, head_dim=32, page_size=16, dtype="bf16"),
        Attention(q_len=1, kv_len=[1, 100, 0, 37], q_heads=2, head_dim=24, v_head_dim=20,
                  page_size=7, dtype="fp16", causal=False),
        Attention(q_len=[3, 1, 0], kv_len=[40, 5, 3], q_heads=4, kv_heads=2, head_dim=16,
                  page_size=1, dtype="fp16"),
        Attention(1, 12, 60, q_heads=4, kv_heads=1, head_dim=16, window=11, dtype="fp16"),
        Attention(1, 12, 60, q_heads=4, kv_heads=1, head_dim=16, window=11, causal=False,
                  dtype="fp16"),
        Attention(1, 1, 33, q_heads=4, kv_heads=1, head_dim=48, v_head_dim=32, shared_kv=True,
                  page_size=8, dtype="fp16"),
        Attention(1, 1, 33, q_heads=4, kv_heads=1, head_dim=32, shared_kv=True, dtype="fp16"),
        Attention(0, 1, 33, q_heads=4, head_dim=32, dtype="fp16"),
    ):
        check("attention_decode", problem, tile(splits))
check("attention_decode", Attention(1, 1, 130, q_heads=1, head_dim=64, dtype="bf16",
      kv_dtype="fp8_e4m3", page_size=32), tile(2, keys=32))
check("attention_decode", Attention(1, 1, 33, q_heads=1, head_dim=16, dtype="tf32"), tile(64))
""")
