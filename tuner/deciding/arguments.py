"""Which arguments a kernel may write, and putting them back after it ran.

Timing a kernel runs it many times. Whatever it may write is copied first and put back: arguments
found by following pointers through the compiled kernel's Triton IR, or every tensor where there is
none to read. Copies are made of the bytes that an argument spans, merged where arguments overlap,
so views, aliases and expanded strides come back as they were.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

MEMORY_SHARE = 0.8
"""Of the free memory of a device that copies may take: the timer needs a buffer as well."""


@dataclass(frozen=True)
class Access:
    """Arguments that a kernel may write, by name.

    ``carried`` are those whose contents a launch may read back (in place, counters, locks): they
    have to be put back before every launch. The others are only written, and put back in the end.
    """

    written: frozenset[str]
    carried: frozenset[str]

    def __or__(self, other: Access) -> Access:
        return Access(self.written | other.written, self.carried | other.carried)


NOTHING = Access(frozenset(), frozenset())


class CannotTimeError(Exception):
    """Nothing may be timed, for the reason given: the model decides."""


class CannotCopyError(CannotTimeError):
    """An argument cannot be copied, or its copy does not fit: nothing may be timed."""


def everything(arguments: Mapping[str, Any]) -> Access:
    """Return the careful answer: every tensor is read and written."""
    names = frozenset(name for name, value in arguments.items() if _has_memory(value))
    return Access(names, names)


def access_of(ttir: str, arguments: Mapping[str, Any]) -> Access:
    """Return which of ``arguments`` a compiled kernel reads back and writes.

    Args:
        ttir: the kernel's Triton IR, as text.
        arguments: the call's arguments by name, in the kernel's order.

    Anything that the IR's walk does not understand counts as reading and writing all of them.
    """
    tensors = [name for name, value in arguments.items() if _has_memory(value)]
    plain = all(hasattr(arguments[name], "data_ptr") for name in tensors)
    found = _walk(ttir) if plain else None
    if found is None or found.pointers != len(tensors):
        return everything(arguments)
    written = frozenset(tensors[i] for i in found.written)
    carried = frozenset(tensors[i] for i in found.written & found.read)
    return Access(written, carried)


_VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")
_FUNCTION = re.compile(r"tt\.func public @[^(]+\((.*)\)(?:\s+attributes\b.*)?\s*\{")
_ITERATION = re.compile(r"(%[\w.$-]+) = (%[\w.$#-]+)")
_RESULT = re.compile(r"^\s*(%[\w.$-]+)(?::\d+)? = (.*)$")
# What makes the walk give up: pointers from memory or integers, calls, and jumps between blocks.
_OPAQUE = re.compile(
    r"(?<![\w.])(?:tt\.call|tt\.int_to_ptr|cf\.|scf\.while|scf\.execute_region|scf\.index_switch"
    r"|tt\.elementwise_inline_asm|tt\.extern_elementwise|llvm\.)"
)
_WRITES = ("tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_store",
           "tt.descriptor_reduce", "tt.descriptor_scatter")  # fmt: skip
_READS = ("tt.load", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_load",
          "tt.descriptor_gather", "tt.descriptor_reduce")  # fmt: skip
_REGIONS = ("scf.for", "scf.if")


@dataclass
class _Found:
    pointers: int
    written: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)


def _walk(ttir: str) -> _Found | None:
    """Follow each pointer argument to the loads and stores that it reaches."""
    lines = [_without_location(line) for line in ttir.splitlines()]
    functions = [line for line in lines if "tt.func" in line]
    if len(functions) != 1:  # callees that were not inlined
        return None
    match = _FUNCTION.search(functions[0])
    if match is None:
        return None
    arguments = re.findall(r"(%[\w.$-]+): ((?:[^,{<]|<[^>]*>)+)", match[1])
    pointers = [name for name, kind in arguments if "!tt.ptr" in kind or "tensordesc" in kind]
    sources: dict[str, set[int]] = {name: {i} for i, name in enumerate(pointers)}
    body = lines[lines.index(functions[0]) + 1 :]
    if any(_OPAQUE.search(line) for line in body):
        return None
    if any("tt.load" in line and line.count("!tt.ptr") > 1 for line in body):
        return None  # it loads pointers
    found = _Found(len(pointers))
    while _sweep(body, sources, found):  # loops carry pointers back: until nothing is new
        pass
    return found


def _sweep(  # noqa: PLR0912 - a case for each kind of line
    body: Sequence[str], sources: dict[str, set[int]], found: _Found
) -> bool:
    """One pass over the kernel's lines; returns whether it taught anything."""
    before = sum(map(len, sources.values())) + len(found.written) + len(found.read)
    regions: list[tuple[str | None, list[str]]] = []  # result name, values that iterations carry
    for line in body:
        text = line.strip()
        match = _RESULT.match(line)
        result, operation = (match[1], match[2]) if match else (None, text)
        name = operation.split(" ", 1)[0].split("(", 1)[0].strip('"')
        if text.startswith("}"):
            if regions and "else" not in text:  # both branches yield to the same owner
                regions.pop()
            continue
        if name in _REGIONS:
            carried = _ITERATION.findall(operation)
            for position, (inner, start) in enumerate(carried):
                _flow(sources, inner, [start])
                if result is not None:
                    _flow(sources, f"{result}#{position}", [start])
                    _flow(sources, result, [start])
            regions.append((result, [inner for inner, _ in carried]))
            continue
        if operation.endswith("{"):
            regions.append((None, []))
        values = _VALUE.findall(operation)
        if name == "scf.yield" and regions:
            owner, inners = regions[-1]
            for position, value in enumerate(values):
                if owner is not None:
                    _flow(sources, f"{owner}#{position}", [value])
                    _flow(sources, owner, [value])
                if position < len(inners):
                    _flow(sources, inners[position], [value])
            continue
        reached: set[int] = set()
        for value in values[:1]:  # the pointer comes first
            reached |= sources.get(value, set())
        if name in _WRITES:
            found.written |= reached
        if name in _READS:
            found.read |= reached
        if name in _WRITES or name in _READS:
            continue  # what was read is data
        if result is not None:
            # An offset is an integer: of an addition, the pointer alone goes on.
            _flow(sources, result, values[:1] if name == "tt.addptr" else values)
    return sum(map(len, sources.values())) + len(found.written) + len(found.read) > before


def _flow(sources: dict[str, set[int]], target: str, values: Iterable[str]) -> None:
    for value in values:
        known = sources.get(value)
        if known:
            sources.setdefault(target, set()).update(known)


def _without_location(line: str) -> str:
    return re.sub(r"\s*loc\((?:[^()\"]|\"[^\"]*\"|\([^()]*\))*\)", "", line)


class Snapshot:
    """Copies of what a kernel may write, and how to put them back.

    Raises:
        CannotCopyError: an argument has no bytes to copy, or the copies do not fit.
    """

    def __init__(self, arguments: Mapping[str, Any], access: Access) -> None:
        self._kept: list[tuple[Any, Any, bool]] = []
        spans = _spans(arguments, access)
        needed: dict[Any, int] = {}
        for span in spans:
            needed[span.device] = needed.get(span.device, 0) + span.stop - span.start
        for device, size in needed.items():
            free = free_bytes(device)
            if free is not None and size > MEMORY_SHARE * free:
                raise CannotCopyError(
                    f"copies of what it may write take {size:,} bytes and {device} has {free:,}"
                )
        try:
            for span in spans:
                window = span.window()
                self._kept.append((window, window.clone(), span.carried))
        except (MemoryError, RuntimeError) as error:  # torch's OutOfMemoryError is the latter
            self._kept.clear()
            raise CannotCopyError(
                f"copies of what it may write do not fit: {type(error).__name__}"
            ) from None

    def restore(self, *, all_of_it: bool = True) -> None:
        """Put the contents back; otherwise only of what a launch may read back."""
        for window, copy, carried in self._kept:
            if all_of_it or carried:
                window.copy_(copy)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            # A lost device cannot be written to; the error that says so is on its way already.
            guard = contextlib.suppress(RuntimeError) if _[0] else contextlib.nullcontext()
            with guard:
                self.restore()
        finally:
            self._kept.clear()


@dataclass
class _Span:
    """Bytes ``start`` to ``stop`` of one storage, or a whole array without one."""

    owner: Any
    device: Any
    start: int
    stop: int
    carried: bool
    opaque: bool = False

    def window(self) -> Any:
        if self.opaque:
            return self.owner
        import torch  # noqa: PLC0415 - there are torch tensors, so it is loaded

        whole = torch.empty(0, dtype=torch.uint8, device=self.device)
        return whole.set_(self.owner, self.start, (self.stop - self.start,), (1,))


def _spans(arguments: Mapping[str, Any], access: Access) -> list[_Span]:
    """The bytes to keep, overlaps merged: what aliases something carried is carried."""
    found: dict[int, list[_Span]] = {}
    opaque: list[_Span] = []
    others: list[_Span] = []
    for name, value in arguments.items():
        written = name in access.written
        for tensor in _tensors(value):
            span = _span_of(name, tensor, carried=name in access.carried)
            if span is None:
                continue
            if not written:
                others.append(span)
            elif span.opaque:
                opaque.append(span)
            else:
                found.setdefault(span.owner.data_ptr(), []).append(span)
    merged: list[_Span] = []
    for spans in found.values():
        spans.sort(key=lambda span: span.start)
        for span in spans:
            last = merged[-1] if merged else None
            if last and last.owner.data_ptr() == span.owner.data_ptr() and span.start <= last.stop:
                last.stop = max(last.stop, span.stop)
                last.carried |= span.carried
            else:
                merged.append(span)
    for span in merged:  # written through one name and read through another
        span.carried |= any(
            not other.opaque
            and other.owner.data_ptr() == span.owner.data_ptr()
            and other.start < span.stop
            and span.start < other.stop
            for other in others
        )
    return [*merged, *opaque]


def _span_of(name: str, tensor: Any, *, carried: bool) -> _Span | None:
    if not hasattr(tensor, "untyped_storage"):
        if hasattr(tensor, "clone") and hasattr(tensor, "copy_"):
            return _Span(tensor, None, 0, 0, carried, opaque=True)
        raise CannotCopyError(f"argument {name} ({type(tensor).__name__}) cannot be copied")
    if tensor.numel() == 0:
        return None
    size = tensor.element_size()
    last = sum(
        (extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    start = tensor.storage_offset() * size
    storage = tensor.untyped_storage()
    return _Span(storage, tensor.device, start, start + (last + 1) * size, carried)


def torch_tensors(arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the arguments that are torch tensors themselves, by name."""
    return [(name, value) for name, value in arguments.items() if hasattr(value, "untyped_storage")]


def overlapping(arguments: Mapping[str, Any]) -> str | None:
    """Return which two arguments share memory, as a sentence, ``None`` where none do."""
    spans: list[tuple[int, int, str]] = []
    for name, tensor in torch_tensors(arguments):
        span = _span_of(name, tensor, carried=False)
        if span is None:
            continue
        base = span.owner.data_ptr()
        spans.append((base + span.start, base + span.stop, name))
    spans.sort()
    for (_, stop, name), (start, _, other) in pairwise(spans):
        if start < stop:
            return f"arguments {name} and {other} share memory"
    return None


def _has_memory(value: Any) -> bool:
    return next(_tensors(value), None) is not None


def _tensors(value: Any) -> Iterator[Any]:
    """What of an argument has memory: itself, what it wraps or describes, what it holds."""
    if hasattr(value, "untyped_storage"):
        yield value
    elif hasattr(value, "base") and not isinstance(value, type) and value.base is not None:
        yield from _tensors(value.base)  # a tensor descriptor, or another type's view
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "data_ptr"):
        yield value


def free_bytes(device: Any) -> int | None:
    """Return the memory left on a device in bytes, ``None`` where nobody says."""
    if device is None:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and getattr(device, "type", None) == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if getattr(device, "type", None) == "cpu":
        try:
            with open("/proc/meminfo", encoding="ascii") as listing:
                for line in listing:
                    if line.startswith("MemAvailable:"):
                        return int(line.split()[1]) * 1024
        except OSError:
            return None
    return None


def is_empty(arguments: Mapping[str, Any]) -> bool:
    """Whether a tensor among the arguments has no element."""
    for value in arguments.values():
        for tensor in _tensors(value):
            count = getattr(tensor, "numel", None)
            if callable(count) and count() == 0:
                return True
    return False
