"""How vLLM names the table of a mixture-of-experts layer: one key for whoever writes or reads it.

``E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json``: experts
of one rank, the width of one expert on one rank (in elements, packed types included), the driver's
name for the device with underscores for spaces, the quantisation, the block that shares a scale.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from perfmodel.errors import CorruptFileError, InvalidProblemError, UsageError
from perfmodel.problems.grouped_gemm import GroupedGemm

NAME_BYTES_MAX = 255
"""The longest file name, in bytes, that common file systems take."""

# What would end a name, mean a folder, or be read as another part of the file name.
_UNSAFE = frozenset('/\\:*?"<>|%,=_')
_NAME = re.compile(
    r"E=(?P<experts>[0-9]+),N=(?P<width>[0-9]+),device_name=(?P<device>[^,=/]+)"
    r"(?:,dtype=(?P<dtype>\w+))?(?:,block_shape=\[(?P<rows>[0-9]+), ?(?P<columns>[0-9]+)\])?\.json"
)


def device_part(name: str) -> str:
    """Return a device's name as part of a file name; `device_of` gives the name back.

    Spaces become underscores, as vLLM has it. Characters that a file name cannot hold safely are
    percent-encoded (``MI50/MI60``: ``MI50%2FMI60``).
    """
    return "".join("_" if c == " " else _encoded(c) for c in name)


def device_of(part: str) -> str:
    """Return the device's name that `device_part` was given.

    Raises:
        CorruptFileError: a percent sign is followed by no encoded character.
    """
    try:
        return unquote(part.replace("_", " "), errors="strict")
    except UnicodeDecodeError:
        raise CorruptFileError(f"device_name={part} is not a name that was encoded") from None


def vllm_device(name: str) -> str:
    """Return the name that vLLM looks a device up by: all of the H200 family are one to it."""
    return "NVIDIA H200" if "H200" in name.replace("_", " ").split(" ") else name


@dataclass(frozen=True)
class MoeTableKey:
    """What a table is found by."""

    experts: int
    width: int
    device: str  # in the driver's words
    quantisation: str | None = None  # fp8_w8a8, int4_w4a16 ...; None for 16-bit
    block_shape: tuple[int, int] | None = None

    @classmethod
    def of(
        cls, problem: GroupedGemm, device: str, block_shape: tuple[int, int] | None = None
    ) -> MoeTableKey:
        """Return the key under which vLLM looks for the table of ``problem`` on ``device``.

        Raises:
            InvalidProblemError: vLLM has no table for such operands.
        """
        return cls(
            problem.experts // problem.ep,
            problem.intermediate // problem.tp,
            vllm_device(device),
            quantisation(problem),
            block_shape if block_shape is not None and all(block_shape) else None,
        )

    @classmethod
    def parse(cls, file_name: str) -> MoeTableKey:
        """Return the key of a file's name.

        Raises:
            CorruptFileError: the name is not of the known form.
        """
        found = _NAME.fullmatch(file_name)
        if found is None:
            raise CorruptFileError(
                f"{file_name!r} is not E=EXPERTS,N=WIDTH,device_name=DEVICE[,dtype=...]"
                "[,block_shape=[N,K]].json"
            )
        block = (int(found["rows"]), int(found["columns"])) if found["rows"] else None
        return cls(
            int(found["experts"]), int(found["width"]), device_of(found["device"]), found["dtype"],
            block,
        )  # fmt: skip

    @property
    def file_name(self) -> str:
        """The table's file name.

        Raises:
            UsageError: the device's name is empty or too long for a file name.
        """
        if not self.device.strip():
            raise UsageError("the device's name is empty; give the driver's name for it")
        name = f"E={self.experts},N={self.width},device_name={device_part(self.device)}"
        name += f",dtype={self.quantisation}" if self.quantisation else ""
        if self.block_shape is not None:
            name += f",block_shape=[{self.block_shape[0]},{self.block_shape[1]}]"
        name += ".json"
        if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
            raise UsageError(
                f"device name {self.device[:40]!r}... makes a file name longer than "
                f"{NAME_BYTES_MAX} bytes; give a shorter one"
            )
        return name


def quantisation(problem: GroupedGemm) -> str | None:
    """Return vLLM's word for the types of tokens and weights, ``None`` for 16 bits.

    Raises:
        InvalidProblemError: vLLM has none.
    """
    token, weight = problem.dtype.name, (problem.weight_dtype or problem.dtype).name
    half = token in ("bf16", "fp16")
    if half and weight == token:
        return None
    words = {
        ("fp8_e4m3", "fp8_e4m3"): "fp8_w8a8",
        ("int8", "int8"): "int8_w8a8",
        ("fp32", "fp32"): "float32",
        ("half", "int8"): "int8_w8a16",
        ("half", "int4"): "int4_w4a16",
    }
    found = words.get(("half" if half else token, weight))
    if found is None:
        raise InvalidProblemError(
            f"vLLM has no table for {token} tokens and {weight} weights; use bf16 or fp16 (weights "
            "alike, int8 or int4), fp8_e4m3, int8 or fp32"
        )
    return found


def _encoded(character: str) -> str:
    if character.isprintable() and character not in _UNSAFE:
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8"))
