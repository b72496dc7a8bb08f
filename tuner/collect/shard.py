"""A shard: one run's rows, each on disk as soon as it is measured.

A file of lines, each a JSON object with the CRC-32 of what it holds: first a header that says under
which conditions the rows were measured, then one row a measurement. A process that is killed leaves
at most one torn line, at the end; it is cut off when the shard is opened again.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import (
    CorruptFileError,
    OutputFullError,
    ResumeMismatchError,
    SchemaMismatchError,
)

SHARD_VERSION = 1
SUFFIX = ".jsonl"

SYNC_SECONDS = 1.0
"""The system is asked this often to put rows on the medium itself: what it holds survives the
process, and only a power failure would lose it."""


@dataclass(frozen=True)
class Header:
    """Under which conditions the rows of a shard were measured; ``None`` where nobody said."""

    plan: str  # the digest
    protocol: str
    schema: int  # of the table that the rows will become
    gpu: str | None  # canonical name
    device: str  # as the driver says it
    driver: str | None = None
    compiler: str | None = None
    kernels: Mapping[str, str] = field(default_factory=dict)  # source hash by family
    version: int = SHARD_VERSION

    def require_same(self, begun: Header, where: str) -> None:
        """Refuse to go on with a shard that was begun under other conditions.

        Raises:
            ResumeMismatchError: the first condition that differs, with both values.
        """
        for item in fields(self):
            now, then = getattr(self, item.name), getattr(begun, item.name)
            if now != then:
                raise ResumeMismatchError(
                    f"{where} was begun with {_WORDS[item.name]} {then!r}, and this run has "
                    f"{now!r}; their times cannot be mixed: go back to the first, or choose "
                    "another folder with --out"
                )


_WORDS = {
    "plan": "plan", "protocol": "protocol", "schema": "schema", "gpu": "GPU", "device": "device",
    "driver": "driver", "compiler": "compiler", "kernels": "kernel sources",
    "version": "shard version",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One measurement.

    ``clocks`` holds what the device said of itself, by schema column; ``flags`` what is doubtful
    (`tuner.measure.measurement.FLAGS`); ``drift`` how much slower a reference kernel had become
    since the start, where it was timed just before.
    """

    item: int  # its number in the plan
    key: str
    outcome: Outcome
    samples_us: tuple[float, ...] = ()
    reason: str | None = None
    clocks: Mapping[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    flags: tuple[str, ...] = ()
    drift: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; what is empty is left out."""
        return {k: v for k, v in vars(self).items() if v not in (None, (), {})} | {
            "item": self.item,
            "outcome": self.outcome.value,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Row:
        """Return the row that `to_dict` described."""
        outcome, samples = Outcome(values["outcome"]), tuple(values.get("samples_us", ()))
        flags = tuple(values.get("flags", ()))
        return cls(**{**values, "outcome": outcome, "samples_us": samples, "flags": flags})


@dataclass(frozen=True)
class Shard:
    """What a shard's file holds; ``size`` counts its whole lines in bytes, ``torn`` the rest."""

    path: Path
    header: Header | None
    rows: tuple[Row, ...]
    size: int
    torn: int

    @property
    def keys(self) -> frozenset[str]:
        """The measurements that are done."""
        return frozenset(row.key for row in self.rows)


def read_shard(path: Path) -> Shard:
    """Read a shard, a torn end left out.

    Raises:
        CorruptFileError: a line that is not the last is damaged: that was no interrupted write.
        SchemaMismatchError: a shard of another version.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Shard(path, None, (), 0, 0)
    except OSError as error:
        raise CorruptFileError(f"{path} cannot be read: {error.strerror}") from error
    header, rows, size, bad = None, [], 0, 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        kind, values = _parse(line)
        if kind is None:
            bad = bad or number
        elif bad:
            raise CorruptFileError(
                f"{path}: line {bad} is damaged, and whole lines follow it; take that line out, "
                "and its measurement is repeated"
            )
        else:
            size += len(line)
            if kind == "header":
                header = _header(path, values)
            elif header is not None:
                rows.append(Row.from_dict(values))
    return Shard(path, header, tuple(rows), size, len(content) - size)


class ShardWriter:
    """Appends rows to a shard; each is with the system when `append` returns.

    Opening cuts a torn end off, writes the header of a new shard, and refuses one that was begun
    under other conditions. ``done`` holds the rows found.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        shard = read_shard(path)
        if shard.header is not None:
            header.require_same(shard.header, str(path))
        self.done = shard.rows
        self._synced = time.monotonic()
        self._size = shard.size
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.ftruncate(self._file, shard.size)
        except OSError as error:
            raise _full(path, error, len(self.done)) from error
        self._rows = len(self.done)
        if shard.header is None:
            self._write(_line("header", asdict(header)))

    def append(self, row: Row) -> None:
        """Write one row.

        Raises:
            OutputFullError: it cannot be written whole; nothing of it is left in the file.
        """
        self._write(_line("row", row.to_dict()))
        self._rows += 1
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Put what was written on the medium."""
        self._synced = time.monotonic()
        try:
            os.fsync(self._file)
        except OSError as error:
            raise _full(self.path, error, self._rows) from error

    def close(self) -> None:
        """Close the file; what was written stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, line: bytes) -> None:
        try:
            # One call: a signal's exception comes before or after it, never inside.
            written = os.pwrite(self._file, line, self._size)
            while written < len(line):
                written += os.pwrite(self._file, line[written:], self._size + written)
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise _full(self.path, error, self._rows) from error
        self._size += len(line)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shard_files(folder: Path) -> Sequence[Path]:
    """Return the shards in a folder, by name."""
    return sorted(folder.glob(f"shard-*{SUFFIX}"))


def _line(kind: str, values: Mapping[str, Any]) -> bytes:
    text = json.dumps(values, separators=(",", ":"), allow_nan=True)
    return f'{{"crc32":"{zlib.crc32(text.encode()):08x}","{kind}":{text}}}\n'.encode()


def _parse(line: bytes) -> tuple[str | None, Mapping[str, Any]]:
    """The kind of a line and what it holds; no kind where it is damaged."""
    for kind in ("row", "header"):
        head = f'","{kind}":'.encode()
        start = len(b'{"crc32":"00000000')
        if line[start : start + len(head)] != head or not line.endswith(b"}\n"):
            continue
        text = line[start + len(head) : -2]
        if line[start - 8 : start] == f"{zlib.crc32(text):08x}".encode():
            return kind, json.loads(text)
    return None, {}


def _header(path: Path, values: Mapping[str, Any]) -> Header:
    if values.get("version") != SHARD_VERSION:
        raise SchemaMismatchError(
            f"{path} is a shard of version {values.get('version')!r}, and this perfmodel reads "
            f"version {SHARD_VERSION}; finish it with the perfmodel that began it, or choose "
            "another folder with --out"
        )
    return Header(**values)


def _full(path: Path, error: OSError, rows: int) -> OutputFullError:
    return OutputFullError(
        f"cannot write {path}: {error.strerror or error}; its {rows:,} rows are safe. Free some "
        "space and run the same command again: it goes on from there"
    )
