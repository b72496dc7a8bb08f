"""Which binaries of a session are compiled: told by one process, asked by others, as it goes.

The one that compiles appends a line a binary to a file; those that measure read on where they were.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.collect.keys import measurement_key
from tuner.collect.plan_file import Item, Plan

if TYPE_CHECKING:
    from tuner.collect.kernels import Variant

FIRST_PLACES = 12
"""Of each problem's configurations, those that are compiled before all others of its step."""

CURRENT_TURNS = 2
"""Binaries of the step under way for each one of the steps to come."""


class ReadyWriter:
    """Tells what is compiled."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def tell(self, text: str, reason: str | None) -> None:
        """Tell of one binary; ``reason`` says why it does not compile."""
        self._write({"key": measurement_key(text), **({"reason": reason} if reason else {})})

    def end(self) -> None:
        """Tell that no more will come."""
        self._write({"end": True})

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


class ReadyReader:
    """Reads what is compiled; ``ended`` once no more will come."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        self.ended = False
        self.reasons: dict[str, str | None] = {}

    def refresh(self) -> None:
        """Read what came since; a line that is not whole yet waits for the next time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                content = file.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            found = json.loads(line)
            if "key" in found:
                self.reasons[found["key"]] = found.get("reason")
            self.ended = self.ended or bool(found.get("end"))


def compile_order(plans: Sequence[tuple[str, Plan]]) -> list[tuple[str, Variant[Item]]]:
    """Return the binaries of all steps in the order to compile them, each with its step.

    First what the first step's best configurations need; then the rest of each step while those to
    come are prepared by the way. Within a step, a binary that many measurements need goes first.
    """
    queues = [(step, _by_need(plan)) for step, plan in plans]
    seen: set[str] = set()

    def new(step: str, variants: Iterator[Variant[Item]]) -> Iterator[tuple[str, Variant[Item]]]:
        for variant in variants:
            if variant.text not in seen:
                seen.add(variant.text)
                yield step, variant

    order: list[tuple[str, Variant[Item]]] = []
    for at, (step, (first, rest)) in enumerate(queues):
        order += new(step, iter(first))
        later = queues[at + 1 :]
        ahead = [pair for s, (early, _) in later for pair in ((s, v) for v in early)]
        ahead += [pair for s, (_, late) in later for pair in ((s, v) for v in late)]
        coming = iter(ahead)
        for turn, found in enumerate(new(step, iter(rest))):
            order.append(found)
            if turn % CURRENT_TURNS == CURRENT_TURNS - 1:
                for name, variant in coming:
                    if variant.text not in seen:
                        order += new(name, iter([variant]))
                        break
    return order


def _by_need(plan: Plan) -> tuple[list[Variant[Item]], list[Variant[Item]]]:
    """The binaries of the first places of every problem, and the others."""
    from tuner.collect.kernels import binaries_of  # noqa: PLC0415 - loads Triton

    needed: Counter[str] = Counter()
    first: dict[str, Variant[Item]] = {}
    rest: dict[str, Variant[Item]] = {}
    place: Counter[int] = Counter()
    for item in plan.items:
        place[id(item.problem)] += 1
        early = place[id(item.problem)] <= FIRST_PLACES
        for variant in binaries_of(item):
            needed[variant.text] += 1
            (first if early else rest).setdefault(variant.text, variant)
    late = [v for text, v in rest.items() if text not in first]
    return (
        sorted(first.values(), key=lambda v: -needed[v.text]),
        sorted(late, key=lambda v: -needed[v.text]),
    )
