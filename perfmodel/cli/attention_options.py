"""The options that describe attention, shared by the commands that take it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import Backend, lengths, maybe_whole, takes, whole

if TYPE_CHECKING:
    from perfmodel.problems.attention import Attention


def read_attention(
    q_len: Annotated[
        str,
        typer.Option(
            metavar="INT[,INT...]",
            help="New queries of each sequence; 1 to decode; a list (512,1,1 or 512,2x1) if they "
            "differ.",
        ),
    ],
    q_heads: Annotated[str, typer.Option(metavar="INT", help="Query heads.")],
    head_dim: Annotated[str, typer.Option(metavar="INT", help="Of Q and K.")],
    dtype: Annotated[str, typer.Option(help="Of Q: bf16, fp16, fp8_e4m3, fp32, ...")],
    kv_len: Annotated[
        str | None,
        typer.Option(
            metavar="INT[,INT...]",
            help="All keys of each sequence, the new ones included. Default: q-len, no prefix.",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(metavar="INT", help="Sequences. Default: 1, or as many as lengths."),
    ] = None,
    kv_heads: Annotated[
        str | None, typer.Option(metavar="INT", help="KV heads. Default: as many as q-heads.")
    ] = None,
    v_head_dim: Annotated[
        str | None, typer.Option(metavar="INT", help="Of V. Default: head-dim.")
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal/--no-causal", help="Whether queries see no later key.")
    ] = True,
    window: Annotated[
        str | None, typer.Option(metavar="INT", help="Keys a query sees, its own included.")
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Of K and V. Default: dtype.")] = None,
    out_dtype: Annotated[
        str | None, typer.Option(help="Of the result. Default: dtype (8 bits: bf16).")
    ] = None,
    paged: Annotated[
        str | None, typer.Option(metavar="INT", help="Tokens a page of the KV cache holds.")
    ] = None,
    shared_kv: Annotated[
        bool, typer.Option("--shared-kv", help="V is part of K (latent attention).")
    ] = False,
    backward: Annotated[bool, typer.Option("--backward", help="The gradients instead.")] = False,
    backend: Backend = None,
) -> Attention:
    """Build the problem from the options."""
    from perfmodel.problems.attention import Attention  # noqa: PLC0415 - start-up time

    return Attention(
        batch=maybe_whole("batch", batch),
        q_len=lengths("q_len", q_len),
        kv_len=None if kv_len is None else lengths("kv_len", kv_len),
        q_heads=whole("q_heads", q_heads),
        kv_heads=maybe_whole("kv_heads", kv_heads),
        head_dim=whole("head_dim", head_dim),
        v_head_dim=maybe_whole("v_head_dim", v_head_dim),
        causal=causal,
        window=maybe_whole("window", window),
        dtype=dtype,
        kv_dtype=kv_dtype,
        out_dtype=out_dtype,
        page_size=maybe_whole("paged", paged),
        shared_kv=shared_kv,
        backward=backward,
        backend=backend,
    )


takes_attention = takes(read_attention)
