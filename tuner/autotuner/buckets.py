"""Values of the key that share a decision: lengths that change on every call."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.errors import UnknownNameError, UsageError, closest
from tuner.deciding.decision import Call, Octave

if TYPE_CHECKING:
    from tuner.autotuner.call_key import Key
    from tuner.autotuner.decorator import Autotuner

Bucket = Callable[[Any], Any]

SPELLINGS = "'pow2', a step, a list of upper edges, or a function of the value"


def parse_buckets(kernel: str, key: Sequence[str], asked: Mapping[str, Any]) -> dict[str, Bucket]:
    """Return a function for each bucketed argument.

    Args:
        kernel: its name, for messages.
        key: the arguments that may be bucketed.
        asked: by argument name ``"pow2"`` (round up to a power of two), a step (round up to a
            multiple), a list of upper edges (beyond the last one values stay apart), or a function.

    Raises:
        UnknownNameError: an argument is not in the key.
        UsageError: another value.
    """
    found: dict[str, Bucket] = {}
    for name, how in asked.items():
        if name not in key:
            raise UnknownNameError(
                f"buckets has {name!r}, which is not in the key of {kernel}"
                f"{closest(str(name), key)}; its key: {', '.join(key) or 'empty'}"
            )
        found[name] = _bucket(name, how)
    return found


def octave(value: int) -> int:
    """Return the least power of two that is not under ``value``; 0 for nothing."""
    return 0 if value <= 0 else 1 << (value - 1).bit_length()


def neighbours_of(kernel: Autotuner, key: Key, call: Call) -> Octave | None:
    """Return the calls that may share a timed decision: a family's rows within a factor of two.

    Not between ranks, whose calls may come in another order.
    """
    dimension = None if kernel.binding is None else kernel.binding.dimension
    if not kernel.settings.judged or dimension is None or dimension in kernel.settings.buckets:
        return None
    if dimension not in kernel.call_key.names or dimension not in call.arguments or kernel.prunes:
        return None
    at = kernel.call_key.names.index(dimension)
    upper = octave(int(call.arguments[dimension]))
    return Octave(dimension, upper, (*key[:at], *key[at + 1 :]))


def _bucket(name: str, how: Any) -> Bucket:
    if how == "pow2":
        return octave
    if callable(how):
        return how  # type: ignore[no-any-return]  # the user's own
    if isinstance(how, int) and not isinstance(how, bool) and how > 0:
        step = how
        return lambda value: -(-value // step) * step
    if isinstance(how, list | tuple) and how and all(isinstance(edge, int) for edge in how):
        edges = sorted(how)

        def upper_edge(value: Any) -> Any:
            at = bisect_left(edges, value)
            return edges[at] if at < len(edges) else value

        return upper_edge
    raise UsageError(f"buckets[{name!r}] is {how!r}; use {SPELLINGS}")
