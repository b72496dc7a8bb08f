"""A sqlite file that may be corrupt, locked, full, read-only or stale, and a process that forks.

Every operation answers: from the file where that works, else from memory.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from tuner.store.location import is_network
from tuner.store.schema import APPLICATION, TABLES, VERSION, Table
from tuner.store.trouble import TROUBLE, NotOursError, is_corrupt, warn_once

Row = tuple[Any, ...]
T = TypeVar("T")

LOCKED_S = 5.0
"""Seconds to wait for other writers. Each holds the file for the time of one flush to disk."""

RETRY_S = 30.0
"""Seconds after trouble until the file is tried again; until then memory answers at once."""

_open: weakref.WeakSet[Database] = weakref.WeakSet()
_hooks_lock = threading.Lock()
_hooked = False


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
        self._pending = 0
        self._blocked_until = {"read": float("-inf"), "write": float("-inf")}
        self.trouble: str | None = None
        self.lock = threading.RLock()
        self.pid = os.getpid()
        _watch_forks(self)

    def read(self, table: Table, where: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
        """Return sound rows, those in memory last."""
        statement = f"{table.select} WHERE {where}"
        with self._mine():
            rows = self._on_file(lambda c: c.execute(statement, parameters).fetchall(), []) or []
            if self._memory is not None:
                rows += self._memory.execute(statement, parameters).fetchall()
        return [values for row in rows if (values := table.values(row)) is not None]

    def write(self, table: Table, rows: Sequence[Row], *, keep: bool = False) -> bool:
        """Write rows; return whether they are on disk now. With ``keep`` older ones stand."""
        statement = table.keep if keep else table.replace
        # Found the way readers find it, by a walk over what shares its first three columns.
        walked, filtered = table.key_columns[:3], table.key_columns[3:]
        conditions = [f"{name} = ?" for name in walked] + [f"+{name} = ?" for name in filtered]
        found = f"SELECT 1 FROM {table.name} WHERE {' AND '.join(conditions)}"

        def insert(connection: sqlite3.Connection) -> bool:
            with _transaction(connection):
                connection.executemany(statement, rows)
            # A file damaged where sqlite does not look takes rows and never finds them again.
            if rows and connection.execute(found, rows[-1][: table.keys]).fetchone() is None:
                raise NotOursError(f"{self.path} does not find what was written to it: malformed")
            return True

        with self._mine():
            if not self.read_only and self._on_file(insert, False, make=True):
                return True
            insert(self._in_memory())
            self._pending += len(rows)
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
                with _transaction(connection):  # it can be written
                    pass
            return str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])

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
        return self._pending

    @contextlib.contextmanager
    def _mine(self) -> Iterator[None]:
        if os.getpid() != self.pid:  # a fork that Python was not told of
            self.after_fork()
        with self.lock:
            yield

    def before_fork(self) -> None:
        """Hold still, with the file closed, while the process is copied."""
        self.lock.acquire()
        self._let_go()

    def after_fork(self) -> None:
        """Start afresh in the child: the lock may belong to a thread that is not there."""
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
        if self.path is None or self._clock() < self._blocked_until[kind]:
            return otherwise
        error: BaseException | None = None
        for attempt in range(2):
            try:
                connection = self._connection(make=make)
                if connection is None:
                    return otherwise
                answer = operation(connection)
            except TROUBLE as failure:
                error = failure
                self._let_go()
                if is_corrupt(failure):
                    self._heal(failure)
                elif attempt == 0 and _is_busy(failure):
                    break  # it has waited long enough
            else:
                if kind == "write" or self.read_only:
                    self.trouble = None
                self._flush()
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
            self._file = self._open_read_only() if there else None
            return self._file
        if not there and not make and not self._pending:
            return None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_dir():
            raise NotOursError(f"{self.path} is a folder, not ours")
        self._file = self._open_file()
        return self._file

    def _open_file(self) -> sqlite3.Connection:
        connection = self._connect(str(self.path))
        try:
            application, version = _marks(connection)
            if (application, version) == (0, 0):
                with self._alone():
                    self._create(connection)
            elif (application, version) != (APPLICATION, VERSION):
                raise NotOursError(f"{self.path} is another program's, not ours")
            # In a write-ahead log a commit is on disk when it returns only so.
            connection.execute("PRAGMA synchronous = FULL")
            _try_reading(connection)
        except sqlite3.OperationalError as error:
            connection.close()
            if is_corrupt(error) or _is_busy(error):
                raise
            # The folder may be read-only; what is there can still be read.
            return self._open_read_only()
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self, connection: sqlite3.Connection) -> None:
        assert self.path is not None
        # The log that lets readers and writers go on together needs memory shared by all of them.
        journal = "DELETE" if is_network(self.path.parent) else "WAL"
        connection.execute(f"PRAGMA journal_mode = {journal}")
        with _transaction(connection):
            if _marks(connection) != (0, 0):
                return
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise NotOursError(f"{self.path} is another program's, not ours")
            for table in TABLES:
                connection.execute(table.create)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")

    def _open_read_only(self) -> sqlite3.Connection:
        assert self.path is not None
        error: sqlite3.Error | None = None
        # Without write access to the folder a log cannot be opened: then what it holds is missed.
        for mode in ("mode=ro", "mode=ro&immutable=1"):
            connection = self._connect(f"{self.path.resolve().as_uri()}?{mode}", uri=True)
            try:
                if _marks(connection) != (APPLICATION, VERSION):
                    raise NotOursError(f"{self.path} is another program's, not ours")
                _try_reading(connection)
            except sqlite3.OperationalError as failure:
                connection.close()
                error = failure
            except BaseException:
                connection.close()
                raise
            else:
                return connection
        assert error is not None
        raise error

    def _connect(self, target: str, *, uri: bool = False) -> sqlite3.Connection:
        return sqlite3.connect(
            target, timeout=self._locked_s, isolation_level=None, check_same_thread=False, uri=uri
        )

    def _flush(self) -> None:
        """Bring rows that had to stay in memory to the file, where it is back."""
        blocked = self._clock() < self._blocked_until["write"]
        if not self._pending or self.read_only or blocked or self._file is None:
            return
        memory = self._in_memory()
        waiting = [(table, memory.execute(table.select).fetchall()) for table in TABLES]
        try:
            with _transaction(self._file):
                for table, rows in waiting:
                    self._file.executemany(table.replace, rows)
        except TROUBLE as failure:
            self._block("write", failure)
            return
        for table in TABLES:
            memory.execute(f"DELETE FROM {table.name}")
        self._pending = 0

    def _heal(self, error: BaseException) -> None:
        """Move a file beyond use aside, so that the next attempt makes a new one."""
        if self.read_only or self.path is None:
            return
        with contextlib.suppress(*TROUBLE), self._alone():
            if not self._still_corrupt():
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

    def _still_corrupt(self) -> bool:
        assert self.path is not None
        if not self.path.exists():
            return False
        if self.path.is_dir():
            return True
        connection = self._connect(str(self.path))
        try:
            if _marks(connection) == (0, 0):
                return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
            if _marks(connection) != (APPLICATION, VERSION):
                return True
            for table in TABLES:
                connection.execute(f"{table.select} LIMIT 1").fetchone()
            return bool(connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok")
        except sqlite3.Error as error:
            return is_corrupt(error)
        finally:
            connection.close()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one process makes or mends the file; where nothing can be locked, no matter."""
        lock = FileLock(f"{self.path}.lock", timeout=self._locked_s)
        try:
            lock.acquire()
        except (OSError, NotImplementedError, Timeout):
            yield
            return
        try:
            yield
        finally:
            lock.release()

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


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _marks(connection: sqlite3.Connection) -> tuple[int, int]:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    return int(application), int(connection.execute("PRAGMA user_version").fetchone()[0])


def _try_reading(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and (
        "locked" in str(error) or "busy" in str(error)
    )


def _watch_forks(database: Database) -> None:
    """Have ``database`` told of forks; Python cannot unhook, so one hook serves all."""
    global _hooked  # noqa: PLW0603 - hooks are the process's
    with _hooks_lock:
        _open.add(database)
        if not _hooked and hasattr(os, "register_at_fork"):
            held: list[Database] = []

            def before() -> None:
                held[:] = list(_open)
                for each in held:
                    each.before_fork()

            def in_parent() -> None:
                for each in reversed(held):
                    each.lock.release()
                held.clear()

            def in_child() -> None:
                for each in held:
                    each.after_fork()
                held.clear()

            os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
            _hooked = True
