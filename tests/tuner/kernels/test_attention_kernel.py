"""Flash attention gives softmax(Q K^T) V, whatever is masked and however lengths and heads fall."""

from __future__ import annotations

from collections.abc import Callable


def test_attention_agrees_with_float64(interpret: Callable[[str], None]) -> None:
    interpret("""
tile = TileConfig(32, 16, num_warps=4, num_stages=2)
for problem in (
    Attention(2, 32, 64, q_heads=2, causal=False, head_dim=16, dtype="fp16"),
    Attention(1, 45, 45, q_heads=2, head_dim=32, dtype="fp16"),
    Attention(1, 45, 77, q_heads=4, kv_heads=2, head_dim=24, v_head_dim=40, dtype="bf16"),
    Attention(1, 33, 19, q_heads=3, kv_heads=1, causal=False, head_dim=20, dtype="fp16"),
    Attention(1, 70, 70, q_heads=1, window=20, head_dim=16, dtype="fp16"),
    Attention(1, 70, 90, q_heads=1, window=1, head_dim=16, dtype="fp16"),
    Attention(1, 40, 70, q_heads=1, window=9, causal=False, head_dim=16, dtype="fp16"),
    Attention(1, 70, 40, q_heads=1, window=9, causal=False, head_dim=16, dtype="fp16"),
    Attention(q_len=[33, 0, 1, 16], kv_len=[33, 0, 50, 17], q_heads=4, kv_heads=2, head_dim=16,
              dtype="fp16"),
    Attention(q_len=[5, 20], kv_len=[0, 9], causal=False, head_dim=16, dtype="fp16"),
    Attention(1, 20, 20, q_heads=1, head_dim=16, dtype="fp32"),
    Attention(1, 20, 20, q_heads=1, head_dim=16, dtype="tf32"),
    Attention(1, 20, 40, q_heads=2, head_dim=32, dtype="bf16", kv_dtype="fp8_e4m3"),
    Attention(1, 20, 40, q_heads=2, head_dim=32, dtype="fp8_e4m3"),
    Attention(1, 20, 40, q_heads=2, head_dim=32, dtype="fp8_e5m2"),
    Attention(0, 20, 40, q_heads=2, head_dim=32),
    Attention(1, 17, 17, q_heads=1, head_dim=512, dtype="fp16"),
):
    check("attention", problem, tile)
check("attention", Attention(1, 100, 100, q_heads=1, window=37, head_dim=16, dtype="fp16"),
      TileConfig(16, 64, num_warps=1, num_stages=1))
""")
