"""What a measuring worker is sent: a kernel's text, its arguments, and a launch a configuration.

Large floating-point tensors are filled from a seeded normal distribution. Small ones, and tensors
of integers whatever their size, are never made up: masks, scales, indices and offsets may decide
how much work a kernel does, so theirs are the caller's values.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from perfmodel.errors import UsageError
from tuner.compiling.compile_job import decode, encode
from tuner.compiling.portable import PortableKernel

VALUES_MAX_BYTES = 64 << 20
"""Of a tensor whose values are sent, as text through a pipe."""

SMALL_BYTES = 64 << 10
"""Up to which a floating-point tensor's values are sent too."""

ALIGNMENT = 16
"""Triton compiles another kernel for pointers that 16 divides."""


@dataclass(frozen=True)
class TensorArgument:
    """A tensor to make: torch's dtype name, sizes and strides in elements.

    ``values`` are the bytes that it spans, in memory order, base64; ``None`` for seeded random
    numbers. ``offset`` is by how many elements it starts after an aligned address.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    values: str | None = None
    offset: int = 0

    @classmethod
    def like(cls, name: str, tensor: Any) -> TensorArgument:
        """Describe a torch tensor; of integers and of small tensors the values are taken along.

        Raises:
            UsageError: an integer tensor is too large to be sent.
        """
        made = cls(
            str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()),
            offset=tensor.data_ptr() % ALIGNMENT // tensor.element_size(),
        )  # fmt: skip
        size = made.extent * tensor.element_size()
        if tensor.dtype.is_floating_point and size > SMALL_BYTES:
            return made
        if size > VALUES_MAX_BYTES:
            raise UsageError(
                f"tensor {name!r} holds {size:,} bytes of {made.dtype}, more than the "
                f"{VALUES_MAX_BYTES:,} that a worker is sent, and integers are never made up; "
                "time in this process"
            )
        if not size:
            return replace(made, values="")
        torch = _torch()
        span = torch.as_strided(tensor.detach(), (made.extent,), (1,)).cpu()
        raw = span.view(torch.uint8).numpy().tobytes()
        return replace(made, values=base64.b64encode(raw).decode())

    @property
    def extent(self) -> int:
        """How many elements lie between the first and the last, both counted."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    def make(self, device: str, seed: int) -> Any:
        """Return the tensor, the same for the same seed on devices of the same kind."""
        torch = _torch()
        dtype = getattr(torch, self.dtype)
        storage = torch.zeros(self.offset + self.extent, dtype=dtype, device=device)
        span = storage[self.offset :]
        if self.values is not None:
            if self.extent:
                raw = torch.frombuffer(bytearray(base64.b64decode(self.values)), dtype=torch.uint8)
                span.copy_(raw.view(dtype))
        elif dtype.is_floating_point:
            generator = torch.Generator(device=device).manual_seed(seed)
            # 8-bit types have no generator of their own.
            drawn = torch.randn(
                self.extent, generator=generator, dtype=torch.float32, device=device
            )
            span.copy_(drawn.to(dtype))
        else:
            raise UsageError(f"a tensor of {self.dtype} needs its values; integers are not made up")
        return torch.as_strided(storage, self.shape, self.strides, self.offset)


@dataclass(frozen=True)
class LaunchSpec:
    """One configuration's launch: compile-time arguments, Triton's options, programs per axis."""

    constexprs: Mapping[str, Any]
    options: Mapping[str, Any]
    grid: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "constexprs": {n: encode(n, v) for n, v in self.constexprs.items()},
            "options": {n: encode(n, v) for n, v in self.options.items()},
            "grid": list(self.grid),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LaunchSpec:
        """Build from what `to_dict` returned."""
        return cls(
            {n: decode(v) for n, v in values["constexprs"].items()},
            {n: decode(v) for n, v in values["options"].items()},
            tuple(values["grid"]),
        )


@dataclass(frozen=True)
class Task:
    """A kernel and the run-time arguments of one problem.

    ``reference`` is the launch whose results are taken as right; ``outputs`` names the tensors to
    compare with it (all, where empty). Without it nothing is compared. Before every launch the
    tensors named in ``carried``, whose contents a launch may read back, are put back, and those in
    ``zeroed`` set to zero.
    """

    kernel: PortableKernel
    tensors: Mapping[str, TensorArgument]
    scalars: Mapping[str, int | float | bool | None] = field(default_factory=dict)
    reference: LaunchSpec | None = None
    outputs: tuple[str, ...] = ()
    relative: float = 1e-2
    of_typical: float = 1e-2
    seed: int = 0
    carried: tuple[str, ...] = ()
    zeroed: tuple[str, ...] = ()

    @classmethod
    def of_call(cls, kernel: PortableKernel, arguments: Mapping[str, Any], **more: Any) -> Task:
        """Describe a call's run-time arguments by name: tensors and numbers."""
        tensors = {n: v for n, v in arguments.items() if hasattr(v, "data_ptr")}
        return cls(
            kernel,
            {n: TensorArgument.like(n, v) for n, v in tensors.items()},
            {n: v for n, v in arguments.items() if n not in tensors},
            **more,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "kernel": self.kernel.to_dict(),
            "tensors": {n: asdict(t) for n, t in self.tensors.items()},
            "scalars": {n: encode(n, v) for n, v in self.scalars.items()},
            "reference": None if self.reference is None else self.reference.to_dict(),
            "outputs": list(self.outputs),
            "relative": self.relative,
            "of_typical": self.of_typical,
            "seed": self.seed,
            "carried": list(self.carried),
            "zeroed": list(self.zeroed),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Task:
        """Build from what `to_dict` returned."""
        reference = values["reference"]
        return cls(
            kernel=PortableKernel.from_dict(values["kernel"]),
            tensors={n: _tensor(t) for n, t in values["tensors"].items()},
            scalars={n: decode(v) for n, v in values["scalars"].items()},
            reference=None if reference is None else LaunchSpec.from_dict(reference),
            outputs=tuple(values["outputs"]),
            relative=values["relative"],
            of_typical=values["of_typical"],
            seed=values["seed"],
            carried=tuple(values["carried"]),
            zeroed=tuple(values["zeroed"]),
        )


def _tensor(values: Mapping[str, Any]) -> TensorArgument:
    shape: Sequence[int] = values["shape"]
    return TensorArgument(
        values["dtype"], tuple(shape), tuple(values["strides"]), values["values"], values["offset"]
    )


def _torch() -> Any:
    import torch  # noqa: PLC0415 - an extra, and slow to import

    return torch
