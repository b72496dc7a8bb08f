"""Data types by their torch names, with the short forms that people type."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import UnknownDtypeError, closest


@dataclass(frozen=True, slots=True)
class DType:
    """One numeric format.

    ``name`` is the canonical short form used in specs, tables and output; ``bits`` is the storage
    width in memory. ``tf32`` is stored as 32-bit floats and multiplied on tensor cores.
    """

    name: str
    torch_name: str
    bits: int

    @property
    def bytes(self) -> float:
        """Storage per element in bytes (0.5 for 4-bit formats)."""
        return self.bits / 8

    def __str__(self) -> str:
        return self.name


FP64 = DType("fp64", "float64", 64)
FP32 = DType("fp32", "float32", 32)
TF32 = DType("tf32", "float32", 32)
FP16 = DType("fp16", "float16", 16)
BF16 = DType("bf16", "bfloat16", 16)
FP8_E4M3 = DType("fp8_e4m3", "float8_e4m3fn", 8)
FP8_E5M2 = DType("fp8_e5m2", "float8_e5m2", 8)
INT8 = DType("int8", "int8", 8)
UINT8 = DType("uint8", "uint8", 8)
INT4 = DType("int4", "int4", 4)
FP4 = DType("fp4", "float4_e2m1fn_x2", 4)
INT32 = DType("int32", "int32", 32)

ALL: tuple[DType, ...] = (
    FP64, FP32, TF32, FP16, BF16, FP8_E4M3, FP8_E5M2, INT8, UINT8, INT4, FP4, INT32,
)  # fmt: skip

_ALIASES = {
    **{d.name: d for d in ALL},
    **{d.torch_name: d for d in ALL if d is not TF32},
    "double": FP64,
    "float": FP32,
    "f64": FP64,
    "f32": FP32,
    "f16": FP16,
    "half": FP16,
    "bfloat": BF16,
    "fp8": FP8_E4M3,
    "fp8e4m3": FP8_E4M3,
    "float8_e4m3": FP8_E4M3,
    "e4m3": FP8_E4M3,
    "fp8e5m2": FP8_E5M2,
    "e5m2": FP8_E5M2,
    "i8": INT8,
    "s8": INT8,
    "i4": INT4,
    "tensorfloat32": TF32,
}


def parse_dtype(text: str | DType | object) -> DType:
    """Return the data type called ``text`` (``bf16``, ``bfloat16``, ``torch.bfloat16`` ...).

    Anything else is taken by what it prints as, so torch's and numpy's own types work too.

    Raises:
        UnknownDtypeError: no such type; the message lists the short names.
    """
    if isinstance(text, DType):
        return text
    key = str(text).strip().lower().removeprefix("torch.").replace("-", "_")
    found = _ALIASES.get(key)
    if found is None:
        names = ", ".join(d.name for d in ALL)
        raise UnknownDtypeError(
            f"unknown dtype {text!r}{closest(key, _ALIASES)}; use one of: {names}"
        )
    return found
