"""Verified downloads that continue where the last attempt stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfmodel.dataset.atomic import cannot_write
from perfmodel.dataset.registry import SourceFile
from perfmodel.errors import CorruptFileError, RunFailedError

_BLOCK = 1 << 16
_TIMEOUT_S = 30.0
_PARTIAL_CONTENT = 206


def download(file: SourceFile, path: Path, advance: Callable[[int], None]) -> None:
    """Download ``file`` to ``path`` and check its sha256; ``path`` appears only when it is right.

    An interrupted download is kept beside ``path`` as ``NAME.part`` and continued by the next call.

    Raises:
        RunFailedError: the server cannot be reached or refuses.
        CorruptFileError: what arrived has another sha256 (both are in the message).
        CacheFolderError: the folder cannot be written.
    """
    import requests  # noqa: PLC0415 - slow to import, and needed only here

    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _continue(requests, file, part, advance)
        found = sha256_of(part)
        if found != file.sha256:
            part.unlink()
            raise CorruptFileError(
                f"{file.url} arrived truncated or altered: its sha256 is {found}, "
                f"expected {file.sha256}; nothing was kept"
            )
        part.replace(path)
    except requests.RequestException as error:
        raise RunFailedError(
            f"cannot download {file.url}: {error}; try again to continue where it stopped, or give "
            "a mirror folder with --mirror DIR"
        ) from error
    except OSError as error:
        part.unlink(missing_ok=True)  # a full disk gets its space back
        raise cannot_write(path, error) from error


def sha256_of(path: Path) -> str:
    """Return the file's sha256 in hex, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _continue(requests: Any, file: SourceFile, part: Path, advance: Callable[[int], None]) -> None:
    have = part.stat().st_size if part.is_file() else 0
    if have > file.size_bytes:
        have = 0
    if have == file.size_bytes:
        advance(have)
        return
    headers = {"Accept-Encoding": "identity"}  # a range counts the file's own bytes
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(file.url, headers=headers, stream=True, timeout=_TIMEOUT_S) as answer:
        answer.raise_for_status()
        if answer.status_code != _PARTIAL_CONTENT:  # the whole file comes: start over
            have = 0
        advance(have)
        with part.open("ab" if have else "wb") as stream:
            for block in answer.iter_content(_BLOCK):
                have += len(block)
                if have > file.size_bytes:
                    break  # longer than stated: the checksum will refuse it
                stream.write(block)
                advance(len(block))
    if have < file.size_bytes:
        raise requests.ConnectionError(f"the server closed after {have} of {file.size_bytes} bytes")
