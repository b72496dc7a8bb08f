"""Ranks of one job agree on a configuration: the first answer written to their shared store holds.

Rank 0 decides, the others wait for it; where it does not answer in time they write the model's
pick, which is the same on all. Nothing here is a collective: ranks that never launch the kernel
are not waited for, and nothing hangs where one is gone.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

TIMEOUT_S = 60.0
"""For rank 0 to decide, compilation and timing included."""


@dataclass(frozen=True)
class Agreement:
    """What the ranks agreed on: ``decided_by`` says whose answer it is."""

    config: str
    decided_by: str


class Ranks:
    """The ranks of a running ``torch.distributed`` job."""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self.rank = rank
        self.size = size
        self._store = store

    @classmethod
    def of_process(cls) -> Ranks | None:
        """Return this process's job, ``None`` where there is none or it has one rank."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available():
            return None
        if not distributed.is_initialized() or distributed.get_world_size() < 2:
            return None
        store = default_store()
        if store is None:
            return None
        return cls(distributed.get_rank(), distributed.get_world_size(), store)

    def agree(
        self,
        name: str,
        decide: Callable[[], str],
        fallback: Callable[[], str],
        timeout_s: float = TIMEOUT_S,
    ) -> Agreement:
        """Return the configuration that all ranks use for the decision called ``name``.

        Args:
            name: the same text on all ranks.
            decide: measures; called on rank 0 only.
            fallback: the model's pick; must be the same on all ranks.
            timeout_s: how long the others wait for rank 0.

        Raises:
            Exception: what ``decide`` raised, after the others were given the fallback.
        """
        key = f"perfmodel/{hashlib.sha256(name.encode()).hexdigest()}"
        if self.rank == 0:
            try:
                mine, by = decide(), "rank 0"
            except BaseException:
                self._write(key, fallback())
                raise
            agreed = self._write(key, mine)
            return Agreement(agreed, by if agreed == mine else "ranks that could not wait")
        try:
            self._store.wait([key], timedelta(seconds=timeout_s))
            return Agreement(self._store.get(key).decode(), "rank 0")
        except Exception:  # timeouts and lost connections differ from version to version
            mine = fallback()
            agreed = self._write(key, mine)
            by = f"the model: rank 0 did not answer within {timeout_s:g} s"
            return Agreement(agreed, by if agreed == mine else "rank 0")

    def _write(self, key: str, value: str) -> str:
        """Write unless another rank was first; return what stands."""
        try:
            return str(self._store.compare_set(key, "", value).decode())
        except Exception:  # the store went with its rank: every survivor falls to the model
            return value


def default_store() -> Any:
    """Return the store that the job's ranks share, ``None`` where torch does not give it out."""
    try:
        from torch.distributed import distributed_c10d  # noqa: PLC0415 - loaded by the user

        return distributed_c10d._get_default_store()
    except Exception:  # a private name, and its errors, differ between versions
        return None
