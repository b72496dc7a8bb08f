"""A launch on memory of its own, as often as wanted: several in a row, each with cold inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@runtime_checkable
class Copyable(Protocol):
    """A launch that can be had on other memory; called, it runs once on the first."""

    @property
    def bytes_each(self) -> int:
        """Memory that one copy takes."""

    def __call__(self) -> object:
        """Launch."""

    def copies(self, count: int) -> Sequence[Callable[[], object]]:
        """Return so many launches of the same work, the first on the given memory."""


class TensorLaunch:
    """A launch on named torch tensors, which are copied with their strides and what they share.

    Args:
        run: launches on tensors by name.
        tensors: inputs, results and work space.
    """

    def __init__(
        self, run: Callable[[Mapping[str, torch.Tensor]], object], tensors: Mapping[str, Any]
    ) -> None:
        self._run, self._tensors = run, dict(tensors)

    def __call__(self) -> object:
        """Launch on the given tensors."""
        return self._run(self._tensors)

    @property
    def bytes_each(self) -> int:
        """Bytes of all tensors, memory that several share counted once."""
        storages = (t.untyped_storage() for t in self._tensors.values())
        return sum({s.data_ptr(): s.nbytes() for s in storages}.values())

    def copies(self, count: int) -> Sequence[Callable[[], object]]:
        """Return launches, the first on the given tensors, the others on copies."""
        others = (partial(self._run, copied(self._tensors)) for _ in range(count - 1))
        return [self, *others]


def copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of tensors: same values, strides and offsets; views of one stay views of one.

    Latent attention's values are a part of its keys: apart, they would be read twice.
    """
    import torch  # noqa: PLC0415 - optional extra

    storages: dict[int, Any] = {}
    found = {}
    for name, tensor in tensors.items():
        given = tensor.untyped_storage()
        if given.data_ptr() not in storages:
            storages[given.data_ptr()] = given.clone()  # type: ignore[no-untyped-call]  # torch's own
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        found[name] = empty.set_(
            storages[given.data_ptr()], tensor.storage_offset(), tensor.size(), tensor.stride()
        )
    return found


__all__ = ["Copyable", "TensorLaunch", "copied"]
