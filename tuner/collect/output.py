"""Where a collection lies: a local folder, or any address that fsspec knows.

Rows are always written to a local folder first, since object stores cannot append; whole files are
then copied to the address. What a lost machine had not copied yet is measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import posixpath
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfmodel.errors import NotInstalledError, OutputLockedError, RunFailedError, UsageError
from perfmodel.files import cache_dir
from tuner.collect.lock import describe, me
from tuner.collect.shard import SUFFIX, read_shard

STALE_SECONDS = 120.0
"""A holder of a remote shard that has not been heard of for this long is gone."""

_log = logging.getLogger(__name__)


class Output:
    """A place for shards and tables.

    Args:
        address: a folder, or an fsspec address such as ``s3://bucket/run1``.
        work: where local copies of a remote output lie; by default in the user's cache.

    Raises:
        NotInstalledError: the address needs fsspec, or a package of its own.
        UsageError: no such kind of address.
    """

    def __init__(self, address: str | Path, work: Path | None = None) -> None:
        self.address = str(address)
        self._files: Any = None
        self._root = ""
        self._held: str | None = None
        scheme, separator, rest = self.address.partition("://")
        if not separator or scheme == "file":
            self.folder = Path(rest if separator else self.address).expanduser()
            return
        self._files, self._root = _open(self.address, scheme)
        digest = hashlib.sha256(self.address.encode()).hexdigest()[:16]
        self.folder = (work or cache_dir() / "collect") / digest

    @property
    def is_remote(self) -> bool:
        """Whether files are copied to an address."""
        return self._files is not None

    def fetch(self, name: str) -> None:
        """Copy ``name`` here, unless it is not there or holds fewer rows than the copy here.

        Raises:
            RunFailedError: the address does not answer.
        """
        if not self.is_remote:
            return
        path, away = self.folder / name, self._at(name)
        with self._asking(f"fetch {name} from"):
            if not self._files.exists(away):
                return
            there = self.folder / f".{name}.fetched"
            self.folder.mkdir(parents=True, exist_ok=True)
            self._files.get_file(away, str(there))
        is_shard = path.is_file() and name.endswith(SUFFIX)
        if is_shard and len(read_shard(path).rows) >= len(read_shard(there).rows):
            there.unlink()
        else:
            there.replace(path)

    def fetch_all(self, pattern: str = f"shard-*{SUFFIX}") -> None:
        """Copy every file of that pattern here."""
        if not self.is_remote:
            return
        with self._asking("list"):
            names = [posixpath.basename(p) for p in self._files.glob(self._at(pattern))]
        for name in names:
            self.fetch(name)

    def send(self, name: str, *, final: bool = False) -> None:
        """Copy ``name`` to the address; unless ``final``, trouble is logged and tried again later.

        Raises:
            RunFailedError: at the end of a run the address does not answer; the rows are here.
        """
        if not self.is_remote:
            return
        try:
            with self._asking(f"copy {name} to"):
                self._files.makedirs(self._root, exist_ok=True)
                partial = self._at(f".{name}.part")
                self._files.put_file(str(self.folder / name), partial)
                self._files.mv(partial, self._at(name))
                self._say_held()
        except RunFailedError as error:
            if final:
                raise RunFailedError(
                    f"{error}; the rows are safe in {self.folder}, and the same command goes on"
                ) from error
            _log.warning("%s; it is tried again", error)

    @contextlib.contextmanager
    def holding(self, name: str) -> Iterator[None]:
        """Say at the address who writes ``name``; stores have no locks, so this is a courtesy.

        Raises:
            OutputLockedError: somebody else said so within the last minutes.
        """
        if not self.is_remote:
            yield
            return
        away = self._at(f"{name}.holder.json")
        ours = me()
        with self._asking("read"):
            there = json.loads(self._files.cat_file(away)) if self._files.exists(away) else {}
        fresh = time.time() - float(there.get("at", 0)) < STALE_SECONDS
        if fresh and there.get("host") != ours["host"]:
            raise OutputLockedError(
                f"{self.address}/{name} is being written by {describe(there)}; wait for it, end "
                "it, or choose another address with --out"
            )
        self._held = away
        with self._asking("write to"):
            self._files.makedirs(self._root, exist_ok=True)
            self._say_held()
        try:
            yield
        finally:
            self._held = None
            with contextlib.suppress(Exception):  # stale soon, should it stay
                self._files.rm_file(away)

    def _say_held(self) -> None:
        if self._held is not None:
            text = json.dumps({**me(), "at": time.time()})
            self._files.pipe_file(self._held, text.encode())

    def _at(self, name: str) -> str:
        return posixpath.join(self._root, name)

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # every store raises classes of its own
            raise RunFailedError(
                f"cannot {what} {self.address}: {type(error).__name__}: {error}"
            ) from error


def _open(address: str, scheme: str) -> tuple[Any, str]:
    try:
        import fsspec  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NotInstalledError(
            f"output {address} needs fsspec; install it with: pip install 'perfmodel[fleet]', or "
            "give a local folder"
        ) from error
    try:
        files, root = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise NotInstalledError(f"output {address}: {error}") from error
    except ValueError as error:
        raise UsageError(
            f"output {address}: fsspec knows no {scheme!r} ({error}); give a folder or an address "
            "such as s3://bucket/run1"
        ) from error
    return files, str(root)
