"""One decision: which configuration, by whom, and what became of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from perfmodel.families import TileProblem
from perfmodel.hardware.gpu import Gpu
from perfmodel.tiling.config import ConfigTable
from tuner.deciding.accounting import Fate
from tuner.deciding.binding import NotKnown
from tuner.deciding.policy import Policy
from tuner.identity import Key
from tuner.measure.device import DeviceIdentity
from tuner.search.result import SearchResult


@dataclass(frozen=True)
class Call:
    """One call of a kernel: as it was made, and its arguments by name in the kernel's order."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, arg_names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Name the arguments; ``grid`` and launch options are none."""
        given = dict(zip(arg_names, args, strict=False)) | dict(kwargs)
        return cls(args, kwargs, {name: given[name] for name in arg_names if name in given})


@dataclass(frozen=True)
class Octave:
    """Calls alike but for one dimension, which lies within a factor of two below ``upper``."""

    dimension: str
    upper: int
    rest: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.dimension} from {self.upper // 2 + 1:,} to {self.upper:,}"


@dataclass
class View:
    """What the model sees of a call: the problem, the device, and the tiles in its order.

    ``scorer`` gives scores of the tiles of ``table``, whose configurations are those at ``kept``;
    it is asked once, when their order is needed.
    """

    problem: TileProblem | NotKnown | None
    gpu: Gpu | None
    table: ConfigTable | None = None
    kept: tuple[int, ...] = ()
    scorer: Callable[[], Any] | None = None

    @cached_property
    def scores(self) -> Any:
        """Scores of the tiles, the least the best."""
        assert self.scorer is not None
        return self.scorer()

    @property
    def known(self) -> TileProblem | None:
        """The problem, where it is one that the model ranks."""
        return None if isinstance(self.problem, NotKnown) else self.problem

    @property
    def ranks(self) -> bool:
        """Whether the model can put the configurations in order."""
        return self.scorer is not None

    def best(self, legal: Sequence[int]) -> int:
        """Return the position of the model's best legal configuration."""
        if not self.ranks:
            return legal[0]
        wanted = set(legal)
        first = self.kept[int(self.scores.argmin())]
        return first if first in wanted else self.best_first(legal)[0]

    def best_first(self, legal: Sequence[int]) -> list[int]:
        """Return positions of legal configurations, the model's best first."""
        if not self.ranks:
            return list(legal)
        wanted = set(legal)
        order = self.scores.argsort(kind="stable")
        return [self.kept[i] for i in order if self.kept[i] in wanted]


@dataclass(frozen=True)
class TimedBefore:
    """A decision taken from the store: where its times are, read when they are asked for."""

    key: Key
    protocol: str
    expected_loss: float | None


@dataclass
class Decision:
    """A choice and the material for its account.

    ``candidates`` are all configurations, ``position`` is the choice among them. ``keep`` says that
    later calls with the same key may use it.
    """

    candidates: Sequence[Any]
    position: int
    by: str
    policy: Policy
    identity: DeviceIdentity
    view: View
    fates: dict[int, tuple[Fate, str | None]] = field(default_factory=dict)
    result: SearchResult | None = None
    texts: Mapping[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    bucket: str | None = None
    keep: bool = True
    timed_before: TimedBefore | None = None

    @property
    def config(self) -> Any:
        """The configuration that was chosen."""
        return self.candidates[self.position]
