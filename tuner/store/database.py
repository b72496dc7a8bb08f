"""A sqlite file that may be corrupt, locked, full, read-only or stale, and a process that forks.

Every operation answers: from the file where that works, else from memory.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tuner.store.connection import (
    alone,
    integrity,
    is_beyond_use,
    open_file,
    open_read_only,
    transaction,
)
from tuner.store.forks import watch
from tuner.store.schema import TABLES, Table
from tuner.store.trouble import TROUBLE, NotOursError, is_busy, is_corrupt, warn_once

Row = tuple[Any, ...]
T = TypeVar("T")

LOCKED_S = 5.0
"""Seconds to wait for other writers. Each holds the file for the time of one flush to disk."""

RETRY_S = 30.0
"""Seconds after trouble until the file is tried again; until then memory answers at once."""


@dataclass(frozen=True)
class _Write:
    """Rows for a table; with ``keep`` older ones about the same thing stand."""

    table: Table
    keep: bool
    rows: tuple[Row, ...]

    @property
    def statement(self) -> str:
        return self.table.keep if self.keep else self.table.replace


class Database:
    """One sqlite file with memory behind it.

    Rows that cannot be written stay in memory and go to the file when it is back. One connection a
    process, used by one thread at a time; closed before a fork, since a child that inherits one
    believes that it holds the parent's locks.

    Args:
        path: the file; ``None`` keeps everything in memory.
        read_only: never write the file, nor make, move or repair it (a shared tier).
        locked_s: how long to wait for other writers.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        read_only: bool = False,
        locked_s: float = LOCKED_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.read_only = read_only
        self._locked_s = locked_s
        self._clock = clock
        self._file: sqlite3.Connection | None = None
        self._memory: sqlite3.Connection | None = None
        self._pending: list[_Write] = []
        self._blocked_until = {"read": float("-inf"), "write": float("-inf")}
        self.trouble: str | None = None
        self.lock = threading.RLock()
        self.pid = os.getpid()
        watch(self)

    def read(self, table: Table, where: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
        """Return sound rows, those in memory last."""
        statement = f"{table.select} WHERE {where}"
        with self._mine():
            rows = self._on_file(lambda c: c.execute(statement, parameters).fetchall(), []) or []
            if self._memory is not None:
                rows += self._memory.execute(statement, parameters).fetchall()
        return [values for row in rows if (values := table.values(row)) is not None]

    def has(self, table: Table) -> bool:
        """Return whether a table may have rows, sound or not."""
        statement = f"SELECT 1 FROM {table.name} LIMIT 1"
        with self._mine():
            found = self._on_file(lambda c: c.execute(statement).fetchone(), None)
            if found is None and self._memory is not None:
                found = self._memory.execute(statement).fetchone()
        return found is not None

    def write(self, table: Table, rows: Sequence[Row], *, keep: bool = False) -> bool:
        """Write rows; return whether they are on disk now. With ``keep`` older ones stand."""
        wanted = _Write(table, keep, tuple(rows))
        # Found the way readers find it, by a walk over what shares its first three columns.
        walked, filtered = table.key_columns[:3], table.key_columns[3:]
        conditions = [f"{name} = ?" for name in walked] + [f"+{name} = ?" for name in filtered]
        found = f"SELECT 1 FROM {table.name} WHERE {' AND '.join(conditions)}"

        def insert(connection: sqlite3.Connection) -> bool:
            with transaction(connection):
                connection.executemany(wanted.statement, wanted.rows)
            # A file damaged where sqlite does not look takes rows and never finds them again.
            if rows and connection.execute(found, rows[-1][: table.keys]).fetchone() is None:
                raise NotOursError(f"{self.path} does not find what was written to it: malformed")
            return True

        with self._mine():
            if not self.read_only and self._on_file(insert, False, make=True):
                return True
            insert(self._in_memory())
            if self.path is not None and not self.read_only:
                self._pending.append(wanted)
            return False

    def delete(self, table: Table, where: str = "1", parameters: Sequence[Any] = ()) -> int:
        """Remove rows and return how many there were."""
        statement = f"DELETE FROM {table.name} WHERE {where}"
        with self._mine():
            gone = self._on_file(lambda c: c.execute(statement, parameters).rowcount, 0)
            if self._memory is not None:
                gone += self._memory.execute(statement, parameters).rowcount
        return int(gone)

    def check(self) -> str | None:
        """Return what is wrong with the file, ``None`` for nothing; looks at every page."""

        def inspect(connection: sqlite3.Connection) -> str:
            if not self.read_only:
                with transaction(connection):  # it can be written
                    pass
            return integrity(connection)

        with self._mine():
            self._blocked_until = dict.fromkeys(self._blocked_until, float("-inf"))
            found = self._on_file(inspect, None, make=not self.read_only)
        if found is not None:
            return None if found == "ok" else found
        return self.trouble

    def close(self) -> None:
        """Let go of the file; the next use opens it again."""
        with self._mine():
            self._let_go()

    @property
    def pending(self) -> int:
        """How many rows are in memory only."""
        return sum(len(write.rows) for write in self._pending)

    @contextlib.contextmanager
    def _mine(self) -> Iterator[None]:
        if os.getpid() != self.pid:  # a fork that Python was not told of
            self.after_fork(child=True)
        with self.lock:
            yield

    def before_fork(self) -> None:
        """Hold still, with the file closed, while the process is copied."""
        self.lock.acquire()
        self._let_go()

    def after_fork(self, *, child: bool) -> None:
        """Go on; in the child afresh, for the lock may belong to a thread that is not there."""
        if not child:
            self.lock.release()
            return
        if self._file is not None:
            _inherited.append(self._file)  # closing it here would drop the parent's write-ahead log
            self._file = None
        self.lock = threading.RLock()
        self.pid = os.getpid()

    def _let_go(self) -> None:
        if self._file is not None:
            with contextlib.suppress(sqlite3.Error):
                self._file.close()
            self._file = None

    def _in_memory(self) -> sqlite3.Connection:
        if self._memory is None:
            self._memory = sqlite3.connect(
                ":memory:", check_same_thread=False, isolation_level=None
            )
            for table in TABLES:
                self._memory.execute(table.create)
        return self._memory

    def _on_file(
        self, operation: Callable[[sqlite3.Connection], T], otherwise: T, *, make: bool = False
    ) -> T:
        """Do it on the file; on trouble once more, on a fresh connection; then ``otherwise``."""
        kind = "write" if make else "read"
        if self.path is None or self._is_blocked(kind):
            return otherwise
        error: BaseException | None = None
        for attempt in range(2):
            try:
                connection = self._connection(make=make)
                if connection is None:
                    return otherwise
                if kind == "write":  # older rows first, so that they never replace newer ones
                    self._flush(connection)
                answer = operation(connection)
            except TROUBLE as failure:
                error = failure
                self._let_go()
                if is_corrupt(failure):
                    self._heal(failure)
                elif attempt == 0 and is_busy(failure):
                    break  # it has waited long enough
            else:
                if kind == "write" or self.read_only:
                    self.trouble = None
                if kind == "read" and not self._is_blocked("write"):
                    try:
                        self._flush(connection)
                    except TROUBLE as failure:
                        self._block("write", failure)
                return answer
        self._block(kind, error)
        return otherwise

    def _connection(self, *, make: bool) -> sqlite3.Connection | None:
        """The open file; ``None`` where there is none and nothing is to be made."""
        if self._file is not None:
            return self._file
        assert self.path is not None
        there = self.path.exists()
        if self.read_only:
            self._file = open_read_only(self.path, self._locked_s) if there else None
            return self._file
        if not there and not make and not self._pending:
            return None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_file(self.path, self._locked_s)
        return self._file

    def _flush(self, connection: sqlite3.Connection) -> None:
        """Bring rows that had to stay in memory to the file, in the order they were written."""
        if not self._pending:
            return
        memory = self._in_memory()
        with transaction(connection):
            for write in self._pending:
                there = f"SELECT 1 FROM {write.table.name} WHERE {_same_key(write.table)}"
                rows = [
                    row for row in write.rows
                    if memory.execute(there, row[: write.table.keys]).fetchone()  # not deleted
                ]  # fmt: skip
                connection.executemany(write.statement, rows)
        for table in TABLES:
            memory.execute(f"DELETE FROM {table.name}")
        self._pending.clear()

    def _is_blocked(self, kind: str) -> bool:
        return self._clock() < self._blocked_until[kind]

    def _heal(self, error: BaseException) -> None:
        """Move a file beyond use aside, so that the next attempt makes a new one."""
        if self.read_only or self.path is None:
            return
        with contextlib.suppress(*TROUBLE), alone(self.path, self._locked_s):
            if not is_beyond_use(self.path, self._locked_s):
                return  # another process has seen to it
            aside = self.path.with_name(f"{self.path.name}.corrupt-{int(time.time())}-{self.pid}")
            os.replace(self.path, aside)
            for end in ("-wal", "-shm", "-journal"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{end}", f"{aside}{end}")
            warn_once(
                str(self.path),
                f"the tuner's cache {self.path} cannot be used ({error}); it was moved to "
                f"{aside.name} and a new one begun",
            )

    def _block(self, kind: str, error: BaseException | None) -> None:
        # What cannot be written, because it is full or locked, can often be read.
        self._blocked_until[kind] = self._clock() + RETRY_S
        self.trouble = f"{type(error).__name__}: {error}" if error is not None else "no answer"
        use = "not read" if self.read_only else "kept in memory by this process"
        warn_once(
            str(self.path),
            f"the tuner's cache {self.path} cannot be used now ({error}); its rows are {use}; "
            "see: perfmodel cache doctor",
        )


_inherited: list[sqlite3.Connection] = []


def _same_key(table: Table) -> str:
    return " AND ".join(f"{name} = ?" for name in table.key_columns)
