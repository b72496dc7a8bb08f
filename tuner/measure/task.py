"""What a measuring worker is sent: a kernel's text, its arguments, and a launch a configuration.

Floating-point tensors are filled from a seeded normal distribution. Tensors of integers are never
made up: indices and offsets decide how much work a kernel does, so theirs are the caller's values.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from perfmodel.errors import UsageError
from tuner.compiling.compile_job import decode, encode
from tuner.compiling.portable import PortableKernel

VALUES_MAX_BYTES = 64 << 20
"""Of a tensor whose values are sent, as text through a pipe."""


@dataclass(frozen=True)
class TensorArgument:
    """A tensor to make: torch's dtype name, sizes and strides in elements.

    ``values`` are its bytes in memory order, base64; ``None`` for seeded random numbers.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    values: str | None = None

    @classmethod
    def like(cls, name: str, tensor: Any) -> TensorArgument:
        """Describe a torch tensor; of integers the values are taken along.

        Raises:
            UsageError: an integer tensor is too large to be sent.
        """
        values = None
        dtype = str(tensor.dtype).removeprefix("torch.")
        if not tensor.dtype.is_floating_point:
            size = tensor.numel() * tensor.element_size()
            if size > VALUES_MAX_BYTES:
                raise UsageError(
                    f"tensor {name!r} holds {size:,} bytes of {dtype}, more than the "
                    f"{VALUES_MAX_BYTES:,} that a worker is sent, and integers are never made up; "
                    "time in this process"
                )
            flat = tensor.detach().cpu().contiguous().flatten()
            values = base64.b64encode(flat.view(_torch().uint8).numpy().tobytes()).decode()
        return cls(dtype, tuple(tensor.shape), tuple(tensor.stride()), values)

    def make(self, device: str, seed: int) -> Any:
        """Return the tensor, the same for the same seed."""
        torch = _torch()
        dtype = getattr(torch, self.dtype)
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        extent = 0 if 0 in self.shape else extent
        storage = torch.zeros(extent, dtype=dtype, device=device)
        view = torch.as_strided(storage, self.shape, self.strides)
        if self.values is not None:
            raw = torch.frombuffer(bytearray(base64.b64decode(self.values)), dtype=torch.uint8)
            view.copy_(raw.view(dtype).reshape(self.shape).to(device))
        elif dtype.is_floating_point:
            generator = torch.Generator(device="cpu").manual_seed(seed)
            # 8-bit types have no generator of their own.
            drawn = torch.randn(self.shape, generator=generator, dtype=torch.float32)
            view.copy_(drawn.to(dtype).to(device))
        else:
            raise UsageError(f"a tensor of {self.dtype} needs its values; integers are not made up")
        return view


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
    compare with it (all, where empty). Without it nothing is compared.
    """

    kernel: PortableKernel
    tensors: Mapping[str, TensorArgument]
    scalars: Mapping[str, int | float | bool | None] = field(default_factory=dict)
    reference: LaunchSpec | None = None
    outputs: tuple[str, ...] = ()
    relative: float = 1e-2
    of_typical: float = 1e-2
    seed: int = 0

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
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Task:
        """Build from what `to_dict` returned."""
        reference = values["reference"]
        return cls(
            kernel=PortableKernel.from_dict(values["kernel"]),
            tensors={n: _tensor(t) for n, t in values["tensors"].items()},
            scalars=values["scalars"],
            reference=None if reference is None else LaunchSpec.from_dict(reference),
            outputs=tuple(values["outputs"]),
            relative=values["relative"],
            of_typical=values["of_typical"],
            seed=values["seed"],
        )


def _tensor(values: Mapping[str, Any]) -> TensorArgument:
    shape: Sequence[int] = values["shape"]
    return TensorArgument(values["dtype"], tuple(shape), tuple(values["strides"]), values["values"])


def _torch() -> Any:
    import torch  # noqa: PLC0415 - an extra, and slow to import

    return torch
