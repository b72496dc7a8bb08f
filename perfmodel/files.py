"""Files that appear whole or not at all, and the folder for those that are ours."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from perfmodel.errors import CacheFolderError

CACHE_VARIABLE = "PERFMODEL_CACHE_DIR"
CACHE_OPTION = f"--cache DIR or {CACHE_VARIABLE}"


def cache_dir(cache: str | Path | None = None) -> Path:
    """Return the cache folder: ``cache``, else ``PERFMODEL_CACHE_DIR``, else the user's own."""
    chosen = cache or os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return platformdirs.user_cache_path("perfmodel", appauthor=False)


@contextmanager
def atomic_path(path: Path, option: str = CACHE_OPTION) -> Iterator[Path]:
    """Yield a temporary path in ``path``'s folder; rename it to ``path`` when the block succeeds.

    ``option`` is how the user chooses another folder, for the error's message.

    Raises:
        CacheFolderError: the folder cannot be made or written, or is full. Nothing is left behind.
    """
    partial: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not mkstemp, which hides the file from other users of a shared folder.
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        partial.touch(exist_ok=False)
        yield partial
        os.replace(partial, path)
        partial = None
    except OSError as error:
        raise cannot_write(path, error, option) from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError, option: str = CACHE_OPTION) -> CacheFolderError:
    """Return the error for a file that could not be written, with the ways out."""
    reason = error.strerror or str(error)
    return CacheFolderError(
        f"cannot write {path}: {reason}; free some space or choose another folder with {option}"
    )
