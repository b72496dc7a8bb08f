"""Opening a store's file: made, mended, refused where it is another program's, or read at least."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from tuner.store.location import is_network
from tuner.store.schema import APPLICATION, TABLES, VERSION
from tuner.store.trouble import NotOursError, is_busy, is_corrupt


def open_file(path: Path, locked_s: float) -> sqlite3.Connection:
    """Return a connection to write through, or one to read through where nothing can be written.

    Raises:
        sqlite3.Error: the file is out of reach or beyond use.
    """
    if path.is_dir():
        raise NotOursError(f"{path} is a folder, not ours")
    connection = _connect(str(path), locked_s)
    try:
        marks = _marks(connection)
        if marks == (0, 0):
            with alone(path, locked_s):
                _create(connection, path)
        elif marks != (APPLICATION, VERSION):
            raise NotOursError(f"{path} is another program's, not ours")
        # In a write-ahead log a commit is on disk when it returns only so.
        connection.execute("PRAGMA synchronous = FULL")
        _try_reading(connection)
    except sqlite3.OperationalError as error:
        connection.close()
        if is_corrupt(error) or is_busy(error):
            raise
        # The folder may be read-only; what is there can still be read.
        return open_read_only(path, locked_s)
    except BaseException:
        connection.close()
        raise
    return connection


def open_read_only(path: Path, locked_s: float) -> sqlite3.Connection:
    """Return a connection that never writes.

    Raises:
        sqlite3.Error: the file is out of reach or beyond use.
    """
    error: sqlite3.Error | None = None
    # Without write access to the folder a log cannot be opened: then what it holds is missed.
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        connection = _connect(f"{path.resolve().as_uri()}?{mode}", locked_s, uri=True)
        try:
            if _marks(connection) != (APPLICATION, VERSION):
                raise NotOursError(f"{path} is another program's, not ours")
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


def is_beyond_use(path: Path, locked_s: float) -> bool:
    """Whether the file must go: it may have been mended meanwhile. Looks at every page."""
    if not path.exists():
        return False
    if path.is_dir():
        return True
    connection = _connect(str(path), locked_s)
    try:
        marks = _marks(connection)
        if marks == (0, 0):
            return _has_tables(connection)
        if marks != (APPLICATION, VERSION):
            return True
        for table in TABLES:
            connection.execute(f"{table.select} LIMIT 1").fetchone()
        return integrity(connection) != "ok"
    except sqlite3.Error as error:
        return is_corrupt(error)
    finally:
        connection.close()


def integrity(connection: sqlite3.Connection) -> str:
    """Return ``ok``, or the first thing that is wrong with a file."""
    return str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])


@contextlib.contextmanager
def alone(path: Path, locked_s: float) -> Iterator[None]:
    """Only one process makes or mends the file; where nothing can be locked, no matter."""
    lock = FileLock(f"{path}.lock", timeout=locked_s)
    try:
        lock.acquire()
    except (OSError, NotImplementedError, Timeout):
        yield
        return
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _create(connection: sqlite3.Connection, path: Path) -> None:
    # The log that lets readers and writers go on together needs memory shared by all of them.
    journal = "DELETE" if is_network(path.parent) else "WAL"
    connection.execute(f"PRAGMA journal_mode = {journal}")
    with transaction(connection):
        if _marks(connection) != (0, 0):
            return
        if _has_tables(connection):
            raise NotOursError(f"{path} is another program's, not ours")
        for table in TABLES:
            connection.execute(table.create)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _connect(target: str, locked_s: float, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(
        target, timeout=locked_s, isolation_level=None, check_same_thread=False, uri=uri
    )


def _marks(connection: sqlite3.Connection) -> tuple[int, int]:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    return int(application), int(connection.execute("PRAGMA user_version").fetchone()[0])


def _has_tables(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def _try_reading(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
