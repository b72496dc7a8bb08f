"""Known models: public dimensions from which the shapes of real problems come."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

MODELS = Path(__file__).with_name("models.toml")


@dataclass(frozen=True)
class Model:
    """A model's public dimensions, elements.

    ``source`` is where its makers state them, ``confirmed`` the public file they were checked in.
    ``gated``: the first projection of a feed-forward layer is two in one. ``latent``: attention is
    projected through a small latent, so that there are no plain projections. ``longest`` bounds a
    sequence, and ``lengths`` are the only ones that it sees, where there are such. ``ranks`` are
    devices over which each expert is cut, ``expert_ranks`` over which the experts are shared out.
    """

    name: str
    source: str
    confirmed: str
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int = 0
    intermediate_size: int = 0
    gated: bool = True
    causal: bool = True
    latent: bool = False
    window: int | None = None
    longest: int | None = None
    lengths: tuple[int, ...] = ()
    experts: int = 0
    top_k: int = 0
    expert_size: int = 0
    ranks: tuple[int, ...] = (1,)
    expert_ranks: tuple[int, ...] = (1,)

    def takes(self, tokens: int) -> bool:
        """Whether it was made for sequences of so many tokens."""
        return self.longest is None or tokens <= self.longest

    @property
    def layers(self) -> dict[str, tuple[int, int]]:
        """(n, k) of each linear layer by name; experts are not among them."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found: dict[str, tuple[int, int]] = {}
        if not self.latent:
            found |= {"qkv": (q + 2 * kv, self.hidden_size), "out": (self.hidden_size, q)}
        if self.intermediate_size:
            found |= {
                "up": ((1 + self.gated) * self.intermediate_size, self.hidden_size),
                "down": (self.hidden_size, self.intermediate_size),
            }
        return found


@lru_cache(maxsize=1)
def models() -> tuple[Model, ...]:
    """Return the models of ``models.toml``."""
    content = tomllib.loads(MODELS.read_text(encoding="utf-8"))
    return tuple(Model(**_frozen(entry)) for entry in content["models"])


def _frozen(entry: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
