"""Triton's interpreter, mended where it cannot run the reference kernels: for checks on a CPU.

Its private names are used here only; ``tests/tuner/kernels`` runs on them.
"""

from __future__ import annotations

from typing import Any

from tuner.kernels.language import tl


def mend_interpreter() -> None:
    """Patch the interpreter of this process, which must have been started with TRITON_INTERPRET=1.

    - An array of one element is used as a whole number, which NumPy 2.4 refuses.
    - bf16 operands of a product are multiplied as the integers that their bits spell, and so are
      conversions between bf16 and anything but fp32.
    """
    import numpy as np  # noqa: PLC0415 - only for checks
    from triton.runtime import interpreter  # noqa: PLC0415 - optional extra

    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: Any, *scope: Any) -> None:
        patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patched
    builder = interpreter.InterpreterBuilder
    create_dot = builder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return create_dot(self, widened(a), widened(b), *rest)

    cast = builder.cast_impl

    def cast_by_way_of_fp32(self: Any, source: Any, target: Any) -> Any:
        ends = source.dtype.scalar, target.scalar
        if tl.bfloat16 not in ends or ends[0] == ends[1]:
            return cast(self, source, target)
        # Of the type to go by, only the element matters.
        return cast(self, cast(self, source, tl.float32), target)

    builder.create_dot = dot
    builder.cast_impl = cast_by_way_of_fp32


__all__ = ["mend_interpreter"]
