"""Comparing device names: what may differ without meaning another device, and what is near."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Mapping, Sequence

# Words that makers and drivers put before the model, and that say nothing about which device it is.
_MAKERS = frozenset({"nvidia", "amd", "intel", "geforce", "tesla", "instinct", "radeon"})
_MARKS = re.compile(r"\((?:r|tm|c)\)|[®™©]")
# Spaces, underscores, and hyphens and dashes of every kind.
_SEPARATORS = re.compile(r"[\s_\-\u2010-\u2015\u2212]+")
_LONGEST = 200


def tokens(name: str) -> list[str]:
    """Split ``name`` into lower-case words, trade marks and makers' leading words dropped."""
    text = _MARKS.sub(
        " ", unicodedata.normalize("NFKC", _MARKS.sub(" ", name[:_LONGEST])).casefold()
    )
    words = [word for word in _SEPARATORS.split(text) if word]
    while len(words) > 1 and words[0] in _MAKERS:
        words = words[1:]
    return words


def name_key(name: str) -> str:
    """Return the form in which two spellings of one device's name are equal.

    ``NVIDIA GeForce RTX 4090``, ``rtx-4090`` and ``RTX4090`` have the same key; ``RTX 4090 Laptop
    GPU``, ``RTX 4090 D`` and ``A10`` beside ``A100`` do not: no part of a name is ever ignored.
    """
    return "".join(tokens(name)) if len(name) <= _LONGEST else name


def closest_names(name: str, index: Mapping[str, Sequence[str]], limit: int = 3) -> list[str]:
    """Return up to ``limit`` canonical names whose spellings look like ``name``, nearest first."""
    key = name_key(name)[:_LONGEST]
    near: list[str] = []
    for match in difflib.get_close_matches(key, index, n=8, cutoff=0.6):
        near += [canonical for canonical in index[match] if canonical not in near]
    # A known name followed by a word that makes it another device: "... Laptop GPU", "... MIG 1g".
    for start in sorted((k for k in index if len(k) > 3 and key.startswith(k)), key=len):
        near = [*index[start], *(n for n in near if n not in index[start])]
    return near[:limit]
