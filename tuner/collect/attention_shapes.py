"""Which attention is worth measuring: that of real models, and points between them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import BF16, parse_dtype
from tuner.collect.models import Model, models
from tuner.collect.spread import by_turns, filling_points, size_at

PROMPTS = (512, 1024, 2048, 4096, 8192, 16384)
"""Tokens of a prompt, for models that take any."""

BATCHES = (1, 2, 8, 32)
TOKENS_MAX = 32768
"""Queries of one launch: what training and serving put together."""

CHUNK = 1024
PREFIXES = (4096, 16384)
"""A long prompt goes through a server in chunks, each with all keys before it."""

DECODE_BATCHES = (1, 8, 32, 128)
DECODE_KEYS = (512, 2048, 8192, 32768)
PAGE_SIZE = 16
"""Tokens a page; 16 is what vLLM and FlashInfer keep by default."""

HEAD_DIMS = (128, 64, 128, 256, 128, 96, 64, 192, 80, 128, 32)
GROUPS = (4, 1, 8, 1, 6, 2)
"""Of the space-filling points in turn; the numbers of turns share no factor."""

FLOPS_MAX = 2.0**43
"""A hundredth of a second on a fast device; more only costs budget."""

MEMORY_SHARE = 0.2
"""Of the device's memory, for the operands: they are drawn in fp32 and copied."""

Source = Iterator[tuple[str, Attention]]
Make = Callable[[str, random.Random], Source]


def prefill(dtypes: Sequence[str], seed: int, memory_bytes: int, *, backward: bool) -> Source:
    """Yield attention of whole prompts without end, real and space-filling ones by turns."""

    def real(dtype: str, draw: random.Random) -> Source:
        return _shuffled(_model_prompts(dtype, backward), draw)

    def filling(dtype: str, draw: random.Random) -> Source:
        return _filling_prompts(dtype, draw, backward)

    return _alternate(real, filling, dtypes, f"{seed} {'gradients' if backward else 'prompts'}",
                      memory_bytes)  # fmt: skip


def decode(dtypes: Sequence[str], seed: int, memory_bytes: int) -> Source:
    """Yield attention of new tokens over long caches without end; see `prefill`.

    An 8-bit type is the cache's; its queries are bf16.
    """

    def real(dtype: str, draw: random.Random) -> Source:
        return _shuffled(_model_steps(dtype), draw)

    return _alternate(real, _filling_steps, dtypes, f"{seed} steps", memory_bytes)


def _alternate(
    real: Make, filling: Make, dtypes: Sequence[str], seed: str, memory_bytes: int
) -> Source:
    seen: set[Attention] = set()

    def wanted(source: Source) -> Source:
        for origin, problem in source:
            fits = problem.compulsory_bytes <= MEMORY_SHARE * memory_bytes
            if fits and problem.flops <= FLOPS_MAX and problem not in seen:
                seen.add(problem)
                yield origin, problem

    yield from by_turns([
        [wanted(make(d, random.Random(f"{seed} {name} {d}"))) for d in dtypes]
        for name, make in (("real", real), ("filling", filling))
    ])  # fmt: skip


def _shuffled(found: Source, draw: random.Random) -> Source:
    listed = list(found)
    draw.shuffle(listed)
    return iter(listed)


def _model_prompts(dtype: str, backward: bool) -> Source:
    for model in models():
        for length, batch in product(model.lengths or PROMPTS, BATCHES):
            if length * batch <= TOKENS_MAX and model.takes(length):
                problem = _of(model, batch, length, length, dtype, backward=backward)
                yield f"{model.name}, {batch} x {length:,} tokens", problem
        if model.causal and not backward:
            for prefix in (p for p in PREFIXES if model.takes(p + CHUNK)):
                problem = _of(model, 1, CHUNK, prefix + CHUNK, dtype)
                yield f"{model.name}, {CHUNK:,} tokens behind {prefix:,}", problem


def _model_steps(dtype: str) -> Source:
    for model in models():
        if not model.causal or model.latent:
            continue  # encoders do not decode; a latent cache has no column in the table
        for batch, keys in product(DECODE_BATCHES, DECODE_KEYS):
            if model.takes(keys):
                problem = _of(model, batch, 1, keys, dtype, page_size=PAGE_SIZE)
                yield f"{model.name}, {batch} new tokens behind {keys:,} each", problem


def _of(
    model: Model, batch: int, q_len: int, kv_len: int, dtype: str, *, page_size: int | None = None,
    backward: bool = False,
) -> Attention:  # fmt: skip
    window = model.window if model.window is not None and model.window < kv_len else None
    queries = _queries(dtype) if page_size is not None else dtype
    return Attention(
        batch, q_len, kv_len, model.heads, model.kv_heads, model.head_dim,
        model.v_head_dim or None, causal=model.causal, window=window, dtype=queries,
        kv_dtype=dtype, page_size=page_size, backward=backward,
    )  # fmt: skip


def _filling_prompts(dtype: str, draw: random.Random, backward: bool) -> Source:
    for point, (length, heads, before) in filling_points(3, draw):
        q_len = size_at(length, 16, 16384)
        group, kv_heads = GROUPS[point % len(GROUPS)], size_at(heads, 1, 32)
        causal = point % 3 > 0
        # A third of the causal ones continue a prefix of up to four times their own length.
        prefix = round(4 * before * q_len) if causal and point % 9 < 3 and not backward else 0
        batch = max(min(size_at(before, 1, 64), TOKENS_MAX // q_len), 1)
        window = max(q_len // 4, 1) if causal and point % 7 == 0 else None
        yield f"space-filling {point}", Attention(
            batch, q_len, q_len + prefix, group * kv_heads, kv_heads,
            HEAD_DIMS[point % len(HEAD_DIMS)], causal=causal, window=window, dtype=dtype,
            backward=backward,
        )  # fmt: skip


def _filling_steps(dtype: str, draw: random.Random) -> Source:
    for point, (length, heads, many) in filling_points(3, draw):
        group, kv_heads = GROUPS[point % len(GROUPS)], size_at(heads, 1, 32)
        keys = size_at(length, 64, 131072)
        batch = size_at(many, 1, 256)
        # Every fifth has caches of unequal lengths, as a server's batch does.
        lengths: int | list[int] = keys
        if point % 5 == 0 and batch > 1:
            lengths = [max(round(keys * draw.uniform(0.1, 1.0)), 1) for _ in range(batch)]
        yield f"space-filling {point}", Attention(
            batch, 1, lengths, group * kv_heads, kv_heads, HEAD_DIMS[point % len(HEAD_DIMS)],
            dtype=_queries(dtype), kv_dtype=dtype, page_size=(16, 64, None)[point % 3],
        )  # fmt: skip


def _queries(cache_dtype: str) -> str:
    dtype = parse_dtype(cache_dtype)
    return str(BF16 if dtype.bits == 8 else dtype)
