"""Gradients of attention are those that differentiating it in float64 gives."""

from __future__ import annotations

from collections.abc import Callable


def test_gradients_agree_with_float64(interpret: Callable[[str], None]) -> None:
    interpret("""
tile = TileConfig(32, 16, num_warps=4, num_stages=2)
for problem in (
    Attention(2, 32, 64, q_heads=2, causal=False, head_dim=16, dtype="fp16", backward=True),
    Attention(1, 45, 45, q_heads=2, head_dim=32, dtype="bf16", backward=True),
    Attention(1, 33, 49, q_heads=4, kv_heads=2, head_dim=24, v_head_dim=40, dtype="fp16",
              backward=True),
    Attention(1, 50, 50, q_heads=3, kv_heads=1, window=20, head_dim=16, dtype="fp16",
              backward=True),
    Attention(1, 50, 30, q_heads=1, causal=False, window=9, head_dim=16, dtype="fp16",
              backward=True),
    Attention(q_len=[20, 0, 1], kv_len=[33, 7, 1], q_heads=2, head_dim=16, dtype="fp16",
              backward=True),
    Attention(1, 20, 20, q_heads=1, head_dim=16, dtype="tf32", backward=True),
    Attention(1, 16, 0, q_heads=1, head_dim=16, causal=False, dtype="fp16", backward=True),
    Attention(1, 17, 17, q_heads=1, head_dim=512, dtype="fp16", backward=True),
):
    check("attention_backward", problem, tile)
check("attention_backward", Attention(1, 64, 64, q_heads=1, window=10, head_dim=16, dtype="fp16",
      backward=True), TileConfig(16, 32, num_warps=1, num_stages=1))
""")
