"""Fetching published files, checking them, and importing them into the cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filelock import FileLock

from perfmodel.dataset import schema, store
from perfmodel.dataset.download import download, sha256_of
from perfmodel.dataset.quality import GateReport, apply_gates
from perfmodel.dataset.registry import Dataset, SourceFile, find
from perfmodel.dataset.schema import TableInfo
from perfmodel.dataset.sources import importer
from perfmodel.errors import CorruptFileError, DataError, MissingDataError
from perfmodel.files import cannot_write

MIRROR_VARIABLE = "PERFMODEL_DATA_MIRROR"

Advance = Callable[[str, int], None]
"""Called with a step's name (``fetch`` or ``import``) and how many more bytes of it are done."""


@dataclass(frozen=True)
class Pulled:
    """What `pull` did: ``report`` is None where an up-to-date import was already there."""

    dataset: Dataset
    path: Path
    report: GateReport | None


def pull(
    name: str,
    *,
    mirror: str | Path | None = None,
    cache: str | Path | None = None,
    force: bool = False,
    advance: Advance | None = None,
) -> Pulled:
    """Fetch, verify and import dataset ``name``; do nothing where that is already done.

    Args:
        name: a registry name.
        mirror: a folder that holds ``github.com/OWNER/REPO/COMMIT/PATH``; by default
            ``PERFMODEL_DATA_MIRROR``, else the files are downloaded.
        cache: the cache folder, see `store.cache_dir`.
        force: import again even if the import is up to date.
        advance: told of progress.

    Raises:
        DataError: unknown name. MissingDataError: the mirror lacks a file.
        CorruptFileError: a file's sha256 or content is not what it should be.
        CacheFolderError: the cache cannot be written. RunFailedError: the download failed.
    """
    dataset = find(name)
    tell = advance or _silent
    target = store.table_path(name, cache)
    if not force and _up_to_date(dataset, target):
        return Pulled(dataset, target, None)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target.with_name(f".{name}.lock"))
        lock.acquire()
    except OSError as error:
        raise cannot_write(target, error) from error
    with lock:
        if not force and _up_to_date(dataset, target):  # another process did it meanwhile
            return Pulled(dataset, target, None)
        for left_behind in target.parent.glob(f".{target.name}.*.part"):  # by a killed process
            left_behind.unlink(missing_ok=True)
        paths = [
            fetch(file, mirror=mirror, cache=cache, advance=partial(tell, "fetch"))
            for file in dataset.files
        ]
        module = importer(dataset.importer)
        frame = module.read(dataset, paths, partial(tell, "import"))
        frame, report = apply_gates(frame)
        info = TableInfo(
            source=dataset.name,
            files={file.name: file.sha256 for file in dataset.files},
            importer=dataset.importer,
            importer_version=module.VERSION,
            licence=dataset.licence,
            gates=report.to_dict(),
        )
        schema.write(frame, target, info)
    return Pulled(dataset, target, report)


def fetch(
    file: SourceFile,
    *,
    mirror: str | Path | None = None,
    cache: str | Path | None = None,
    advance: Callable[[int], None] | None = None,
) -> Path:
    """Return a local copy of ``file`` whose sha256 is right: the mirror's, or a download's."""
    tell = advance or partial(_silent, "fetch")
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


def _up_to_date(dataset: Dataset, target: Path) -> bool:
    try:
        return store.staleness(dataset, schema.read_info(target)) is None
    except DataError:
        return False
