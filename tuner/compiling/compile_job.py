"""One compilation as data: what a worker is sent, and what its result is stored under."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from perfmodel.errors import KernelNotPortableError
from tuner.compile import CompiledKernel, Specialization, compile_kernel
from tuner.compiling.portable import PortableKernel, load

_PLAIN = (int, float, str, bool, type(None))


@dataclass(frozen=True)
class CompileJob:
    """A kernel's text, its arguments as the compiler takes them, the target and the options.

    ``label`` names it in progress and reports.
    """

    kernel: PortableKernel
    specialization: Specialization
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON.

        Raises:
            KernelNotPortableError: a compile-time argument is an object that JSON cannot carry.
        """
        known = self.specialization
        return {
            "kernel": self.kernel.to_dict(),
            "signature": dict(known.signature),
            "constexprs": {n: encode(n, v) for n, v in known.constexprs.items()},
            "attrs": [[list(p), [list(k) for k in facts]] for p, facts in known.attrs.items()],
            "target": self.target,
            "options": {n: encode(n, v) for n, v in self.options.items()},
            "label": self.label,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CompileJob:
        """Build from what `to_dict` returned; needs Triton where a constant is one of its types."""
        specialization = Specialization(
            signature=values["signature"],
            constexprs={n: decode(v) for n, v in values["constexprs"].items()},
            attrs={tuple(p): [(k[0], k[1]) for k in facts] for p, facts in values["attrs"]},
        )
        options = {n: decode(v) for n, v in values["options"].items()}
        kernel = PortableKernel.from_dict(values["kernel"])
        return cls(kernel, specialization, values["target"], options, values["label"])

    def key(self) -> str:
        """Return what its result is stored under: everything that decides it, 64 digits."""
        values = self.to_dict()
        del values["label"], values["kernel"]
        values["source"] = self.kernel.text()
        values["triton"] = _triton_version()
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def run(self) -> CompiledKernel:
        """Compile in this process."""
        return compile_kernel(load(self.kernel), self.specialization, self.target, self.options)


def encode(name: str, value: Any) -> Any:
    """Return a compile-time value as JSON carries it.

    Raises:
        KernelNotPortableError: it is an object that JSON cannot carry.
    """
    kind = type(value)
    if kind.__name__ == "constexpr" and hasattr(value, "value"):
        return encode(name, value.value)
    if kind.__name__ == "dtype" and kind.__module__.startswith("triton.language"):
        return {"dtype": value.name}
    if isinstance(value, tuple | list):
        return {"tuple": [encode(name, item) for item in value]}
    if isinstance(value, _PLAIN):
        return value
    if hasattr(value, "item"):  # a numpy scalar
        return value.item()
    raise KernelNotPortableError(
        f"compile-time argument {name!r} is {kind.__name__}, which text cannot carry; "
        "use a number, a string, a Triton type or a tuple of them"
    )


def decode(value: Any) -> Any:
    """Return the value that `encode` was given."""
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(decode(item) for item in value["tuple"])
    import triton.language as tl  # noqa: PLC0415 - an extra, and slow to import

    return tl.dtype(value["dtype"])


def _triton_version() -> str | None:
    try:
        return version("triton")
    except PackageNotFoundError:
        return None
